"""A compiled program and what it needs around it: constants, what comes before the loop, memory, the call."""

import ctypes
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from ..compiler.cpp.emit import LANES, Numbers, Packed, Text, emit
from ..compiler.cpp.toolchain import library
from ..compiler.lower import lower
from ..compiler.program import program
from ..compiler.schedule import Kernel
from ..compiler.trace import Traced
from .hoisted import Hoisted
from .packing import Packing

WORTH_SHARING = 400_000
"""Floating-point operations a step below which one thread is faster than several that must meet."""
ARGUMENTS = [*[ctypes.c_void_p] * 4, ctypes.c_int64, ctypes.c_int64, ctypes.c_int, ctypes.c_int]
"""Of every function: buffers, sizes, rows of each step, where they start; steps, batch, threads, whether to pack."""


class UncompiledError(Exception):
    """There is no compiler, or it fails; a warning has said so."""


def compiled(source: str, names: Iterable[str]) -> ctypes.CDLL:
    """The functions of a text.

    Raises:
        UncompiledError: nothing can be compiled here.
    """
    found = library(source)
    if found is None:
        raise UncompiledError
    for name in names:
        getattr(found, name).argtypes = ARGUMENTS
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
        self.forward, self.backward = self.compile(kernels)
        names = {*self.forward.buffers, *self.backward.buffers}
        self.vectors, self.matrices = (_numbered(names, kind) for kind in ("vector", "matrix"))
        self.widths = {
            buffer.name: buffer.width
            for kernel in (self.program.forward, self.program.backward)
            for buffer in kernel.buffers()
        }

    def compile(self, kernels: Mapping[str, Kernel]) -> list[Text]:
        """The functions of both directions."""
        source, texts = emit(kernels, self.numbers)
        self.functions = compiled(source, kernels)
        return texts

    def constants(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """What depends on weights alone."""
        found: list[Tensor] = self.traced.constants(weights)
        return [value.to(self.dtype) for value in found]

    def before(self, constants: Sequence[Tensor], inputs: Tensor, packing: Packing) -> list[Tensor]:
        """What is computed before the loop, group after group: ``(rows, width)``."""
        hoisted = Hoisted(constants, inputs, packing.noise(self.traced.noise, inputs))
        return [hoisted.group(group).to(self.dtype) for group in self.program.groups]

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
        getattr(self.functions, text.name)(
            pointers,
            (ctypes.c_int64 * len(sizes))(*sizes),
            packing.counts.data_ptr(),
            packing.starts.data_ptr(),
            len(packing.counts),
            packing.batch,
            threads,
            1,
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
