"""The obvious loop over time: the reference that every faster path is compared with."""

import torch
from torch import Tensor

from ..layer import RecurrentCell
from ..lengths import run_by_length
from ..state import State


def unroll(cell: RecurrentCell, inputs: Tensor, state: State, lengths: Tensor | None = None) -> tuple[Tensor, State]:
    """Runs ``cell`` over a sequence, one step after another.

    Args:
        cell: one step of the recurrence.
        inputs: ``(batch, time, input_size)``.
        state: the state before the first input.
        lengths: ``(batch,)``, or None where every row is full. Padding is never computed.

    Returns:
        Outputs ``(batch, time, output_size)``, zero on padding, and each row's state at its own end.
    """
    if lengths is not None:
        return run_by_length(lambda rows, kept: unroll(cell, rows, kept), inputs, state, lengths)
    outputs = []
    for t in range(inputs.shape[1]):
        output, state = cell(inputs[:, t], state)
        outputs.append(output)
    if not outputs:
        return inputs.new_zeros(inputs.shape[0], 0, cell.output_size), state
    return torch.stack(outputs, dim=1), state
