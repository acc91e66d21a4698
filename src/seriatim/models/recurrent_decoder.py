"""Recurrent decoders whose initial state comes from an encoder, with one vector as the summary of the source.

I. Sutskever, O. Vinyals and Q. Le, "Sequence to sequence learning with neural networks", NeurIPS 2014; K. Cho et al.,
"Learning phrase representations using RNN encoder-decoder for statistical machine translation", EMNLP 2014.

    c = the encoder's last output (see `SUMMARIES`), used in one or more of three ways:
    initial    s_0 = tanh(W c + b), or the encoder's last state (see `Bridge`)
    updates    s_t = f(s_{t−1}, [x_t; c])
    outputs    y_t = [h_t; c]

x_t inputs · f the recurrence, any causal sequence layer · s_t its state, h_t its output · y_t outputs. A decoder builds
its recurrence with a function of the input width, because with `updates` the recurrence reads more than x_t:

    ContextDecoder(lambda width: seriatim.layer("gru", width, 512), 256, 512, context="initial+updates")
"""

from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from ..core.contract import MemoryLayer, SequenceLayer, joined_type
from ..core.errors import MismatchError, NotSupportedError, RequiredError, require_known
from ..core.lengths import zero_padding
from ..core.state import OutputsAndState, State, fits, kind_in_words, kind_of, map_state, state_leaves, with_children
from .base_models import Pooling

MakeLayer = Callable[[int], SequenceLayer]
"""Builds a layer for an input width."""
BRIDGES = ("map", "copy", "none")
CONTEXTS = ("initial", "updates", "outputs")
SUMMARIES = ("last", "ends", "mean")
"""How the outputs of an encoder become one vector: the last one; the last one of each direction, each with half of the
features; or their mean."""


class Bridge(nn.Module):
    """Computes the initial state of a decoder's layer.

    `map`: every vector of the state is tanh(W c + b), each with its own W and b (Cho et al. 2014). `copy`: the last
    state of the encoder, whose layer has the same structure and widths (Sutskever et al. 2014). `none`: the initial
    state of the decoder's layer. ``memory_size`` is the width of c. An unknown kind raises InputError.
    """

    def __init__(self, layer: SequenceLayer, memory_size: int, *, kind: str) -> None:
        super().__init__()
        self.kind = require_known("bridge", kind, BRIDGES)
        start = layer.initial_state(1)
        leaves, self.state_kind = state_leaves(start), kind_in_words(kind_of(start))
        self.shapes = [leaf.shape for leaf in leaves]
        widths = [leaf.shape[1] for leaf in leaves if _is_vector(leaf)]
        self.maps = nn.ModuleList(linear(memory_size, width) for width in widths if kind == "map")

    def forward(self, start: State, summary: Tensor, encoder_state: State | None) -> State:
        """Return the initial state, given the layer's own, the summary ``(batch, memory_size)`` and the encoder's last.

        Raises:
            InputError: the encoder's state is missing, of another kind or of another size.
        """
        if self.kind == "none":
            return start
        if self.kind == "map":
            maps = iter(self.maps)
            return map_state(lambda leaf: torch.tanh(next(maps)(summary)) if _is_vector(leaf) else leaf, start)
        if encoder_state is None:
            raise RequiredError(
                "bridge copy needs the encoder's last state; give initial_state(..., encoder_state=state)"
            )
        self.check(encoder_state)
        leaves = iter(state_leaves(encoder_state))
        return map_state(lambda _: next(leaves), start)

    def check(self, encoder_state: State) -> None:
        """Raise InputError if an encoder's state is of another kind or size than the decoder's."""
        kind, shapes = kind_in_words(kind_of(encoder_state)), [leaf.shape for leaf in state_leaves(encoder_state)]
        if kind != self.state_kind or not all(map(fits, shapes, self.shapes)):
            source, target = (
                f"{kind} of the sizes {[tuple(shape[1:]) for shape in sizes]}"
                for kind, sizes in ((kind, shapes), (self.state_kind, self.shapes))
            )
            raise MismatchError(
                f"bridge copy: the encoder keeps {source}, the decoder {target}; give both layers of one kind and "
                "size, or take the bridge map"
            )


class RecurrentDecoder(MemoryLayer):
    """A recurrence whose initial state comes from an encoder with outputs of width ``memory_size``.

    ``bridge`` says how the initial state is computed, see `Bridge`, and ``summary``, one of `SUMMARIES`, which vector
    summarizes the memory. InputError: a name is unknown, or the layer is not causal or attends to a memory itself.
    """

    def __init__(self, layer: SequenceLayer, memory_size: int, *, bridge: str = "map", summary: str = "last") -> None:
        super().__init__()
        if not layer.causal or isinstance(layer, MemoryLayer):
            raise NotSupportedError("decoder: its layer is not causal, or has a memory of its own; give another layer")
        require_known("summary", summary, SUMMARIES)
        self.layer, self.memory_size = layer, memory_size
        self.bridge = Bridge(layer, memory_size, kind=bridge)
        self.reads_encoder_state = bridge == "copy"
        backward_from = memory_size // 2 if summary == "ends" else memory_size
        self.summarize = Pooling("mean" if summary == "mean" else "final", memory_size, backward_from=backward_from)

    def initial_state(
        self,
        batch_size: int,
        memory: Tensor | None = None,
        memory_lengths: Tensor | None = None,
        *,
        encoder_state: State | None = None,
    ) -> State:
        """Return the state before the first input; see `MemoryLayer.initial_state`."""
        memory, lengths = self.check_memory(batch_size, memory, memory_lengths, self.memory_size)
        context = self.summarize(memory, lengths)
        start = self.bridge(self.layer.initial_state(batch_size), context, encoder_state)
        return self.begin_with(start, context, memory, lengths)

    def check_encoder(self, encoder: SequenceLayer) -> None:
        """Raise InputError if this decoder cannot start from the final state of ``encoder``."""
        if self.memory_size != encoder.output_size:
            raise MismatchError(
                f"the encoder gives {encoder.output_size} features, the decoder takes {self.memory_size}; "
                "make them equal"
            )
        if self.bridge.kind == "copy":
            self.bridge.check(encoder.initial_state(1))

    def example_state(self, batch_size: int = 1, memory_time: int = 0) -> State:
        """Return a state with a memory of zeros, whatever the bridge, which may need the state of an encoder."""
        memory, lengths = self.zeros(batch_size, memory_time, self.memory_size), torch.full((batch_size,), memory_time)
        context = self.summarize(memory, lengths.to(memory.device))
        return self.begin_with(self.layer.initial_state(batch_size), context, memory, lengths.to(memory.device))

    def begin_with(self, start: State, context: Tensor, memory: Tensor, lengths: Tensor) -> State:
        """Return the state of the decoder, made of the state of its recurrence and the other leaves."""
        raise NotImplementedError


class ContextState(NamedTuple):
    """The state of the recurrence, and c ``(batch, memory_size)``, or ``()`` if only the initial state uses c."""

    layer: State
    context: State


class ContextDecoder(RecurrentDecoder):
    """A decoder without attention: one vector summarizes the source.

    ``recurrence`` builds f for an input width. ``context`` says where the vector is used: `initial`, `updates` or
    `outputs`, or several of them joined by ``+``; ``bridge`` matters with `initial` only. The other arguments are those
    of `RecurrentDecoder`.
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
        uses = [require_known("context", use.strip(), CONTEXTS) for use in context.split("+")]
        updates = "updates" in uses
        kind = bridge if "initial" in uses else "none"
        super().__init__(recurrence(input_size + updates * memory_size), memory_size, bridge=kind, summary=summary)
        self.updates, self.outputs = updates, "outputs" in uses
        self.input_size = input_size
        self.output_size = self.layer.output_size + self.outputs * memory_size

    def begin_with(self, start: State, context: Tensor, memory: Tensor, lengths: Tensor) -> State:
        """Return the state of the recurrence, and c."""
        return joined_type(self, [self.layer], ContextState)(start, context if self.updates or self.outputs else ())

    def forward(self, inputs: Tensor, state: State | None = None, *, lengths: Tensor | None = None) -> OutputsAndState:
        """Run the recurrence over ``(batch, time, input_size)`` in one call; see `SequenceLayer.forward`."""
        inputs, state, lengths = self.begin(inputs, state, lengths)
        layer, context = cast(ContextState, state)
        outputs, layer = self.layer(_append(inputs, context, self.updates), layer, lengths=lengths)
        return zero_padding(_append(outputs, context, self.outputs), lengths), with_children(state, (layer, context))

    def step(self, inputs: Tensor, state: State) -> OutputsAndState:
        """Run one step of the recurrence."""
        self.check_step(inputs, state)
        layer, context = cast(ContextState, state)
        outputs, layer = self.layer.step(_append(inputs, context, self.updates), layer)
        return _append(outputs, context, self.outputs), with_children(state, (layer, context))


def linear(input_size: int, output_size: int, *, bias: bool = True) -> nn.Linear:
    """Return a linear map with Glorot-uniform weights and a bias of zero."""
    layer = nn.Linear(input_size, output_size, bias=bias)
    nn.init.xavier_uniform_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def _is_vector(leaf: Tensor) -> bool:
    return leaf.dim() == 2 and leaf.shape[1] > 0 and leaf.is_floating_point()


def _append(values: Tensor, context: State, is_used: bool) -> Tensor:
    """Return [value; c] for values ``(batch, size)`` or ``(batch, time, size)``, or the values if c is not used."""
    if not is_used:
        return values
    assert isinstance(context, Tensor)
    if values.dim() == 3:
        context = context.unsqueeze(1).expand(-1, values.shape[1], -1)
    return torch.cat([values, context], dim=-1)
