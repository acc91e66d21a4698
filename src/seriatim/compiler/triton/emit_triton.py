"""Emits a program as Triton: one kernel for everything that a phase writes. PyTorch computes the products.

An instance computes one row and a block of columns, and loads everything before it writes anything. The block is the
whole row if a reduction needs it, or if one feature is stored where another one is loaded.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..buffers import Buffer, BufferKind, Rows, Slot
from ..cpp.emit import merge_products
from ..expressions import Node, merge_neighbours, segments
from ..operators import COMPARISONS, PRIMITIVES
from ..program import Kernel, Phase, Product

ROWS: dict[Rows, str] = {"now": "now", "before": "before", "after": "after", "in": "given", "out": "taken"}
"""The arguments of a kernel for the first row of each kind (``in`` is a keyword)."""

COLUMNS = 256  # columns of an instance that does not need the whole row

TRITON_FUNCTIONS = ("exp", "log", "abs", "sqrt", "erf", "sin", "cos")
CODE = {
    **{name: primitive.code for name, primitive in PRIMITIVES.items()},
    **{name: f"tl.{name}({{0}})" for name in TRITON_FUNCTIONS},
    **{name: f"tl.where({{0}} {sign} {{1}}, one, zero)" for name, (_, sign) in COMPARISONS.items()},
    "where": "tl.where({0} != zero, {1}, {2})",
}


class Fused(NamedTuple):
    """One kernel and how it is called."""

    name: str
    code: str
    buffers: list[Buffer]  # the tensors it takes; the first rows follow, in the order of ROWS
    blocks: int  # instances that share the columns of a row
    warps: int  # warps of an instance


class Stage(NamedTuple):
    """One phase: products, then a kernel if anything is stored."""

    products: list[Product]
    fused: Fused | None


class Direction(NamedTuple):
    """One direction of the loop."""

    stages: list[Stage]
    buffers: list[Buffer]
    backward: bool


def emit(kernels: Mapping[str, Kernel], *, double: bool) -> tuple[str, list[Direction]]:
    """Return the text of a module with all kernels, and the stages of each direction."""
    real = "tl.float64" if double else "tl.float32"
    directions = [_direction(kernel, name, real) for name, kernel in kernels.items()]
    head = "import triton\nimport triton.language as tl\n\nfrom seriatim.compiler.triton.kernel_functions import *\n"
    stages = [stage for direction in directions for stage in direction.stages]
    return "\n\n".join([head, *(stage.fused.code for stage in stages if stage.fused)]), directions


def _direction(kernel: Kernel, name: str, real: str) -> Direction:
    stages = []
    for depth, phase in enumerate(kernel.phases):
        fused = _KernelBody(kernel, depth, phase).fused(f"{name}{depth}", real) if phase.writes else None
        stages.append(Stage(_merge_columns(phase.products), fused))
    products = [product for stage in stages for product in stage.products]
    buffers = {buffer for stage in stages if stage.fused for buffer in stage.fused.buffers}
    buffers |= {slot.buffer for product in products for slot in (product.rows, product.slot)}
    buffers |= {Buffer(BufferKind.MATRIX, product.matrix.constant) for product in products}
    return Direction(stages, sorted(buffers), kernel.backward)


def _merge_columns(products: Sequence[Product]) -> list[Product]:
    """Join products as `merge_products` does, and those of the same rows with adjacent columns and slots."""

    def merge(left: Product, right: Product) -> Product | None:
        matrix, slot = left.matrix.joined(right.matrix), left.slot.shifted(left.width)
        if matrix is None or matrix.transposed:
            return None
        if right != left._replace(slot=slot, matrix=right.matrix, width=right.width):
            return None
        return left._replace(matrix=matrix, width=left.width + right.width)

    ordered = sorted(merge_products(products), key=lambda p: (p.add, p.rows, p.matrix, p.slot))
    return merge_neighbours(ordered, merge)


class _KernelBody:
    """The code of a phase for one row. Values of width 1 are scalars, the same for all columns."""

    def __init__(self, kernel: Kernel, depth: int, phase: Phase) -> None:
        self.kernel, self.depth, self.phase = kernel, depth, phase
        self.buffers: dict[Buffer, None] = {}
        self.widths: set[int] = set()
        self.loads: list[tuple[Slot, int]] = []
        self.names: dict[Node, str] = {}
        self.lines: list[str] = []
        self.reduces = False

    def fused(self, name: str, real: str) -> Fused:
        ends = []
        for write in self.phase.writes:
            slot, value, mask = f"{self.at(write.slot)} + j", self.value(write.value), self.mask(write.value)
            # every row adds up its own steps
            before = f"tl.load({slot}, mask={mask}) + " if write.slot.is_sum else ""
            ends.append(f"tl.store({slot}, {before}{value}, mask={mask})")
        overlap, crosses_columns = self.overlaps()
        widest = max(self.widths)
        columns = widest if crosses_columns or self.reduces else min(widest, COLUMNS)
        columns = 1 << (columns - 1).bit_length()  # the next power of two
        lines = [
            "row = tl.program_id(0).to(tl.int64)",
            f"j = tl.program_id(1) * {columns} + tl.arange(0, {columns})",
            *(f"m{width} = j < {width}" for width in sorted(self.widths)),
            f"zero, one = tl.full((), 0.0, {real}), tl.full((), 1.0, {real})",
            *self.lines,
            *(["tl.debug_barrier()"] if overlap else []),  # other threads may load what a thread overwrites
            *ends,
        ]
        rows = list(ROWS.values())
        arguments = ", ".join([*(buffer.name for buffer in self.buffers), *rows])
        code = f"@triton.jit(do_not_specialize={rows})\ndef {name}({arguments}):\n"
        code += "".join(f"    {line}\n" for line in lines)
        return Fused(name, code, list(self.buffers), -(-widest // columns), max(1, min(16, columns // 128)))

    def overlaps(self) -> tuple[bool, bool]:
        """Return whether a slot is both loaded and stored, and whether other columns may load it."""
        overlap = crosses_columns = False
        for slot, width in self.loads:
            for value, stored in self.phase.writes:
                is_apart = stored.start + value.width <= slot.start or slot.start + width <= stored.start
                if slot.whole == stored.whole and not is_apart:
                    overlap = True
                    crosses_columns |= (slot, width) != (stored, value.width) or width == 1
        return overlap, crosses_columns

    def mask(self, value: Node) -> str:
        self.widths.add(value.width)
        return f"m{value.width}"

    def at(self, slot: Slot) -> str:
        """Return the address of the first feature of a slot in the row."""
        buffer, rows, width, start = slot
        self.buffers[buffer] = None
        if rows != "all":
            return f"{buffer.name} + ({ROWS[rows]} + row) * {width} + {start}"
        row = f" + row * {width}" if slot.is_sum else ""
        return f"{buffer.name}{row} + {start}"

    def value(self, value: Node) -> str:
        """Return the name of a value, and write its line if it is new."""
        if value not in self.names:
            code = self.code(value)
            self.names[value] = f"v{len(self.names)}"
            self.lines.append(f"{self.names[value]} = {code}")
        return self.names[value]

    def code(self, value: Node) -> str:
        if value.op == "number":  # times one, which gives it a type
            return f"one * {_literal(value.attribute)}"
        slot = self.kernel.loaded(value, self.depth)
        if slot is not None:
            self.loads.append((slot, value.width))
            return f"tl.load({self.at(slot)}" + (")" if value.width == 1 else f" + j, mask={self.mask(value)})")
        if value.op in ("sum", "amax"):
            return self.reduction(value)
        return CODE[value.op].format(*map(self.value, value.args))

    def reduction(self, value: Node) -> str:
        """Return the expression for a sum or maximum over the features of a row."""
        self.reduces = True
        neutral, join = ("zero", "{} + {}") if value.op == "sum" else ("-float('inf')", "f_maximum({}, {})")
        terms = [
            f"row_{value.op}(tl.where({self.mask(segment)}, {self.value(segment)}, {neutral}))"
            for _, segment in segments(value.args[0])
        ]
        return functools.reduce(join.format, terms)


def _literal(value: float) -> str:
    return repr(value) if math.isfinite(value) else f"float('{value}')"
