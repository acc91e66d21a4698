"""Every architecture, one a file, behind one contract."""

from .bidirectional import Bidirectional
from .block import Residual
from .declared_options import check_options, options_of
from .describe import describe
from .experts import count_experts
from .factory import layer
from .registry import REGISTRY, current, find, names, register, split_names
from .stack import Stack
from .torch_nn import from_torch, to_torch

__all__ = [
    "REGISTRY",
    "Bidirectional",
    "Residual",
    "Stack",
    "check_options",
    "count_experts",
    "current",
    "describe",
    "find",
    "from_torch",
    "layer",
    "names",
    "options_of",
    "register",
    "split_names",
    "to_torch",
]
