"""The compiled loop as a function with a gradient."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..compiler.expressions import merge_neighbours
from ..compiler.program import MatrixGradient
from ..compiler.schedule import Memory, Role
from ..core.state import state_leaves
from .attention_memory import attended, gradient_memories, load, memory_cotangents, weight_memories
from .deferred_gradients import Context
from .packing import Packing
from .program_runner import Memories, Runner


def run(
    runner: Runner, weights: Sequence[Tensor], inputs: Tensor, states: Sequence[Tensor], packing: Packing
) -> tuple[Tensor, list[Tensor]]:
    """Run a compiled step over sequences that are joined as ``packing`` says.

    Args:
        runner: the compiled step.
        weights: the weights that it was traced with, or others of the same shapes.
        inputs: ``(rows, input_size)``.
        states: the parts of the state ``(batch, ...)``, and memories; returned as they are at the end of each sequence,
            after the outputs.
        packing: the order of the rows.
    """
    named = dict(zip(runner.traced.leaves[1:], states, strict=True))
    parts = [value for value in named if value.op == "state"] + attended(runner)
    constants = runner.constants(weights)
    groups = runner.before(constants, inputs, packing)
    starts = packing.sort(tuple(named[part].reshape(packing.batch, -1) for part in parts))
    vectors = [constants[i].reshape(-1).contiguous() for i in runner.vectors]
    entries = {value.note: leaf for value, leaf in named.items() if value.op == "memory"}
    memories = [entries[memory.number].contiguous() for memory in runner.memories]
    tensors = [*groups, *starts, *vectors, *(constants[i] for i in runner.matrices), *memories]
    outputs, *ends = _Loop.apply(runner, packing, *tensors)  # type: ignore[no-untyped-call]
    named.update(zip(parts, state_leaves(packing.unsort(tuple(ends))), strict=True))
    return outputs, [named[value].view_as(state) for value, state in zip(named, states, strict=True)]


class _Loop(torch.autograd.Function):
    """Both directions of the loop.

    The memory of the products before the loop is overwritten: first by the products in the loop, then by cotangents.
    """

    @staticmethod
    def forward(ctx: Context, runner: Runner, packing: Packing, *tensors: Tensor) -> tuple[Tensor, ...]:
        plan, like = runner.program, tensors[0]
        memories = dict(zip(runner.arguments, tensors, strict=True))
        states = [memory for memory in runner.arguments if memory.role in (Role.STATES, Role.WEIGHTS)]
        for memory in states:  # the initial state, then the state after every row
            initial = memories[memory]
            memories[memory] = initial.new_empty(packing.batch + packing.rows, initial.shape[1])
            memories[memory][: packing.batch] = initial
        memories |= weight_memories(runner, packing, memories)
        runner.call(packing, memories, like, backward=False)
        ends = [packing.ends(memories[memory]) for memory in states]
        ctx.runner, ctx.packing, ctx.like = runner, packing, like.new_empty(0)
        if any(ctx.needs_input_grad):
            rows = {place.buffer.memory for place, _, _ in plan.cotangents.matrices}
            ctx.memories = sorted({*runner.backward_memories, *rows} & set(memories))
            ctx.save_for_backward(*(memories[memory] for memory in ctx.memories))
        outputs = memories[plan.output.buffer.memory]
        return (outputs[packing.batch :] if plan.output.buffer.rows == "after" else outputs), *ends

    @staticmethod
    def backward(ctx: Context, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "compiled recurrences can be differentiated once, not twice; for gradients of gradients run them "
                "within seriatim.recurrence.uncompiled()"
            )
        runner: Runner = ctx.runner
        packing: Packing = ctx.packing
        plan = runner.program
        memories = dict(zip(ctx.memories, ctx.saved_tensors, strict=True))
        groups = [None if place is None else place.buffer.memory for place in plan.cotangents.groups]
        if torch._C._autograd._get_current_graph_task_keep_graph():  # another backward pass may need the saved tensors
            memories.update({memory: memories[memory].clone() for memory in groups if memory in memories})
        memories[Memory(Role.OUTPUT_COTANGENT)] = cotangents[0].contiguous()
        carries = [Memory(Role.CARRY, i) for i in range(len(plan.state_widths))]
        carries += [Memory(Role.WEIGHT_CARRY, i) for i in runner.located]
        for carry, cotangent in zip(carries, cotangents[1:], strict=True):
            memories[carry] = cotangent.new_empty(2, *cotangent.shape)
            memories[carry].copy_(cotangent)
        memories |= gradient_memories(runner, packing, memories)
        runner.call(packing, memories, ctx.like, backward=True)
        last = len(packing.counts) % 2
        vectors = {leaf.note: memories[buffer.memory].sum(0) for leaf, buffer in plan.cotangents.vectors.items()}
        matrices = _matrix_cotangents(runner, packing, memories)
        of_memories = ctx.needs_input_grad[len(ctx.needs_input_grad) - len(runner.memories) :]
        return (
            None,
            None,
            *(None if memory is None else memories[memory] for memory in groups),
            *(memories[carry][last] for carry in carries),
            *(vectors.get(i) for i in runner.vectors),
            *(matrices.get(i) for i in runner.matrices),
            *memory_cotangents(runner, packing, memories, are_needed=any(of_memories)),
        )


def _matrix_cotangents(runner: Runner, packing: Packing, memories: Memories) -> dict[int, Tensor]:
    """Compute the gradient of each matrix, with one product over all steps for each of its parts."""
    gradients: dict[int, Tensor] = {}
    for source, matrix, place in _merge_adjacent(runner.program.cotangents.matrices):
        whole, width = memories[Memory(Role.MATRIX, matrix.constant)], matrix.stop - matrix.start
        rows, cotangent = (load(*part, packing, memories) for part in ((source, whole.shape[0]), (place, width)))
        if runner.numbers.reduced:
            rows, cotangent = rows.bfloat16(), cotangent.bfloat16()
        # a linear layer stores its weight transposed, and its gradient should have the same layout
        result = (cotangent.t() @ rows).t() if whole.stride(0) == 1 else rows.t() @ cotangent
        result = result.to(whole.dtype)
        if width == whole.shape[1] and matrix.constant not in gradients:
            gradients[matrix.constant] = result
        else:
            total = gradients.setdefault(matrix.constant, torch.zeros_like(whole))
            total[:, matrix.start : matrix.stop] += result
    return gradients


def _merge_adjacent(parts: Sequence[MatrixGradient]) -> list[MatrixGradient]:
    """Join adjacent parts of one matrix with the same rows and adjacent cotangents."""

    def merge(left: MatrixGradient, right: MatrixGradient) -> MatrixGradient | None:
        rows, matrix, place = left
        both = matrix.joined(right[1])
        is_adjacent = (rows, place.shifted(matrix.stop - matrix.start)) == (right[0], right[2])
        return (rows, both, place) if both and is_adjacent else None

    return merge_neighbours(sorted(parts), merge)
