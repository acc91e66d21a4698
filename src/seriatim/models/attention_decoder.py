"""The base class of recurrent decoders with attention; see `attentional` for the papers and equations."""

from typing import NamedTuple, TypeAlias, cast

import torch
from torch import Tensor

from ..core.contract import SequenceLayer
from ..core.errors import InputError, nearest
from ..core.lengths import run_by_length, zero_padding
from ..core.state import State, select_state
from ..recurrence.deferred_gradients import ProductsAfter
from .bridge import linear
from .memory_attention import MemoryAttention, Seen
from .recurrent_decoder import RecurrentDecoder

READOUTS = ("tanh", "direct")
StepState: TypeAlias = tuple[State, State]
"""What changes from step to step: the state of the recurrence, and what the next step reads of this one."""


class AttentionState(NamedTuple):
    """The state of a decoder with attention.

    Attributes:
        layer: the state of the recurrence.
        before: what the next step reads of the step before ``(batch, size)``, or ``()``.
        memory: ``(batch, memory_time, memory_size)``.
        keys: ``(batch, memory_time, key_size)``, or ``()`` if the keys are the memory itself.
        lengths: lengths of the memory ``(batch,)``.
    """

    layer: State
    before: State
    memory: Tensor
    keys: State
    lengths: Tensor


class AttentionDecoder(RecurrentDecoder):
    """A decoder that attends to the whole memory at every step; subclasses differ in when they attend.

    Args:
        layer: the recurrence.
        input_size: width of an input.
        memory_size: width of the encoder's outputs.
        score: `dot`, `scaled-dot`, `bilinear` or `additive`.
        readout: the outputs are a `tanh` map of [c; h], as wide as h, or [c; h] itself (`direct`).
        bridge: how the initial state of the recurrence is computed; see `Bridge`.
        summary: which vector summarizes the memory; see `summarise`.

    Raises:
        InputError: a name is unknown, or a dot product has vectors of different widths.
    """

    keeps = "the recurrence's state and the memory"

    def __init__(
        self,
        layer: SequenceLayer,
        input_size: int,
        memory_size: int,
        *,
        score: str,
        readout: str,
        bridge: str,
        summary: str,
    ) -> None:
        super().__init__(layer, memory_size, bridge=bridge, summary=summary)
        if readout not in READOUTS:
            raise InputError(f"unknown readout {readout!r}; {nearest(readout, list(READOUTS))}")
        width = layer.output_size
        self.attend = MemoryAttention(width, memory_size, score=score)
        self.map = linear(memory_size + width, width, bias=False) if readout == "tanh" else None
        self.input_size, self.output_size = input_size, memory_size + width if self.map is None else width

    def begin_with(self, start: State, context: Tensor, memory: Tensor, lengths: Tensor) -> State:
        """Return the initial state, with the memory and its keys."""
        return AttentionState(start, self.before_first(start, context), memory, self.attend.keys(memory), lengths)

    def forward(
        self, inputs: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Decode ``(batch, time, input_size)``; see `SequenceLayer.forward`."""
        outputs, _, state = self.decode(inputs, state, lengths)
        return outputs, state

    def attention(self, inputs: Tensor, state: State, *, lengths: Tensor | None = None) -> Tensor:
        """Return the attention weights of `forward` ``(batch, time, memory_time)``, zero on padding."""
        return self.decode(inputs, state, lengths)[1]

    def decode(self, inputs: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, Tensor, State]:
        """Return outputs, attention weights and the state after a sequence."""
        inputs, state, lengths = self.begin(inputs, state, lengths)
        state = cast(AttentionState, state)
        seen = self.seen(state)
        rows, time, places = *inputs.shape[:2], seen.memory.shape[1]
        if 0 in (rows, time):
            return inputs.new_zeros(rows, time, self.output_size), inputs.new_zeros(rows, time, places), state
        with ProductsAfter():
            features, weights, (layer, before) = self.run(inputs, state[:2], seen, lengths)
        outputs, weights = (zero_padding(values, lengths) for values in (self.finish(features), weights))
        return outputs, weights, state._replace(layer=layer, before=before)

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """Run one step of the recurrence and of attention."""
        self.check_step(inputs, state)
        state = cast(AttentionState, state)
        features, _, (layer, before) = self.advance(inputs, state[:2], self.seen(state))
        return self.finish(features), state._replace(layer=layer, before=before)

    def seen(self, state: AttentionState) -> Seen:
        """Return the memory with its keys and its padding."""
        return self.attend.look_at(state.memory, state.keys, state.lengths)

    def run(
        self, inputs: Tensor, start: StepState, seen: Seen, lengths: Tensor | None
    ) -> tuple[Tensor, Tensor, StepState]:
        """Run all steps of a sequence.

        Returns:
            The inputs of `finish` ``(batch, time, size)``, weights ``(batch, time, memory_time)`` and the last state.
        """
        if lengths is None:
            joined, end = self.loop(inputs, start, seen)
        else:  # sorted by length, so that the active rows are always the first rows of the memory
            order = torch.argsort(lengths, descending=True, stable=True)
            rows = order.to(inputs.device)
            seen, start = seen.choose(rows), select_state(start, rows)
            joined, end = run_by_length(
                lambda active, state: self.loop(active, state, seen.choose(slice(len(active)))),
                inputs[rows],
                start,
                lengths[order],
            )
            inverse = torch.argsort(rows)
            joined, end = joined[inverse], select_state(end, inverse)
        places = seen.memory.shape[1]
        return joined[:, :, places:], joined[:, :, :places], cast(StepState, end)

    def loop(self, inputs: Tensor, state: State, seen: Seen) -> tuple[Tensor, State]:
        """Run all steps without padding; return weights and features ``(batch, time, memory_time + size)``."""
        joined = []
        for x_t in inputs.unbind(1):
            features, weights, state = self.advance(x_t, cast(StepState, state), seen)
            joined.append(torch.cat([weights, features], dim=1))
        return torch.stack(joined, dim=1), state

    def look(self, queries: Tensor, seen: Seen) -> tuple[Tensor, Tensor]:
        """Return contexts and weights for the queries of one step ``(batch, size)``."""
        contexts, weights = self.attend(queries.unsqueeze(1), seen)
        return contexts.squeeze(1), weights.squeeze(1)

    def readout(self, features: Tensor) -> Tensor:
        """Return the outputs for [c; h]."""
        return features if self.map is None else torch.tanh(self.map(features))

    def before_first(self, start: State, context: Tensor) -> State:
        """Return what the first step reads in place of a step before it.

        Args:
            start: the initial state of the recurrence.
            context: the summary of the memory ``(batch, memory_size)``.
        """
        raise NotImplementedError

    def advance(self, inputs: Tensor, state: StepState, seen: Seen) -> tuple[Tensor, Tensor, StepState]:
        """Run one step.

        Args:
            inputs: ``(batch, input_size)``.
            state: the state before the step.
            seen: the memory.

        Returns:
            The input of `finish` ``(batch, size)``, weights ``(batch, memory_time)`` and the next state.
        """
        raise NotImplementedError

    def finish(self, features: Tensor) -> Tensor:
        """Return the outputs for the features of `advance`, of one step or of all steps."""
        raise NotImplementedError
