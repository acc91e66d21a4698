"""Recurrent decoders whose initial state comes from an encoder, with one vector as the summary of the source.

I. Sutskever, O. Vinyals and Q. Le, "Sequence to sequence learning with neural networks", NeurIPS 2014; K. Cho et al.,
"Learning phrase representations using RNN encoder-decoder for statistical machine translation", EMNLP 2014.

    c = the encoder's last output (see `bridge.summarise`), used in one or more of three ways:
    initial    s_0 = tanh(W c + b), or the encoder's last state
    updates    s_t = f(s_{t−1}, [x_t; c])
    outputs    y_t = [h_t; c]

x_t inputs · f the recurrence, any causal sequence layer · s_t its state, h_t its output · y_t outputs. A decoder builds
its recurrence with a function of the input width, because with `updates` the recurrence reads more than x_t:

    ContextDecoder(lambda width: seriatim.layer("gru", width, 512), 256, 512, context="initial+updates")
"""

from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor

from ..core.contract import MemoryLayer, SequenceLayer
from ..core.errors import InputError, nearest
from ..core.lengths import check_lengths, zero_padding
from ..core.state import State
from .bridge import SUMMARIES, Bridge, summarise

MakeLayer = Callable[[int], SequenceLayer]
"""Builds a layer for an input width."""

CONTEXTS = ("initial", "updates", "outputs")


class RecurrentDecoder(MemoryLayer):
    """A recurrence whose initial state comes from an encoder.

    Args:
        layer: the recurrence.
        memory_size: width of the encoder's outputs.
        bridge: how the initial state is computed: `map`, `copy` or `none`; see `Bridge`.
        summary: which vector summarizes the memory: `last`, `ends` or `mean`; see `summarise`.

    Raises:
        InputError: a name is unknown, or the layer is not causal or attends to a memory itself.
    """

    def __init__(self, layer: SequenceLayer, memory_size: int, *, bridge: str, summary: str) -> None:
        super().__init__()
        if not layer.causal or isinstance(layer, MemoryLayer):
            raise InputError("a decoder's recurrence must be causal and attend to no memory of its own")
        if summary not in SUMMARIES:
            raise InputError(f"unknown summary {summary!r}; {nearest(summary, list(SUMMARIES))}")
        self.layer, self.memory_size, self.summary = layer, memory_size, summary
        self.bridge = Bridge(layer, memory_size, kind=bridge)

    def initial_state(
        self,
        batch_size: int,
        memory: Tensor | None = None,
        memory_lengths: Tensor | None = None,
        *,
        encoder_state: State | None = None,
    ) -> State:
        """Return the state before the first input.

        Args:
            batch_size: rows of the batch.
            memory: an encoder's outputs ``(batch, memory_time, memory_size)``.
            memory_lengths: ``(batch,)``, 0 allowed; None if every row is full.
            encoder_state: the state after the encoder's last input; only the bridge `copy` uses it.

        Raises:
            ValueError: the memory is missing or has the wrong shape.
        """
        if memory is None:
            raise ValueError("a decoder needs a memory; give initial_state(batch_size, memory, memory_lengths)")
        if memory.dim() != 3 or (memory.shape[0], memory.shape[2]) != (batch_size, self.memory_size):
            raise ValueError(
                f"memory must have shape ({batch_size}, memory_time, {self.memory_size}); got {tuple(memory.shape)}"
            )
        lengths = check_lengths(memory_lengths, batch_size, memory.shape[1])
        memory = zero_padding(memory, lengths)
        if lengths is None:
            lengths = torch.full((batch_size,), memory.shape[1])
        lengths = lengths.to(memory.device, copy=True)
        context = summarise(memory, lengths, self.summary)
        start = self.bridge(self.layer.initial_state(batch_size), context, encoder_state)
        return self.begin_with(start, context, memory, lengths)

    def check_encoder(self, encoder: SequenceLayer) -> None:
        """Raise InputError if this decoder cannot start from the final state of ``encoder``."""
        if self.memory_size != encoder.output_size:
            raise InputError(
                f"the encoder gives {encoder.output_size} features, the decoder takes {self.memory_size}; "
                "make them equal"
            )
        if self.bridge.kind == "copy":
            self.bridge.check(encoder.initial_state(1))

    def begin_with(self, start: State, context: Tensor, memory: Tensor, lengths: Tensor) -> State:
        """Return the state of the decoder, made of the state of its recurrence and the other parts."""
        raise NotImplementedError


class ContextState(NamedTuple):
    """The state of the recurrence, and c ``(batch, memory_size)``, or ``()`` if only the initial state uses c."""

    layer: State
    context: State


class ContextDecoder(RecurrentDecoder):
    """A decoder without attention: one vector summarizes the source.

    Args:
        recurrence: builds the recurrence for an input width.
        input_size: width of an input.
        memory_size: width of the encoder's outputs.
        context: where the vector is used: `initial`, `updates` or `outputs`, or several of them joined by ``+``.
        bridge: how the initial state is computed, if ``context`` contains `initial`: `map` or `copy`.
        summary: which vector summarizes the memory.

    Raises:
        InputError: a name is unknown.
    """

    parallel = True
    keeps = "the recurrence's state and one vector"
    paper = "Sutskever et al. 2014; Cho et al. 2014"

    def __init__(
        self,
        recurrence: MakeLayer,
        input_size: int,
        memory_size: int,
        *,
        context: str = "initial",
        bridge: str = "map",
        summary: str = "last",
    ) -> None:
        uses = [use.strip() for use in context.split("+")]
        for use in uses:
            if use not in CONTEXTS:
                raise InputError(f"unknown context {use!r}; {nearest(use, list(CONTEXTS))}")
        updates = "updates" in uses
        kind = bridge if "initial" in uses else "none"
        super().__init__(recurrence(input_size + updates * memory_size), memory_size, bridge=kind, summary=summary)
        self.updates, self.outputs = updates, "outputs" in uses
        self.input_size = input_size
        self.output_size = self.layer.output_size + self.outputs * memory_size

    def begin_with(self, start: State, context: Tensor, memory: Tensor, lengths: Tensor) -> State:
        """Return the state of the recurrence, and c."""
        return ContextState(start, context if self.updates or self.outputs else ())

    def forward(
        self, inputs: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Run the recurrence over ``(batch, time, input_size)`` in one call; see `SequenceLayer.forward`."""
        inputs, state, lengths = self.begin(inputs, state, lengths)
        layer, context = cast(ContextState, state)
        outputs, layer = self.layer(_append(inputs, context, self.updates), layer, lengths=lengths)
        return zero_padding(_append(outputs, context, self.outputs), lengths), ContextState(layer, context)

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """Run one step of the recurrence."""
        self.check_step(inputs, state)
        layer, context = cast(ContextState, state)
        outputs, layer = self.layer.step(_append(inputs, context, self.updates), layer)
        return _append(outputs, context, self.outputs), ContextState(layer, context)


def _append(values: Tensor, context: State, is_used: bool) -> Tensor:
    """Return [value; c] for values ``(batch, size)`` or ``(batch, time, size)``, or the values if c is not used."""
    if not is_used:
        return values
    assert isinstance(context, Tensor)
    if values.dim() == 3:
        context = context.unsqueeze(1).expand(-1, values.shape[1], -1)
    return torch.cat([values, context], dim=-1)
