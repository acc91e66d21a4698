"""What runs a cell or a layer over time, in words."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from ..compiler.cpp.emit import merged
from ..compiler.program import Program
from ..compiler.trace import Step
from ..core.contract import RecurrentCell, SequenceLayer
from ..core.errors import InputError, shown
from ..core.state import state_leaves
from .fast_path import as_step, obstacle, runner
from .program_runner import Runner
from .zoneout import Zoneout


def explain(module: RecurrentCell | SequenceLayer) -> str:
    """Says what runs a cell or a layer over time: compiled code, and how; a kernel of PyTorch; or a loop, and why.

    Args:
        module: one step of a recurrence, with ``input_size``, or any layer; of a stack, every layer in turn.

    Raises:
        InputError: neither a cell nor a layer.
    """
    if not isinstance(module, RecurrentCell | SequenceLayer):
        raise InputError(f"explain: expected a cell or a layer, got {shown(module)}")
    name = type(module.cell if isinstance(module, Zoneout) else module).__name__
    if isinstance(module, RecurrentCell):
        step, weights = as_step(module)
        kernel = module.vendor_kernel() is not None
        if kernel and weights[0].device.type != "cpu":
            return (
                f"{name} runs in PyTorch's own kernel: on {weights[0].device.type}, cuDNN's is as fast as compiled code"
            )
        return _explained(module, name, step, weights, otherwise="PyTorch's own kernel" if kernel else "a loop")
    if isinstance(cell := getattr(module, "cell", None), RecurrentCell):
        return explain(cell)
    if parts := list(_parts(module)):
        return "\n".join(map(explain, parts))
    return f"{name} computes whole sequences with PyTorch's operators; it has no step that could be compiled"


def _explained(
    module: RecurrentCell | SequenceLayer, name: str, step: Step, weights: Sequence[Tensor], *, otherwise: str
) -> str:
    """How one step is run, and what runs it otherwise."""
    like = next((value for value in weights if value.is_floating_point()), torch.zeros(()))
    inputs, state = like.new_zeros(1, module.input_size), module.initial_state(1)
    found = obstacle(module, [inputs, *state_leaves(state)], weights) or runner(module, step, weights, inputs, state)
    if isinstance(found, str):
        return f"{name} runs as a loop: {found}" if otherwise == "a loop" else f"{name} runs in {otherwise}: {found}"
    return f"{name} runs in compiled code\n" + "\n".join(f"  {line}" for line in _lines(found))


def _parts(module: nn.Module) -> Iterator[SequenceLayer]:
    """The layers that a layer is made of, the outermost ones."""
    for part in module.children():
        if isinstance(part, SequenceLayer):
            yield part
        else:
            yield from _parts(part)


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
