"""The base class of recurrent decoders with attention; see `attentional` for the papers and equations.

Attention has one head and no projections. The part of a score that depends on the memory m alone is computed once: the
keys are W m for a bilinear score, W₂ m for an additive score, and m itself for the dot products.

With ``location`` the scores also depend on where the step before looked (J. Chorowski et al., "Attention-based models
for speech recognition", NIPS 2015):

    α_t = softmax over n of score(q_t, m_n) + Σ_j w_j α_{t−1, n−j},  j = −2 … 2

with α_0 = 0. A positive w_1 makes attention advance from token to token, as in every task whose targets have the order
of their sources. The paper learns several such filters and adds them to the hidden layer of an additive score; here
there is one, for every score.
"""

from typing import NamedTuple, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.contract import SequenceLayer, joined_type
from ..core.errors import InputError, nearest
from ..core.exporting import exporting
from ..core.lengths import run_by_length, valid_mask, zero_padding
from ..core.state import State, select_state
from ..core.step_operators import tracing_step
from ..layers.scoring import Additive, Bilinear, Dot, scoring
from ..recurrence.conditions import functional_step
from ..recurrence.deferred_gradients import ProductsAfter
from ..recurrence.fast_path import run_sequence, run_step
from .recurrent_decoder import RecurrentDecoder, linear

READOUTS = ("tanh", "direct")
REACH = 2
"""Largest shift of the weights before, in either direction, that the scores can depend on."""
LOCATION_SCALE = 10.0
"""Factor of the learned w, because a weight of attention is at most 1, while the scores are sums over many features."""
StepState: TypeAlias = tuple[State, State, State]
"""What changes from step to step: the state of the recurrence, what the next step reads of this one, and where this one
looked: weights ``(batch, memory_time)``, or ``()`` if the next scores do not depend on them."""


class Memory(NamedTuple):
    """A memory that queries can attend to."""

    values: Tensor  # (batch, memory_time, memory_size)
    keys: Tensor  # (batch, memory_time, key_size)
    padding: Tensor | None  # which positions are padding (batch, 1, memory_time); None if every row is full
    lengths: Tensor | None = None  # (batch,); only while a step is traced, and instead of the padding

    def rows(self, rows: Tensor | slice) -> "Memory":
        """Return some of the rows."""
        values = self.values[rows]
        keys = values if self.keys is self.values else self.keys[rows]
        return Memory(values, keys, None if self.padding is None else self.padding[rows])


class MemoryAttention(nn.Module):
    """Attention to a memory: α = softmax over n of score(q, m_n), c = Σ_n α_n m_n; `scoring` has the scores."""

    def __init__(self, query_size: int, memory_size: int, *, score: str, location: bool = False) -> None:
        super().__init__()
        self.score = scoring(score, query_size, memory_size)
        self.location = nn.Parameter(torch.zeros(2 * REACH + 1)) if location else None

    def keys(self, memory: Tensor) -> State:
        """Return the keys of a memory ``(batch, memory_time, key_size)``; ``()`` if they are the memory itself."""
        if isinstance(self.score, Bilinear):
            return memory @ self.score.weight[0].mT
        if isinstance(self.score, Additive):
            return memory @ self.score.key_weight[0]
        return ()

    def forward(self, queries: Tensor, memory: Memory, before: State = ()) -> tuple[Tensor, Tensor]:
        """Return contexts ``(batch, time, memory_size)`` and weights ``(batch, time, memory_time)``.

        The queries are ``(batch, time, query_size)``; ``before`` are the weights of the step before the first one, with
        location. The results are zero in a row with an empty memory.
        """
        scores = self.scores(queries, memory.keys)
        if memory.padding is not None:  # a large negative number, not −∞: the softmax of an empty row must not be NaN
            scores = scores.masked_fill(memory.padding, torch.finfo(scores.dtype).min)
        weights = self.located(scores, before) if isinstance(before, Tensor) else torch.softmax(scores, dim=2)
        if memory.padding is not None:
            weights = weights.masked_fill(memory.padding, 0)
        return weights @ memory.values, weights

    @property
    def _filter(self) -> Tensor:
        """The factors of the weights before, of the largest shift first."""
        assert self.location is not None
        return LOCATION_SCALE * self.location.flip(0)

    def traced_attention(self, queries: Tensor, memory: Memory, before: State) -> Tensor:
        """Return what the compiler records for the contexts of one step; see `seriatim.core.step_operators`."""
        last, location = (before, self._filter) if isinstance(before, Tensor) else (None, None)
        score, vector, scale = self.score, None, 1.0
        if isinstance(score, Additive):
            queries, vector = queries @ score.query_weight[0], score.vector[0, :, 0]
        elif isinstance(score, Dot):
            scale = score.scale
        values, keys, _, lengths = memory
        return cast(
            Tensor, torch.ops.seriatim.attend_to_rows(queries, values, keys, lengths, vector, scale, last, location)
        )

    def located(self, scores: Tensor, before: Tensor) -> Tensor:
        """Return the weights for scores ``(B, T, S)``, each of which depends on those of the step before ``(B, S)``."""
        if not scores.shape[2]:
            return scores
        filter_weights, steps, last = self._filter, [], before.unsqueeze(1)
        for score in scores.tensor_split(scores.shape[1], dim=1):
            shifted = F.pad(last, (REACH, REACH)).unfold(2, 2 * REACH + 1, 1)  # (B, 1, S, shifts), the largest first
            last = torch.softmax(score + shifted @ filter_weights, dim=2)
            steps.append(last)
        return torch.cat(steps, dim=1)

    def scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return scores ``(B, T, S)`` for queries ``(B, T, Q)`` and the result of `keys` ``(B, S, K)``."""
        if isinstance(self.score, Additive):
            hidden = torch.tanh((queries @ self.score.query_weight[0]).unsqueeze(2) + keys.unsqueeze(1))
            return (hidden @ self.score.vector[0]).squeeze(3)
        return (self.score.scale * queries if isinstance(self.score, Dot) else queries) @ keys.mT


class _AttentionFields(NamedTuple):
    layer: State  # of the recurrence
    before: State  # what the next step reads of the step before (batch, size), or ()
    weights: State  # where the step before looked (batch, memory_time), or () without location
    memory: Tensor  # (batch, memory_time, memory_size)
    keys: State  # (batch, memory_time, key_size), or () if the keys are the memory itself
    lengths: Tensor  # of the memory (batch,)


class AttentionState(_AttentionFields):
    """The state of a decoder with attention."""

    memory_fields = ("weights", "memory", "keys")


class AttentionDecoder(RecurrentDecoder):
    """A decoder that attends to the whole memory at every step; subclasses differ in when they attend.

    ``score`` is a name in `seriatim.layers.scoring`, and ``location`` lets the scores depend on where the step before
    looked. With the ``readout`` `tanh` the outputs are a map of [c; h], as wide as h, and with `direct` [c; h] itself.
    The other arguments are those of `RecurrentDecoder`. InputError: a name is unknown, or a dot product has vectors of
    different widths.
    """

    keeps = "the recurrence's state and the memory"

    def __init__(
        self,
        layer: SequenceLayer,
        input_size: int,
        memory_size: int,
        *,
        score: str,
        location: bool = False,
        readout: str = "tanh",
        **options: str,
    ) -> None:
        super().__init__(layer, memory_size, **options)
        if readout not in READOUTS:
            raise InputError(f"unknown readout {readout!r}; {nearest(readout, list(READOUTS))}")
        width = layer.output_size
        self.attend = MemoryAttention(width, memory_size, score=score, location=location)
        self.map = linear(memory_size + width, width, bias=False) if readout == "tanh" else None
        self.input_size, self.output_size = input_size, memory_size + width if self.map is None else width

    def begin_with(self, start: State, context: Tensor, memory: Tensor, lengths: Tensor) -> State:
        """Return the initial state, with the memory and its keys."""
        before, keys = self.before_first(start, context), self.attend.keys(memory)
        weights = () if self.attend.location is None else memory.new_zeros(memory.shape[:2])
        return joined_type(self, [self.layer], AttentionState)(start, before, weights, memory, keys, lengths)

    def forward(
        self, inputs: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Decode ``(batch, time, input_size)``; see `SequenceLayer.forward`."""
        inputs, state, lengths = self.begin(inputs, state, lengths)
        step = self.loop_step
        result = None if step is None else run_sequence(self, *functional_step(step), inputs, state, lengths)
        if result is None:
            outputs, _, state = self.decode(inputs, state, lengths)
            return outputs, state
        features, state = result
        return zero_padding(self.finish(features), lengths), state

    @property
    def loop_step(self) -> nn.Module | None:
        """The step that runs in compiled code, from inputs and state to features and state.

        It is None if steps need not run one after another, because no step depends on the context of the one before.
        """
        return _Advance(self)

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
            features, weights, (layer, before, last) = self.run(inputs, state[:3], memory, lengths)
        outputs, weights = (zero_padding(values, lengths) for values in (self.finish(features), weights))
        return outputs, weights, state._replace(layer=layer, before=before, weights=last)

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """Run one step of the recurrence and of attention."""
        result = run_step(self, inputs, state)
        if result is not None:
            return result
        outputs, _, state = self.attending_step(inputs, state)
        return outputs, state

    def attending_step(self, inputs: Tensor, state: State) -> tuple[Tensor, Tensor, State]:
        """Return the outputs of a step, its attention weights ``(batch, memory_time)`` and the state after it."""
        self.check_step(inputs, state)
        result = None if self.attend.location is None else run_step(self, inputs, state)
        if result is not None:  # the state has the weights
            outputs, after = result[0], cast(AttentionState, result[1])
            return outputs, cast(Tensor, after.weights), after
        features, weights, state = self.advance_state(inputs, state)
        return self.finish(features), weights, state

    def advance_state(self, inputs: Tensor, state: State) -> tuple[Tensor, Tensor, State]:
        """Return the features of a step, its attention weights and the state after it."""
        state = cast(AttentionState, state)
        features, weights, (layer, before, last) = self.advance(inputs, state[:3], self.memory_of(state))
        return features, weights, state._replace(layer=layer, before=before, weights=last)

    def memory_of(self, state: AttentionState) -> Memory:
        """Return the memory in a state with its keys and its padding."""
        memory, lengths, time = state.memory, state.lengths, state.memory.shape[1]
        keys = state.keys if isinstance(state.keys, Tensor) else memory
        if tracing_step():
            return Memory(memory, keys, None, lengths)
        is_full = not exporting() and (not len(lengths) or int(lengths.min()) == time)
        padding = None if is_full else ~valid_mask(lengths, time).unsqueeze(1)
        return Memory(memory, keys, padding)

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

    def attend_step(self, queries: Tensor, memory: Memory, before: State) -> tuple[Tensor, Tensor, State]:
        """Return contexts and weights for the queries of one step ``(batch, size)``, and weights to keep, if any."""
        if tracing_step():
            return self.attend.traced_attention(queries, memory, before), queries, before
        contexts, weights = (values.squeeze(1) for values in self.attend(queries.unsqueeze(1), memory, before))
        return contexts, weights, weights if isinstance(before, Tensor) else ()

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


class _Advance(nn.Module):
    """The features of one step, as a module."""

    def __init__(self, decoder: AttentionDecoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        features, _, state = self.decoder.advance_state(inputs, state)
        return features, state
