"""Converts recurrent layers of `torch.nn` to layers of this library, and back."""

from torch import nn

from ..core.contract import SequenceLayer
from ..recurrence import Recurrent
from .containers import Bidirectional, Stack
from .gated_cell import TorchCell
from .pointwise import Dropout, VariationalDropout
from .registry import REGISTRY


def from_torch(module: nn.RNNBase) -> SequenceLayer:
    """Return a layer that computes what a `torch.nn.RNN`, `LSTM` or `GRU` computes, with a copy of its weights.

    Raises:
        ValueError: another module.
    """
    twins = {cls.torch_module: cls for cls in REGISTRY.values() if issubclass(cls, TorchCell)}
    if type(module) not in twins:
        raise ValueError("from_torch takes a torch.nn.RNN, LSTM or GRU")
    options: dict[str, object] = {"bias": module.bias}
    if module.proj_size:
        options["projection_size"] = module.proj_size
    if isinstance(module, nn.RNN):
        options["activation"] = module.nonlinearity

    # torch.nn has one module for all depths and directions, which the names of its weights tell apart
    def converted(depth: int, width: int, direction: str) -> SequenceLayer:
        cell = twins[type(module)](width, module.hidden_size, **options)  # type: ignore[arg-type]
        cell.to(next(module.parameters()))  # type and device, before the copy
        cell.load_state_dict(
            {name: getattr(module, name.replace("_l0", f"_l{depth}{direction}")) for name in cell.state_dict()}
        )
        return Recurrent(cell)

    layers: list[SequenceLayer] = []
    for depth in range(module.num_layers):
        width = layers[-1].output_size if layers else module.input_size
        layer = converted(depth, width, "")
        layers.append(Bidirectional(layer, converted(depth, width, "_reverse")) if module.bidirectional else layer)
    return layers[0] if len(layers) == 1 else Stack(layers, dropout=module.dropout)


def to_torch(layer: SequenceLayer) -> nn.RNNBase:
    """Return the `torch.nn` module, batch first, that computes the same, with a copy of the weights.

    Raises:
        ValueError: `torch.nn` has no such module.
    """
    layers: list[SequenceLayer] = list(layer.layers) if isinstance(layer, Stack) and not layer.residual else [layer]
    pairs = [(one.forwards, one.backwards) if isinstance(one, Bidirectional) else (one,) for one in layers]
    singles = [single for pair in pairs for single in pair]
    if any(isinstance(single, Recurrent) and (single.weight_dropout or single.zoneout) for single in singles):
        raise ValueError("torch.nn has no weight dropout and no zoneout; give both as 0 to convert")

    # torch.nn has one class for a whole stack, so that all cells must be of one kind and have the same options
    cells: dict[SequenceLayer, TorchCell] = {
        single: single.cell
        for single in singles
        if isinstance(single, Recurrent) and isinstance(single.cell, TorchCell)
    }
    drop: nn.Module = layer.dropout if isinstance(layer, Stack) else nn.Identity()
    if (
        len(cells) < len(singles)
        or isinstance(drop, VariationalDropout)
        or len({(type(cell), cell.hidden_size, *cell.torch_options().items()) for cell in cells.values()}) > 1
        or len({len(pair) for pair in pairs}) > 1
    ):
        raise ValueError("torch.nn has no module for this layer; it has plain RNN, LSTM and GRU stacks of one width")

    first = cells[singles[0]]
    module = first.torch_module(
        first.input_size,  # type: ignore[arg-type]
        first.hidden_size,
        num_layers=len(layers),
        bidirectional=len(pairs[0]) == 2,
        dropout=drop.p if isinstance(drop, Dropout) else 0.0,
        **first.torch_options(),  # type: ignore[arg-type]
    )
    module.to(first.weight_hh_l0)
    weights = {
        name.replace("_l0", f"_l{depth}{direction}"): parameter
        for depth, pair in enumerate(pairs)
        for single, direction in zip(pair, ("", "_reverse"), strict=False)
        for name, parameter in cells[single].named_parameters()
    }
    module.load_state_dict(weights)
    return module
