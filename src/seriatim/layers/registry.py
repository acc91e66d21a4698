"""Every architecture by name. A new one is a file and a line here; `register` adds a user's own.

Installed packages add layers with the entry-point group ``seriatim.layers``::

    [project.entry-points."seriatim.layers"]
    fast-slow = "their_package.cells:FastSlow"

A package is imported when one of its layers is first used by name.
"""

import functools
import inspect
import re
import warnings
from importlib.metadata import EntryPoint, entry_points

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
"""Former names: the present name and why it changed. Runs that were trained under a former name still open."""
RESERVED = frozenset({"ngram", *RENAMED})
"""Names that mean something else on the command line: n-gram models are counted, not built of layers."""
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
GROUP = "seriatim.layers"
"""The entry-point group of packages that add layers."""


def register(name: str, architecture: type[SequenceLayer] | type[RecurrentCell]) -> None:
    """Register a layer or a cell of your own under a name, which then works wherever a layer is named.

    The constructor takes ``(input_size, hidden_size)`` and keyword-only arguments, which become ``model.options``. The
    registration holds for this process; the processes in which `seriatim.compare` trains import the class from the file
    that defines it.

    Args:
        name: letters, digits, ``-`` and ``_``, beginning with a letter. A class may be registered again after it was
            defined again, as in a notebook.
        architecture: a subclass of `SequenceLayer` or `RecurrentCell`.

    Raises:
        InputError: the name does not fit or is taken, or the class is neither a layer nor a cell.
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
    registered = REGISTRY.get(name)
    same = registered is not None and _full_name(registered) == _full_name(architecture)
    if name in BUILT_IN or name in RESERVED or (registered is not None and not same):
        owner = "the library" if registered is None or name in BUILT_IN else registered.__qualname__
        raise InputError(f"register: the name {name!r} is taken by {owner}; choose another name")
    check_constructor(architecture, "register")
    REGISTRY[name] = architecture


def check_constructor(architecture: type[SequenceLayer] | type[RecurrentCell], source: str) -> None:
    """Check that the constructor takes ``(input_size, hidden_size)``.

    Args:
        architecture: the class.
        source: what the message names first, for instance the file of the class.

    Raises:
        InputError: the constructor needs other arguments.
    """
    signature = inspect.signature(architecture)
    try:
        signature.bind(1, 1)
    except TypeError:
        raise InputError(
            f"{source}: {architecture.__qualname__}{signature} does not take (input_size, hidden_size); make all other "
            "arguments keyword-only, with defaults"
        ) from None


def _full_name(architecture: type) -> tuple[str, str]:
    return architecture.__module__, architecture.__qualname__


def split_names(name: str) -> list[str]:
    """Split the name of a mixed stack, ``"mamba,mamba,transformer"``, and replace former names by present ones."""
    return [RENAMED[part][0] if part in RENAMED else part for part in map(str.strip, name.split(","))]


def current(name: str) -> str:
    """Return the present name of a layer, or of a stack of layers.

    Warns:
        UserWarning: a former name; the warning says the present name and why it changed.
    """
    for part in sorted({part.strip() for part in name.split(",")} & RENAMED.keys()):
        new, reason = RENAMED[part]
        warnings.warn(f"layer {part!r} is now called {new!r}, because {reason}; use {new!r}", stacklevel=2)
        name = ",".join(split_names(name))
    return name


def names() -> list[str]:
    """Return the name of every layer: the library's, registered ones, and those of installed packages."""
    return [*REGISTRY, *(name for name in entry_points_by_name() if name not in REGISTRY)]


def find(name: str) -> type[SequenceLayer] | type[RecurrentCell]:
    """Return the class of a layer by its present or former name; a layer of an installed package is imported.

    Raises:
        InputError: there is no such layer (the message names the nearest), or its package cannot be imported.
    """
    name = RENAMED[name][0] if name in RENAMED else name
    if name not in REGISTRY and name in entry_points_by_name():
        _import_entry_point(name, entry_points_by_name()[name])
    if name not in REGISTRY:
        raise InputError(f"unknown layer {name!r}; {nearest(name, names())}")
    return REGISTRY[name]


@functools.cache
def entry_points_by_name() -> dict[str, EntryPoint]:
    """Return the layers that installed packages offer; no package is imported."""
    return {
        point.name: point
        for point in entry_points(group=GROUP)
        if NAME.fullmatch(point.name) and point.name not in BUILT_IN and point.name not in RESERVED
    }


def _import_entry_point(name: str, point: EntryPoint) -> None:
    try:
        architecture = point.load()
    except Exception as error:
        reason = next(iter(str(error).splitlines()), "")
        raise InputError(
            f"layer {name!r}: {point.value} of an installed package cannot be imported ({type(error).__name__}: "
            f"{reason}); repair or remove the package"
        ) from None
    if not (isinstance(architecture, type) and issubclass(architecture, SequenceLayer | RecurrentCell)):
        raise InputError(f"layer {name!r}: {point.value} of an installed package is neither a layer nor a cell")
    check_constructor(architecture, f"layer {name!r}")
    REGISTRY[name] = architecture
