"""What recurrent decoders with attention have in common; see `attentional` for the papers and equations."""

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
Own: TypeAlias = tuple[State, State]
"""What changes from step to step: the recurrence's state, and what a step reads of the one before."""


class AttentionState(NamedTuple):
    """What a decoder with attention keeps.

    Attributes:
        layer: the recurrence's state.
        before: what the next step reads of the one before ``(batch, size)``, or nothing.
        memory: ``(batch, memory_time, memory_size)``.
        keys: ``(batch, memory_time, key_size)``, or nothing where the memory itself is compared with.
        lengths: of the memory ``(batch,)``.
    """

    layer: State
    before: State
    memory: Tensor
    keys: State
    lengths: Tensor


class AttentionDecoder(RecurrentDecoder):
    """A decoder that looks at the whole memory at every step; a subclass says when.

    Args:
        layer: the recurrence.
        input_size: width of an input.
        memory_size: width of the encoder's outputs.
        score: `dot`, `scaled-dot`, `bilinear` or `additive`.
        readout: outputs are a `tanh` map of [c; h], as wide as h, or [c; h] themselves (`direct`).
        bridge: how the recurrence begins.
        summary: what it begins from.

    Raises:
        InputError: an unknown name, or a dot product of different widths.
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
        """The recurrence's state, the memory, and what is compared with."""
        return AttentionState(start, self.before_first(start, context), memory, self.attend.keys(memory), lengths)

    def forward(
        self, inputs: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Decodes ``(batch, time, input_size)``; see `SequenceLayer.forward`."""
        outputs, _, state = self.decode(inputs, state, lengths)
        return outputs, state

    def attention(self, inputs: Tensor, state: State, *, lengths: Tensor | None = None) -> Tensor:
        """Where `forward` looks: the weights ``(batch, time, memory_time)``, zero on padding.

        Those of a decoded sequence are the same as of that sequence given.
        """
        return self.decode(inputs, state, lengths)[1]

    def decode(self, inputs: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, Tensor, State]:
        """Outputs, weights and state of a sequence."""
        inputs, state, lengths = self.begin(inputs, state, lengths)
        state = cast(AttentionState, state)
        seen = self.seen(state)
        rows, time, places = *inputs.shape[:2], seen.memory.shape[1]
        if 0 in (rows, time):
            return inputs.new_zeros(rows, time, self.output_size), inputs.new_zeros(rows, time, places), state
        with ProductsAfter():
            found, weights, own = self.run(inputs, state[:2], seen, lengths)
        outputs, weights = (zero_padding(values, lengths) for values in (self.finish(found), weights))
        return outputs, weights, state._replace(layer=own[0], before=own[1])

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """One step of the recurrence and of attention."""
        self.check_step(inputs, state)
        state = cast(AttentionState, state)
        found, _, own = self.advance(inputs, state[:2], self.seen(state))
        return self.finish(found), state._replace(layer=own[0], before=own[1])

    def seen(self, state: AttentionState) -> Seen:
        """What there is to look at."""
        return self.attend.look_at(state.memory, state.keys, state.lengths)

    def run(self, inputs: Tensor, own: Own, seen: Seen, lengths: Tensor | None) -> tuple[Tensor, Tensor, Own]:
        """Steps over a sequence: what they find ``(batch, time, size)``, weights ``(batch, time, places)``, the end."""
        if lengths is None:
            joined, end = self.loop(inputs, own, seen)
        else:  # sorted first, so that the rows still going are always the first of the memory too
            order = torch.argsort(lengths, descending=True, stable=True)
            rows = order.to(inputs.device)
            seen, own = seen.choose(rows), select_state(own, rows)
            joined, end = run_by_length(
                lambda going, kept: self.loop(going, kept, seen.choose(slice(len(going)))),
                inputs[rows],
                own,
                lengths[order],
            )
            back = torch.argsort(rows)
            joined, end = joined[back], select_state(end, back)
        places = seen.memory.shape[1]
        return joined[:, :, places:], joined[:, :, :places], cast(Own, end)

    def loop(self, inputs: Tensor, own: State, seen: Seen) -> tuple[Tensor, State]:
        """Steps over a batch without padding: weights and what is found, joined ``(batch, time, places + size)``."""
        joined = []
        for x_t in inputs.unbind(1):
            found, weights, own = self.advance(x_t, cast(Own, own), seen)
            joined.append(torch.cat([weights, found], dim=1))
        return torch.stack(joined, dim=1), own

    def look(self, queries: Tensor, seen: Seen) -> tuple[Tensor, Tensor]:
        """Contexts and weights of one step's queries ``(batch, size)``."""
        contexts, weights = self.attend(queries.unsqueeze(1), seen)
        return contexts.squeeze(1), weights.squeeze(1)

    def readout(self, found: Tensor) -> Tensor:
        """From [c; h] to outputs."""
        return found if self.map is None else torch.tanh(self.map(found))

    def before_first(self, start: State, context: Tensor) -> State:
        """What the first step reads in place of a step before it.

        Args:
            start: the recurrence's initial state.
            context: the summary of the memory ``(batch, memory_size)``.
        """
        raise NotImplementedError

    def advance(self, inputs: Tensor, own: Own, seen: Seen) -> tuple[Tensor, Tensor, Own]:
        """One step: ``(batch, input_size)`` to what `finish` reads, the weights ``(batch, places)``, what is kept."""
        raise NotImplementedError

    def finish(self, found: Tensor) -> Tensor:
        """From what `advance` finds, at one step or all at once, to outputs."""
        raise NotImplementedError
