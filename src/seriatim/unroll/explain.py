"""What the fast path makes of a cell, in words."""

import torch

from ..layer import RecurrentCell
from ..state import state_leaves
from .emit import merged
from .fast import as_step, obstacle, runner
from .program import Program
from .runner import Runner


def explain(cell: RecurrentCell) -> str:
    """Says how `unroll` runs a cell: in compiled code, and how; or as a loop, and why.

    Args:
        cell: one step of a recurrence, with ``input_size``.
    """
    step, values = as_step(cell)
    like = next((value for value in values if value.is_floating_point()), torch.zeros(()))
    inputs, state = like.new_zeros(1, cell.input_size), cell.initial_state(1)
    found = obstacle(cell, [inputs, *state_leaves(state)], values) or runner(cell, step, values, inputs, state)
    name = type(cell).__name__
    if isinstance(found, str):
        return f"{name} runs as a loop: {found}"
    return f"{name} runs in compiled code\n" + "\n".join(f"  {line}" for line in _lines(found))


def _lines(found: Runner) -> list[str]:
    plan = found.program
    lines = []
    for group in plan.groups:
        if group.leaves[0].note.plain is None:
            rows = group.leaves[0].note.products[0][0]
            lines.append(f"before the loop: one product for all steps, {rows.width} x {group.width}")
        else:
            lines.append(f"before the loop: {group.width} features a step, computed by torch")
    for direction, kernel in (("each step forward", plan.forward), ("each step back", plan.backward)):
        products = [product for phase in kernel.phases for product in merged(phase.products)]
        shapes = ", ".join(f"{product.depth} x {product.width}" for product in products) or "none"
        share = "columns" if kernel.width is not None else "rows"
        lines.append(f"{direction}: products {shapes}; threads share {share}")
    lines.append(
        f"after the loop: {len(plan.matrix_cotangents)} parts of weight gradients, each over all steps at once"
    )
    lines.append(f"kept for the gradient: {_kept(plan, found)} numbers a row and step")
    return lines


def _kept(plan: Program, found: Runner) -> int:
    forward = {buffer for buffer in plan.forward.buffers() if buffer.rows != "all"}
    kept = {buffer.name: buffer.width for buffer in forward if buffer.name in found.backward.buffers}
    return sum(kept.values())
