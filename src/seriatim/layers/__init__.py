"""Every architecture, one a file, behind one contract."""

from .bidirectional import Bidirectional
from .gru import GRU
from .lstm import LSTM
from .registry import REGISTRY, check_options, find, layer, names
from .rnn import RNN
from .stack import Stack
from .torch_nn import from_torch, to_torch

__all__ = [
    "GRU",
    "LSTM",
    "REGISTRY",
    "RNN",
    "Bidirectional",
    "Stack",
    "check_options",
    "find",
    "from_torch",
    "layer",
    "names",
    "to_torch",
]
