"""Every architecture by name. A new one is a file and a line here."""

import inspect
from collections.abc import Mapping

from ..errors import InputError, nearest
from ..layer import SequenceLayer
from .bidirectional import Bidirectional
from .gru import GRU
from .lstm import LSTM
from .rnn import RNN
from .stack import Stack

REGISTRY: dict[str, type[SequenceLayer]] = {
    "rnn": RNN,
    "lstm": LSTM,
    "gru": GRU,
}


def names() -> list[str]:
    """Every registered name."""
    return list(REGISTRY)


def find(name: str) -> type[SequenceLayer]:
    """The class registered under a name.

    Raises:
        ValueError: no such layer; the message names the nearest.
    """
    if name not in REGISTRY:
        raise InputError(f"unknown layer {name!r}; {nearest(name, names())}")
    return REGISTRY[name]


def layer(
    name: str,
    input_size: int,
    hidden_size: int,
    *,
    num_layers: int = 1,
    bidirectional: bool = False,
    dropout: float = 0.0,
    variational_dropout: bool = False,
    residual: bool = False,
    **options: object,
) -> SequenceLayer:
    """Builds an architecture by name.

    Args:
        name: one of `names`.
        input_size: width of an input.
        hidden_size: width of a layer.
        num_layers: how many, one on top of another.
        bidirectional: read in both directions; the output is twice as wide.
        dropout: rate between layers.
        variational_dropout: one dropout mask a sequence instead of one a step.
        residual: add a layer's inputs to its outputs wherever their widths are equal.
        options: the architecture's own.

    Returns:
        The layer itself, or a `Stack` where there is more than one or a residual connection.

    Raises:
        ValueError: an unknown name or option, or a size that is not positive.
    """
    architecture = find(name)
    check_options(name, options)
    for what, size in (("input_size", input_size), ("hidden_size", hidden_size), ("num_layers", num_layers)):
        if size < 1:
            raise InputError(f"{what} must be at least 1; got {size}")

    def one(width: int) -> SequenceLayer:
        return architecture(width, hidden_size, **options)

    layers: list[SequenceLayer] = []
    for _ in range(num_layers):
        width = layers[-1].output_size if layers else input_size
        layers.append(Bidirectional(one(width), one(width)) if bidirectional else one(width))
    stack = Stack(layers, dropout=dropout, variational=variational_dropout, residual=residual)
    return layers[0] if len(layers) == 1 and not residual else stack


def check_options(name: str, options: Mapping[str, object]) -> None:
    """Raises InputError where the architecture has no option of a given name, or the value is of another type."""
    known = dict(list(inspect.signature(find(name)).parameters.items())[2:])
    for key, value in options.items():
        if key not in known:
            raise InputError(f"layer {name!r} has no option {key!r}; {nearest(key, list(known))}")
        wanted = known[key].annotation
        fits = isinstance(value, int | float) if wanted is float else isinstance(value, wanted)
        if not fits or (isinstance(value, bool) and wanted is not bool):
            raise InputError(f"model.options.{key}: {value!r} does not fit; give a value of type {wanted.__name__}")
