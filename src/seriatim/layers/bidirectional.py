"""Two directions: h_t = [h→_t ; h←_t].

M. Schuster and K. Paliwal, "Bidirectional recurrent neural networks", IEEE Trans. Signal Processing 45(11), 1997.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ..core.contract import SequenceLayer, refuse_memory
from ..core.errors import InputError
from ..core.lengths import reverse
from ..core.state import State


class BidirectionalState(NamedTuple):
    """What each direction keeps: one read from the first input on, one from the last valid input back."""

    forwards: State
    backwards: State


class Bidirectional(SequenceLayer):
    """Runs one layer from left to right and another from right to left, and joins their outputs.

    Args:
        forwards: reads from the first input on.
        backwards: another instance of the same widths, reading from each row's last valid input back.

    Raises:
        ValueError: a layer is not causal, or their inputs differ in width.
    """

    causal = False

    def __init__(self, forwards: SequenceLayer, backwards: SequenceLayer) -> None:
        super().__init__()
        if not (forwards.causal and backwards.causal):
            raise InputError("both directions need a causal layer; this one sees the whole sequence already")
        if forwards.input_size != backwards.input_size:
            raise ValueError(
                f"both directions read the same inputs; got widths {forwards.input_size} and {backwards.input_size}"
            )
        self.forwards, self.backwards = forwards, backwards
        self.takes_memory = forwards.takes_memory or backwards.takes_memory
        self.input_size = forwards.input_size
        self.output_size = forwards.output_size + backwards.output_size

    def initial_state(
        self, batch_size: int, memory: Tensor | None = None, memory_lengths: Tensor | None = None
    ) -> State:
        """Both directions' initial states."""
        if not self.takes_memory:
            refuse_memory(memory)
        given = (memory, memory_lengths)
        there, back = (
            layer.initial_state(batch_size, *given if layer.takes_memory else ())
            for layer in (self.forwards, self.backwards)
        )
        return BidirectionalState(there, back)

    def forward(
        self, inputs: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Runs both directions over ``(batch, time, input_size)``; see `SequenceLayer.forward`."""
        state, lengths = self.admit(inputs, state, lengths)
        start, end = state
        there, start = self.forwards(inputs, start, lengths=lengths)
        back, end = self.backwards(reverse(inputs, lengths), end, lengths=lengths)
        return torch.cat([there, reverse(back, lengths)], dim=2), BidirectionalState(start, end)

    def path_lengths(self, distance: int) -> Tensor:
        """The forward layer's: the backward layer carries later inputs to earlier outputs."""
        return self.forwards.path_lengths(distance)

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """Cannot be: the backward direction starts at the end.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            "a bidirectional layer needs the whole sequence and cannot step; use a causal one to stream or generate"
        )
