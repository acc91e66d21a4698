"""Every architecture by name. A new one is a file and a line here; `register` adds a user's own."""

import inspect
import re
import warnings

from ..core.contract import RecurrentCell, SequenceLayer
from ..core.errors import InputError, nearest
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
from .prior import Prior
from .residual_rnn import ResidualRNN
from .rnn import RNN
from .s4 import S4
from .s4d import S4D
from .self_attention import SelfAttention
from .transformer import Transformer
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
    "prior": Prior,
    "window": Window,
    "convolution": Convolution,
    "s4": S4,
    "s4d": S4D,
    "self-attention": SelfAttention,
    "attention": Attention,
    "transformer": Transformer,
}

BUILT_IN = dict(REGISTRY)
"""The layers of the library; `REGISTRY` also holds those that users register."""
RENAMED = {
    "unigram": (
        "prior",
        "it ignores the text: as a language model it learns token frequencies (a unigram model), as a classifier label "
        "frequencies (not a bag of words)",
    )
}
"""Former names: the present name, and why it was changed. Runs that were trained under them open under them."""
RESERVED = frozenset({"ngram", *RENAMED})
"""Names that mean something else on the command line: n-gram models are counted, not built of layers."""
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


def register(name: str, architecture: type[SequenceLayer] | type[RecurrentCell]) -> None:
    """Registers a layer or a cell of one's own, so that its name works wherever a layer is named.

    The constructor takes ``(input_size, hidden_size)`` and keyword-only arguments, which become ``model.options``. The
    registration holds for this process; the processes in which `seriatim.compare` trains import the class from the file
    that defines it.

    Args:
        name: letters, digits, ``-`` and ``_``, beginning with a letter. A class may be registered again after it was
            defined again, as in a notebook.
        architecture: a subclass of `SequenceLayer` or `RecurrentCell`.

    Raises:
        InputError: a name that does not fit or is taken, or a class that is not a layer or a cell.
    """
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InputError(
            f"register: {name!r} cannot be the name of a layer; use letters, digits, - and _, and begin with a letter"
        )
    if not (isinstance(architecture, type) and issubclass(architecture, SequenceLayer | RecurrentCell)):
        raise InputError(
            f"register: {architecture!r} is not a layer; give a subclass of seriatim.RecurrentCell or "
            "seriatim.SequenceLayer"
        )
    taken = REGISTRY.get(name)
    same = taken is not None and _full_name(taken) == _full_name(architecture)
    if name in BUILT_IN or name in RESERVED or (taken is not None and not same):
        owner = "the library" if taken is None or name in BUILT_IN else taken.__qualname__
        raise InputError(f"register: the name {name!r} is taken by {owner}; choose another name")
    try:
        inspect.signature(architecture).bind(1, 1)
    except TypeError:
        raise InputError(
            f"register: {architecture.__qualname__}{inspect.signature(architecture)} does not take (input_size, "
            "hidden_size); make all other arguments keyword-only, with defaults"
        ) from None
    REGISTRY[name] = architecture


def _full_name(architecture: type) -> tuple[str, str]:
    return architecture.__module__, architecture.__qualname__


def split_names(name: str) -> list[str]:
    """The names of a stack that mixes layers, ``"mamba,mamba,transformer"``; former names become the present ones."""
    return [RENAMED[part][0] if part in RENAMED else part for part in map(str.strip, name.split(","))]


def current(name: str) -> str:
    """The same layer, or stack of layers, under its present name.

    Raises:
        UserWarning: a name that was changed; the warning says to which, and why.
    """
    for part in sorted({part.strip() for part in name.split(",")} & RENAMED.keys()):
        new, reason = RENAMED[part]
        warnings.warn(f"layer {part!r} is now called {new!r}, because {reason}; use {new!r}", stacklevel=2)
        name = ",".join(split_names(name))
    return name


def names() -> list[str]:
    """Every registered name."""
    return list(REGISTRY)


def find(name: str) -> type[SequenceLayer] | type[RecurrentCell]:
    """The class registered under a name, present or former.

    Raises:
        ValueError: no such layer; the message names the nearest.
    """
    name = RENAMED[name][0] if name in RENAMED else name
    if name not in REGISTRY:
        raise InputError(f"unknown layer {name!r}; {nearest(name, names())}")
    return REGISTRY[name]
