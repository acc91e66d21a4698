"""Weights from `torch.nn` and back to it."""

from torch import nn

from ..core.contract import SequenceLayer
from .bidirectional import Bidirectional
from .fused import FusedRecurrence
from .pointwise import Dropout, VariationalDropout
from .registry import REGISTRY
from .stack import Stack

WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")


def from_torch(module: nn.RNNBase) -> SequenceLayer:
    """A layer that computes what a `torch.nn.RNN`, `LSTM` or `GRU` computes, with a copy of its weights.

    Raises:
        ValueError: another module.
    """
    twins = {cls.twin: cls for cls in REGISTRY.values() if issubclass(cls, FusedRecurrence)}
    if type(module) not in twins:
        raise ValueError("from_torch takes a torch.nn.RNN, LSTM or GRU")
    options: dict[str, object] = {"bias": module.bias}
    if module.proj_size:
        options["projection_size"] = module.proj_size
    if isinstance(module, nn.RNN):
        options["activation"] = module.nonlinearity

    def one(depth: int, width: int, direction: str) -> FusedRecurrence:
        made = twins[type(module)](width, module.hidden_size, **options)  # type: ignore[arg-type]
        made.to(next(module.parameters()))  # type and device, before the copy
        made.load_state_dict(
            {name: getattr(module, name.replace("_l0", f"_l{depth}{direction}")) for name in made.state_dict()}
        )
        return made

    layers: list[SequenceLayer] = []
    for depth in range(module.num_layers):
        width = layers[-1].output_size if layers else module.input_size
        there = one(depth, width, "")
        layers.append(Bidirectional(there, one(depth, width, "_reverse")) if module.bidirectional else there)
    return layers[0] if len(layers) == 1 else Stack(layers, dropout=module.dropout)


def to_torch(layer: SequenceLayer) -> nn.RNNBase:
    """The `torch.nn` module, batch first, that computes what ``layer`` computes, with a copy of its weights.

    Raises:
        ValueError: `torch.nn` has no such module.
    """
    layers: list[SequenceLayer] = list(layer.layers) if isinstance(layer, Stack) and not layer.residual else [layer]
    pairs = [(one.forwards, one.backwards) if isinstance(one, Bidirectional) else (one,) for one in layers]
    parts = [part for pair in pairs for part in pair]
    fused = [part for part in parts if isinstance(part, FusedRecurrence)]
    drop: nn.Module = layer.dropout if isinstance(layer, Stack) else nn.Identity()
    if (
        len(fused) < len(parts)
        or isinstance(drop, VariationalDropout)
        or len({(type(part), part.hidden_size, *part.twin_options().items()) for part in fused}) > 1
        or len({len(pair) for pair in pairs}) > 1
    ):
        raise ValueError("torch.nn has no module for this layer; it has plain RNN, LSTM and GRU stacks of one width")
    first = fused[0]
    module = first.twin(
        first.input_size,  # type: ignore[arg-type]
        first.hidden_size,
        num_layers=len(layers),
        bidirectional=len(pairs[0]) == 2,
        dropout=drop.p if isinstance(drop, Dropout) else 0.0,
        **first.twin_options(),  # type: ignore[arg-type]
    )
    module.to(first.weight_hh_l0)
    weights = {
        f"{name}_l{depth}{direction}": getattr(part, f"{name}_l0")
        for depth, pair in enumerate(pairs)
        for part, direction in zip(pair, ("", "_reverse"), strict=False)
        for name in WEIGHTS
        if getattr(part, f"{name}_l0") is not None
    }
    module.load_state_dict(weights)
    return module
