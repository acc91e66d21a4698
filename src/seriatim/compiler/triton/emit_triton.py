"""A program as Triton: one kernel for all that a phase stores. Products stay with torch.

A kernel's program has one row and a block of columns; it loads everything before it stores anything. The block covers
the whole row where features of a row meet, in a reduction or because one's place is another's to read; otherwise
programs share columns. Widths are written into the text, and only the rows of a step are given to the kernel.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..cpp.emit import merged
from ..expressions import Node, pieces
from ..primitives import PRIMITIVES
from ..schedule import Kernel, Phase, Place, Product, Rows

ROWS: dict[Rows, str] = {"now": "now", "before": "before", "after": "after", "in": "given", "out": "taken"}
"""The first row of each kind, as the kernels name it (``in`` is no name)."""

COLUMNS = 256
"""Columns of a program that need not see its whole row."""

COMPARISONS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "eq": "==", "ne": "!="}
OWN = ("exp", "log", "abs", "sqrt", "erf", "sin", "cos")
CODE = {
    **{name: primitive.code for name, primitive in PRIMITIVES.items()},
    **{name: f"tl.{name}({{0}})" for name in OWN},
    **{name: f"tl.where({{0}} {sign} {{1}}, one, zero)" for name, sign in COMPARISONS.items()},
    "where": "tl.where({0} != zero, {1}, {2})",
}


class Fused(NamedTuple):
    """One kernel and how it is called."""

    name: str
    code: str
    buffers: list[str]
    """The tensors it takes, by name; the first rows follow, in the order of `ROWS`."""
    blocks: int
    """Programs that share the columns of a row."""
    warps: int


class Stage(NamedTuple):
    """One phase: products, then a kernel where there is anything to store."""

    products: list[Product]
    fused: Fused | None


@dataclass
class Direction:
    """One direction of the loop."""

    stages: list[Stage]
    buffers: list[str]
    backward: bool


def emit(kernels: Mapping[str, Kernel], *, double: bool) -> tuple[str, list[Direction]]:
    """The text of a module with all kernels, and each direction's stages."""
    directions = [
        _direction(kernel, name, "tl.float64" if double else "tl.float32") for name, kernel in kernels.items()
    ]
    head = "import triton\nimport triton.language as tl\n\nfrom seriatim.compiler.triton.kernel_functions import *\n"
    stages = [stage for direction in directions for stage in direction.stages]
    return "\n\n".join([head, *(stage.fused.code for stage in stages if stage.fused)]), directions


def _direction(kernel: Kernel, name: str, real: str) -> Direction:
    stages = []
    for depth, phase in enumerate(kernel.phases):
        stored = phase.stores or phase.sums
        fused = _Body(kernel, depth, phase).fused(f"{name}{depth}", real) if stored else None
        stages.append(Stage(joined(phase.products), fused))
    products = [product for stage in stages for product in stage.products]
    names = {name for stage in stages if stage.fused for name in stage.fused.buffers}
    names |= {place.buffer.name for product in products for place in (product.rows, product.place)}
    names |= {f"matrix{product.matrix.constant}" for product in products}
    return Direction(stages, sorted(names), kernel.backward)


def joined(products: Sequence[Product]) -> list[Product]:
    """Joins products as `merged` does, and those of the same rows whose columns and places are neighbours."""
    found: list[Product] = []
    for product in sorted(merged(products), key=lambda p: (p.add, p.rows, p.matrix, p.place)):
        last = found[-1] if found else None
        if last is not None and not last.matrix.transposed:
            place = last.place._replace(start=last.place.start + last.width)
            matrix = last.matrix._replace(start=last.matrix.stop, stop=product.matrix.stop)
            if product == last._replace(place=place, matrix=matrix, width=product.width):
                whole = last.matrix._replace(stop=product.matrix.stop)
                found[-1] = last._replace(matrix=whole, width=last.width + product.width)
                continue
        found.append(product)
    return found


class _Body:
    """What a phase computes for one row. Values of width 1 are scalars, the same for all columns."""

    def __init__(self, kernel: Kernel, depth: int, phase: Phase) -> None:
        self.kernel, self.depth, self.phase = kernel, depth, phase
        self.buffers: dict[str, None] = {}
        self.widths: set[int] = set()
        self.loads: list[tuple[Place, int]] = []
        self.known: dict[Node, str] = {}
        self.lines: list[str] = []
        self.reduces = False

    def fused(self, name: str, real: str) -> Fused:
        """The kernel."""
        ends = []
        for store in self.phase.stores:
            place, value, mask = f"{self.at(store.place)} + j", self.value(store.value), self.mask(store.value)
            ends.append(f"tl.store({place}, {value}, mask={mask})")
        for store in self.phase.sums:  # every row adds up its own steps
            place, value, mask = f"{self.at(store.place)} + j", self.value(store.value), self.mask(store.value)
            ends.append(f"tl.store({place}, tl.load({place}, mask={mask}) + {value}, mask={mask})")
        meets, mixes = self.overlaps()
        widest = max(self.widths)
        columns = _power_of_two(widest if mixes or self.reduces else min(widest, COLUMNS))
        lines = [
            "row = tl.program_id(0).to(tl.int64)",
            f"j = tl.program_id(1) * {columns} + tl.arange(0, {columns})",
            *(f"m{width} = j < {width}" for width in sorted(self.widths)),
            f"zero, one = tl.full((), 0.0, {real}), tl.full((), 1.0, {real})",
            *self.lines,
            *(["tl.debug_barrier()"] if meets else []),  # threads may share out loads otherwise than stores
            *ends,
        ]
        given = list(ROWS.values())
        code = f"@triton.jit(do_not_specialize={given})\ndef {name}({', '.join([*self.buffers, *given])}):\n"
        code += "".join(f"    {line}\n" for line in lines)
        return Fused(name, code, list(self.buffers), -(-widest // columns), max(1, min(16, columns // 128)))

    def overlaps(self) -> tuple[bool, bool]:
        """Whether something is stored where something is loaded, and whether other columns may load it."""
        meets = mixes = False
        for place, width in self.loads:
            for store in self.phase.stores:
                here, there = (place, width), (store.place, store.value.width)
                if place.buffer == store.place.buffer and _overlap(here, there):
                    meets, mixes = True, mixes or here != there or width == 1
        return meets, mixes

    def mask(self, value: Node) -> str:
        """Which columns a value has."""
        self.widths.add(value.width)
        return f"m{value.width}"

    def at(self, place: Place) -> str:
        """The first feature of a place in the program's row."""
        buffer = place.buffer
        self.buffers[buffer.name] = None
        if buffer.rows != "all":
            return f"{buffer.name} + ({ROWS[buffer.rows]} + row) * {buffer.width} + {place.start}"
        row = f" + row * {buffer.width}" if buffer.name.startswith("sum") else ""
        return f"{buffer.name}{row} + {place.start}"

    def value(self, value: Node) -> str:
        """The name of a value, once its line is written."""
        if value not in self.known:
            code = self.code(value)
            self.known[value] = f"v{len(self.known)}"
            self.lines.append(f"{self.known[value]} = {code}")
        return self.known[value]

    def code(self, value: Node) -> str:
        """How a value is computed."""
        if value.op == "number":  # times one, so that it has a type
            return f"one * {_literal(value.note)}"
        place = self.kernel.loaded(value, self.depth)
        if place is not None:
            self.loads.append((place, value.width))
            return f"tl.load({self.at(place)}" + (")" if value.width == 1 else f" + j, mask={self.mask(value)})")
        if value.op in ("sum", "amax"):
            return self.reduction(value)
        return CODE[value.op].format(*map(self.value, value.args))

    def reduction(self, value: Node) -> str:
        """Over all pieces of the argument."""
        self.reduces = True
        neutral = "zero" if value.op == "sum" else "-float('inf')"
        parts = []
        for _, piece in pieces(value.args[0]):
            parts.append(f"row_{value.op}(tl.where({self.mask(piece)}, {self.value(piece)}, {neutral}))")
        total = parts[0]
        for part in parts[1:]:
            total = f"{total} + {part}" if value.op == "sum" else f"f_maximum({total}, {part})"
        return total


def _overlap(a: tuple[Place, int], b: tuple[Place, int]) -> bool:
    (left, left_width), (right, right_width) = a, b
    return left.start < right.start + right_width and right.start < left.start + left_width


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()


def _literal(value: float) -> str:
    return repr(value) if math.isfinite(value) else f"float('{value}')"
