"""Layers on top of one another: h^l_t = f(h^l_{t−1}, h^{l−1}_t)."""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..core.contract import SequenceLayer, refuse_memory
from ..core.errors import InputError
from ..core.lengths import within, zero_padding
from ..core.state import State
from ..recurrence.compiled_step import stepped
from .dropout import dropout as make_dropout
from .paths import direct_paths, joined_paths


class Stack(SequenceLayer):
    """Runs layers one on top of another; the state is the tuple of their states.

    Args:
        layers: bottom first; each takes what the one below gives.
        dropout: rate between layers (none after the last).
        variational: one dropout mask a sequence instead of one a step.
        residual: adds a layer's inputs to its outputs wherever their widths are equal.
        norm: what the top layer's outputs pass through, if anything.

    Raises:
        ValueError: no layers, or widths that do not meet.
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
        if not layers:
            raise InputError("a stack needs at least one layer")
        for below, above in itertools.pairwise(layers):
            if below.output_size != above.input_size:
                raise InputError(
                    f"a layer that gives {below.output_size} features cannot feed one that takes {above.input_size}"
                )
        self.layers: Sequence[SequenceLayer] = nn.ModuleList(layers)  # type: ignore[assignment]
        self.dropout = make_dropout(dropout, variational=variational)
        self.residual = residual
        self.norm = norm
        self.input_size = layers[0].input_size
        self.output_size = layers[-1].output_size
        self.causal = all(layer.causal for layer in layers)
        self.takes_memory = any(layer.takes_memory for layer in layers)

    def initial_state(
        self, batch_size: int, memory: Tensor | None = None, memory_lengths: Tensor | None = None
    ) -> State:
        """The tuple of the layers' initial states; a memory goes to the layers that take one."""
        if not self.takes_memory:
            refuse_memory(memory)
        given = (memory, memory_lengths)
        return tuple(layer.initial_state(batch_size, *given if layer.takes_memory else ()) for layer in self.layers)

    def forward(
        self, inputs: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Runs every layer over ``(batch, time, input_size)``; see `SequenceLayer.forward`."""
        hidden, state, lengths = self.begin(inputs, state, lengths)
        ends, inner = [], within(lengths)
        for i, (layer, start) in enumerate(zip(self.layers, state, strict=True)):
            outputs, end = layer(self.dropout(hidden) if i else hidden, start, lengths=inner)
            hidden = self.join(hidden, outputs)
            ends.append(end)
        return zero_padding(self.finish(hidden), lengths), tuple(ends)

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """One step of every layer; all in one call of compiled code where that can be."""
        self.check_input(inputs)
        return stepped(self, inputs, state) or self.advance_once(inputs, state)

    def advance_once(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """One step, layer after layer."""
        hidden, ends = inputs, []
        for i, (layer, start) in enumerate(zip(self.layers, state, strict=True)):
            outputs, end = layer.step(self.dropout(hidden) if i else hidden, start)
            hidden = self.join(hidden, outputs)
            ends.append(end)
        return self.finish(hidden), tuple(ends)

    def path_lengths(self, distance: int) -> Tensor:
        """The shortest path through all layers."""
        present = direct_paths(distance, 0)
        each = [layer.path_lengths(distance) for layer in self.layers]
        if self.residual:
            pairs = zip(self.layers, each, strict=True)
            each = [
                torch.minimum(lengths, present) if layer.input_size == layer.output_size else lengths
                for layer, lengths in pairs
            ]
        return joined_paths(each)

    def finish(self, hidden: Tensor) -> Tensor:
        """The norm at the top."""
        return hidden if self.norm is None else self.norm(hidden)

    def join(self, inputs: Tensor, outputs: Tensor) -> Tensor:
        """The residual connection around one layer."""
        return inputs + outputs if self.residual and inputs.shape[-1] == outputs.shape[-1] else outputs
