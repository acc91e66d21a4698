"""One step in compiled code: its packed weights, its memory, and the call.

A step has a table of pointers, one for each buffer of its program. Those of weights and of intermediate values stay the
same; those of inputs, of the state before and of the results are set at each call.
"""

import contextlib
import ctypes
import mmap
import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from ..compiler.buffers import BufferKind, Numbers, Slot
from ..compiler.cpp.toolchain import typed_library
from ..compiler.fallback_reasons import Reason, UnsupportedError
from ..compiler.recorder import Traced
from ..compiler.step_program import DIMENSIONS, KINDS, NOTHING, Instruction, Operand, plan_step, preamble
from ..core.key_value_cache import EntryBuffer, KeyValueCache, KeyValueMemory, MemoryRows, extended, newest, reserve
from ..core.state import State, with_children
from .compiled_loop import WORTH_SHARING, UncompiledError
from .weight_formats import FORMATS, packable

SECOND_CACHE = 1_500_000
"""Bytes of packed matrices, for each thread, from which they are prefetched into the second-level cache."""
LARGE_PAGE = 2 << 20
"""Bytes of a large page of memory, and what the addresses of memory in large pages are multiples of."""
SCORES = 1024
"""The number of scores of attention that a thread has memory for at first."""


class _Operand(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("memory", "offset", "row")),
        ("step", ctypes.c_int64 * DIMENSIONS),
    )


class _Instruction(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("kind", "outer", "wait")),
        ("size", ctypes.c_int64 * DIMENSIONS),
        ("to", _Operand),
        ("sources", _Operand * 4),
        ("number", ctypes.c_double * 2),
        ("extra", ctypes.c_int64 * 8),
    )


class _Cache(ctypes.Structure):
    _fields_ = (("entries", ctypes.c_void_p), *((name, ctypes.c_int64) for name in ("row", "head", "count")))


Cache: TypeAlias = KeyValueCache | KeyValueMemory | MemoryRows


class CacheLeaf(NamedTuple):
    """A leaf of the state that holds the entries of a cache or a memory."""

    leaf_index: int
    window: int  # how many entries an input sees, its own included; 0 for all
    shape: torch.Size
    dtype: torch.dtype
    is_after: bool  # whether this is the leaf after the step, which the step writes


class Appended(NamedTuple):
    """A buffer with one more entry, at ``end``."""

    buffer: EntryBuffer
    end: int
    window: int


class CompiledStep:
    """A compiled step for any number of rows.

    Raises:
        UnsupportedError: the state holds entries that grow, but not in a `KeyValueCache`.
        UncompiledError: there is no C++ compiler.
    """

    def __init__(
        self, traced: Traced, weights: Sequence[Tensor], inputs: Tensor, state: State, numbers: Numbers
    ) -> None:
        self.dtype, self.reduced = numbers.dtype, numbers.reduced
        self.inputs_shape, self.inputs_type = inputs.shape[1:], inputs.dtype
        self.output_width = traced.outputs.width
        self.functions = _step_library(numbers.double)
        self.program = program = plan_step(traced)
        self.constants = [value.detach().to(self.dtype) for value in traced.constants(weights)]

        leaves, caches = leaves_and_caches(state)
        self.shapes = [(leaf.shape[1:], leaf.dtype) for leaf in leaves]
        self.caches = [self.cache_leaf(number, leaves, caches) for number in range(len(program.caches))]
        attends = [i.extra for i in program.instructions if i.kind == "attend_to_rows"]
        self.attended = [extra[:2] + (extra[5:7] if extra[7] else ()) for extra in attends]
        """The caches of values, keys and weights of each attention, which need the same number of entries."""

        # weights keep their addresses; what a call brings along, and its scratch memory, is set later
        self.packed_bytes = 0
        self.formats: dict[Slot, int] = {}  # of packed matrices
        shapes = [self.constants[slot.buffer.number].shape for slot in program.slots if is_packed(slot)]
        sizes = (self.functions.packed_bytes(*shape, number) for shape in shapes for number in range(len(FORMATS)))
        self.weights = in_large_pages(sum(sizes))  # more than is used, which takes no memory
        self.fixed = {slot: tensor for slot in program.slots if (tensor := self.fixed_memory(slot)) is not None}
        self.pointers = (ctypes.c_void_p * len(program.slots))()
        self.index = {slot: i for i, slot in enumerate(program.slots)}
        for slot, tensor in self.fixed.items():
            self.pointers[self.index[slot]] = tensor.data_ptr()
        cached = {cache.leaf_index for cache in self.caches}
        self.inputs_index = self.indices(BufferKind.INPUTS, "now")
        self.outputs_index = self.indices(BufferKind.OUTPUTS, "now")
        self.before = [(number, i) for number, i in self.indices(BufferKind.STATES, "before") if number not in cached]
        self.after = self.indices(BufferKind.STATES, "after")
        self.scratch = [(i, slot.width) for slot, i in self.index.items() if slot.buffer.kind is BufferKind.SCRATCH]

        self.instructions = (_Instruction * len(program.instructions))(*map(self.encoded, program.instructions))
        self.cache_table = (_Cache * max(1, len(self.caches)))()
        products = [i.extra for i in program.instructions if i.kind == "product"]
        self.packed_numbers = sum(depth * width for depth, width, _ in products)
        self.rows = 0  # for which there is memory for intermediate values
        self.scores = torch.empty(0, dtype=self.dtype)
        self.lock = threading.Lock()

    # ---- what is the same for all calls

    def indices(self, kind: BufferKind, rows: str) -> list[tuple[int, int]]:
        """Return the numbers of all buffers of a kind, each with its index in the table of pointers."""
        return [
            (slot.buffer.number, i) for slot, i in self.index.items() if slot.buffer.kind is kind and slot.rows == rows
        ]

    def cache_leaf(self, number: int, leaves: list[Tensor], caches: list[Cache | None]) -> CacheLeaf:
        """Return where a cache is in the state, and what an input sees of it."""
        index, is_after = self.program.caches[number]
        if caches[index] is None:
            raise UnsupportedError(
                [Reason("attention reads entries that are not those of a KeyValueCache or KeyValueMemory")]
            )
        attends = (i for i in self.program.instructions if i.kind == "append_and_attend")
        window = next((i.extra[4] for i in attends if i.extra[0] == number), 0)
        return CacheLeaf(index, window, leaves[index].shape, leaves[index].dtype, is_after)

    def fixed_memory(self, slot: Slot) -> Tensor | None:
        """Return the tensor of a buffer that is the same for all calls; None for others."""
        kind, number = slot.buffer
        if kind is BufferKind.NUMBERS:
            return torch.tensor([*self.program.numbers, 0.0], dtype=self.dtype)
        if kind is BufferKind.VECTOR:
            return self.constants[number].contiguous()
        if kind is BufferKind.PACKED:
            return self.packed(slot, self.constants[number])
        if kind is BufferKind.FREQUENCIES:
            base, count, size = self.program.frequencies[number]
            return torch.pow(base, -2 * torch.arange(count, dtype=torch.float64) / size)
        return None

    def packed(self, slot: Slot, matrix: Tensor) -> Tensor:
        """Return a matrix ``(depth, width)`` in the order in which products read it, in as few bytes as hold it."""
        depth, width = matrix.shape
        number, values, factors = packable(matrix, reduced=self.reduced)
        packed = self.weights[self.packed_bytes :]
        self.functions.pack_matrix(
            values.data_ptr(),
            *values.stride(),
            depth,
            width,
            number,
            None if factors is None else factors.data_ptr(),
            torch.get_num_threads(),
            packed.data_ptr(),
        )
        self.formats[slot] = number
        self.packed_bytes += self.functions.packed_bytes(depth, width, number)
        return packed

    def encoded(self, instruction: Instruction) -> _Instruction:
        """Return an instruction as C++ reads it."""

        def operand(value: Operand) -> _Operand:
            return _Operand(self.index[value.slot.whole], value.slot.start, value.slot.width, value.strides)

        # a plan knows neither the size of a table, beyond which an index fails, nor the format of a packed matrix
        extra = instruction.extra
        if instruction.kind == "gather":
            extra = (len(self.constants[instruction.sources[0].slot.buffer.number]),)
        elif instruction.kind == "product":
            extra = (*extra[:2], self.formats[instruction.sources[1].slot])
        sources = [*instruction.sources, *[NOTHING] * (4 - len(instruction.sources))]
        return _Instruction(
            KINDS.index(instruction.kind),
            int(instruction.outer),
            int(instruction.wait),
            instruction.sizes,
            operand(instruction.to),
            tuple(map(operand, sources)),
            (instruction.number, 0.0),
            (*extra, *[0] * (8 - len(extra))),
        )

    # ---- a call

    def __call__(self, inputs: Tensor, state: State) -> tuple[Tensor, State] | None:
        """Run the step, or return None if the state does not fit or an index lies outside a table."""
        leaves, caches = leaves_and_caches(state)
        batch = len(inputs)
        if (inputs.shape[1:], inputs.dtype) != (self.inputs_shape, self.inputs_type):
            return None
        if not self.fits(batch, leaves, caches):
            return None

        # entries are written behind those of a cache, which stay as they are for whoever holds the state before
        entries, new, appended = self.append(leaves, caches)
        longest = max((entry.count + 2 for entry in entries), default=0)  # with the new entry and a sink
        outputs = torch.empty(batch, self.output_width, dtype=self.dtype)
        new |= {
            number: torch.empty(batch, *self.shapes[number][0], dtype=self.shapes[number][1])
            for number, _ in self.after
        }
        tensors = [(i, leaves[number].contiguous()) for number, i in self.before]
        tensors += [(i, new[number]) for number, i in self.after]
        tensors += [(i, outputs) for _, i in self.outputs_index]
        tensors += [(i, inputs.contiguous()) for _, i in self.inputs_index]

        with self.lock:  # one call at a time uses the table of pointers and the memory for intermediate values
            threads = torch.get_num_threads() if 2 * batch * self.packed_numbers >= WORTH_SHARING else 1
            self.reserve_scratch(batch, threads * max(longest, SCORES))
            for i, tensor in tensors:
                self.pointers[i] = tensor.data_ptr()
            self.cache_table[: len(entries)] = entries
            failed = self.functions.run_step(
                self.instructions,
                len(self.instructions),
                self.pointers,
                self.cache_table,
                batch,
                threads,
                int(self.packed_bytes > SECOND_CACHE * threads),
                self.scores.data_ptr(),
                len(self.scores) // threads,
            )
        if failed:
            return None
        new = {number: leaves[number] for number in self.program.unchanged} | new
        return outputs, _rebuilt(state, iter(range(len(leaves))), new, appended)

    def reserve_scratch(self, rows: int, scores: int) -> None:
        """Allocate memory for the intermediate values of some rows, and for scores of attention, if there is less."""
        if scores > len(self.scores):
            self.scores = torch.empty(2 * scores, dtype=self.dtype)
        if rows > self.rows:
            self.rows = rows
            self.values = torch.empty(rows * sum(width for _, width in self.scratch), dtype=self.dtype)
            address = self.values.data_ptr()
            for i, width in self.scratch:
                self.pointers[i] = address
                address += rows * width * self.dtype.itemsize

    def fits(self, batch: int, leaves: list[Tensor], caches: list[Cache | None]) -> bool:
        """Return whether a state has the shapes and types of the one that the step was compiled for."""
        expected = list(self.shapes)
        if len(leaves) != len(expected):
            return False

        # caches grow from step to step: the number of their entries may differ, but not what compiled code assumes
        for cache in self.caches:
            leaf, kind = leaves[cache.leaf_index], caches[cache.leaf_index]
            if kind is None or leaf.dim() != len(cache.shape) or _sides(leaf.shape) != _sides(cache.shape):
                return False
            if isinstance(kind, KeyValueMemory) and not leaf.is_contiguous():
                return False
            if isinstance(kind, MemoryRows) and leaf.stride(-1) != 1 and leaf.shape[-1] > 1:
                return False
            expected[cache.leaf_index] = leaf.shape[1:], cache.dtype
        for numbers in self.attended:
            if len({leaves[self.caches[number].leaf_index].shape[1] for number in numbers}) > 1:
                return False
        if any(len(leaf) != batch or leaf.device.type != "cpu" for leaf in leaves):
            return False
        return [(leaf.shape[1:], leaf.dtype) for leaf in leaves] == expected

    def append(
        self, leaves: list[Tensor], caches: list[Cache | None]
    ) -> tuple[list[_Cache], dict[int, Tensor], dict[int, Appended]]:
        """Reserve memory for one more entry in every cache, and allocate the memory leaves that the step writes."""
        entries, written, appended = [], {}, {}
        for index, window, _, _, is_after in self.caches:
            leaf, cache = leaves[index], caches[index]
            if is_after:
                leaf = written[index] = torch.empty(leaf.shape, dtype=leaf.dtype)
            count = leaf.shape[time_dimension(leaf)]
            if not isinstance(cache, KeyValueCache):
                entries.append(_Cache(leaf.data_ptr(), *leaf.stride()[:2], count))
                continue
            buffer, end = reserve(cache, leaf, 1)
            row, head, size, _ = buffer.memory.stride()
            start = buffer.memory.data_ptr() + (end - count) * size * self.dtype.itemsize
            entries.append(_Cache(start, row, head, count))
            appended[index] = Appended(buffer, end, window)
        return entries, written, appended


def in_large_pages(size: int) -> Tensor:
    """Return bytes of memory in large pages, if the system has them: finding the address of a small one takes time.

    A step reads all weights, and the processor remembers the addresses of few pages, so large ones are read faster.
    """
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(size, dtype=torch.uint8)
    memory = mmap.mmap(-1, size + LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # the system has none
        memory.madvise(mmap.MADV_HUGEPAGE)
    values = torch.frombuffer(memory, dtype=torch.uint8)
    return values[-values.data_ptr() % LARGE_PAGE :]


def is_packed(slot: Slot) -> bool:
    """Return whether a buffer holds a packed matrix."""
    return slot.buffer.kind is BufferKind.PACKED


def leaves_and_caches(state: State) -> tuple[list[Tensor], list[Cache | None]]:
    """Return the leaves of a state, and for each the cache or memory whose entries it holds, if any."""
    if isinstance(state, Tensor):
        return [state], [None]
    if isinstance(state, KeyValueCache | KeyValueMemory):
        return list(state), [state, None]
    leaves: list[Tensor] = []
    caches: list[Cache | None] = []
    memory_fields: Sequence[str] = getattr(state, "memory_fields", ())
    for name, child in zip(getattr(state, "_fields", range(len(state))), state, strict=True):
        if name in memory_fields and isinstance(child, Tensor):
            inner_leaves, inner_caches = [child], list[Cache | None]([MemoryRows(child)])
        else:
            inner_leaves, inner_caches = leaves_and_caches(child)
        leaves += inner_leaves
        caches += inner_caches
    return leaves, caches


def time_dimension(entries: Tensor) -> int:
    """Return which dimension of a cache (batch, heads, time, size) or a memory (batch, time, ...) is time."""
    return 2 if entries.dim() == 4 else 1


def _sides(shape: torch.Size) -> tuple[int, ...]:
    """Return the sizes of a cache or a memory other than the batch and time."""
    return shape[1:2] + shape[3:] if len(shape) == 4 else shape[2:]


def _rebuilt(state: State, numbers: Iterator[int], new: dict[int, Tensor], appended: dict[int, Appended]) -> State:
    """Return a state of the same structure with new leaves."""
    if isinstance(state, Tensor):
        return new[next(numbers)]
    if isinstance(state, KeyValueCache):
        number, seen = next(numbers), new[next(numbers)]
        if number not in appended:
            return type(state)(new[number], seen)
        buffer, end, window = appended[number]
        cache = extended(state, seen, buffer, end, 1)
        return newest(cache, window - 1) if window else cache
    return with_children(state, [_rebuilt(child, numbers, new, appended) for child in state])


def _step_library(double: bool) -> ctypes.CDLL:
    signatures = {"run_step": "pqppqiipq:i", "pack_matrix": "pqqqqipip", "packed_bytes": "qqi:q"}
    if (functions := typed_library(preamble(double), **signatures)) is None:
        raise UncompiledError
    return functions
