"""Runs a program over sequences, with gradients."""

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .compiler import library
from .emit import LANES, Text, emit
from .evaluate import evaluate
from .expressions import Matrix, Node
from .lower import Before, lower
from .program import Group, Place, Product, Program, program
from .trace import Traced

SMALL = 400_000
"""Floating-point operations a step below which one thread is faster than two that must meet."""


class Packing(NamedTuple):
    """Where the rows of sequences lie once they are sorted by length and joined step by step."""

    batch: int
    counts: Tensor
    """Rows of each step ``(time,)``."""
    starts: Tensor
    """Each step's first row ``(time,)``."""
    order: Tensor | None
    """Rows from the longest to the shortest; None where all are full."""
    positions: Tensor | None
    """For each joined row, where it lies in the batch laid flat."""
    before: Tensor | None
    """For each joined row, where the state before it lies."""
    ends: Tensor | None
    """Where each row's last state lies."""

    @property
    def rows(self) -> int:
        """All rows of all steps."""
        return int(self.counts.sum())


def pack_dense(batch: int, time: int) -> Packing:
    """Every row full."""
    counts = torch.full((time,), batch)
    return Packing(batch, counts, torch.arange(time) * batch, None, None, None, None)


def pack_lengths(lengths: Tensor, time: int) -> Packing:
    """Rows that end where they end: no padding among the joined rows."""
    ordered, order = torch.sort(lengths, descending=True, stable=True)
    batch, time = len(lengths), int(ordered[0])
    going = torch.arange(time).unsqueeze(1) < ordered
    counts = going.sum(1)
    starts = counts.cumsum(0) - counts
    del time
    row = torch.arange(batch).expand_as(going)[going]
    step = torch.arange(len(counts)).unsqueeze(1).expand_as(going)[going]
    before = torch.where(step == 0, row, batch + starts[(step - 1).clamp_min(0)] + row)
    ends = torch.arange(batch)
    some = ordered > 0
    ends[some] = batch + starts[ordered[some] - 1] + ends[some]
    return Packing(batch, counts, starts, order, step, before, ends)._replace(positions=torch.stack([order[row], step]))


class Runner:
    """A step that has been traced, planned and compiled."""

    def __init__(self, traced: Traced, dtype: torch.dtype) -> None:
        self.traced, self.dtype = traced, dtype
        self.program: Program = program(lower(traced))
        self.source, self.forward_text, self.backward_text = emit(self.program, double=dtype == torch.float64)
        self.library = library(self.source)

    def run(
        self, weights: Sequence[Tensor], inputs: Tensor, states: Sequence[Tensor], packing: Packing
    ) -> tuple[Tensor, ...]:
        """Outputs ``(rows, output_size)`` and the states ``(batch, ...)`` after each row's end.

        Args:
            weights: what the step was traced with, or others of the same shapes.
            inputs: ``(rows, input_size)``, joined as ``packing`` says.
            states: parts of the state ``(batch, ...)``, in the packing's order.
            packing: where rows lie.
        """
        constants = [value.to(self.dtype) for value in self.traced.constants(*weights)]
        groups = [self.group(group, constants, inputs) for group in self.program.groups]
        flat = [state.reshape(state.shape[0], -1) for state in states]
        vectors, matrices = self.used()
        tensors = [*groups, *flat, *(constants[i] for i in vectors), *(constants[i] for i in matrices)]
        outputs, *ends = _Loop.apply(self, packing, *tensors)
        return outputs, *(end.view_as(state) for end, state in zip(ends, states, strict=True))

    def used(self) -> tuple[list[int], list[int]]:
        """The constants that the loop itself reads: vectors, and matrices."""
        names = {*self.forward_text.buffers, *self.backward_text.buffers}
        return tuple(sorted(int(n.removeprefix(kind)) for n in names if n.startswith(kind)) for kind in ("vector", "matrix"))

    def group(self, group: Group, constants: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """What one group holds for all rows, ``(rows, width)``."""

        def leaf(value: Node) -> Tensor:
            return inputs if value.op == "inputs" else constants[value.note].reshape(-1)

        def matrix(wanted: Matrix) -> Tensor:
            return constants[wanted.index][:, wanted.start : wanted.stop]

        def values(*roots: Node) -> list[Tensor]:
            return evaluate(roots, leaf, matrix, inputs)

        first: Before = group.leaves[0].note
        if first.plain is not None:
            plain = values(first.plain)[0]
            return plain.expand(inputs.shape[0], -1).contiguous()
        notes: list[Before] = [member.note for member in group.leaves]
        rows = values(first.products[0][0])[0]
        columns = _join_columns([note.products[0][1] for note in notes])
        factor = torch.cat([matrix(part) for part in columns], dim=1) if len(columns) > 1 else matrix(columns[0])
        if any(note.vectors for note in notes):
            sums = [_total(values(*note.vectors), rows, member.width) for note, member in zip(notes, group.leaves, strict=True)]
            result = torch.addmm(torch.cat(sums), rows, factor)
        else:
            result = rows @ factor
        if any(len(note.products) > 1 for note in notes):
            parts = result.split([member.width for member in group.leaves], dim=1)
            more = [sum((values(r)[0] @ matrix(m) for r, m in note.products[1:]), start=part) for note, part in zip(notes, parts, strict=True)]
            result = torch.cat(more, dim=1)
        return result

    def threads(self, packing: Packing, text: Text) -> int:
        """How many threads share a step."""
        work = 2 * packing.batch * sum(part.depth * part.width for part in text.packed)
        return torch.get_num_threads() if work >= SMALL else 1


def _total(vectors: list[Tensor], like: Tensor, width: int) -> Tensor:
    return sum(vectors[1:], start=vectors[0]) if vectors else like.new_zeros(width)


def _join_columns(parts: Sequence[Matrix]) -> list[Matrix]:
    """Neighbouring columns of one matrix as one part."""
    joined: list[Matrix] = []
    for part in parts:
        if joined and joined[-1].index == part.index and joined[-1].stop == part.start:
            joined[-1] = joined[-1]._replace(stop=part.stop)
        else:
            joined.append(part)
    return joined


class _Loop(torch.autograd.Function):
    """The loop in compiled code, and its vector-Jacobian product."""

    @staticmethod
    def forward(ctx: Any, runner: Runner, packing: Packing, *tensors: Tensor) -> tuple[Tensor, ...]:
        plan, rows = runner.program, packing.rows
        num_groups, num_states = len(plan.groups), len(plan.state_widths)
        vectors, matrices = runner.used()
        named: dict[str, Tensor] = {f"sequence{i}": tensors[i] for i in range(num_groups)}
        like = tensors[0] if num_groups else tensors[num_groups]
        states = tensors[num_groups : num_groups + num_states]
        rest = tensors[num_groups + num_states :]
        named.update({f"vector{i}": value.contiguous() for i, value in zip(vectors, rest, strict=False)})
        named.update({f"matrix{i}": value for i, value in zip(matrices, rest[len(vectors) :], strict=True)})
        for i, state in enumerate(states):
            kept = like.new_empty(packing.batch + rows, plan.state_widths[i])
            kept[: packing.batch] = state
            named[f"states{i}"] = kept
        call(runner, "forward", packing, named, like)
        ends = [
            kept[-packing.batch :].clone() if packing.ends is None else kept[packing.ends]
            for kept in (named[f"states{i}"] for i in range(num_states))
        ]
        ctx.runner, ctx.packing, ctx.rows = runner, packing, rows
        ctx.num_groups, ctx.num_states = num_groups, num_states
        if any(ctx.needs_input_grad):
            needed = {name for name in runner.backward_text.buffers if name in named}
            needed |= {place.buffer.name for rows_, _, _ in plan.matrix_cotangents for place in (rows_,)}
            ctx.names = sorted(needed)
            ctx.save_for_backward(*(named[name] for name in ctx.names))
            ctx.like = like.new_empty(0)
        place = plan.output
        kept = named[place.buffer.name]
        outputs = kept[packing.batch :] if place.buffer.rows == "after" else kept
        return outputs, *ends

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor | None, ...]:
        runner, packing, plan = ctx.runner, ctx.packing, ctx.runner.program
        named = dict(zip(ctx.names, ctx.saved_tensors, strict=True))
        like = ctx.like
        if torch._C._autograd._get_current_graph_task_keep_graph():  # a second backward pass may need them as they are
            for place in plan.group_cotangents:
                if place is not None and place.buffer.name in named:
                    named[place.buffer.name] = named[place.buffer.name].clone()
        named["cotangent_outputs"] = given[0].contiguous()
        for i, cotangent in enumerate(given[1:]):
            named[f"carry{i}"] = cotangent.reshape(1, packing.batch, -1).repeat(2, 1, 1)
        call(runner, "backward", packing, named, like)
        half = len(packing.counts) % 2
        groups = [None if place is None else named[place.buffer.name] for place in plan.group_cotangents]
        states = [named[f"carry{i}"][half] for i in range(ctx.num_states)]
        vectors, matrices = runner.used()
        sums = {leaf.note: named[buffer.name].sum(0) for leaf, buffer in plan.vector_cotangents.items()}
        products = matrix_cotangents(plan, packing, named, ctx.rows)
        return (
            None,
            None,
            *groups,
            *states,
            *(sums.get(i) for i in vectors),
            *(products.get(i) for i in matrices),
        )


def matrix_cotangents(plan: Program, packing: Packing, named: dict[str, Tensor], rows: int) -> dict[int, Tensor]:
    """One product over all steps for each part of each matrix."""

    def kept(place: Place, width: int) -> Tensor:
        value = named[place.buffer.name]
        if place.buffer.rows == "before":
            value = value[:rows] if packing.before is None else value[packing.before]
        elif place.buffer.rows == "after":
            value = value[packing.batch :]
        return value[:, place.start : place.start + width]

    found: dict[int, Tensor] = {}
    for source, matrix, place in _neighbours(plan.matrix_cotangents):
        whole = named[f"matrix{matrix.index}"]
        value = kept(source, whole.shape[0])
        cotangent = kept(place, matrix.stop - matrix.start)
        alone = matrix.stop - matrix.start == whole.shape[1]
        turned = whole.stride(0) == 1  # as a linear layer keeps it: its cotangent is to lie in memory likewise
        result = (cotangent.t() @ value).t() if turned else value.t() @ cotangent
        if alone and matrix.index not in found:
            found[matrix.index] = result
        else:
            if matrix.index not in found:
                found[matrix.index] = torch.zeros_like(whole)
            found[matrix.index][:, matrix.start : matrix.stop] += result
    return found


def _neighbours(parts: Sequence[tuple[Place, Matrix, Place]]) -> list[tuple[Place, Matrix, Place]]:
    """Joins parts of one matrix with the same rows whose cotangents lie side by side."""
    joined: list[tuple[Place, Matrix, Place]] = []
    for rows, matrix, place in sorted(parts):
        if joined:
            last_rows, last, last_place = joined[-1]
            beside = place == last_place._replace(start=last_place.start + last.stop - last.start)
            if last_rows == rows and last.index == matrix.index and last.stop == matrix.start and beside:
                joined[-1] = (rows, last._replace(stop=matrix.stop), last_place)
                continue
        joined.append((rows, matrix, place))
    return joined


def call(runner: Runner, name: str, packing: Packing, named: dict[str, Tensor], like: Tensor) -> None:
    """Calls one function of the library; allocates what it writes that is not there yet."""
    text = runner.forward_text if name == "forward" else runner.backward_text
    kernel = runner.program.forward if name == "forward" else runner.program.backward
    threads = runner.threads(packing, text)
    widths = {buffer.name: buffer.width for buffer in _buffers(kernel)}
    for buffer in text.buffers:
        if buffer in named:
            continue
        if buffer.startswith("packed"):
            part = text.packed[int(buffer.removeprefix("packed"))]
            named[buffer] = like.new_empty(part.depth * -(-part.width // LANES) * LANES)
        elif buffer.startswith("sum"):
            named[buffer] = like.new_zeros(threads, widths[buffer])
        elif buffer.startswith("scratch"):
            named[buffer] = like.new_empty(2, packing.batch, widths[buffer])
        else:
            named[buffer] = like.new_empty(packing.rows, widths[buffer])
    pointers = (ctypes.c_void_p * len(text.buffers))(*(named[buffer].data_ptr() for buffer in text.buffers))
    sizes = []
    for size in text.sizes:
        if size >= 0:
            sizes.append(size)
        else:
            part, axis = divmod(-1 - size, 2)
            sizes.append(named[f"matrix{text.packed[part].matrix.index}"].stride(axis))
    table = (ctypes.c_long * len(sizes))(*sizes)
    getattr(runner.library, name)(
        pointers,
        table,
        ctypes.c_void_p(packing.counts.data_ptr()),
        ctypes.c_void_p(packing.starts.data_ptr()),
        ctypes.c_long(len(packing.counts)),
        ctypes.c_long(packing.batch),
        ctypes.c_int(threads),
    )
    for buffer in text.buffers:
        if buffer.startswith("packed"):
            del named[buffer]


def _buffers(kernel: Any) -> set[Any]:
    places = [*kernel.places.values(), *(s.place for p in kernel.phases for s in p.stores + p.sums)]
    places += [place for phase in kernel.phases for product in phase.products for place in (product.rows, product.place)]
    return {place.buffer for place in places}


__all__ = ["Product", "Runner", "pack_dense", "pack_lengths"]
