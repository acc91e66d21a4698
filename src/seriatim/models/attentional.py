"""Recurrent decoders with attention to all outputs of the encoder.

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
``map`` · y_t outputs. A decoder builds its recurrence with a function of the input width, because the recurrence may
read more than x_t:

    LuongDecoder(lambda width: seriatim.layer("lstm", width, 512), 256, 512, input_feeding=True)
"""

import torch
from torch import Tensor, nn

from ..core.contract import SequenceLayer
from ..core.state import State, state_leaves
from .attention_decoder import AttentionDecoder, Memory, StepState
from .recurrent_decoder import MakeLayer, linear


class LuongDecoder(AttentionDecoder):
    """Attends after the recurrence. Without input feeding the recurrence runs over a whole sequence in one call.

    ``recurrence`` builds f for an input width. With ``input_feeding`` a step also reads the outputs of the step before;
    the first step reads zeros. The other arguments are those of `AttentionDecoder`.
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
        location: bool = False,
        **options: str,
    ) -> None:
        width = input_size
        if input_feeding:  # a recurrence must be built to know the width of its outputs
            width += recurrence(input_size).output_size + (memory_size if readout == "direct" else 0)
        layer = recurrence(width)
        super().__init__(layer, input_size, memory_size, score=score, location=location, readout=readout, **options)
        self.input_feeding = input_feeding

    @property
    def loop_step(self) -> nn.Module | None:
        """The step that runs in compiled code, with input feeding or location."""
        return super().loop_step if self.input_feeding or self.attend.location is not None else None

    def before_first(self, start: State, context: Tensor) -> State:
        """Return zeros for input feeding, else ``()``."""
        return self.zeros(context.shape[0], self.output_size) if self.input_feeding else ()

    def run(
        self, inputs: Tensor, start: StepState, memory: Memory, lengths: Tensor | None
    ) -> tuple[Tensor, Tensor, StepState]:
        """Run the recurrence over the sequence and then attention for all steps, unless there is input feeding."""
        if self.input_feeding:
            return super().run(inputs, start, memory, lengths)
        hidden, layer = self.layer(inputs, start[0], lengths=lengths)
        contexts, weights = self.attend(hidden, memory, start[2])
        last = last_weights(weights, start[2], lengths)
        return torch.cat([contexts, hidden], dim=2), weights, (layer, (), last)

    def advance(self, inputs: Tensor, state: StepState, memory: Memory) -> tuple[Tensor, Tensor, StepState]:
        """Run one step of the recurrence, then attention."""
        layer, before, looked = state
        if isinstance(before, Tensor):
            inputs = torch.cat([inputs, before], dim=1)
        hidden, layer = self.layer.step(inputs, layer)
        context, weights, looked = self.attend_step(hidden, memory, looked)
        features = torch.cat([context, hidden], dim=1)
        if not self.input_feeding:
            return features, weights, (layer, (), looked)
        outputs = self.readout(features)
        return outputs, weights, (layer, outputs, looked)

    def finish(self, features: Tensor) -> Tensor:
        """Return the outputs; with input feeding they are the features, because the next step needs them."""
        return features if self.input_feeding else self.readout(features)


class BahdanauDecoder(AttentionDecoder):
    """Attends before the recurrence, with the output of the step before as the query.

    If the output is a part of the recurrence's state, as in an RNN, a GRU and an LSTM, the first query is that part of
    the initial state, as in the paper. Otherwise it is a learned map of the summary. ``recurrence`` builds f for an
    input width; the other arguments are those of `AttentionDecoder`.
    """

    paper = "Bahdanau et al. 2015"

    def __init__(
        self,
        recurrence: MakeLayer,
        input_size: int,
        memory_size: int,
        *,
        score: str = "additive",
        location: bool = False,
        **options: str,
    ) -> None:
        layer = recurrence(input_size + memory_size)
        super().__init__(layer, input_size, memory_size, score=score, location=location, **options)
        self.part = output_part(layer)
        self.first = None if self.part is not None else linear(memory_size, layer.output_size)

    def before_first(self, start: State, context: Tensor) -> State:
        """Return h_0."""
        if self.first is not None:
            return torch.tanh(self.first(context))
        assert self.part is not None
        return state_leaves(start)[self.part]

    def advance(self, inputs: Tensor, state: StepState, memory: Memory) -> tuple[Tensor, Tensor, StepState]:
        """Run attention, then one step of the recurrence."""
        layer, before, looked = state
        assert isinstance(before, Tensor)
        context, weights, looked = self.attend_step(before, memory, looked)
        hidden, layer = self.layer.step(torch.cat([inputs, context], dim=1), layer)
        return torch.cat([context, hidden], dim=1), weights, (layer, hidden, looked)


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


def output_part(layer: SequenceLayer) -> int | None:
    """Return which part of its state a layer returns as its output, by running a step; None if there is none."""
    with torch.no_grad():
        inputs = layer.zeros(1, layer.input_size) + 1
        outputs, state = layer.step(inputs, layer.initial_state(1))
    leaves = enumerate(state_leaves(state))
    return next((i for i, leaf in leaves if leaf.shape == outputs.shape and torch.equal(leaf, outputs)), None)
