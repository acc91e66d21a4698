"""From a name and options to layers: what `seriatim.layer` does."""

import inspect
import itertools
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from ..core.contract import RecurrentCell, SequenceLayer, Wrap
from ..core.errors import InputError, nearest
from ..recurrence import Recurrent
from .bidirectional import bidirectional as both_directions
from .block import wrapped
from .cross_attention import CrossAttention
from .feed_forward import feed_forward
from .option_types import check_value
from .pointwise import Pointwise
from .pointwise import norm as norm_named
from .positions import ABSOLUTE, Positions
from .registry import current, find, split_names
from .stack import stack as stack_of

Options = Mapping[str, Any]


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
        name: one of `names`, or several with commas between them, bottom first, for a stack that mixes them.
        input_size: width of an input.
        hidden_size: width of a layer.
        num_layers: how many, one on top of another; with several names, how often they are repeated.
        bidirectional: read in both directions; the output is twice as wide.
        dropout: rate between layers, or on what is added where layers have residual connections of their own.
        variational_dropout: one dropout mask a sequence instead of one a step.
        residual: add a layer's inputs to its outputs wherever their widths are equal; for layers that do not anyway.
        options: the architecture's own (see `options_of`); among several names, each takes what it knows. `block`
            puts the layer into a block with a feed-forward network (true), or leaves it bare (false).

    Returns:
        The layer itself, or a `Stack` where there is more to it.

    Raises:
        ValueError: an unknown name or option, or a size that does not fit.
        UserWarning: a former name of a layer.
    """
    name = current(name)
    check_options(name, options)
    for what, size in (("input_size", input_size), ("hidden_size", hidden_size), ("num_layers", num_layers)):
        if not isinstance(size, int) or size < 1:
            raise InputError(f"{what} must be an integer of at least 1; got {size!r}")
    names = split_names(name)
    wrapped_names = [one for one in names if wrap_of(one, options) != "none"]
    if residual and wrapped_names:
        raise InputError(f"model.residual: {wrapped_names[0]} has residual connections of its own; leave it out")
    rates = {"dropout": dropout, "variational": variational_dropout}
    layers: list[SequenceLayer] = []
    for one in itertools.chain.from_iterable(itertools.repeat(names, num_layers)):
        width = layers[-1].output_size if layers else input_size
        made = [_one(one, width, hidden_size, options, rates) for _ in range(1 + bidirectional)]
        layers.append(both_directions(*made) if bidirectional else made[0])
    top = None
    if wrapped_names and options.get("norm_first", True):
        top = norm_named(str(options.get("norm", "rms")), layers[-1].output_size)
    between = 0.0 if len(wrapped_names) == len(names) else dropout
    stack = stack_of(layers, dropout=between, variational=variational_dropout, residual=residual, norm=top)
    whole = layers[0] if len(layers) == 1 and not residual and top is None else stack
    return _with_positions(whole, options)


def wrap_of(name: str, options: Options) -> Wrap:
    """What goes around a layer: its own choice, unless ``block`` is given."""
    block = options.get("block")
    if block is not None:
        return "block" if block else "none"
    architecture = find(name)
    return "none" if issubclass(architecture, RecurrentCell) else architecture.wrap


def options_of(name: str, options: Options | None = None) -> dict[str, inspect.Parameter]:
    """The options of one architecture, given the others: what is around it, too, has options."""
    options = options or {}
    architecture, wrap = find(name), wrap_of(name, options)
    known = _keywords(architecture)
    if issubclass(architecture, RecurrentCell):
        known |= _keywords(Recurrent)
    if options.get("position") == "learned":
        known |= {"max_length": _keywords(Positions)["max_length"]}
    if wrap != "none":
        known |= {key: value for key, value in _keywords(wrapped).items() if key in ("norm", "norm_first")}
        memory = _keywords(CrossAttention)
        known |= memory if options.get("memory_size") is not None else {"memory_size": memory["memory_size"]}
    if wrap == "block":
        mixture = ("experts_per_token", "balance") if options.get("num_experts") is None else ()
        known |= {key: value for key, value in _keywords(feed_forward).items() if key not in mixture}
    return known | {"block": inspect.Parameter("block", inspect.Parameter.KEYWORD_ONLY, annotation=bool | None)}


def check_options(name: str, options: Options) -> None:
    """Raises InputError where no architecture of ``name`` has an option, or its value does not fit."""
    found = [options_of(one, options) for one in split_names(name)]
    known = {key: parameter for options in found for key, parameter in options.items()}
    for key, value in options.items():
        if key not in known:
            raise InputError(f"layer {name!r} has no option {key!r}; {_condition(key) or nearest(key, list(known))}")
        check_value(f"model.options.{key}", value, known[key].annotation)


def _condition(key: str) -> str:
    """What an option needs that is not there, if that is what is wrong with it."""
    if key in ("experts_per_token", "balance"):
        return "it needs model.options.num_experts"
    if key in _keywords(Positions):
        return "it needs model.options.position learned"
    if key in _keywords(wrapped) | _keywords(feed_forward) or key == "memory_size":
        return "it needs model.options.block true"
    return ""


def _with_positions(layer: SequenceLayer, options: Options) -> SequenceLayer:
    """Adds absolute positions below a layer, where the options name them."""
    if options.get("position") not in ABSOLUTE:
        return layer
    bottom = Positions(layer.input_size, learned=options["position"] == "learned", **_known(Positions, options))
    return stack_of([bottom, layer])


def _one(name: str, width: int, hidden_size: int, options: Options, rates: Options) -> SequenceLayer:
    """One layer with what goes around it, and a linear map before it where it cannot change the width."""
    architecture, wrap = find(name), wrap_of(name, options)
    own = _known(architecture, options)
    if own.get("position") in ABSOLUTE:
        own["position"] = "none"  # it is added below all layers
    square = wrap != "none" or (issubclass(architecture, SequenceLayer) and architecture.square)
    inner = hidden_size if square else width
    made: Any = architecture(inner, hidden_size, **own)
    whole: SequenceLayer = Recurrent(made, **_known(Recurrent, options)) if isinstance(made, RecurrentCell) else made
    if wrap != "none":
        memory = None
        if options.get("memory_size") is not None:
            memory = CrossAttention(hidden_size, hidden_size, **_known(CrossAttention, options))
        network = feed_forward(hidden_size, **_known(feed_forward, options)) if wrap == "block" else None
        whole = wrapped(whole, memory, network, **rates, **_known(wrapped, options))
    if inner == width:
        return whole
    return stack_of([Pointwise(width, inner, module=nn.Linear(width, inner)), whole])


def _keywords(function: Callable[..., object]) -> dict[str, inspect.Parameter]:
    """What a function takes by keyword only."""
    parameters = inspect.signature(function).parameters.items()
    return {key: value for key, value in parameters if value.kind is inspect.Parameter.KEYWORD_ONLY}


def constructor_options(architecture: type[SequenceLayer] | type[RecurrentCell], options: Options) -> dict[str, Any]:
    """Return those of some options that the constructor of a class takes."""
    return _known(architecture, options)


def _known(function: Callable[..., object], options: Options) -> dict[str, Any]:
    """The options that a function takes."""
    return {key: options[key] for key in _keywords(function) if key in options}
