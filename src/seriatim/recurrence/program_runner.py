"""Runs a compiled program: constants, what is computed before the loop, memory, and the call."""

import ctypes
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from ..compiler.cpp.emit import LANES, Function, Numbers, Stride, Time, emit
from ..compiler.cpp.toolchain import library
from ..compiler.expressions import Node
from ..compiler.lower import Before, lower
from ..compiler.primitives import columns, evaluate
from ..compiler.program import Group, plan_program
from ..compiler.recorder import Traced
from ..compiler.schedule import Kernel, Memory, Product, Role
from .packing import Packing

WORTH_SHARING = 400_000
"""Floating-point operations per step below which one thread is faster than several that must synchronize."""
ARGUMENTS = [*[ctypes.c_void_p] * 4, ctypes.c_int64, ctypes.c_int64, ctypes.c_int, ctypes.c_int]
"""Of every function: memories, sizes, rows and first row of each step; steps, batch, threads, whether to pack."""

Memories = dict[Memory, Tensor]


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
