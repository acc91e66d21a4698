"""Layers that are made of other layers: on top of one another, around a residual connection, in two directions.

    stack           h^l_t = f(h^l_{t−1}, h^{l−1}_t)
    norm first      y = x + layer(norm(x))
    norm last       y = norm(x + layer(x))
    bidirectional   h_t = [h→_t ; h←_t]

Residual connections: K. He et al., "Deep residual learning for image recognition", CVPR 2016. The position of the norm:
R. Xiong et al., "On layer normalization in the transformer architecture", ICML 2020. Two directions: M. Schuster and
K. Paliwal, "Bidirectional recurrent neural networks", IEEE Transactions on Signal Processing 45(11), 1997.

The block is built of these (`seriatim.layers.registry`): A. Vaswani et al., "Attention is all you need", NeurIPS 2017;
any sequence layer can take the place of attention, see W. Yu et al., "MetaFormer is actually what you need for vision",
CVPR 2022.

    u = x + layer(norm(x))
    v = u + CrossAttention(norm(u), memory)      in a block with a memory
    y = v + FeedForward(norm(v))                 in a whole block

Where an inner layer attends to a memory, the layer around it is a `MemoryLayer`, too.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor, nn

from ..core.contract import MemoryLayer, SequenceLayer, initial_state_of, joined_type
from ..core.errors import MismatchError, NotSupportedError, RangeError, RequiredError, shown
from ..core.lengths import padding_cleared, reverse, zero_padding
from ..core.state import OutputsAndState, State, with_children
from ..recurrence.fast_path import run_step
from .path_lengths import direct_paths, joined_paths
from .pointwise import EPSILON, Epsilon, Norm, make_dropout, norm_named

RunLayer: TypeAlias = Callable[[SequenceLayer, Tensor, State], OutputsAndState]


class Stack(SequenceLayer):
    """Layers that run one on top of another; the state is the tuple of their states, of a type for these layers.

    Args:
        layers: the bottom layer first; the output of each is the input of the next.
        dropout: rate between layers (none after the last).
        variational: use one dropout mask for a sequence instead of one for each step.
        residual: add the inputs of a layer to its outputs wherever their widths are equal.
        norm: a norm of the top layer's outputs, or None.

    Raises:
        InputError: no layers, widths that do not match, or a layer that attends to a memory (see `stack`).
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
        check_layers(self, layers)
        if not layers:
            raise RequiredError("layers: a stack has none; give at least one")
        for below, above in itertools.pairwise(layers):
            if below.output_size != above.input_size:
                raise MismatchError(
                    f"layers: {below.output_size} features go to a layer that takes {above.input_size}; make them equal"
                )
        self.layers = cast("Sequence[SequenceLayer]", nn.ModuleList(layers))
        self.dropout = make_dropout(dropout, variational=variational)
        self.residual = residual
        self.norm = norm
        self.input_size = layers[0].input_size
        self.output_size = layers[-1].output_size
        self.causal = all(layer.causal for layer in layers)

    def initial_state(self, batch_size: int, *memory: Any, **named: Any) -> State:
        """Return the tuple of the layers' initial states; the arguments are those of `initial_state_of`."""
        states = (initial_state_of(layer, batch_size, *memory, **named) for layer in self.layers)
        make: Callable[..., State] = joined_type(self, self.layers)
        return make(*states)

    def forward(self, inputs: Tensor, state: State | None = None, *, lengths: Tensor | None = None) -> OutputsAndState:
        """Run every layer over ``(batch, time, input_size)``; see `SequenceLayer.forward`."""
        inputs, state, lengths = self.begin(inputs, state, lengths)
        with padding_cleared(lengths):
            outputs, end = self.run(lambda layer, x, start: layer(x, start, lengths=lengths), inputs, state)
        return zero_padding(outputs, lengths), end

    def step(self, inputs: Tensor, state: State) -> OutputsAndState:
        """Compute one step of every layer, in one call of compiled code where possible."""
        self.check_input(inputs)
        result = run_step(self, inputs, state)
        if result is not None:
            return result
        self.check_state(state, inputs)
        return self.run(lambda layer, x, start: layer.step(x, start), inputs, state)

    def run(self, run_layer: RunLayer, hidden: Tensor, state: State) -> OutputsAndState:
        """Run layer after layer, with dropout between them, residual connections and the norm at the top."""
        ends = []
        for i, (layer, start) in enumerate(zip(self.layers, state, strict=True)):
            outputs, end = run_layer(layer, self.dropout(hidden) if i else hidden, start)
            is_joined = self.residual and hidden.shape[-1] == outputs.shape[-1]
            hidden = hidden + outputs if is_joined else outputs
            ends.append(end)
        return hidden if self.norm is None else self.norm(hidden), with_children(state, ends)

    def path_lengths(self, distance: int) -> Tensor:
        """Return the length of the shortest paths through all layers."""
        paths = []
        for layer in self.layers:
            lengths = layer.path_lengths(distance)
            direct = self.residual and layer.input_size == layer.output_size
            paths.append(torch.minimum(lengths, direct_paths(distance, 0)) if direct else lengths)
        return joined_paths(paths)


class Residual(SequenceLayer):
    """A layer with a norm and a residual connection; the state is that of the layer.

    Args:
        layer: a layer whose outputs have the width of its inputs.
        norm: the name of the norm; see `pointwise.NORMS`.
        norm_first: apply the norm before each part instead of after each sum.
        norm_epsilon: is added to the variance or mean square of what is normalized.
        dropout: rate on the outputs of the layer.
        variational: use one dropout mask for a sequence instead of one for each step.

    Raises:
        InputError: the layer changes the width, or attends to a memory (see `with_residual`).
    """

    def __init__(
        self,
        layer: SequenceLayer,
        *,
        norm: Norm = "rms",
        norm_first: bool = True,
        norm_epsilon: Epsilon = EPSILON,
        dropout: float = 0.0,
        variational: bool = False,
    ) -> None:
        super().__init__()
        check_layers(self, [layer])
        if layer.input_size != layer.output_size:
            raise MismatchError(
                f"residual: the layer takes {layer.input_size} features and gives {layer.output_size}; make them equal"
            )
        self.norm = norm_named(norm, layer.input_size, epsilon=norm_epsilon)
        self.norm_first = norm_first
        self.layer = layer
        self.dropout = make_dropout(dropout, variational=variational)
        self.input_size, self.output_size, self.causal = layer.input_size, layer.output_size, layer.causal

    def initial_state(self, batch_size: int, *memory: Any, **named: Any) -> State:
        """Return the initial state of the layer; the arguments are those of `initial_state_of`."""
        return initial_state_of(self.layer, batch_size, *memory, **named)

    def forward(self, inputs: Tensor, state: State | None = None, *, lengths: Tensor | None = None) -> OutputsAndState:
        """Run the layer over ``(batch, time, input_size)``; see `SequenceLayer.forward`."""
        inputs, state, lengths = self.begin(inputs, state, lengths)
        with padding_cleared(lengths):
            outputs, state = self.layer(self.before(inputs), state, lengths=lengths)
        return zero_padding(self.after(inputs, outputs), lengths), state

    def step(self, inputs: Tensor, state: State) -> OutputsAndState:
        """Compute one step of the layer."""
        self.check_input(inputs)
        outputs, state = self.layer.step(self.before(inputs), state)
        return self.after(inputs, outputs), state

    def path_lengths(self, distance: int) -> Tensor:
        """Return the path lengths of the layer; the residual connection passes on the present input."""
        return torch.minimum(self.layer.path_lengths(distance), direct_paths(distance, 0))

    def before(self, inputs: Tensor) -> Tensor:
        """Return the inputs of the layer, normalised where the norm comes first."""
        return self.norm(inputs) if self.norm_first else inputs

    def after(self, inputs: Tensor, outputs: Tensor) -> Tensor:
        """Return the sum, normalised where the norm comes last."""
        total: Tensor = inputs + self.dropout(outputs)
        return total if self.norm_first else self.norm(total)


class BidirectionalState(NamedTuple):
    """The state of each direction: after the last valid input, and after the first one, read backwards."""

    forwards: State
    backwards: State


class Bidirectional(SequenceLayer):
    """Two layers, one of which runs from left to right and the other from right to left; outputs are concatenated.

    Args:
        forwards: reads from the first input onwards.
        backwards: another instance with the same input width, which reads backwards from each row's last valid input.

    Raises:
        ValueError: a layer is not causal, attends to a memory (see `bidirectional`), or reads inputs of another width.
    """

    causal = False

    def __init__(self, forwards: SequenceLayer, backwards: SequenceLayer) -> None:
        super().__init__()
        check_layers(self, [forwards, backwards])
        if not (forwards.causal and backwards.causal):
            raise NotSupportedError("layer: it reads in both directions already; give a causal layer")
        if forwards.input_size != backwards.input_size:
            raise ValueError(
                f"both directions read the same inputs; got widths {forwards.input_size} and {backwards.input_size}"
            )
        self.forwards, self.backwards = forwards, backwards
        self.input_size = forwards.input_size
        self.output_size = forwards.output_size + backwards.output_size

    def initial_state(self, batch_size: int, *memory: Any, **named: Any) -> State:
        """Return the initial states of both directions; the arguments are those of `initial_state_of`."""
        directions = (self.forwards, self.backwards)
        states = (initial_state_of(layer, batch_size, *memory, **named) for layer in directions)
        return joined_type(self, directions, BidirectionalState)(*states)

    def forward(self, inputs: Tensor, state: State | None = None, *, lengths: Tensor | None = None) -> OutputsAndState:
        """Run both directions over ``(batch, time, input_size)``; see `SequenceLayer.forward`."""
        state, lengths = self.validate_inputs(inputs, state, lengths)
        start, end = state
        forward_outputs, start = self.forwards(inputs, start, lengths=lengths)
        backward_outputs, end = self.backwards(reverse(inputs, lengths), end, lengths=lengths)
        outputs = torch.cat([forward_outputs, reverse(backward_outputs, lengths)], dim=2)
        return outputs, with_children(state, (start, end))

    def path_lengths(self, distance: int) -> Tensor:
        """Return the path lengths of the forward layer: the backward layer carries later inputs to earlier outputs."""
        return self.forwards.path_lengths(distance)


# ---- the same around layers that attend to a memory, which are part of an encoder-decoder


class MemoryStack(Stack, MemoryLayer):
    """A stack in which some layers attend to a memory."""


class MemoryResidual(Residual, MemoryLayer):
    """A `Residual` around a layer that attends to a memory."""


class MemoryBidirectional(Bidirectional, MemoryLayer):
    """Two directions of a layer that attends to a memory."""


def stack(layers: Sequence[SequenceLayer], **options: Any) -> Stack:
    """Return a `Stack`, or a `MemoryStack` where a layer attends to a memory; the arguments are those of `Stack`."""
    return (MemoryStack if any(isinstance(layer, MemoryLayer) for layer in layers) else Stack)(layers, **options)


def with_residual(layer: SequenceLayer, **options: Any) -> Residual:
    """Return a `Residual`, or a `MemoryResidual` where the layer attends to a memory; options as for `Residual`."""
    return (MemoryResidual if isinstance(layer, MemoryLayer) else Residual)(layer, **options)


def bidirectional(forwards: SequenceLayer, backwards: SequenceLayer) -> Bidirectional:
    """Return a `Bidirectional`, or a `MemoryBidirectional` where a layer attends to a memory."""
    return (MemoryBidirectional if isinstance(forwards, MemoryLayer) else Bidirectional)(forwards, backwards)


def check_layers(container: SequenceLayer, layers: object) -> None:
    """Raise InputError for values that are no layers, or that attend to a memory in a container that has none."""
    found = list(layers) if isinstance(layers, Iterable) else [layers]
    for one in found:
        if not isinstance(one, SequenceLayer):
            raise RangeError(
                f"layers: {shown(one)} is not a layer; give {type(container).__name__} layers, as of seriatim.layer"
            )
    names = [type(layer).__name__ for layer in found if isinstance(layer, MemoryLayer)]
    if names and not isinstance(container, MemoryLayer):
        raise NotSupportedError(f"layers: {names[0]} attends to a memory; use Memory{type(container).__name__} for it")
