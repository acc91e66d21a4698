"""Build layers from a name and options: `seriatim.layer`."""

from functools import partial
from typing import Any, cast

from torch import nn

from ..config.arguments import check_integer
from ..core.contract import RecurrentCell, SequenceLayer
from ..core.errors import InputError, enough_memory
from ..recurrence import Recurrent
from .bidirectional import bidirectional as both_directions
from .block import Residual, with_residual
from .cross_attention import CrossAttention
from .declared_options import FINAL_NORM, Options, accepted, check_options, recurrent_options, wrap_of
from .feed_forward import feed_forward
from .option_types import Rate, Size, check_value
from .pointwise import EPSILON, Pointwise, norm_named
from .positions import ABSOLUTE, Positions
from .registry import current, find, split_names
from .stack import stack as stack_of


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
    """Build a layer, or a stack of layers, by name.

    Args:
        name: one of `names`, or several with commas between them for a stack that mixes them, the bottom layer first.
        input_size: width of the inputs.
        hidden_size: width of each layer.
        num_layers: number of layers on top of each other; with several names, how often these are repeated.
        bidirectional: read in both directions; the outputs are twice as wide.
        dropout: rate between layers, or on each residual branch where layers have residual connections of their own.
        variational_dropout: draw one dropout mask per sequence instead of one per step.
        residual: add the inputs of each layer to its outputs wherever the widths are equal; for layers that have no
            residual connections of their own.
        options: options of the architecture (see `options_of`); with several names, each layer takes those that it
            has. `block` puts the layer into a block with a feed-forward network (true), or not (false).

    Returns:
        The layer, or a `Stack` if there are several parts.

    Raises:
        InputError: an unknown name or option, or a size that does not fit.
    """
    name = current(name)
    check_options(name, options)
    for argument, size in (("input_size", input_size), ("hidden_size", hidden_size), ("num_layers", num_layers)):
        check_integer(argument, size, minimum=1)  # of NumPy, too
        check_value(argument, int(size), Size)
    input_size, hidden_size, num_layers = int(input_size), int(hidden_size), int(num_layers)
    check_value("dropout", dropout, Rate)
    for argument, value in (
        ("bidirectional", bidirectional),
        ("variational_dropout", variational_dropout),
        ("residual", residual),
    ):
        check_value(argument, value, bool)
    names = split_names(name)
    wrapped_names = [part for part in names if wrap_of(part, options) != "none"]
    if residual and wrapped_names:
        raise InputError(f"model.residual: {wrapped_names[0]} has residual connections of its own; leave it out")
    rates = {"dropout": dropout, "variational": variational_dropout}
    layers: list[SequenceLayer] = []
    with enough_memory(f"layer: {name} of input_size {input_size:,} and hidden_size {hidden_size:,}"):
        for part in names * num_layers:
            width = layers[-1].output_size if layers else input_size
            directions = [_build_one(part, width, hidden_size, options, rates) for _ in range(1 + bidirectional)]
            layers.append(both_directions(*directions) if bidirectional else directions[0])
    epsilon = float(cast(float, options.get("norm_epsilon", EPSILON)))
    make_norm = partial(norm_named, str(options.get("norm", "rms")), epsilon=epsilon)
    has_final_norm = wrapped_names and options.get("norm_first", True) and options.get(FINAL_NORM.name, True)
    norm = make_norm(layers[-1].output_size) if has_final_norm else None
    between = 0.0 if len(wrapped_names) == len(names) else dropout
    whole = layers[0]
    if len(layers) > 1 or residual or norm is not None:
        whole = stack_of(layers, dropout=between, variational=variational_dropout, residual=residual, norm=norm)
    if options.get("position") not in ABSOLUTE:
        return whole
    bottom: list[SequenceLayer] = [
        Positions(input_size, learned=options["position"] == "learned", **accepted(Positions, options))
    ]
    if options.get("position_norm"):
        bottom.append(Pointwise(input_size, input_size, module=make_norm(input_size)))
    return stack_of([*bottom, whole])


def _build_one(name: str, width: int, hidden_size: int, options: Options, rates: dict[str, Any]) -> SequenceLayer:
    """Build one layer with what is put around it, and a linear map before it if it cannot change the width."""
    architecture, wrap = find(name), wrap_of(name, options)
    arguments = accepted(architecture, options)
    if arguments.get("position") in ABSOLUTE:
        arguments["position"] = "none"  # absolute positions are added below all layers
    square = wrap != "none" or (issubclass(architecture, SequenceLayer) and architecture.square)
    inner = hidden_size if square else width
    part: SequenceLayer | RecurrentCell = architecture(inner, hidden_size, **arguments)
    if isinstance(part, RecurrentCell):
        rates_of_loop: dict[str, Any] = {key: options[key] for key in recurrent_options(type(part)) if key in options}
        built: SequenceLayer = Recurrent(part, **rates_of_loop)
    else:
        built = part
    if wrap != "none":
        parts = [built]
        if options.get("memory_size") is not None:
            parts.append(CrossAttention(hidden_size, hidden_size, **accepted(CrossAttention, options)))
        network = feed_forward(hidden_size, **accepted(feed_forward, options)) if wrap == "block" else None
        if network is not None:
            parts.append(Pointwise(hidden_size, hidden_size, module=network))
        parts = [with_residual(inside, **rates, **accepted(Residual, options)) for inside in parts]
        built = parts[0] if len(parts) == 1 else stack_of(parts)
    if inner == width:
        return built
    return stack_of([Pointwise(width, inner, module=nn.Linear(width, inner)), built])
