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
from operator import attrgetter
from typing import TypeGuard

from torch.nn import Module

from ..core.contract import Architecture, RecurrentCell, SequenceLayer
from ..core.errors import (
    ConflictError,
    ContractError,
    ExistsError,
    MalformedError,
    RangeError,
    UnavailableError,
    UnknownNameError,
    first_line,
    require_known,
    shown,
)
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

REGISTRY: dict[str, Architecture] = {
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
RESERVED = frozenset({"ngram", "bag", "features", "rules", *RENAMED})
"""Names that mean something else on the command line: n-gram models are counted, not built of layers."""
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
GROUP = "seriatim.layers"
"""The entry-point group of packages that add layers."""
full_name = attrgetter("__module__", "__qualname__")


def register(name: str, architecture: Architecture) -> None:
    """Register a layer or a cell of your own under a name, which then works wherever a layer is named.

    The constructor takes ``(input_size, hidden_size)`` and keyword-only arguments, which become ``model.options``. The
    registration holds for this process; `seriatim.compare` trains in others, which import the file of the class.

    Args:
        name: letters, digits, ``-`` and ``_``, beginning with a letter. A class may be registered again after it was
            defined again, as in a notebook.
        architecture: a subclass of `SequenceLayer` or `RecurrentCell`.

    Raises:
        InputError: the name does not fit or is taken, or the class is neither a layer nor a cell.
    """
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise MalformedError(
            f"register: {name!r} cannot be the name of a layer; use letters, digits, - and _, and begin with a letter"
        )
    if not is_architecture(architecture):
        given = f"a {type(architecture).__name__} object" if isinstance(architecture, Module) else shown(architecture)
        raise ContractError(
            f"register: {given} is not the class of a layer; give a subclass of seriatim.RecurrentCell or "
            "seriatim.SequenceLayer itself"
        )
    registered, owner = REGISTRY.get(name, architecture), None
    if name in BUILT_IN or name in RESERVED:
        owner = "the library"
    elif full_name(registered) != full_name(architecture):
        owner = registered.__qualname__
    if owner:
        raise ExistsError(f"register: the name {name!r} is taken by {owner}; choose another name")
    check_constructor(architecture)
    REGISTRY[name] = architecture


def is_architecture(value: object) -> TypeGuard[Architecture]:
    """Return whether a value is the class of a layer or of a cell."""
    return isinstance(value, type) and issubclass(value, SequenceLayer | RecurrentCell)


def check_constructor(architecture: Architecture) -> None:
    """Raise InputError, which names the line first, unless the constructor takes ``(input_size, hidden_size)``."""
    signature = inspect.signature(architecture)
    try:
        signature.bind(1, 1)
    except TypeError:
        place = f"{line}: " if (line := location_of(architecture, "__init__")) else ""
        raise ContractError(
            f"{place}{architecture.__qualname__}{signature} does not take (input_size, hidden_size); make all other "
            "arguments keyword-only, with defaults"
        ) from None


def location_of(part: object, method: str | None = None) -> str:
    """Return where a class defines a method, or else the class itself, as ``FILE:LINE``; "" if it has no source."""
    for place in (getattr(part, "__dict__", {}).get(method), part):
        try:
            return f"{inspect.getsourcefile(place)}:{inspect.getsourcelines(place)[1]}"  # type: ignore[arg-type]
        except (TypeError, OSError):
            continue
    return ""


def split_names(name: str) -> list[str]:
    """Split the name of a mixed stack, ``"mamba,mamba,transformer"``, and replace former names by present ones."""
    return [RENAMED[part][0] if part in RENAMED else part for part in map(str.strip, name.split(","))]


def current(name: str) -> str:
    """Return the present name of a layer, or of a stack of layers; warn of former names and say why they changed.

    Raises:
        InputError: the name is no text.
    """
    _check_name(name)
    former = sorted({part.strip() for part in name.split(",")} & RENAMED.keys())
    for part in former:
        new, reason = RENAMED[part]
        warnings.warn(f"layer {part!r} is now called {new!r}, because {reason}; use {new!r}", stacklevel=2)
    return ",".join(split_names(name)) if former else name


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise RangeError(f"layer: {shown(name)} is not text; give the name of a layer, such as 'lstm'")


def names() -> list[str]:
    """Return the name of every layer: the library's, registered ones, and those of installed packages."""
    return [*REGISTRY, *(name for name in entry_points_by_name() if name not in REGISTRY)]


def find(name: str) -> Architecture:
    """Return the class of a layer by its present or former name; a layer of an installed package is imported.

    Raises:
        InputError: there is no such layer, or its package cannot be imported.
    """
    _check_name(name)
    name = RENAMED[name][0] if name in RENAMED else name
    if name not in REGISTRY and name in entry_points_by_name():
        _import_entry_point(name, entry_points_by_name()[name])
    if ":" in name and name not in REGISTRY:
        example = f'seriatim.register("my-layer", {name.rpartition(":")[2]})'
        raise UnknownNameError(f"layer {name!r}: its code has not been imported; import the class and call {example}")
    if name in RESERVED:
        raise ConflictError(f"layer {name!r}: a whole model that is not built of layers; use it alone")
    require_known("layer", name, names())
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
        raise UnavailableError(
            f"layer {name!r}: {point.value} of an installed package cannot be imported ({type(error).__name__}: "
            f"{first_line(error)}); repair or remove the package"
        ) from None
    if not is_architecture(architecture):
        raise ContractError(
            f"layer {name!r}: {point.value} of an installed package is neither a layer nor a cell; remove the package"
        )
    check_constructor(architecture)
    REGISTRY[name] = architecture
