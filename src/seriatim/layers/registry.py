"""Every architecture by name. A new one is a file and a line here."""

from ..errors import InputError, nearest
from ..layer import RecurrentCell, SequenceLayer
from .attention import Attention
from .convolution import Convolution
from .gru import GRU
from .gru_original import OriginalGRU
from .lstm import LSTM
from .lstm_coupled import CoupledLSTM
from .lstm_layernorm import LayerNormLSTM
from .lstm_peephole import PeepholeLSTM
from .mamba import Mamba
from .mgu import MGU
from .mingru import MinGRU
from .residual_rnn import ResidualRNN
from .rnn import RNN
from .s4d import S4D
from .self_attention import SelfAttention
from .transformer import Transformer
from .unigram import Unigram
from .window import Window

REGISTRY: dict[str, type[SequenceLayer] | type[RecurrentCell]] = {
    "rnn": RNN,
    "lstm": LSTM,
    "gru": GRU,
    "residual-rnn": ResidualRNN,
    "mgu": MGU,
    "gru-original": OriginalGRU,
    "lstm-peephole": PeepholeLSTM,
    "lstm-coupled": CoupledLSTM,
    "lstm-layernorm": LayerNormLSTM,
    "mingru": MinGRU,
    "mamba": Mamba,
    "unigram": Unigram,
    "window": Window,
    "convolution": Convolution,
    "s4d": S4D,
    "self-attention": SelfAttention,
    "attention": Attention,
    "transformer": Transformer,
}


def split_names(name: str) -> list[str]:
    """The names of a stack that mixes layers: ``"mamba,mamba,transformer"``."""
    return [part.strip() for part in name.split(",")]


def names() -> list[str]:
    """Every registered name."""
    return list(REGISTRY)


def find(name: str) -> type[SequenceLayer] | type[RecurrentCell]:
    """The class registered under a name.

    Raises:
        ValueError: no such layer; the message names the nearest.
    """
    if name not in REGISTRY:
        raise InputError(f"unknown layer {name!r}; {nearest(name, names())}")
    return REGISTRY[name]
