"""A recurrent cell as a sequence layer."""

from torch import Tensor

from ..layer import RecurrentCell, SequenceLayer, refuse_memory
from ..state import State
from .reference import unroll


class Recurrent(SequenceLayer):
    """Runs a `RecurrentCell` over sequences, behind the contract of every layer."""

    def __init__(self, cell: RecurrentCell) -> None:
        super().__init__()
        for name in ("input_size", "output_size"):
            if not isinstance(getattr(cell, name, None), int):
                raise ValueError(f"{type(cell).__name__} must set {name}, the width of one step, as an integer")
        self.cell = cell
        self.input_size = cell.input_size
        self.output_size = cell.output_size

    def initial_state(
        self, batch_size: int, memory: Tensor | None = None, memory_lengths: Tensor | None = None
    ) -> State:
        """The cell's own initial state."""
        refuse_memory(self.cell, memory)
        return self.cell.initial_state(batch_size)

    def forward(
        self, inputs: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Runs the cell over ``(batch, time, input_size)``; see `SequenceLayer.forward`."""
        inputs, state, lengths = self.begin(inputs, state, lengths)
        return unroll(self.cell, inputs, state, lengths)

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """One step of the cell."""
        output: tuple[Tensor, State] = self.cell(inputs, state)
        return output
