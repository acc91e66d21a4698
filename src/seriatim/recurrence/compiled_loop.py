"""The compiled loop as a function with a gradient."""

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..compiler.cpp.emit import LANES, Function, Numbers, Stride, Time, emit
from ..compiler.cpp.toolchain import library
from ..compiler.expressions import Node, merge_neighbours
from ..compiler.lower import Before, lower
from ..compiler.memory_attention import Operands
from ..compiler.operators import columns, evaluate
from ..compiler.program import Group, MatrixGradient, plan_program
from ..compiler.recorder import Traced
from ..compiler.schedule import Kernel, Memory, Place, Product, Role
from ..core.state import state_leaves
from .packing import Packing

WORTH_SHARING = 400_000
"""Floating-point operations per step below which one thread is faster than several that must synchronize."""
ARGUMENTS = [*[ctypes.c_void_p] * 4, ctypes.c_int64, ctypes.c_int64, ctypes.c_int, ctypes.c_int]
"""Of every function: memories, sizes, rows and first row of each step; steps, batch, threads, whether to pack."""

Memories = dict[Memory, Tensor]
Context: TypeAlias = Any
"""The context of a `torch.autograd.Function`."""


class UncompiledError(Exception):
    """There is no C++ compiler, or it failed; a warning was issued."""


def compiled(source: str, names: Iterable[str]) -> ctypes.CDLL:
    """Compile a text and return its functions, or raise UncompiledError."""
    functions = library(source)
    if functions is None:
        raise UncompiledError
    for name in names:
        getattr(functions, name).argtypes = ARGUMENTS
    return functions


def num_threads(function: Function, batch: int) -> int:
    """Return how many threads share a step."""
    work = 2 * batch * sum(part.depth * part.width for part in function.packed)
    return torch.get_num_threads() if work >= WORTH_SHARING else 1


def packed_memory(part: Product, numbers: Numbers) -> Tensor:
    """Allocate memory for the packed matrix of a product."""
    dtype = torch.bfloat16 if numbers.reduced else dtype_of(numbers)
    return torch.empty(part.depth * -(-part.width // LANES) * LANES, dtype=dtype)


def dtype_of(numbers: Numbers) -> torch.dtype:
    """Return the type of states and sums."""
    return torch.float64 if numbers.double else torch.float32


def size_table(sizes: Sequence[int | Stride | Time], memories: Memories) -> ctypes.Array[ctypes.c_int64]:
    """Return the table of sizes of a function, given its memories."""

    def value(size: int | Stride | Time) -> int:
        if isinstance(size, Stride):
            return memories[Memory(Role.MATRIX, size.matrix)].stride(size.dimension)
        return memories[Memory(Role.MEMORY, size.memory)].shape[1] if isinstance(size, Time) else size

    return (ctypes.c_int64 * len(sizes))(*map(value, sizes))


class Runner:
    """A step that is traced, planned and compiled for one type of numbers; raises UncompiledError without compiler."""

    def __init__(self, traced: Traced, numbers: Numbers) -> None:
        self.traced, self.numbers, self.dtype = traced, numbers, dtype_of(numbers)
        self.program = plan_program(lower(traced))
        kernels = {"forward": self.program.forward, "backward": self.program.backward}
        accessed = self.compile(kernels)
        self.forward_memories, self.backward_memories = accessed
        used = {memory for memories in accessed for memory in memories}
        self.vectors, self.matrices = (
            sorted(memory.number for memory in used if memory.role is role) for role in (Role.VECTOR, Role.MATRIX)
        )
        self.located = [i for i, value in enumerate(self.program.attentions) if value.note.is_located]
        """The attentions that depend on the weights of the step before."""
        self.memories = sorted(memory for memory in used if memory.role in (Role.MEMORY, Role.LENGTHS))
        self.arguments = [
            *(Memory(Role.SEQUENCE, i) for i in range(len(self.program.groups))),
            *(Memory(Role.STATES, i) for i in range(len(self.program.state_widths))),
            *(Memory(Role.WEIGHTS, i) for i in self.located),
            *(Memory(Role.VECTOR, i) for i in self.vectors),
            *(Memory(Role.MATRIX, i) for i in self.matrices),
            *self.memories,
        ]
        """The tensors that are given to the loop."""
        self.widths = {buffer.memory: buffer.width for kernel in kernels.values() for buffer in kernel.buffers()}

    def compile(self, kernels: Mapping[str, Kernel]) -> list[list[Memory]]:
        """Compile both directions, and return the memories that each accesses."""
        source, self.functions = emit(kernels, self.numbers)
        self.library = compiled(source, kernels)
        return [function.memories for function in self.functions]

    def constants(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """Return what depends on weights alone."""
        return [value.to(self.dtype) for value in self.traced.constants(weights)]

    def before(self, constants: Sequence[Tensor], inputs: Tensor, packing: Packing) -> list[Tensor]:
        """Return what is computed before the loop, group by group: ``(rows, width)``."""
        cache = {self.traced.leaves[0]: inputs, **packing.noise(self.traced.noise, inputs)}
        groups = [_compute_group(group, constants, inputs, cache).to(self.dtype) for group in self.program.groups]
        for group, computed in zip(self.program.groups, groups, strict=True):
            assert computed.shape == (packing.rows, group.width), "compiled code reads a row for each row"
        return groups

    def call(self, packing: Packing, memories: Memories, like: Tensor, *, backward: bool) -> None:
        """Run one direction, and add the memory that it writes, which is as ``like``, to ``memories`` where missing."""
        function = self.functions[backward]
        threads = num_threads(function, packing.batch)
        tensors = []
        for memory in function.memories:
            if memory.role is Role.PACKED:
                tensors.append(packed_memory(function.packed[memory.number], self.numbers))
                continue
            if memory not in memories:
                memories[memory] = self.allocate(memory, packing, threads, like)
            tensors.append(memories[memory])
        pointers = (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))
        getattr(self.library, function.name)(
            pointers,
            size_table(function.sizes, memories),
            packing.counts.data_ptr(),
            packing.starts.data_ptr(),
            len(packing.counts),
            packing.batch,
            threads,
            1,
        )

    def allocate(self, memory: Memory, packing: Packing, threads: int, like: Tensor) -> Tensor:
        """Allocate a buffer: a row for every row of the packing, or for every thread, or two that are swapped."""
        width = self.widths[memory]
        if memory.role is Role.VECTOR_SUM:
            return like.new_zeros(threads, width)
        if memory.role is Role.SCRATCH:
            return like.new_empty(2, packing.batch, width)
        return like.new_empty(packing.rows, width)


def _compute_group(group: Group, constants: Sequence[Tensor], inputs: Tensor, cache: dict[Node, Tensor]) -> Tensor:
    """Compute all leaves of a group for all steps with PyTorch, side by side ``(rows, width)``, in memory of their own.

    The cache holds inputs and random numbers ``(rows, width)``, and shared values.
    """

    def value(root: Node) -> Tensor:
        result = evaluate([root], cache, constants, inputs)[0]
        return result.expand(inputs.shape[0], root.width)  # a constant has a single row

    notes: list[Before] = [member.note for member in group.leaves]
    if notes[0].plain is not None:
        return value(notes[0].plain).contiguous()
    parts = [columns(matrix, constants) for matrix in group.matrices]
    result = value(notes[0].products[0][0]) @ (torch.cat(parts, dim=1) if len(parts) > 1 else parts[0])
    if all(len(note.products) == 1 for note in notes):
        return result
    pieces = list(torch.split(result, [member.width for member in group.leaves], dim=1))
    for i, note in enumerate(notes):
        pieces[i] = pieces[i] + sum(value(rows) @ columns(matrix, constants) for rows, matrix in note.products[1:])
    return torch.cat(pieces, dim=1)


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


def load(place: Place, width: int, packing: Packing, memories: Memories) -> Tensor:
    """Return what a place holds for every row of the packing ``(rows, width)``."""
    value = memories[place.buffer.memory][:, place.start : place.start + width]
    if place.buffer.rows == "before":
        return packing.before(value)
    return value[packing.batch :] if place.buffer.rows == "after" else value


def attended(runner: Runner) -> list[Node]:
    """Return the memories that hold weights of the step before, which a step replaces."""
    attentions = (runner.program.attentions[i] for i in runner.located)
    parts = (Operands.of(value.args, value.note).before for value in attentions)
    return [part for part in parts if part is not None]


def fits(runner: Runner, leaves: Sequence[Tensor]) -> bool:
    """Return whether values, keys and weights in the parts of a state have the same number of entries."""
    parts = dict(zip(runner.traced.leaves[1:], leaves, strict=True))
    for value in runner.program.attentions:
        operands = Operands.of(value.args, value.note)
        entries = (operands.values, operands.keys, operands.before)
        if len({parts[part].shape[1] for part in entries if part is not None}) > 1:
            return False
    return True


def weight_memories(runner: Runner, packing: Packing, memories: Memories) -> Memories:
    """Allocate the weights of each attention for each row, and the order of the sequences."""
    added: Memories = {}
    for i, value in enumerate(runner.program.attentions):
        entries = memories[_values(value)]
        if Memory(Role.WEIGHTS, i) not in memories:
            added[Memory(Role.WEIGHTS, i)] = entries.new_empty(packing.batch + packing.rows, entries.shape[1])
    if runner.program.attentions:
        added[Memory(Role.ORDER)] = packing.order()
    return added


def gradient_memories(runner: Runner, packing: Packing, memories: Memories) -> Memories:
    """Allocate what the backward pass writes for each attention, and return the order of the sequences, too."""
    added: Memories = {}
    for value, i, *_ in runner.program.cotangents.attentions:
        entries = memories[_values(value)]
        batch, time = entries.shape[:2]
        added[Memory(Role.SCORE_COTANGENT, i)] = entries.new_empty(packing.rows, time)
        added[Memory(Role.ORDER)] = packing.order()
        if value.note.is_additive:
            added[Memory(Role.KEY_COTANGENT, i)] = entries.new_zeros(batch, time, _query(value).width)
    return added


def memory_cotangents(
    runner: Runner, packing: Packing, memories: Memories, *, are_needed: bool
) -> Iterable[Tensor | None]:
    """Return the gradient of each memory that is an argument of the loop ``(batch, time, size)``, if any is needed."""
    if not are_needed:
        return [None] * len(runner.memories)
    gradients: dict[int, Tensor] = {}

    def add(part: Node, gradient: Tensor) -> None:
        gradients[part.note] = gradients[part.note] + gradient if part.note in gradients else gradient

    for value, i, query, cotangent in runner.program.cotangents.attentions:
        operands = Operands.of(value.args, value.note)
        weights = memories[Memory(Role.WEIGHTS, i)][packing.batch :]
        contexts = load(cotangent, value.width, packing, memories)
        add(operands.values, packing.split(weights).mT @ packing.split(contexts))
        if value.note.is_additive:
            add(operands.keys, memories[Memory(Role.KEY_COTANGENT, i)])
        else:
            scores = value.note.scale * memories[Memory(Role.SCORE_COTANGENT, i)]
            queries = load(query, operands.query.width, packing, memories)
            add(operands.keys, packing.split(scores).mT @ packing.split(queries))
    return [gradients.get(memory.number) if memory.role is Role.MEMORY else None for memory in runner.memories]


def _values(value: Node) -> Memory:
    return Memory(Role.MEMORY, Operands.of(value.args, value.note).values.note)


def _query(value: Node) -> Node:
    return Operands.of(value.args, value.note).query
