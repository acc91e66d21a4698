"""Runs one step over a sequence, by the fastest way there is."""

from collections.abc import Mapping

from torch import Tensor

from ..core.contract import RecurrentCell
from ..core.lengths import run_by_length
from ..core.state import State
from .fast_path import as_step, sequence
from .reference import loop
from .step_checks import check_outputs
from .zoneout import Zoneout


def unroll(
    cell: RecurrentCell,
    inputs: Tensor,
    state: State,
    lengths: Tensor | None = None,
    *,
    weights: Mapping[str, Tensor] | None = None,
) -> tuple[Tensor, State]:
    """Run ``cell`` over a sequence: compiled, in a vendor's kernel, or as a loop (`explain` says which and why).

    On a GPU a vendor's kernel comes first. Values and gradients are the same to rounding. Compiled code computes the
    products of all inputs at once, packs the recurrent weights, and derives gradients from the cell's own equations. It
    can be differentiated once, not twice.

    Args:
        cell: one step of the recurrence.
        inputs: ``(batch, time, input_size)``.
        state: the state before the first input.
        lengths: ``(batch,)``, or None where every row is full. Padding is never computed.
        weights: values to use instead of the cell's own parameters, by name.

    Returns:
        Outputs ``(batch, time, output_size)``, zero on padding, and each row's state at its own end.

    Raises:
        ValueError: a step changes its state in place, returns a state of another structure, shape or type, or outputs
            that are not ``(batch, output_size)``.
    """
    kernel = cell.vendor_kernel()
    step, values = as_step(cell, weights)
    on_cpu = inputs.device.type == "cpu"
    found = sequence(cell, step, values, inputs, state, lengths) if on_cpu or kernel is None else None
    name = type(cell.cell if isinstance(cell, Zoneout) else cell).__name__
    if found is not None:
        check_outputs(found[0][:, 0], name, len(inputs), cell.output_size)
        return found
    if kernel is not None and 0 not in inputs.shape[:2]:
        dense = kernel.sequence

        def run(rows: Tensor, start: State) -> tuple[Tensor, State]:
            return dense(rows, start, weights or {})

        return run(inputs, state) if lengths is None else run_by_length(run, inputs, state, lengths)
    advance = cell if weights is None else lambda inputs, state: step(values, inputs, state)
    return loop(advance, inputs, state, lengths, output_size=cell.output_size, name=name)
