"""The compiled loop as a function with a gradient."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..compiler.expressions import Matrix
from ..compiler.schedule import Place
from .packing import Packing
from .program_runner import Runner


def run(
    runner: Runner, weights: Sequence[Tensor], inputs: Tensor, states: Sequence[Tensor], packing: Packing
) -> tuple[Tensor, list[Tensor]]:
    """Outputs ``(rows, output_size)``, and each part of the state ``(batch, ...)`` at the end of its sequence.

    Args:
        runner: the compiled step.
        weights: what it was traced with, or others of the same shapes.
        inputs: ``(rows, input_size)``, joined as ``packing`` says.
        states: the parts of the state, in the packing's order.
        packing: where rows lie.
    """
    constants = runner.constants(weights)
    groups = runner.before(constants, inputs, packing)
    flat = [state.reshape(packing.batch, -1) for state in states]
    vectors = [constants[i].reshape(-1) for i in runner.vectors]
    tensors = [*groups, *flat, *vectors, *(constants[i] for i in runner.matrices)]
    outputs, *ends = _Loop.apply(runner, packing, *tensors)  # type: ignore[no-untyped-call]
    return outputs, [end.view_as(state) for end, state in zip(ends, states, strict=True)]


class _Loop(torch.autograd.Function):
    """Both directions. What comes before the loop is overwritten: by what its products give, then by cotangents."""

    @staticmethod
    def forward(ctx: Any, runner: Runner, packing: Packing, *tensors: Tensor) -> tuple[Tensor, ...]:
        plan, like = runner.program, tensors[0]
        names = [
            *(f"sequence{i}" for i in range(len(plan.groups))),
            *(f"states{i}" for i in range(len(plan.state_widths))),
            *(f"vector{i}" for i in runner.vectors),
            *(f"matrix{i}" for i in runner.matrices),
        ]
        named = dict(zip(names, tensors, strict=True))
        for name in names:
            if name.startswith("states"):  # the initial state, and room for those after every row
                initial = named[name]
                named[name] = initial.new_empty(packing.batch + packing.rows, initial.shape[1])
                named[name][: packing.batch] = initial
            elif name.startswith("vector"):
                named[name] = named[name].contiguous()
        runner.call(runner.forward, packing, named, like)
        ends = [packing.ends(named[f"states{i}"]) for i in range(len(plan.state_widths))]
        ctx.runner, ctx.packing, ctx.like = runner, packing, like.new_empty(0)
        if any(ctx.needs_input_grad):
            needed = {*runner.backward.buffers, *(rows.buffer.name for rows, _, _ in plan.matrix_cotangents)}
            ctx.names = sorted(needed & set(named))
            ctx.save_for_backward(*(named[name] for name in ctx.names))
        kept = named[plan.output.buffer.name]
        return (kept[packing.batch :] if plan.output.buffer.rows == "after" else kept), *ends

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "compiled recurrences can be differentiated once, not twice; for gradients of gradients run them "
                "within seriatim.recurrence.uncompiled()"
            )
        runner, packing, plan = ctx.runner, ctx.packing, ctx.runner.program
        named = dict(zip(ctx.names, ctx.saved_tensors, strict=True))
        places = [place.buffer.name for place in plan.group_cotangents if place is not None]
        if torch._C._autograd._get_current_graph_task_keep_graph():  # another backward pass may need what is there
            named.update({name: named[name].clone() for name in places if name in named})
        named["cotangent_outputs"] = given[0].contiguous()
        for i, cotangent in enumerate(given[1:]):
            named[f"carry{i}"] = cotangent.new_empty(2, packing.batch, plan.state_widths[i])
            named[f"carry{i}"].copy_(cotangent.reshape(packing.batch, -1))
        runner.call(runner.backward, packing, named, ctx.like)
        half = len(packing.counts) % 2
        sums = {leaf.note: named[buffer.name].sum(0) for leaf, buffer in plan.vector_cotangents.items()}
        products = _matrix_cotangents(runner, packing, named)
        return (
            None,
            None,
            *(None if place is None else named[place.buffer.name] for place in plan.group_cotangents),
            *(named[f"carry{i}"][half] for i in range(len(plan.state_widths))),
            *(sums.get(i) for i in runner.vectors),
            *(products.get(i) for i in runner.matrices),
        )


def _matrix_cotangents(runner: Runner, packing: Packing, named: dict[str, Tensor]) -> dict[int, Tensor]:
    """One product over all steps for each part of each matrix."""

    def kept(place: Place, width: int) -> Tensor:
        value = named[place.buffer.name][:, place.start : place.start + width]
        if place.buffer.rows == "before":
            return packing.before(value)
        return value[packing.batch :] if place.buffer.rows == "after" else value

    found: dict[int, Tensor] = {}
    for source, matrix, place in _neighbours(runner.program.matrix_cotangents):
        whole, width = named[f"matrix{matrix.constant}"], matrix.stop - matrix.start
        rows, cotangent = kept(source, whole.shape[0]), kept(place, width)
        if runner.numbers.reduced:
            rows, cotangent = rows.bfloat16(), cotangent.bfloat16()
        # a linear layer keeps its weight turned, and wants its gradient to lie in memory likewise
        result = (cotangent.t() @ rows).t() if whole.stride(0) == 1 else rows.t() @ cotangent
        result = result.to(whole.dtype)
        if width == whole.shape[1] and matrix.constant not in found:
            found[matrix.constant] = result
        else:
            found.setdefault(matrix.constant, torch.zeros_like(whole))[:, matrix.start : matrix.stop] += result
    return found


def _neighbours(parts: Sequence[tuple[Place, Matrix, Place]]) -> list[tuple[Place, Matrix, Place]]:
    """Joins parts of one matrix that the same rows meet and whose cotangents lie side by side."""
    joined: list[tuple[Place, Matrix, Place]] = []
    for rows, matrix, place in sorted(parts):
        if joined:
            last_rows, last, last_place = joined[-1]
            beside = last_place._replace(start=last_place.start + last.stop - last.start)
            if (last_rows, last.constant, last.stop, beside) == (rows, matrix.constant, matrix.start, place):
                joined[-1] = (rows, last._replace(stop=matrix.stop), last_place)
                continue
        joined.append((rows, matrix, place))
    return joined
