"""Runs a recurrent cell over sequences, as a function and as a sequence layer."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.func import functional_call

from ..core.contract import RecurrentCell, SequenceLayer, check_batch_size
from ..core.errors import NotSupportedError, RangeError, shown
from ..core.lengths import run_by_length
from ..core.random_masks import dropout_mask
from ..core.state import OutputsAndState, State
from .conditions import functional_step, tracing
from .fast_path import run_sequence, run_step
from .reference import check_initial, check_outputs, check_returned, loop
from .zoneout import Rate, Zoneout, check_rate


def unroll(
    cell: RecurrentCell,
    inputs: Tensor,
    state: State,
    lengths: Tensor | None = None,
    *,
    weights: Mapping[str, Tensor] | None = None,
) -> OutputsAndState:
    """Run ``cell`` over a sequence: compiled, in a vendor's kernel, or as a loop (`explain` says which and why).

    On a GPU a vendor's kernel comes first. Values and gradients are the same up to rounding. Compiled code can be
    differentiated once, not twice. Results are those of `SequenceLayer.forward`.

    Args:
        cell: one step of the recurrence.
        inputs: ``(batch, time, input_size)``.
        state: the state before the first input.
        lengths: ``(batch,)``, or None if every row is full. Padding is never computed.
        weights: values to use instead of the cell's own parameters, by name.

    Raises:
        ValueError: a step changes its state in place, returns a state of another structure, shape or type, or outputs
            that are not ``(batch, output_size)``.
    """
    kernel = cell.vendor_kernel()
    step, values = functional_step(cell, weights)
    name = cell_name(cell)
    if kernel is None or inputs.device.type == "cpu":
        result = run_sequence(cell, step, values, inputs, state, lengths)
        if result is not None:
            check_outputs(result[0][:, 0], name, len(inputs), cell.output_size)
            return result
    if kernel is not None and 0 not in inputs.shape[:2]:
        run_kernel = kernel.sequence

        def run(rows: Tensor, start: State) -> OutputsAndState:
            return run_kernel(rows, start, weights or {})

        return run(inputs, state) if lengths is None else run_by_length(run, inputs, state, lengths)
    advance = cell if weights is None else lambda inputs, state: step(values, inputs, state)
    return loop(advance, inputs, state, lengths, output_size=cell.output_size, name=name)


def cell_name(cell: RecurrentCell) -> str:
    """Return the class of a cell, without zoneout around it, for messages."""
    return type(cell.cell if isinstance(cell, Zoneout) else cell).__name__


class Recurrent(SequenceLayer):
    """Runs a `RecurrentCell` over sequences, with the contract of every layer.

    Args:
        cell: one step.
        weight_dropout: rate at which recurrent weights are dropped in training, with one mask per call (S. Merity,
            N. S. Keskar and R. Socher, "Regularizing and optimizing LSTM language models", ICLR 2018). The cell names
            these weights in its class attribute ``recurrent_weights``, such as ``("u.weight",)``.
        zoneout: rate at which values of the state keep their previous value; see `seriatim.recurrence.zoneout`.

    Raises:
        ValueError: the cell does not set its sizes, a rate is outside [0, 0.99], or weight dropout is given and the
            cell names no weights.
    """

    def __init__(self, cell: RecurrentCell, *, weight_dropout: Rate = 0.0, zoneout: Rate = 0.0) -> None:
        super().__init__()
        if not isinstance(cell, RecurrentCell):
            raise RangeError(f"Recurrent: {shown(cell)} is not a RecurrentCell; give one, such as MyCell(8, 16)")
        for name in ("input_size", "output_size"):
            if not isinstance(getattr(cell, name, None), int):
                raise ValueError(f"{type(cell).__name__} must set {name}, the width of one step, as an integer")
        recurrent = cell.recurrent_weights
        self.weight_dropout = check_rate("weight_dropout", weight_dropout)
        self.zoneout = check_rate("zoneout", zoneout)
        if weight_dropout and not recurrent:
            raise NotSupportedError(
                f"{type(cell).__name__} names no weights to drop; give weight_dropout 0, or the class an attribute "
                "recurrent_weights"
            )
        self.cell = Zoneout(cell, zoneout) if zoneout else cell
        self.recurrent_weights = tuple(f"cell.{name}" for name in recurrent) if zoneout else recurrent
        self.input_size = cell.input_size
        self.output_size = cell.output_size

    def class_name(self) -> str:
        """Return the name of the class of the cell, for messages."""
        return cell_name(self.cell)

    def initial_state(self, batch_size: int) -> State:
        """Return the initial state of the cell."""
        check_batch_size(batch_size)
        state = self.cell.initial_state(batch_size)
        check_initial(state, cell_name(self.cell), batch_size)
        return state

    def forward(self, inputs: Tensor, state: State | None = None, *, lengths: Tensor | None = None) -> OutputsAndState:
        """Run the cell over ``(batch, time, input_size)``; see `SequenceLayer.forward`."""
        state, lengths = self.validate_inputs(inputs, state, lengths)
        return unroll(self.cell, inputs, state, lengths, weights=self.dropped_weights() or None)

    def step(self, inputs: Tensor, state: State) -> OutputsAndState:
        """Run one step of the cell; in evaluation mode and without gradients in compiled code if possible."""
        self.check_input(inputs)
        result, name = run_step(self, inputs, state), cell_name(self.cell)
        if result is not None:
            check_outputs(result[0], name, len(inputs), self.output_size)
            return result
        self.check_state(state, inputs)
        kernel = None if torch.is_grad_enabled() or tracing() else self.cell.vendor_kernel()
        if kernel is not None and kernel.step is not None:
            return kernel.step(inputs, state, self.dropped_weights())
        weights = self.dropped_weights()
        output = functional_call(self.cell, weights, (inputs, state)) if weights else self.cell(inputs, state)
        return check_returned(output, name, inputs, state, self.output_size)

    def dropped_weights(self) -> dict[str, Tensor]:
        """Return the cell's recurrent weights under a new mask, by name; empty if this call drops none."""
        rate = self.weight_dropout
        if not self.training or not rate:
            return {}
        parameters = dict(self.cell.named_parameters())  # get_parameter refuses the tensors of functional_call
        weights = {name: parameters[name] for name in self.recurrent_weights}
        return {name: weight * dropout_mask(tuple(weight.shape), rate, weight) for name, weight in weights.items()}
