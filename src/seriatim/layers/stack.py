"""Layers on top of one another: h^l_t = f(h^l_{t−1}, h^{l−1}_t)."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn

from ..core.contract import MemoryLayer, SequenceLayer, begin_state, joined_type
from ..core.errors import InputError, shown
from ..core.lengths import padding_cleared, zero_padding
from ..core.state import OutputsAndState, State, with_parts
from ..recurrence.fast_step import run_step
from .path_lengths import direct_paths, joined_paths
from .pointwise import make_dropout

RunLayer: TypeAlias = Callable[[SequenceLayer, Tensor, State], OutputsAndState]


class Stack(SequenceLayer):
    """Layers that run one on top of another; the state is the tuple of their states, of a type for these layers.

    Args:
        layers: the bottom layer first; the output of each is the input of the next.
        dropout: rate between layers (none after the last).
        variational: use one dropout mask for a sequence instead of one for each step.
        residual: add the inputs of a layer to its outputs wherever their widths are equal.
        norm: a norm of the top layer's outputs, or None.

    Raises:
        InputError: no layers, widths that do not match, or a layer that attends to a memory (see `stack`).
    """

    def __init__(
        self,
        layers: Sequence[SequenceLayer],
        *,
        dropout: float = 0.0,
        variational: bool = False,
        residual: bool = False,
        norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        check_parts(self, layers)
        if not layers:
            raise InputError("a stack needs at least one layer")
        for below, above in itertools.pairwise(layers):
            if below.output_size != above.input_size:
                raise InputError(
                    f"a layer with {below.output_size} output features cannot feed one with {above.input_size} inputs"
                )
        self.layers = cast("Sequence[SequenceLayer]", nn.ModuleList(layers))
        self.dropout = make_dropout(dropout, variational=variational)
        self.residual = residual
        self.norm = norm
        self.input_size = layers[0].input_size
        self.output_size = layers[-1].output_size
        self.causal = all(layer.causal for layer in layers)

    def initial_state(self, batch_size: int, *memory: Any, **named: Any) -> State:
        """Return the tuple of the layers' initial states; the arguments are those of `begin_state`."""
        parts = (begin_state(layer, batch_size, *memory, **named) for layer in self.layers)
        make: Callable[..., State] = joined_type(self, self.layers)
        return make(*parts)

    def forward(self, inputs: Tensor, state: State | None = None, *, lengths: Tensor | None = None) -> OutputsAndState:
        """Run every layer over ``(batch, time, input_size)``; see `SequenceLayer.forward`."""
        inputs, state, lengths = self.begin(inputs, state, lengths)
        with padding_cleared(lengths):
            outputs, end = self.run(lambda layer, x, start: layer(x, start, lengths=lengths), inputs, state)
        return zero_padding(outputs, lengths), end

    def step(self, inputs: Tensor, state: State) -> OutputsAndState:
        """Compute one step of every layer, in one call of compiled code where possible."""
        self.check_input(inputs)
        result = run_step(self, inputs, state)
        if result is not None:
            return result
        self.check_state(state, inputs)
        return self.run(lambda layer, x, start: layer.step(x, start), inputs, state)

    def run(self, run_layer: RunLayer, hidden: Tensor, state: State) -> OutputsAndState:
        """Run layer after layer, with dropout between them, residual connections and the norm at the top."""
        ends = []
        for i, (layer, start) in enumerate(zip(self.layers, state, strict=True)):
            outputs, end = run_layer(layer, self.dropout(hidden) if i else hidden, start)
            is_joined = self.residual and hidden.shape[-1] == outputs.shape[-1]
            hidden = hidden + outputs if is_joined else outputs
            ends.append(end)
        return hidden if self.norm is None else self.norm(hidden), with_parts(state, ends)

    def path_lengths(self, distance: int) -> Tensor:
        """Return the length of the shortest paths through all layers."""
        paths = []
        for layer in self.layers:
            lengths = layer.path_lengths(distance)
            direct = self.residual and layer.input_size == layer.output_size
            paths.append(torch.minimum(lengths, direct_paths(distance, 0)) if direct else lengths)
        return joined_paths(paths)


class MemoryStack(Stack, MemoryLayer):
    """A stack in which some layers attend to a memory."""


def stack(layers: Sequence[SequenceLayer], **options: Any) -> Stack:
    """Return a `Stack`, or a `MemoryStack` where a layer attends to a memory; the arguments are those of `Stack`."""
    return (MemoryStack if any(isinstance(layer, MemoryLayer) for layer in layers) else Stack)(layers, **options)


def check_parts(container: SequenceLayer, layers: object) -> None:
    """Raise InputError for parts that are no layers, or that attend to a memory in a container that has none."""
    parts = list(layers) if isinstance(layers, Iterable) else [layers]
    for part in parts:
        if not isinstance(part, SequenceLayer):
            raise InputError(f"{type(container).__name__} is made of layers, such as seriatim.layer; got {shown(part)}")
    names = [type(layer).__name__ for layer in parts if isinstance(layer, MemoryLayer)]
    if names and not isinstance(container, MemoryLayer):
        raise InputError(f"{names[0]} attends to a memory; use Memory{type(container).__name__} for it")
