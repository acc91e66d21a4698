"""Recurrent decoders with attention to all outputs of the encoder: Luong's, Bahdanau's, and what both have in common.

M.-T. Luong, H. Pham and C. Manning, "Effective approaches to attention-based neural machine translation", EMNLP 2015:
`luong_decoder`, which attends after the recurrence.

    s_t = f(s_{t−1}, x_t), or f(s_{t−1}, [x_t; y_{t−1}]) with input feeding;  h_t its output
    c_t = Σ_n α_n m_n,  α = softmax over n of score(h_t, m_n)
    y_t = tanh(W [c_t; h_t]), or [c_t; h_t]

D. Bahdanau, K. Cho and Y. Bengio, "Neural machine translation by jointly learning to align and translate", ICLR 2015:
`bahdanau_decoder`, which attends before it.

    c_t = Σ_n α_n m_n,  α = softmax over n of score(h_{t−1}, m_n)
    s_t = f(s_{t−1}, [x_t; c_t]);  y_t as above (the paper's maxout layer, which also reads x_t, is left out)

x_t inputs · f ``layer``, any causal sequence layer · s_t its state, h_t its output · m ``memory`` · α ``weights`` · W
``map`` · y_t outputs. A decoder builds its recurrence with a function of the input width, because the recurrence may
read more than x_t:

    luong_decoder(lambda width: seriatim.layer("lstm", width, 512), 256, 512, input_feeding=True)

Attention has one head and no projections. The term of a score that depends on the memory m alone is computed once: the
keys are W m for a bilinear score, W₂ m for an additive score, and m itself for the dot products.

With ``location`` the scores also depend on where the step before attended (J. Chorowski et al., "Attention-based models
for speech recognition", NIPS 2015):

    α_t = softmax over n of score(q_t, m_n) + Σ_j w_j α_{t−1, n−j},  j = −2 … 2

with α_0 = 0. A positive w_1 makes attention advance from token to token, as in every task whose targets have the order
of their sources. The paper learns several such filters and adds them to the hidden layer of an additive score; here
there is one, for every score.
"""

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.contract import SequenceLayer, joined_type
from ..core.errors import require_known
from ..core.exporting import exporting
from ..core.lengths import run_by_length, valid_mask, zero_padding
from ..core.state import OutputsAndState, State, select_state, state_leaves
from ..core.step_operators import tracing_step
from ..layers.scoring import Additive, Bilinear, Dot, scoring
from ..recurrence.fast_path import run_sequence, run_step
from .recurrent_decoder import MakeLayer, RecurrentDecoder, linear

READOUTS = ("tanh", "direct")
REACH = 2
"""Largest shift of the weights before, in either direction, that the scores can depend on."""
LOCATION_SCALE = 10.0
"""Factor of the learned w, because a weight of attention is at most 1, while the scores are sums over many features."""
StepState: TypeAlias = tuple[State, State, State]
"""What changes from step to step: the state of the recurrence, what the next step reads of this one, and where this one
attended: weights ``(batch, memory_time)``, or ``()`` if the next scores do not depend on them."""
Features: TypeAlias = tuple[Tensor, Tensor, StepState]
"""What steps compute: the input of `finish`, attention weights, and what the next step needs."""


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

    @classmethod
    def of(cls, state: "AttentionState") -> "Memory":
        """Return the memory in a state, with its keys and its padding."""
        memory, lengths, time = state.memory, state.lengths, state.memory.shape[1]
        keys = state.keys if isinstance(state.keys, Tensor) else memory
        if tracing_step():
            return cls(memory, keys, None, lengths)
        is_full = not exporting() and (not len(lengths) or int(lengths.min()) == time)
        padding = None if is_full else ~valid_mask(lengths, time).unsqueeze(1)  # (B, 1, S)
        return cls(memory, keys, padding)


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

    def step(self, queries: Tensor, memory: Memory, before: State) -> tuple[Tensor, Tensor, State]:
        """Return contexts and weights for the queries of one step ``(batch, size)``, and weights to keep, if any."""
        if tracing_step():
            return self.traced_contexts(queries, memory, before), queries, before
        contexts, weights = (values.squeeze(1) for values in self(queries.unsqueeze(1), memory, before))
        return contexts, weights, weights if isinstance(before, Tensor) else ()

    @property
    def _filter(self) -> Tensor:
        """The factors of the weights before, of the largest shift first."""
        assert self.location is not None
        return LOCATION_SCALE * self.location.flip(0)

    def traced_contexts(self, queries: Tensor, memory: Memory, before: State) -> Tensor:
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


class AttentionState(NamedTuple):
    """The state of a decoder with attention."""

    layer: State  # of the recurrence
    before: State  # what the next step reads of the step before (batch, size), or ()
    weights: State  # where the step before attended (batch, memory_time), or () without location
    memory: Tensor  # (batch, memory_time, memory_size)
    keys: State  # (batch, memory_time, key_size), or () if the keys are the memory itself
    lengths: Tensor  # of the memory (batch,)


class LuongState(AttentionState):
    """The state of a decoder in Luong's form."""

    memory_fields = ("weights", "memory", "keys")


class BahdanauState(AttentionState):
    """The state of a decoder in Bahdanau's form."""

    memory_fields = ("weights", "memory", "keys")


@dataclass(frozen=True)
class Luong:
    """Attention after the recurrence. With ``input_feeding`` a step also reads the outputs of the step before."""

    input_feeding: bool
    state_type = LuongState

    def needs_steps(self, decoder: "AttentionDecoder") -> bool:
        """Return whether steps must run one after another, because they depend on attention of the step before."""
        return self.input_feeding or decoder.attend.location is not None

    def before_first(self, decoder: "AttentionDecoder", start: State, context: Tensor) -> State:
        """Return zeros for input feeding, else ``()``."""
        return decoder.zeros(context.shape[0], decoder.output_size) if self.input_feeding else ()

    def at_once(
        self, decoder: "AttentionDecoder", inputs: Tensor, start: StepState, memory: Memory, lengths: Tensor | None
    ) -> Features | None:
        """Run the recurrence over the sequence and then attention for all steps, unless there is input feeding."""
        if self.input_feeding:
            return None
        hidden, layer = decoder.layer(inputs, start[0], lengths=lengths)
        contexts, weights = decoder.attend(hidden, memory, start[2])
        last = last_weights(weights, start[2], lengths)
        return torch.cat([contexts, hidden], dim=2), weights, (layer, (), last)

    def advance(self, decoder: "AttentionDecoder", inputs: Tensor, state: StepState, memory: Memory) -> Features:
        """Run one step of the recurrence, then attention."""
        layer, before, last = state
        if isinstance(before, Tensor):
            inputs = torch.cat([inputs, before], dim=1)
        hidden, layer = decoder.layer.step(inputs, layer)
        context, weights, last = decoder.attend.step(hidden, memory, last)
        features = torch.cat([context, hidden], dim=1)
        if not self.input_feeding:
            return features, weights, (layer, (), last)
        outputs = decoder.readout(features)
        return outputs, weights, (layer, outputs, last)

    def finish(self, decoder: "AttentionDecoder", features: Tensor) -> Tensor:
        """Return the outputs, which are the features with input feeding, because the next step needs them."""
        return features if self.input_feeding else decoder.readout(features)


class Bahdanau:
    """Attention before the recurrence, with the output of the step before as the query.

    If the output is a leaf of the recurrence's state, as in an RNN, a GRU and an LSTM, the first query is that leaf of
    the initial state, as in the paper. Otherwise it is a learned map of the summary.
    """

    state_type = BahdanauState

    def needs_steps(self, decoder: "AttentionDecoder") -> bool:
        """Return true: every query is the output of the step before."""
        return True

    def before_first(self, decoder: "AttentionDecoder", start: State, context: Tensor) -> State:
        """Return h_0."""
        if decoder.first is not None:
            return torch.tanh(decoder.first(context))
        assert decoder.output_leaf is not None
        return state_leaves(start)[decoder.output_leaf]

    def at_once(
        self, decoder: "AttentionDecoder", inputs: Tensor, start: StepState, memory: Memory, lengths: Tensor | None
    ) -> None:
        """Return None: there are no queries before the recurrence has run."""

    def advance(self, decoder: "AttentionDecoder", inputs: Tensor, state: StepState, memory: Memory) -> Features:
        """Run attention, then one step of the recurrence."""
        layer, before, last = state
        assert isinstance(before, Tensor)
        context, weights, last = decoder.attend.step(before, memory, last)
        hidden, layer = decoder.layer.step(torch.cat([inputs, context], dim=1), layer)
        return torch.cat([context, hidden], dim=1), weights, (layer, hidden, last)

    def finish(self, decoder: "AttentionDecoder", features: Tensor) -> Tensor:
        """Return the outputs for the features of one step or of all steps."""
        return decoder.readout(features)


class AttentionDecoder(RecurrentDecoder):
    """A decoder that attends to the whole memory at every step; ``form`` says when.

    ``score`` is a name in `seriatim.layers.scoring`, and ``location`` lets the scores depend on where the step before
    attended. With the ``readout`` `tanh` the outputs are a map of [c; h], as wide as h; with `direct` [c; h] itself.
    The other arguments are those of `RecurrentDecoder`. InputError: a name is unknown, or a dot product has vectors of
    different widths.
    """

    keeps = "the recurrence's state and the memory"
    paper = "Luong et al. 2015; Bahdanau et al. 2015"

    def __init__(
        self,
        form: Luong | Bahdanau,
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
        require_known("readout", readout, READOUTS)
        width = layer.output_size
        self.form = form
        self.attend = MemoryAttention(width, memory_size, score=score, location=location)
        self.map = linear(memory_size + width, width, bias=False) if readout == "tanh" else None
        self.input_size, self.output_size = input_size, memory_size + width if self.map is None else width

        # The first query of Bahdanau's form; see there.
        self.output_leaf, self.first = None, None
        if isinstance(form, Bahdanau):
            self.output_leaf = output_leaf(layer)
            self.first = linear(memory_size, width) if self.output_leaf is None else None

    def class_name(self) -> str:
        """Return the name of the form, for messages."""
        return f"{type(self.form).__name__}Decoder"

    def begin_with(self, start: State, context: Tensor, memory: Tensor, lengths: Tensor) -> State:
        """Return the initial state, with the memory and its keys."""
        before, keys = self.form.before_first(self, start, context), self.attend.keys(memory)
        weights = () if self.attend.location is None else memory.new_zeros(memory.shape[:2])
        return joined_type(self, [self.layer], self.form.state_type)(start, before, weights, memory, keys, lengths)

    def forward(self, inputs: Tensor, state: State | None = None, *, lengths: Tensor | None = None) -> OutputsAndState:
        """Decode ``(batch, time, input_size)``; see `SequenceLayer.forward`."""
        inputs, state, lengths = self.begin(inputs, state, lengths)
        step = self.loop_step
        result = None if step is None else run_sequence(self, step, inputs, state, lengths)
        if result is None:
            outputs, _, state = self.decode(inputs, state, lengths)
            return outputs, state
        features, state = result
        return zero_padding(self.form.finish(self, features), lengths), state

    @property
    def loop_step(self) -> nn.Module | None:
        """The step that runs in compiled code, from inputs and state to features and state.

        It is None if steps need not run one after another, because no step depends on the context of the one before.
        """
        return _Advance(self) if self.form.needs_steps(self) else None

    def attention(self, inputs: Tensor, state: State, *, lengths: Tensor | None = None) -> Tensor:
        """Return the attention weights of `forward` ``(batch, time, memory_time)``, zero on padding."""
        return self.decode(inputs, state, lengths)[1]

    def decode(self, inputs: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, Tensor, State]:
        """Return outputs, attention weights and the state after a sequence."""
        inputs, state, lengths = self.begin(inputs, state, lengths)
        state = cast(AttentionState, state)
        rows, time, memory_time = *inputs.shape[:2], state.memory.shape[1]
        if 0 in (rows, time):
            return inputs.new_zeros(rows, time, self.output_size), inputs.new_zeros(rows, time, memory_time), state
        memory, start = Memory.of(state), state[:3]
        found = self.form.at_once(self, inputs, start, memory, lengths)
        found = self.run(inputs, start, memory, lengths) if found is None else found
        features, weights, (layer, before, last) = found
        outputs, weights = (zero_padding(values, lengths) for values in (self.form.finish(self, features), weights))
        return outputs, weights, state._replace(layer=layer, before=before, weights=last)

    def step(self, inputs: Tensor, state: State) -> OutputsAndState:
        """Run one step of the recurrence and of attention."""
        result = run_step(self, inputs, state)
        if result is not None:
            return result
        self.check_step(inputs, state)
        features, _, state = self.advance(inputs, state)
        return self.form.finish(self, features), state

    def advance(self, inputs: Tensor, state: State) -> tuple[Tensor, Tensor, State]:
        """Return the features of a step, its attention weights and the state after it."""
        state = cast(AttentionState, state)
        found = self.form.advance(self, inputs, state[:3], Memory.of(state))
        features, weights, (layer, before, last) = found
        return features, weights, state._replace(layer=layer, before=before, weights=last)

    def run(self, inputs: Tensor, start: StepState, memory: Memory, lengths: Tensor | None) -> Features:
        """Run the steps of a sequence one after another; the results have a dimension of time."""

        # Weights and features are joined to one tensor, because `run_by_length` takes one output of a step.
        def loop(inputs: Tensor, state: State) -> OutputsAndState:
            joined, some = [], memory.rows(slice(len(inputs)))
            for x_t in inputs.unbind(1):
                features, weights, state = self.form.advance(self, x_t, cast(StepState, state), some)
                joined.append(torch.cat([weights, features], dim=1))
            return torch.stack(joined, dim=1), state  # (B, T, S + size)

        if lengths is None:
            joined, end = loop(inputs, start)
        else:  # sorted by length, so that the active rows are always the first rows of the memory
            order = torch.argsort(lengths, descending=True, stable=True)
            rows = order.to(inputs.device)
            memory = memory.rows(rows)
            joined, end = run_by_length(loop, inputs[rows], select_state(start, rows), lengths[order])
            inverse = torch.argsort(rows)
            joined, end = joined[inverse], select_state(end, inverse)
        weights, features = joined.tensor_split([memory.values.shape[1]], dim=2)
        return features, weights, cast(StepState, end)

    def readout(self, features: Tensor) -> Tensor:
        """Return the outputs for [c; h]."""
        return features if self.map is None else torch.tanh(self.map(features))


class _Advance(nn.Module):
    """The features of one step, as a module that can run in compiled code."""

    def __init__(self, decoder: AttentionDecoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, inputs: Tensor, state: State) -> OutputsAndState:
        features, _, state = self.decoder.advance(inputs, state)
        return features, state


def luong_decoder(
    recurrence: MakeLayer,
    input_size: int,
    memory_size: int,
    *,
    score: str = "bilinear",
    readout: str = "tanh",
    input_feeding: bool = False,
    location: bool = False,
    **options: str,
) -> AttentionDecoder:
    """Return a decoder in Luong's form. Without input feeding the recurrence runs over a whole sequence in one call.

    ``recurrence`` builds f for an input width. With ``input_feeding`` a step also reads the outputs of the step before;
    the first step reads zeros. The other arguments are those of `AttentionDecoder`.
    """
    width = input_size
    if input_feeding:  # a recurrence must be built to know the width of its outputs
        width += recurrence(input_size).output_size + (memory_size if readout == "direct" else 0)
    layer, attention = recurrence(width), {"score": score, "readout": readout, **options}
    return AttentionDecoder(Luong(input_feeding), layer, input_size, memory_size, location=location, **attention)


def bahdanau_decoder(
    recurrence: MakeLayer,
    input_size: int,
    memory_size: int,
    *,
    score: str = "additive",
    location: bool = False,
    **options: str,
) -> AttentionDecoder:
    """Return a decoder in Bahdanau's form; ``recurrence`` builds f for an input width.

    The other arguments are those of `AttentionDecoder`.
    """
    layer = recurrence(input_size + memory_size)
    attention = {"score": score, **options}
    return AttentionDecoder(Bahdanau(), layer, input_size, memory_size, location=location, **attention)


def last_weights(weights: Tensor, start: State, lengths: Tensor | None) -> State:
    """Return the weights ``(B, T, S)`` of the last step of each row, those at the start of an empty row ``(B, S)``.

    The result is ``()`` if the state at the start has no weights.
    """
    if not isinstance(start, Tensor):
        return ()
    if lengths is None:
        return weights[:, -1]
    lengths = lengths.to(weights.device)
    last = weights[torch.arange(len(weights), device=weights.device), (lengths - 1).clamp(min=0)]
    return torch.where((lengths > 0).unsqueeze(1), last, start)


def output_leaf(layer: SequenceLayer) -> int | None:
    """Return which leaf of its state a layer returns as its output, by running a step; None if there is none."""
    with torch.no_grad():
        inputs = layer.zeros(1, layer.input_size) + 1
        outputs, state = layer.step(inputs, layer.initial_state(1))
    leaves = enumerate(state_leaves(state))
    return next((i for i, leaf in leaves if leaf.shape == outputs.shape and torch.equal(leaf, outputs)), None)
