"""Where a program stores values: buffers, and slots of them, and of which type. Loops and single steps share these."""

from collections import Counter
from enum import StrEnum, auto
from typing import Literal, NamedTuple

import torch

Rows = Literal["now", "before", "after", "in", "out", "all"]
"""Which rows a step accesses: the rows of its own inputs, the rows of the state before or after it, one of two buffers
that are swapped after every step, or one row for the whole batch."""


class BufferKind(StrEnum):
    """The purpose of a buffer. The members are part of the names in generated code."""

    INPUTS = auto()  # of a single step
    STATES = auto()  # a leaf of the state; in a loop the initial state, then the state after each row
    HOISTED = auto()  # what is computed before the loop
    OUTPUTS = auto()  # the outputs, unless they are a leaf of the state of a loop
    VECTOR = auto()  # a constant row; in a single step any constant that is no factor of a product
    MATRIX = auto()  # a constant matrix
    PACKED = auto()  # columns of a matrix in the layout that the products of the C++ code read
    NUMBERS = auto()  # the numbers in the equations of a single step
    FREQUENCIES = auto()  # of positions, in double precision
    ROWS = auto()  # the left factor of a product
    PRODUCT = auto()  # the result of a product
    SCRATCH = auto()  # a value that only its own step needs
    OUTPUT_COTANGENT = auto()
    HOISTED_COTANGENT = auto()
    PRODUCT_COTANGENT = auto()
    CARRY = auto()  # the cotangent of a leaf of the state, which passes from step to step
    VECTOR_SUM = auto()  # the cotangent of a constant row, summed over rows and steps
    MEMORY = auto()  # a leaf of a memory (batch, time, ...)
    LENGTHS = auto()  # of a memory, integers
    ORDER = auto()  # the row of a memory for each sorted sequence, integers
    WEIGHTS = auto()  # of attention: those before the first step, then those of each row (rows, time)
    SCORE_COTANGENT = auto()  # of attention, for each row
    KEY_COTANGENT = auto()  # of additive attention, summed over steps
    WEIGHT_CARRY = auto()  # the cotangent of the weights that the next step reads


class Numbers(NamedTuple):
    """The types of numbers that a program computes with."""

    double: bool = False  # float64 instead of float32
    reduced: bool = False  # matrices are rounded to bfloat16; the other factor, sums and states are not

    @property
    def dtype(self) -> torch.dtype:
        """The type of states and sums."""
        return torch.float64 if self.double else torch.float32

    @property
    def packed_dtype(self) -> torch.dtype:
        """The type of the matrices of products."""
        return torch.bfloat16 if self.reduced else self.dtype


class Buffer(NamedTuple):
    """One tensor that a program reads or writes."""

    kind: BufferKind
    number: int = 0  # tells those of one kind apart

    @property
    def name(self) -> str:
        """The name in generated code."""
        return f"{self.kind}{self.number}"


class Slot(NamedTuple):
    """Features of a buffer, from ``start`` on."""

    buffer: Buffer
    rows: Rows
    width: int  # features of a row of the buffer
    start: int = 0

    @property
    def is_sum(self) -> bool:
        """Whether what is stored here is added up over rows and steps."""
        return self.buffer.kind is BufferKind.VECTOR_SUM

    @property
    def whole(self) -> "Slot":
        """All features of the buffer."""
        return self._replace(start=0)

    def shifted(self, features: int) -> "Slot":
        """Return the slot that begins some features further on."""
        return self._replace(start=self.start + features)


def slot(kind: BufferKind, rows: Rows, width: int, number: int = 0) -> Slot:
    """Return all features of a buffer."""
    return Slot(Buffer(kind, number), rows, width)


class Allocator:
    """Gives out buffers, those of each kind with numbers of their own."""

    def __init__(self) -> None:
        self.counts: Counter[BufferKind] = Counter()

    def __call__(self, kind: BufferKind, rows: Rows, width: int) -> Slot:
        """Return a new buffer."""
        self.counts[kind] += 1
        return slot(kind, rows, width, self.counts[kind] - 1)
