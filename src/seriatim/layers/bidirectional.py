"""Two directions: h_t = [h→_t ; h←_t].

M. Schuster and K. Paliwal, "Bidirectional recurrent neural networks", IEEE Transactions on Signal Processing 45(11),
1997.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.contract import MemoryLayer, SequenceLayer, begin_state, joined_type
from ..core.errors import InputError
from ..core.lengths import reverse
from ..core.state import OutputsAndState, State, with_parts
from .stack import check_parts


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
        check_parts(self, [forwards, backwards])
        if not (forwards.causal and backwards.causal):
            raise InputError("both directions need a causal layer; this one sees the whole sequence already")
        if forwards.input_size != backwards.input_size:
            raise ValueError(
                f"both directions read the same inputs; got widths {forwards.input_size} and {backwards.input_size}"
            )
        self.forwards, self.backwards = forwards, backwards
        self.input_size = forwards.input_size
        self.output_size = forwards.output_size + backwards.output_size

    def initial_state(self, batch_size: int, *memory: Any, **named: Any) -> State:
        """Return the initial states of both directions; the arguments are those of `begin_state`."""
        directions = (self.forwards, self.backwards)
        parts = (begin_state(layer, batch_size, *memory, **named) for layer in directions)
        return joined_type(self, directions, BidirectionalState)(*parts)

    def forward(self, inputs: Tensor, state: State | None = None, *, lengths: Tensor | None = None) -> OutputsAndState:
        """Run both directions over ``(batch, time, input_size)``; see `SequenceLayer.forward`."""
        state, lengths = self.admit(inputs, state, lengths)
        start, end = state
        forward_outputs, start = self.forwards(inputs, start, lengths=lengths)
        backward_outputs, end = self.backwards(reverse(inputs, lengths), end, lengths=lengths)
        outputs = torch.cat([forward_outputs, reverse(backward_outputs, lengths)], dim=2)
        return outputs, with_parts(state, (start, end))

    def path_lengths(self, distance: int) -> Tensor:
        """Return the path lengths of the forward layer: the backward layer carries later inputs to earlier outputs."""
        return self.forwards.path_lengths(distance)


class MemoryBidirectional(Bidirectional, MemoryLayer):
    """Two directions of a layer that attends to a memory."""


def bidirectional(forwards: SequenceLayer, backwards: SequenceLayer) -> Bidirectional:
    """Return a `Bidirectional`, or a `MemoryBidirectional` where a layer attends to a memory."""
    return (MemoryBidirectional if isinstance(forwards, MemoryLayer) else Bidirectional)(forwards, backwards)
