"""Recurrent decoders with attention to everything the encoder read.

M.-T. Luong, H. Pham and C. Manning, "Effective approaches to attention-based neural machine translation", EMNLP 2015:
`LuongDecoder`, which attends after the recurrence.

    s_t = f(s_{t−1}, x_t), or f(s_{t−1}, [x_t; y_{t−1}]) with input feeding;  h_t its output
    c_t = Σ_n α_n m_n,  α = softmax over n of score(h_t, m_n)
    y_t = tanh(W [c_t; h_t]), or [c_t; h_t]

D. Bahdanau, K. Cho and Y. Bengio, "Neural machine translation by jointly learning to align and translate", ICLR 2015:
`BahdanauDecoder`, which attends before it.

    c_t = Σ_n α_n m_n,  α = softmax over n of score(h_{t−1}, m_n)
    s_t = f(s_{t−1}, [x_t; c_t]);  y_t as above (the paper's maxout layer, which also reads x_t, is left out)

x_t inputs · f ``layer``, any causal sequence layer · s_t its state, h_t its output · m ``memory`` · α ``weights`` · W
``map`` · y_t outputs. A decoder makes its recurrence by a function of the width it reads, which these forms make wider
than an input:

    LuongDecoder(lambda width: seriatim.layer("lstm", width, 512), 256, 512, input_feeding=True)
"""

from typing import NamedTuple, TypeAlias, cast

import torch
from torch import Tensor

from ..errors import InputError, nearest
from ..layer import SequenceLayer
from ..lengths import run_by_length, zero_padding
from ..state import State, select_state, state_leaves
from .bridge import linear
from .memory_attention import MemoryAttention, Seen
from .recurrent_decoder import MakeLayer, RecurrentDecoder

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


class LuongDecoder(AttentionDecoder):
    """Attends after the recurrence. Without input feeding all steps of a sequence run at once.

    Args:
        recurrence: makes the recurrence for a width of inputs.
        input_size: width of an input.
        memory_size: width of the encoder's outputs.
        score: `dot`, `scaled-dot`, `bilinear` or `additive`.
        readout: `tanh` or `direct`; see `AttentionDecoder`.
        input_feeding: whether a step also reads the outputs of the one before, zeros at first.
        bridge: `map`, `copy` or `none`.
        summary: `last`, `ends` or `mean`.

    Raises:
        InputError: an unknown name, or a dot product of different widths.
    """

    paper = "Luong et al. 2015"

    def __init__(
        self,
        recurrence: MakeLayer,
        input_size: int,
        memory_size: int,
        *,
        score: str = "bilinear",
        readout: str = "tanh",
        input_feeding: bool = False,
        bridge: str = "map",
        summary: str = "last",
    ) -> None:
        width = input_size
        if input_feeding:  # how wide its outputs are, only a recurrence says; one of any width of inputs
            width += recurrence(input_size).output_size + (memory_size if readout == "direct" else 0)
        layer = recurrence(width)
        super().__init__(layer, input_size, memory_size, score=score, readout=readout, bridge=bridge, summary=summary)
        self.input_feeding = input_feeding
        self.parallel = not input_feeding  # type: ignore[misc]

    def before_first(self, start: State, context: Tensor) -> State:
        """Zeros, with input feeding."""
        return self.zeros(len(context), self.output_size) if self.input_feeding else ()

    def run(self, inputs: Tensor, own: Own, seen: Seen, lengths: Tensor | None) -> tuple[Tensor, Tensor, Own]:
        """Without input feeding the recurrence runs first, then attention of all steps."""
        if self.input_feeding:
            return super().run(inputs, own, seen, lengths)
        hidden, layer = self.layer(inputs, own[0], lengths=lengths)
        contexts, weights = self.attend(hidden, seen)
        return self.readout(torch.cat([contexts, hidden], dim=2)), weights, (layer, ())

    def advance(self, inputs: Tensor, own: Own, seen: Seen) -> tuple[Tensor, Tensor, Own]:
        """The recurrence, then attention."""
        layer, before = own
        if isinstance(before, Tensor):
            inputs = torch.cat([inputs, before], dim=1)
        hidden, layer = self.layer.step(inputs, layer)
        context, weights = self.look(hidden, seen)
        outputs = self.readout(torch.cat([context, hidden], dim=1))
        return outputs, weights, (layer, outputs if self.input_feeding else ())

    def finish(self, found: Tensor) -> Tensor:
        """Outputs as they are: the next step may have needed them."""
        return found


class BahdanauDecoder(AttentionDecoder):
    """Attends before the recurrence, with its output of the step before.

    Where that output is a part of the recurrence's state, as in an RNN, a GRU and an LSTM, the first query is that part
    of the first state, as in the paper; elsewhere it is a map of the summary of its own.

    Args:
        recurrence: makes the recurrence for a width of inputs.
        input_size: width of an input.
        memory_size: width of the encoder's outputs.
        score: `dot`, `scaled-dot`, `bilinear` or `additive`.
        readout: `tanh` or `direct`; see `AttentionDecoder`.
        bridge: `map`, `copy` or `none`.
        summary: `last`, `ends` or `mean`.

    Raises:
        InputError: an unknown name, or a dot product of different widths.
    """

    paper = "Bahdanau et al. 2015"

    def __init__(
        self,
        recurrence: MakeLayer,
        input_size: int,
        memory_size: int,
        *,
        score: str = "additive",
        readout: str = "tanh",
        bridge: str = "map",
        summary: str = "last",
    ) -> None:
        layer = recurrence(input_size + memory_size)
        super().__init__(layer, input_size, memory_size, score=score, readout=readout, bridge=bridge, summary=summary)
        self.part = output_part(layer)
        self.first = None if self.part is not None else linear(memory_size, layer.output_size)

    def before_first(self, start: State, context: Tensor) -> State:
        """h_0."""
        if self.first is not None:
            return torch.tanh(self.first(context))
        assert self.part is not None
        return state_leaves(start)[self.part]

    def advance(self, inputs: Tensor, own: Own, seen: Seen) -> tuple[Tensor, Tensor, Own]:
        """Attention, then the recurrence."""
        layer, before = own
        assert isinstance(before, Tensor)
        context, weights = self.look(before, seen)
        hidden, layer = self.layer.step(torch.cat([inputs, context], dim=1), layer)
        return torch.cat([context, hidden], dim=1), weights, (layer, hidden)

    def finish(self, found: Tensor) -> Tensor:
        """The readout, of all steps at once."""
        return self.readout(found)


def output_part(layer: SequenceLayer) -> int | None:
    """Which part of its state a layer gives as its output: found by trying, None where there is none."""
    with torch.no_grad():
        inputs = layer.zeros(1, layer.input_size) + 1
        outputs, state = layer.step(inputs, layer.initial_state(1))
    leaves = enumerate(state_leaves(state))
    return next((i for i, leaf in leaves if leaf.shape == outputs.shape and torch.equal(leaf, outputs)), None)
