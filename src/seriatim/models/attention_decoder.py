"""The base class of recurrent decoders with attention; see `attentional` for the papers and equations.

Attention has one head and no projections. The part of a score that depends on the memory m alone is computed once: the
keys are W m for a bilinear score, W₂ m for an additive score, and m itself for the dot products.
"""

from typing import NamedTuple, TypeAlias, cast

import torch
from torch import Tensor, nn

from ..core.contract import SequenceLayer
from ..core.errors import InputError, nearest
from ..core.lengths import run_by_length, valid_mask, zero_padding
from ..core.state import State, select_state
from ..layers.scoring import Additive, Bilinear, Dot, scoring
from ..recurrence.deferred_gradients import ProductsAfter
from .recurrent_decoder import RecurrentDecoder, linear

READOUTS = ("tanh", "direct")
StepState: TypeAlias = tuple[State, State]
"""What changes from step to step: the state of the recurrence, and what the next step reads of this one."""


class Memory(NamedTuple):
    """A memory that queries can attend to."""

    values: Tensor  # (batch, memory_time, memory_size)
    keys: Tensor  # (batch, memory_time, key_size)
    padding: Tensor | None  # which positions are padding (batch, 1, memory_time); None if every row is full

    def rows(self, rows: Tensor | slice) -> "Memory":
        """Return some of the rows."""
        values = self.values[rows]
        keys = values if self.keys is self.values else self.keys[rows]
        return Memory(values, keys, None if self.padding is None else self.padding[rows])


class MemoryAttention(nn.Module):
    """Attention to a memory: α = softmax over n of score(q, m_n), c = Σ_n α_n m_n; `scoring` has the scores."""

    def __init__(self, query_size: int, memory_size: int, *, score: str) -> None:
        super().__init__()
        self.score = scoring(score, query_size, memory_size)

    def keys(self, memory: Tensor) -> State:
        """Return the keys of a memory ``(batch, memory_time, key_size)``; ``()`` if they are the memory itself."""
        if isinstance(self.score, Bilinear):
            return memory @ self.score.weight[0].mT
        if isinstance(self.score, Additive):
            return memory @ self.score.key_weight[0]
        return ()

    def forward(self, queries: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """Return contexts ``(batch, time, memory_size)`` and weights ``(batch, time, memory_time)``.

        The queries are ``(batch, time, query_size)``. The results are zero in a row with an empty memory.
        """
        scores = self.scores(queries, memory.keys)
        if memory.padding is None:
            weights = torch.softmax(scores, dim=2)
        else:  # a large negative number, not −∞: the softmax of a row with an empty memory must not be NaN
            lowest = torch.finfo(scores.dtype).min
            weights = torch.softmax(scores.masked_fill(memory.padding, lowest), dim=2).masked_fill(memory.padding, 0)
        return weights @ memory.values, weights

    def scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return scores ``(B, T, S)`` for queries ``(B, T, Q)`` and the result of `keys` ``(B, S, K)``."""
        if isinstance(self.score, Additive):
            hidden = torch.tanh((queries @ self.score.query_weight[0]).unsqueeze(2) + keys.unsqueeze(1))
            return (hidden @ self.score.vector[0]).squeeze(3)
        return (self.score.scale * queries if isinstance(self.score, Dot) else queries) @ keys.mT


class AttentionState(NamedTuple):
    """The state of a decoder with attention."""

    layer: State  # of the recurrence
    before: State  # what the next step reads of the step before (batch, size), or ()
    memory: Tensor  # (batch, memory_time, memory_size)
    keys: State  # (batch, memory_time, key_size), or () if the keys are the memory itself
    lengths: Tensor  # of the memory (batch,)


class AttentionDecoder(RecurrentDecoder):
    """A decoder that attends to the whole memory at every step; subclasses differ in when they attend.

    ``score`` is a name in `seriatim.layers.scoring`. With the ``readout`` `tanh` the outputs are a map of [c; h], as
    wide as h, and with `direct` [c; h] itself. The other arguments are those of `RecurrentDecoder`. InputError: a name
    is unknown, or a dot product has vectors of different widths.
    """

    keeps = "the recurrence's state and the memory"

    def __init__(
        self,
        layer: SequenceLayer,
        input_size: int,
        memory_size: int,
        *,
        score: str,
        readout: str = "tanh",
        **options: str,
    ) -> None:
        super().__init__(layer, memory_size, **options)
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
        memory = self.memory_of(state)
        rows, time, memory_time = *inputs.shape[:2], state.memory.shape[1]
        if 0 in (rows, time):
            return inputs.new_zeros(rows, time, self.output_size), inputs.new_zeros(rows, time, memory_time), state
        with ProductsAfter():
            features, weights, (layer, before) = self.run(inputs, state[:2], memory, lengths)
        outputs, weights = (zero_padding(values, lengths) for values in (self.finish(features), weights))
        return outputs, weights, state._replace(layer=layer, before=before)

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """Run one step of the recurrence and of attention."""
        self.check_step(inputs, state)
        state = cast(AttentionState, state)
        features, _, (layer, before) = self.advance(inputs, state[:2], self.memory_of(state))
        return self.finish(features), state._replace(layer=layer, before=before)

    def memory_of(self, state: AttentionState) -> Memory:
        """Return the memory in a state with its keys and its padding."""
        memory, lengths, time = state.memory, state.lengths, state.memory.shape[1]
        is_full = not len(lengths) or int(lengths.min()) == time
        padding = None if is_full else ~valid_mask(lengths, time).unsqueeze(1)
        return Memory(memory, state.keys if isinstance(state.keys, Tensor) else memory, padding)

    def run(
        self, inputs: Tensor, start: StepState, memory: Memory, lengths: Tensor | None
    ) -> tuple[Tensor, Tensor, StepState]:
        """Run all steps of a sequence; return the results of `advance` with a dimension of time."""
        if lengths is None:
            joined, end = self.loop(inputs, start, memory)
        else:  # sorted by length, so that the active rows are always the first rows of the memory
            order = torch.argsort(lengths, descending=True, stable=True)
            rows = order.to(inputs.device)
            memory, start = memory.rows(rows), select_state(start, rows)
            joined, end = run_by_length(
                lambda active, state: self.loop(active, state, memory.rows(slice(len(active)))),
                inputs[rows],
                start,
                lengths[order],
            )
            inverse = torch.argsort(rows)
            joined, end = joined[inverse], select_state(end, inverse)
        weights, features = joined.tensor_split([memory.values.shape[1]], dim=2)
        return features, weights, cast(StepState, end)

    def loop(self, inputs: Tensor, state: State, memory: Memory) -> tuple[Tensor, State]:
        """Run all steps without padding; return weights and features ``(batch, time, memory_time + size)``."""
        joined = []
        for x_t in inputs.unbind(1):
            features, weights, state = self.advance(x_t, cast(StepState, state), memory)
            joined.append(torch.cat([weights, features], dim=1))
        return torch.stack(joined, dim=1), state

    def attend_step(self, queries: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """Return contexts and weights for the queries of one step ``(batch, size)``."""
        contexts, weights = self.attend(queries.unsqueeze(1), memory)
        return contexts.squeeze(1), weights.squeeze(1)

    def readout(self, features: Tensor) -> Tensor:
        """Return the outputs for [c; h]."""
        return features if self.map is None else torch.tanh(self.map(features))

    def before_first(self, start: State, context: Tensor) -> State:
        """Return what the first step reads of a step before it, given s_0 and the summary ``(batch, memory_size)``."""
        raise NotImplementedError

    def advance(self, inputs: Tensor, state: StepState, memory: Memory) -> tuple[Tensor, Tensor, StepState]:
        """Run one step on inputs ``(batch, input_size)``.

        The results are the input of `finish` ``(batch, size)``, weights ``(batch, memory_time)`` and the next state.
        """
        raise NotImplementedError

    def finish(self, features: Tensor) -> Tensor:
        """Return the outputs for the features of `advance`, of one step or of all steps."""
        return self.readout(features)
