"""A compiled program and what it needs around it: constants, what comes before the loop, memory, the call."""

import ctypes
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from .compiler import library
from .emit import LANES, Numbers, Packed, Text, emit
from .evaluate import evaluate
from .expressions import Matrix, Node, walk
from .lower import Before, lower
from .packing import Packing
from .program import Group, program
from .trace import Traced

WORTH_SHARING = 400_000
"""Floating-point operations a step below which one thread is faster than several that must meet."""


class UncompiledError(Exception):
    """There is no compiler, or it fails; a warning has said so."""


def compiled(source: str) -> ctypes.CDLL:
    """The functions of a text.

    Raises:
        UncompiledError: nothing can be compiled here.
    """
    found = library(source)
    if found is None:
        raise UncompiledError
    return found


def sharing(text: Text, batch: int) -> int:
    """How many threads share a step."""
    work = 2 * batch * sum(part.depth * part.width for part in text.packed)
    return torch.get_num_threads() if work >= WORTH_SHARING else 1


def packed_memory(part: Packed, numbers: Numbers) -> Tensor:
    """Room for a packed matrix."""
    dtype = torch.bfloat16 if numbers.reduced else torch.float64 if numbers.double else torch.float32
    return torch.empty(part.depth * -(-part.width // LANES) * LANES, dtype=dtype)


class Runner:
    """A step that has been traced, planned and compiled for one type of numbers.

    Raises:
        UncompiledError: nothing can be compiled here.
    """

    def __init__(self, traced: Traced, numbers: Numbers) -> None:
        self.traced, self.numbers = traced, numbers
        self.dtype = torch.float64 if numbers.double else torch.float32
        self.program = program(lower(traced))
        kernels = {"forward": self.program.forward, "backward": self.program.backward}
        source, (self.forward, self.backward) = emit(kernels, numbers)
        self.library = compiled(source)
        names = {*self.forward.buffers, *self.backward.buffers}
        self.vectors, self.matrices = (_numbered(names, kind) for kind in ("vector", "matrix"))
        drawn = {value for value in walk([traced.outputs, *traced.states]) if value.op == "noise"}
        self.noise = sorted(drawn, key=lambda value: int(value.note))
        self.widths = {
            buffer.name: buffer.width
            for kernel in (self.program.forward, self.program.backward)
            for buffer in kernel.buffers()
        }

    def constants(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """What depends on weights alone."""
        found: list[Tensor] = self.traced.constants(weights)
        return [value.to(self.dtype) for value in found]

    def before(self, constants: Sequence[Tensor], inputs: Tensor, packing: Packing) -> list[Tensor]:
        """What is computed before the loop, group after group: ``(rows, width)``."""
        drawn = packing.noise([value.width for value in self.noise], self.dtype) if self.noise else []
        noise = dict(zip(self.noise, drawn, strict=True))
        return [self.group(group, constants, inputs, noise) for group in self.program.groups]

    def group(self, group: Group, constants: Sequence[Tensor], inputs: Tensor, noise: Mapping[Node, Tensor]) -> Tensor:
        """What one group of leaves holds for all rows: ``(rows, input_size)`` to ``(rows, width)``."""

        def leaf(value: Node) -> Tensor:
            if value.op == "noise":
                return noise[value]
            return inputs if value.op == "inputs" else constants[value.note].reshape(-1)

        def matrix(wanted: Matrix) -> Tensor:
            return constants[wanted.constant][:, wanted.start : wanted.stop]

        def value(root: Node) -> Tensor:
            return evaluate([root], leaf, matrix, inputs)[0].to(self.dtype)

        notes: list[Before] = [member.note for member in group.leaves]
        if notes[0].plain is not None:
            return value(notes[0].plain).expand(inputs.shape[0], -1).contiguous()
        columns = _joined([note.products[0][1] for note in notes])
        factor = torch.cat([matrix(part) for part in columns], dim=1) if len(columns) > 1 else matrix(columns[0])
        rows = value(notes[0].products[0][0])
        if not any(note.vectors for note in notes):
            result = rows @ factor
        else:
            result = torch.addmm(torch.cat([_bias(member, value) for member in group.leaves]), rows, factor)
        if any(len(note.products) > 1 for note in notes):
            parts = torch.split(result, [member.width for member in group.leaves], dim=1)
            result = torch.cat([_more(part, note, value, matrix) for part, note in zip(parts, notes, strict=True)], 1)
        return result.to(self.dtype)

    def call(self, text: Text, packing: Packing, named: dict[str, Tensor], like: Tensor) -> None:
        """Runs one direction; adds to ``named`` the memory that it writes and that is not there yet."""
        threads = sharing(text, packing.batch)
        packed = {}
        for name in text.buffers:
            if name.startswith("packed"):
                part = text.packed[int(name.removeprefix("packed"))]
                packed[name] = packed_memory(part, self.numbers)
            elif name not in named:
                named[name] = self.memory(name, packing, threads, like)
        tensors = [packed[name] if name in packed else named[name] for name in text.buffers]
        pointers = (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))
        sizes = [
            size if isinstance(size, int) else named[f"matrix{size.matrix}"].stride(size.dimension)
            for size in text.sizes
        ]
        getattr(self.library, text.name)(
            pointers,
            (ctypes.c_long * len(sizes))(*sizes),
            ctypes.c_void_p(packing.counts.data_ptr()),
            ctypes.c_void_p(packing.starts.data_ptr()),
            ctypes.c_long(len(packing.counts)),
            ctypes.c_long(packing.batch),
            ctypes.c_int(threads),
            ctypes.c_int(1),
        )

    def memory(self, name: str, packing: Packing, threads: int, like: Tensor) -> Tensor:
        """A new buffer: a row for every step, or for every thread, or two that take turns."""
        width = self.widths[name]
        if name.startswith("sum"):
            return like.new_zeros(threads, width)
        if name.startswith("scratch"):
            return like.new_empty(2, packing.batch, width)
        return like.new_empty(packing.rows, width)


def _numbered(names: set[str], kind: str) -> list[int]:
    return sorted(int(name.removeprefix(kind)) for name in names if name.startswith(kind))


def _bias(leaf: Node, value: Callable[[Node], Tensor]) -> Tensor:
    """The vectors added to a product before the loop."""
    vectors = [value(vector) for vector in leaf.note.vectors]
    if not vectors:
        return value(leaf.note.products[0][0]).new_zeros(leaf.width)
    return torch.stack(vectors).sum(0) if len(vectors) > 1 else vectors[0]


def _more(part: Tensor, note: Before, value: Callable[[Node], Tensor], matrix: Callable[[Matrix], Tensor]) -> Tensor:
    """All but the first product of a sum of products."""
    for rows, factor in note.products[1:]:
        part = part + value(rows) @ matrix(factor)
    return part


def _joined(parts: Sequence[Matrix]) -> list[Matrix]:
    """Neighbouring columns of one matrix as one part."""
    joined: list[Matrix] = []
    for part in parts:
        if joined and joined[-1].constant == part.constant and joined[-1].stop == part.start:
            joined[-1] = joined[-1]._replace(stop=part.stop)
        else:
            joined.append(part)
    return joined
