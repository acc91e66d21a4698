"""A loop over time in compiled code: what is computed before it, its memory, the call, and its gradient.

What depends on the inputs alone is computed before the loop by PyTorch, for all steps at once; in a training on a
processor of AMD by oneDNN, which is faster there than MKL. The gradient of a matrix is one product over all steps after
the backward loop. Weights of attention are stored for all steps, so that the
gradients of the entries of a memory are products after the loop, too; only that of additive keys is summed in it.
"""

import copy
import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import torch
from torch import Tensor

from ..compiler.buffers import Buffer, BufferKind, Numbers, Slot
from ..compiler.cpp.emit import Stride, Time, emit, packed_size
from ..compiler.cpp.toolchain import library
from ..compiler.expressions import Node, merge_neighbours, operands_of
from ..compiler.lower import Hoisted, lower
from ..compiler.operators import columns, evaluate
from ..compiler.program import Group, Kernel, MatrixGradient, plan_loop
from ..compiler.recorder import Traced
from ..core.state import state_leaves
from .packing import SequencePacking

WORTH_SHARING = 400_000
"""Floating-point operations per step below which one thread is faster than several that must synchronize."""
WORTH_ONEDNN = 20_000_000
"""Floating-point operations of all steps below which calling oneDNN takes longer than it saves."""
ARGUMENTS = [*[ctypes.c_void_p] * 4, ctypes.c_int64, ctypes.c_int64, ctypes.c_int, ctypes.c_int]
"""Of every function: buffers, sizes, rows and first row of each step; steps, batch, threads, if weights are packed."""

Storage = dict[Buffer, Tensor]
"""The memory of each buffer."""
Packed = dict[int | tuple[int, int], list[Tensor]]
Multiply = Callable[[Tensor, Tensor], Tensor]
"""The product of rows and a matrix."""


class UncompiledError(Exception):
    """There is no C++ compiler, or it failed; a warning was issued."""


class CompiledLoop:
    """A step that is traced, planned and compiled for one type of numbers; raises UncompiledError without compiler."""

    constants: list[Tensor] | None = None
    """What the loop computes with, if these are the weights of a module that do not change."""
    packed: Packed | None = None
    """The packed matrices of such a loop that runs forward, by the number of threads (and the group before it)."""

    def __init__(self, traced: Traced, numbers: Numbers) -> None:
        self.traced, self.numbers, self.dtype = traced, numbers, numbers.dtype
        self.program = plan_loop(lower(traced))
        kernels = {"forward": self.program.forward, "backward": self.program.backward}
        self.widths = {slot.buffer: slot.width for kernel in kernels.values() for slot in kernel.accessed()}
        forward, self.read_backward = self.compile(kernels)

        # what autograd must know as an argument, because a gradient may be asked for it
        used = sorted({*forward, *self.read_backward})
        self.vectors = [buffer.number for buffer in used if buffer.kind is BufferKind.VECTOR]
        self.matrices = [buffer.number for buffer in used if buffer.kind is BufferKind.MATRIX]
        self.memories = [buffer for buffer in used if buffer.kind in (BufferKind.MEMORY, BufferKind.LENGTHS)]
        self.located = [i for i, value in enumerate(self.program.attentions) if value.attribute.is_located]
        """The attentions that depend on the weights of the step before."""
        self.arguments = [
            *(Buffer(BufferKind.HOISTED, i) for i in range(len(self.program.groups))),
            *(Buffer(BufferKind.STATES, i) for i in range(len(self.program.state_widths))),
            *(Buffer(BufferKind.WEIGHTS, i) for i in self.located),
            *(Buffer(BufferKind.VECTOR, i) for i in self.vectors),
            *(Buffer(BufferKind.MATRIX, i) for i in self.matrices),
            *self.memories,
        ]
        """The tensors that are given to the loop."""

    def compile(self, kernels: Mapping[str, Kernel]) -> tuple[list[Buffer], list[Buffer]]:
        """Compile both directions, and return the buffers that each accesses."""
        source, self.functions = emit(kernels, self.numbers)
        functions = library(source)
        if functions is None:
            raise UncompiledError
        self.calls, self.multiply = [getattr(functions, name) for name in kernels], functions.multiply
        self.multiply.argtypes = [*[ctypes.c_void_p] * 4, *[ctypes.c_int64] * 5, ctypes.c_int, ctypes.c_int]
        for call in self.calls:
            call.argtypes = ARGUMENTS
        forward, backward = self.functions
        return forward.buffers, backward.buffers

    def prepared(self, weights: Sequence[Tensor]) -> Self:
        """Return a copy that keeps these weights as it reads them, for many short calls forward."""
        loop = copy.copy(self)
        loop.constants, loop.packed = [value.to(self.dtype) for value in self.traced.constants(weights)], {}
        return loop

    def fits(self, leaves: Sequence[Tensor]) -> bool:
        """Return whether values, keys and weights in the leaves of a state have the same number of entries."""
        by_value = dict(zip(self.traced.leaves[1:], leaves, strict=True))
        for value in self.program.attentions:
            operands = operands_of(value)
            entries = (operands.values, operands.keys, operands.before)
            if len({by_value[operand].shape[1] for operand in entries if operand is not None}) > 1:
                return False
        return True

    def run(
        self, weights: Sequence[Tensor], inputs: Tensor, states: Sequence[Tensor], packing: SequencePacking
    ) -> tuple[Tensor, list[Tensor]]:
        """Run the loop over sequences that are joined as ``packing`` says.

        Args:
            weights: the weights that it was traced with, or others of the same shapes; not read if it keeps them.
            inputs: ``(rows, input_size)``.
            states: the leaves of the state ``(batch, ...)``, and memories; returned as they are at the end of each
                sequence, after the outputs.
            packing: the order of the rows.
        """
        # a step also replaces weights of attention that the next step reads, although they are leaves of a memory
        named = dict(zip(self.traced.leaves[1:], states, strict=True))
        attentions = (self.program.attentions[i] for i in self.located)
        weights_before = [operands_of(value).before for value in attentions]
        carried = [value for value in named if value.op == "state"]
        carried += [value for value in weights_before if value is not None]

        constants = self.constants or [value.to(self.dtype) for value in self.traced.constants(weights)]
        starts = packing.sort(tuple(named[value].reshape(packing.batch, -1) for value in carried))
        entries = {value.attribute: leaf for value, leaf in named.items() if value.op == "memory"}
        # autograd takes longer than all else around a short loop, and need not know of one without gradients
        apply: Any = _LoopFunction.apply
        if self.packed is not None:
            apply = functools.partial(_LoopFunction.forward, SimpleNamespace(needs_input_grad=()))
        before = [*self.hoisted(constants, inputs, packing), *starts]
        vectors = (constants[i].reshape(-1).contiguous() for i in self.vectors)
        matrices, memories = (
            (constants[i] for i in self.matrices),
            (entries[x.number].contiguous() for x in self.memories),
        )
        outputs, *ends = apply(self, packing, *before, *vectors, *matrices, *memories)
        named.update(zip(carried, state_leaves(packing.unsort(tuple(ends))), strict=True))
        return outputs, [named[value].view_as(state) for value, state in zip(named, states, strict=True)]

    def hoisted(self, constants: Sequence[Tensor], inputs: Tensor, packing: SequencePacking) -> list[Tensor]:
        """Return what is computed before the loop, group by group: ``(rows, width)``."""
        cache = {self.traced.leaves[0]: inputs, **packing.noise(self.traced.noise, inputs)}
        is_single = inputs.device.type == "cpu" and not self.numbers.double and not self.numbers.reduced
        is_full = packing.rows == packing.batch * len(packing.counts)  # oneDNN compiles code for each number of rows
        by_onednn = is_single and is_full and torch.is_grad_enabled() and prefers_onednn()
        groups = []
        for number, group in enumerate(self.program.groups):
            is_worth = 2 * inputs.numel() * group.width >= WORTH_ONEDNN
            multiply: Multiply = _OneDnnProduct.apply if by_onednn and is_worth else torch.matmul
            if is_single and self.packed is not None:
                multiply = functools.partial(self.multiply_kept, self.packed, number)
            groups.append(_compute_group(group, constants, inputs, cache, multiply).to(self.dtype))
        for group, computed in zip(self.program.groups, groups, strict=True):
            assert computed.shape == (packing.rows, group.width), "compiled code reads a row for each row"
        return groups

    def multiply_kept(self, packed: Packed, number: int, rows: Tensor, matrix: Tensor) -> Tensor:
        """Return rows times the matrix of a group, which is packed once; a row has the same bits beside others."""
        rows, (depth, width) = rows.contiguous(), matrix.shape
        threads = torch.get_num_threads() if 2 * rows.numel() * width >= WORTH_SHARING else 1
        kept, results = packed.get((threads, number)), rows.new_empty(len(rows), width)
        memory = kept or [torch.empty(packed_size(depth, width), dtype=self.numbers.packed_dtype)]
        pointers = (x.data_ptr() for x in (rows, matrix, *memory, results))
        self.multiply(*pointers, len(rows), depth, width, *matrix.stride(), threads, kept is not None)
        packed[threads, number] = memory
        return results

    def call(self, packing: SequencePacking, storage: Storage, like: Tensor, *, backward: bool) -> None:
        """Run one direction; memory that it writes is added to ``storage`` where missing, of the type of ``like``."""
        function = self.functions[backward]
        work = 2 * packing.batch * sum(matrix.depth * matrix.width for matrix in function.packed)
        threads = torch.get_num_threads() if work >= WORTH_SHARING else 1

        # Weights may change between two calls, so each call packs them. A loop that keeps its weights packs them once.
        kept = {} if self.packed is None or backward else self.packed
        new = (torch.empty(packed_size(x.depth, x.width), dtype=self.numbers.packed_dtype) for x in function.packed)
        matrices = kept.get(threads) or list(new)

        # one pointer for each buffer of the function, in its order
        tensors = []
        for buffer in function.buffers:
            if buffer.kind is not BufferKind.PACKED and buffer not in storage:
                storage[buffer] = self.allocate(buffer, packing, threads, like)
            tensors.append(matrices[buffer.number] if buffer.kind is BufferKind.PACKED else storage[buffer])

        # strides and lengths of memories are known only now, so that the same code serves every layout
        def size(entry: int | Stride | Time) -> int:
            if isinstance(entry, Stride):
                return storage[Buffer(BufferKind.MATRIX, entry.matrix)].stride(entry.dimension)
            return storage[Buffer(BufferKind.MEMORY, entry.memory)].shape[1] if isinstance(entry, Time) else entry

        pointers = (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))
        numbers = (ctypes.c_int64 * len(function.sizes))(*map(size, function.sizes))
        steps = packing.counts.data_ptr(), packing.starts.data_ptr(), len(packing.counts)
        self.calls[backward](pointers, numbers, *steps, packing.batch, threads, threads in kept)
        kept[threads] = matrices

    def allocate(self, buffer: Buffer, packing: SequencePacking, threads: int, like: Tensor) -> Tensor:
        """Allocate a buffer: a row for every row of the packing, or for every thread, or two that are swapped."""
        width = self.widths[buffer]
        if buffer.kind is BufferKind.VECTOR_SUM:
            return like.new_zeros(threads, width)
        if buffer.kind is BufferKind.SCRATCH:
            return like.new_empty(2, packing.batch, width)
        return like.new_empty(packing.rows, width)


@functools.cache
def prefers_onednn() -> bool:
    """Return whether oneDNN is the faster library for products: on processors of AMD, for which MKL is not written.

    It is not measured, because two trainings of one seed must choose the same library.
    """
    cpuinfo = Path("/proc/cpuinfo")
    is_amd = cpuinfo.exists() and "AuthenticAMD" in cpuinfo.read_text(encoding="utf-8", errors="replace")
    return is_amd and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class _OneDnnProduct(torch.autograd.Function):
    """The product of rows ``(rows, depth)`` and a matrix ``(depth, width)`` by oneDNN; that of its gradient, too."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, matrix: Tensor) -> Tensor:
        ctx.save_for_backward(rows, matrix)
        return _multiply_by_onednn(rows, matrix)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, Tensor | None]:
        rows, matrix = ctx.saved_tensors
        of_rows = _multiply_by_onednn(cotangent, matrix.t()) if ctx.needs_input_grad[0] else None
        return of_rows, _matrix_gradient(rows, cotangent, matrix) if ctx.needs_input_grad[1] else None


def _multiply_by_onednn(rows: Tensor, matrix: Tensor) -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise(rows, matrix.t(), None, "none", [], None)
    return result


def _matrix_gradient(rows: Tensor, cotangent: Tensor, matrix: Tensor) -> Tensor:
    """Return the gradient of a matrix in its layout: a linear layer stores its weight transposed."""
    return (cotangent.t() @ rows).t() if matrix.stride(0) == 1 else rows.t() @ cotangent


def _compute_group(
    group: Group, constants: Sequence[Tensor], inputs: Tensor, cache: dict[Node, Tensor], multiply: Multiply
) -> Tensor:
    """Compute all leaves of a group for all steps with PyTorch, side by side ``(rows, width)``, in memory of their own.

    The cache holds inputs and random numbers ``(rows, width)``, and shared values.
    """

    def value(root: Node) -> Tensor:
        result = evaluate([root], cache, constants, inputs)[0]
        return result.expand(inputs.shape[0], root.width)  # a constant has a single row

    contents: list[Hoisted] = [member.attribute for member in group.leaves]
    if contents[0].plain is not None:
        return value(contents[0].plain).contiguous()
    matrices = [columns(matrix, constants) for matrix in group.matrices]
    matrix = torch.cat(matrices, dim=1) if len(matrices) > 1 else matrices[0]
    result = multiply(value(contents[0].products[0][0]), matrix)
    if all(len(content.products) == 1 for content in contents):
        return result
    leaves = list(torch.split(result, [member.width for member in group.leaves], dim=1))
    for i, content in enumerate(contents):
        leaves[i] = leaves[i] + sum(value(rows) @ columns(matrix, constants) for rows, matrix in content.products[1:])
    return torch.cat(leaves, dim=1)


def refuse_second_derivative() -> None:
    """Raise RuntimeError where the gradient of a compiled recurrence is differentiated."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "compiled recurrences can be differentiated once, not twice; for gradients of gradients run them "
            "within seriatim.recurrence.uncompiled()"
        )


class _LoopFunction(torch.autograd.Function):
    """Both directions of the loop.

    The memory of the products before the loop is overwritten: first by the products in the loop, then by cotangents.
    """

    @staticmethod
    def forward(ctx: Any, loop: CompiledLoop, packing: SequencePacking, *tensors: Tensor) -> tuple[Tensor, ...]:
        plan, like = loop.program, tensors[0]
        storage = dict(zip(loop.arguments, tensors, strict=True))

        # a state needs a row for the initial state of each sequence, then one for the state after every row
        states = [buffer for buffer in loop.arguments if buffer.kind in (BufferKind.STATES, BufferKind.WEIGHTS)]
        for buffer in states:
            initial = storage[buffer]
            storage[buffer] = initial.new_empty(packing.batch + packing.rows, initial.shape[1])
            storage[buffer][: packing.batch] = initial
        for i, value in enumerate(plan.attentions):
            entries = storage[_entries(value)]
            storage[Buffer(BufferKind.ORDER)] = packing.order()
            if i not in loop.located:
                weights = entries.new_empty(packing.batch + packing.rows, entries.shape[1])
                storage[Buffer(BufferKind.WEIGHTS, i)] = weights

        loop.call(packing, storage, like, backward=False)
        ends = [packing.ends(storage[buffer]) for buffer in states]
        if any(ctx.needs_input_grad):
            ctx.loop, ctx.packing, ctx.like = loop, packing, like.new_empty(0)
            rows = {slot.buffer for slot, _, _ in plan.cotangents.matrices}
            ctx.buffers = sorted({*loop.read_backward, *rows} & set(storage))
            ctx.save_for_backward(*(storage[buffer] for buffer in ctx.buffers))
        outputs = storage[plan.output.buffer]
        return (outputs[packing.batch :] if plan.output.rows == "after" else outputs), *ends

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        loop: CompiledLoop = ctx.loop
        packing: SequencePacking = ctx.packing
        plan = loop.program
        storage = dict(zip(ctx.buffers, ctx.saved_tensors, strict=True))

        # cotangents are written over saved tensors, unless another backward pass may need these
        groups = [None if slot is None else slot.buffer for slot in plan.cotangents.groups]
        if torch._C._autograd._get_current_graph_task_keep_graph():
            storage.update({buffer: storage[buffer].clone() for buffer in groups if buffer in storage})
        storage[Buffer(BufferKind.OUTPUT_COTANGENT)] = cotangents[0].contiguous()
        carries = [Buffer(BufferKind.CARRY, i) for i in range(len(plan.state_widths))]
        carries += [Buffer(BufferKind.WEIGHT_CARRY, i) for i in loop.located]
        for carry, cotangent in zip(carries, cotangents[1:], strict=True):
            storage[carry] = cotangent.new_empty(2, *cotangent.shape)
            storage[carry].copy_(cotangent)
        for value, i, *_ in plan.cotangents.attentions:
            entries = storage[_entries(value)]
            storage[Buffer(BufferKind.ORDER)] = packing.order()
            storage[Buffer(BufferKind.SCORE_COTANGENT, i)] = entries.new_empty(packing.rows, entries.shape[1])
            if value.attribute.is_additive:
                size = operands_of(value).query.width
                storage[Buffer(BufferKind.KEY_COTANGENT, i)] = entries.new_zeros(*entries.shape[:2], size)

        loop.call(packing, storage, ctx.like, backward=True)
        last = len(packing.counts) % 2
        vectors = {leaf.attribute: storage[slot.buffer].sum(0) for leaf, slot in plan.cotangents.vectors.items()}
        matrices = _matrix_cotangents(loop, packing, storage)
        of_memories = ctx.needs_input_grad[len(ctx.needs_input_grad) - len(loop.memories) :]
        memories = _memory_cotangents(loop, packing, storage) if any(of_memories) else {}
        return (
            None,
            None,
            *(None if buffer is None else storage[buffer] for buffer in groups),
            *(storage[carry][last] for carry in carries),
            *(vectors.get(i) for i in loop.vectors),
            *(matrices.get(i) for i in loop.matrices),
            *(memories.get(buffer.number) if buffer.kind is BufferKind.MEMORY else None for buffer in loop.memories),
        )


def _matrix_cotangents(loop: CompiledLoop, packing: SequencePacking, storage: Storage) -> dict[int, Tensor]:
    """Compute the gradient of each matrix, with one product over all steps for each of its blocks of columns."""

    def merge(left: MatrixGradient, right: MatrixGradient) -> MatrixGradient | None:
        rows, matrix, slot = left
        both = matrix.joined(right[1])
        is_adjacent = (rows, slot.shifted(matrix.stop - matrix.start)) == (right[0], right[2])
        return (rows, both, slot) if both and is_adjacent else None

    gradients: dict[int, Tensor] = {}
    for source, matrix, slot in merge_neighbours(sorted(loop.program.cotangents.matrices), merge):
        weight, width = storage[Buffer(BufferKind.MATRIX, matrix.constant)], matrix.stop - matrix.start
        rows = _load(source, weight.shape[0], packing, storage)
        cotangent = _load(slot, width, packing, storage)
        if loop.numbers.reduced:
            rows, cotangent = rows.bfloat16(), cotangent.bfloat16()
        result = _matrix_gradient(rows, cotangent, weight).to(weight.dtype)
        if width == weight.shape[1] and matrix.constant not in gradients:
            gradients[matrix.constant] = result
        else:
            total = gradients.setdefault(matrix.constant, torch.zeros_like(weight))
            total[:, matrix.start : matrix.stop] += result
    return gradients


def _memory_cotangents(loop: CompiledLoop, packing: SequencePacking, storage: Storage) -> dict[int, Tensor]:
    """Return the gradient of values and keys ``(batch, time, size)``, by their leaf of the state."""
    gradients: dict[int, Tensor] = {}

    def add(leaf: Node, gradient: Tensor) -> None:
        gradients[leaf.attribute] = gradients[leaf.attribute] + gradient if leaf.attribute in gradients else gradient

    for value, i, query, cotangent in loop.program.cotangents.attentions:
        operands = operands_of(value)
        weights = storage[Buffer(BufferKind.WEIGHTS, i)][packing.batch :]
        contexts = _load(cotangent, value.width, packing, storage)
        add(operands.values, packing.split(weights).mT @ packing.split(contexts))
        if value.attribute.is_additive:
            add(operands.keys, storage[Buffer(BufferKind.KEY_COTANGENT, i)])
        else:
            scores = value.attribute.scale * storage[Buffer(BufferKind.SCORE_COTANGENT, i)]
            queries = _load(query, operands.query.width, packing, storage)
            add(operands.keys, packing.split(scores).mT @ packing.split(queries))
    return gradients


def _load(slot: Slot, width: int, packing: SequencePacking, storage: Storage) -> Tensor:
    """Return what a slot holds for every row of the packing ``(rows, width)``."""
    value = storage[slot.buffer][:, slot.start : slot.start + width]
    if slot.rows == "before":
        return packing.before(value)
    return value[packing.batch :] if slot.rows == "after" else value


def _entries(value: Node) -> Buffer:
    """Return the values that an ``attend`` reads."""
    return Buffer(BufferKind.MEMORY, operands_of(value).values.attribute)
