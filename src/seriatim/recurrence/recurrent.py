"""A recurrent cell as a sequence layer."""

import torch
from torch import Tensor
from torch.func import functional_call

from ..core.contract import RecurrentCell, SequenceLayer
from ..core.errors import InputError
from ..core.random_masks import dropout_mask
from ..core.state import State
from .compiled_step import stepped
from .fast_path import tracing
from .step_checks import check_initial, check_outputs, check_returned
from .unrolling import unroll
from .zoneout import Zoneout, check_rate


class Recurrent(SequenceLayer):
    """Runs a `RecurrentCell` over sequences, behind the contract of every layer.

    Args:
        cell: one step.
        weight_dropout: rate at which recurrent weights are dropped in training, one mask a call (S. Merity,
            N. S. Keskar and R. Socher, "Regularizing and optimizing LSTM language models", ICLR 2018). The cell names
            these weights in its class attribute ``recurrent_weights``, such as ``("u.weight",)``.
        zoneout: rate at which values of the state stay as they were; see `seriatim.recurrence.zoneout`.

    Raises:
        ValueError: a cell without its sizes, a rate outside [0, 0.99], or weight dropout where the cell names no
            weights.
    """

    def __init__(self, cell: RecurrentCell, *, weight_dropout: float = 0.0, zoneout: float = 0.0) -> None:
        super().__init__()
        for name in ("input_size", "output_size"):
            if not isinstance(getattr(cell, name, None), int):
                raise ValueError(f"{type(cell).__name__} must set {name}, the width of one step, as an integer")
        recurrent = cell.recurrent_weights
        self.weight_dropout = check_rate("weight_dropout", weight_dropout)
        self.zoneout = check_rate("zoneout", zoneout)
        if weight_dropout and not recurrent:
            raise InputError(
                f"{type(cell).__name__} names no weights to drop; give weight_dropout 0, or the class an attribute "
                "recurrent_weights"
            )
        self.cell = Zoneout(cell, zoneout) if zoneout else cell
        self.recurrent_weights = tuple(f"cell.{name}" for name in recurrent) if zoneout else recurrent
        self.input_size = cell.input_size
        self.output_size = cell.output_size

    def initial_state(self, batch_size: int) -> State:
        """The cell's own initial state."""
        state = self.cell.initial_state(batch_size)
        check_initial(state, self.cell_name, batch_size)
        return state

    @property
    def cell_name(self) -> str:
        """The class of the cell, for messages."""
        return type(self.cell.cell if isinstance(self.cell, Zoneout) else self.cell).__name__

    def forward(
        self, inputs: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Runs the cell over ``(batch, time, input_size)``; see `SequenceLayer.forward`."""
        state, lengths = self.admit(inputs, state, lengths)
        return unroll(self.cell, inputs, state, lengths, weights=self.dropped_weights() if self.dropping else None)

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """One step of the cell; without gradients and in evaluation mode, in compiled code where that can be."""
        self.check_input(inputs)
        found = stepped(self, inputs, state)
        if found is None:
            self.check_state(state, inputs.shape[0])
            kernel = None if torch.is_grad_enabled() or tracing() else self.cell.vendor_kernel()
            if kernel is not None and kernel.step is not None:
                return kernel.step(inputs, state, self.dropped_weights() if self.dropping else {})
            found = self.advance_once(inputs, state)
            return check_returned(found, self.cell_name, inputs, state, self.output_size)
        check_outputs(found[0], self.cell_name, len(inputs), self.output_size)
        return found

    def advance_once(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """One step as the cell is written."""
        output: tuple[Tensor, State]
        if self.dropping:
            output = functional_call(self.cell, self.dropped_weights(), (inputs, state))
        else:
            output = self.cell(inputs, state)
        return output

    @property
    def dropping(self) -> bool:
        """Whether this call drops weights."""
        return self.training and self.weight_dropout > 0

    def dropped_weights(self) -> dict[str, Tensor]:
        """The cell's recurrent weights under a new mask, by name."""
        weights = {name: self.cell.get_parameter(name) for name in self.recurrent_weights}
        p = self.weight_dropout
        return {name: weight * dropout_mask(tuple(weight.shape), p, weight) for name, weight in weights.items()}
