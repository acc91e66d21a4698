"""A program as C++: two functions, forward and backward, each the whole loop over time.

Sizes are read from a table, so that one text, compiled once, serves every width with the same structure. Threads share
the columns of a step where all its parts are of one width: each then reads what it has written itself, and they meet
once before the products of a phase. Otherwise they share columns in products and rows elsewhere, and meet in between.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..expressions import Matrix, Node, pieces
from ..primitives import PRIMITIVES
from ..schedule import Buffer, Kernel, Phase, Place, Product, Store

LANES = 16
"""Columns of packed matrices are filled up to a multiple of this: the widest vector of floats there is."""


class Packed(NamedTuple):
    """A part of a matrix as the products of one direction read it."""

    matrix: Matrix
    depth: int
    width: int


class Stride(NamedTuple):
    """How far apart in memory the rows (dimension 0) or columns (1) of a matrix lie."""

    matrix: int
    dimension: int


class Text(NamedTuple):
    """One direction, and what its function takes."""

    name: str
    code: str
    buffers: list[str]
    """Names, in the order of the table of pointers."""
    sizes: list[int | Stride]
    """Numbers, in the order of the table of sizes."""
    packed: list[Packed]


class Numbers(NamedTuple):
    """What a program computes with."""

    double: bool = False
    """float64 rather than float32."""
    reduced: bool = False
    """Matrices are rounded to bfloat16; what they meet, sums and states stay as they are."""


def emit(kernels: Mapping[str, Kernel], numbers: Numbers) -> tuple[str, list[Text]]:
    """The whole text, with a function for every kernel by its name, and each function's tables."""
    texts = [_Emitter(kernel, name).text() for name, kernel in kernels.items()]
    head = f"typedef {'double' if numbers.double else 'float'} real;\n"
    head += ("#define REDUCED\n" if numbers.reduced else "") + '#include "kernel.h"\n\n'
    return head + "\n".join(text.code for text in texts), texts


def merged(products: Sequence[Product]) -> list[Product]:
    """Joins products into one place whose rows lie side by side and meet neighbouring parts of one matrix."""
    found: list[Product] = []
    for product in sorted(products, key=lambda p: (p.place, p.matrix.constant, p.matrix.start, not p.add)):
        last = found[-1] if found else None
        if last is not None and _continues(last, product):
            matrix = last.matrix._replace(stop=product.matrix.stop)
            found[-1] = last._replace(matrix=matrix, depth=last.depth + product.depth, add=last.add and product.add)
        else:
            found.append(product)
    return sorted(found, key=lambda p: (p.place, p.add))


def _continues(left: Product, right: Product) -> bool:
    return (
        left.place == right.place
        and left.matrix.transposed
        and right.matrix == left.matrix._replace(start=left.matrix.stop, stop=right.matrix.stop)
        and right.rows == left.rows._replace(start=left.rows.start + left.depth)
    )


class _Emitter:
    def __init__(self, kernel: Kernel, name: str) -> None:
        self.kernel, self.name = kernel, name
        self.buffers: dict[tuple[str, str], str] = {}
        self.storage: dict[str, int] = {}
        self.sizes: dict[int | Stride, int] = {}
        self.widths: dict[str, int] = {}
        self.packed: list[Packed] = []
        self.packs: list[str] = []
        self.width = kernel.width

    def text(self) -> Text:
        phases = [self.phase(depth, phase) for depth, phase in enumerate(self.kernel.phases)]
        body = "\n".join(phases)
        if self.width is None:
            body += "\n      barrier.wait(share.count);"
        lines = [
            f'extern "C" void {self.name}(void** p, const count_t* d, const count_t* row_counts, '
            "const count_t* row_starts, count_t steps, count_t batch, int threads, int fresh) {",
            *(f"  const count_t n{i} = d[{i}]; (void)n{i};" for i in range(len(self.sizes))),
            *(f"  {_kind(name)}* const {name} = ({_kind(name)}*)p[{i}];" for name, i in self.storage.items()),
            "  Barrier barrier;",
            "  #pragma omp parallel num_threads(threads)",
            "  {",
            "    const Share share;",
            f"    const bool far = ({self.together()}) * count_t(sizeof(packed_t)) > SECOND_CACHE * share.count;",
            *self.packs,
            "    for (count_t step = 0; step < steps; ++step) {",
            f"      const count_t t = {'steps - 1 - step' if self.kernel.backward else 'step'}, rows = row_counts[t];",
            "      const count_t now = row_starts[t], after = batch + now, before = t ? batch + row_starts[t - 1] : 0;",
            "      const count_t in = (step & 1) * batch, out = batch - in;",
            "      (void)now; (void)after; (void)before; (void)in; (void)out;",
            *(self.pointer(name, rows) for name, rows in self.buffers),
            body,
            "    }",
            "  }",
            "}",
        ]
        return Text(self.name, "\n".join(lines) + "\n", list(self.storage), list(self.sizes), self.packed)

    def together(self) -> str:
        """Numbers in all matrices of a step."""
        return " + ".join(f"{self.size(part.depth)} * {self.size(part.width)}" for part in self.packed) or "0"

    def pointer(self, name: str, rows: str) -> str:
        local = self.buffers[name, rows]
        if rows == "all":
            start = f" + share.id * {self.size(self.widths[name])}" if name.startswith("sum") else ""
            return f"      real* const {local} = {name}{start};"
        return f"      real* const {local} = {name} + {rows} * {self.size(self.widths[name])};"

    def size(self, value: int | Stride) -> str:
        """A number that depends on the widths."""
        return f"n{self.sizes.setdefault(value, len(self.sizes))}"

    def buffer(self, buffer: Buffer) -> str:
        """The pointer to the rows of a buffer that a step sees."""
        self.widths[buffer.name] = buffer.width
        self.size(buffer.width)
        self.storage.setdefault(buffer.name, len(self.storage))
        return self.buffers.setdefault((buffer.name, buffer.rows), f"{buffer.name}_{buffer.rows}")

    def at(self, place: Place, row: str) -> str:
        """The first feature of a place in a row."""
        start = f" + {self.size(place.start)}" if place.start else ""
        if place.buffer.rows == "all":
            return f"{self.buffer(place.buffer)}{start}"
        return f"{self.buffer(place.buffer)} + {row} * {self.size(place.buffer.width)}{start}"

    def phase(self, depth: int, phase: Phase) -> str:
        parts = []
        if phase.products:
            parts.append("      barrier.wait(share.count);")
            parts += [self.product(product) for product in merged(phase.products)]
            if self.width is None:
                parts.append("      barrier.wait(share.count);")
        if phase.stores or phase.sums:
            parts.append(_Body(self, depth, phase).text())
        return "\n".join(parts)

    def product(self, product: Product) -> str:
        """A thread's columns of one product."""
        index = len(self.packed)
        self.packed.append(Packed(product.matrix, product.depth, product.width))
        depth, width = self.size(product.depth), self.size(product.width)
        packed = f"packed{index}"
        self.storage.setdefault(packed, len(self.storage))
        self.storage.setdefault(f"matrix{product.matrix.constant}", len(self.storage))
        row, column = (self.size(Stride(product.matrix.constant, dimension)) for dimension in range(2))
        first, last = f"share.first({width})", f"share.last({width})"
        skip = f"{self.size(product.matrix.start)} * {column}"
        strides = f"{column}, {row}" if product.matrix.transposed else f"{row}, {column}"
        self.packs.append(
            f"    if (fresh) pack(matrix{product.matrix.constant} + {skip}, {strides}, {depth}, {first}, {last}, "
            f"{packed} + {first} * {depth});"
        )
        rows, place = self.at(product.rows, "0"), self.at(product.place, "0")
        return (
            f"      product<{'true' if product.add else 'false'}>(rows, {rows}, "
            f"{self.size(product.rows.buffer.width)}, {packed} + {first} * {depth}, {place} + {first}, "
            f"{self.size(product.place.buffer.width)}, {depth}, {last} - {first}, far);"
        )


class _Body:
    """What a phase computes for one row: reductions, then a loop over columns for every width of what it stores."""

    def __init__(self, emitter: _Emitter, depth: int, phase: Phase) -> None:
        self.emitter, self.depth, self.phase = emitter, depth, phase
        self.kernel = emitter.kernel
        self.scalars: dict[Node, str] = {}
        self.names = itertools.count()
        self.rows: list[str] = []

    def text(self) -> str:
        loops = []
        by_width: dict[int, list[Store]] = {}
        for store in self.phase.stores:
            by_width.setdefault(store.value.width, []).append(store)
        for store in self.phase.sums:
            by_width.setdefault(store.value.width, []).append(store)
        for width, stores in by_width.items():
            loops.append(self.loop(width, stores))
        whole = self.emitter.width is None
        first, last = ("share.first_row(rows)", "share.last_row(rows)") if whole else ("0", "rows")
        return "\n".join(
            [f"      for (count_t b = {first}, end = {last}; b < end; ++b) {{", *self.rows, *loops, "      }"]
        )

    def loop(self, width: int, stores: list[Store]) -> str:
        """All that is stored of one width, column after column."""
        scope = _Columns(self, width)
        ends = []
        for store in stores:
            value = scope.value(store.value)
            place = self.emitter.at(store.place, "b")
            operator = "+=" if store in self.phase.sums else "="
            ends.append(f"          {scope.pointer(place)}[j] {operator} {value};")
        size = self.emitter.size(width)
        low, high = ("0", size) if self.emitter.width is None else (f"share.first({size})", f"share.last({size})")
        return self.wrap(scope, low, high, ends, "simd")

    def wrap(self, scope: "_Columns", low: str, high: str, ends: list[str], pragma: str) -> str:
        bounds = f"        const count_t first = {low}, last = {high};"
        head = "        for (count_t j = first; j < last; ++j) {"
        inner = ["        {", *scope.pointers, bounds, f"        #pragma omp {pragma}", head, *scope.lines, *ends]
        return "\n".join([*inner, "        }", "        }"])

    def scalar(self, value: Node) -> str:
        """The name of a value of width 1, the same for all columns."""
        if value.op == "number":
            return _literal(value.note)
        if value in self.scalars:
            return self.scalars[value]
        place = self.kernel.loaded(value, self.depth)
        if place is not None:
            code = f"({self.emitter.at(place, 'b')})[0]"
        elif value.op in ("sum", "amax"):
            return self.reduction(value)
        else:
            code = PRIMITIVES[value.op].code.format(*map(self.scalar, value.args))
        name = self.scalars[value] = f"s{next(self.names)}"
        self.rows.append(f"        const real {name} = {code};")
        return name

    def reduction(self, value: Node) -> str:
        """A loop of its own over the features of a row."""
        name = self.scalars[value] = f"s{next(self.names)}"
        arg = value.args[0]
        total = value.op == "sum"
        loops = []
        for _, piece in pieces(arg):
            scope = _Columns(self, piece.width)
            result = scope.value(piece)
            end = f"          {name} += {result};"
            pragma = f"simd reduction(+:{name})" if total else f"simd reduction(max:{name})"
            if not total:
                end = f"          {name} = {name} > {result} ? {name} : {result};"
            loops.append(self.wrap(scope, "0", self.emitter.size(piece.width), [end], pragma))
        self.rows.append(f"        real {name} = {'0' if total else '-real(INFINITY)'};")
        self.rows.extend(loops)
        return name


class _Columns:
    """One loop over columns."""

    def __init__(self, body: _Body, width: int) -> None:
        self.body, self.width = body, width
        self.known: dict[Node, str] = {}
        self.lines: list[str] = []
        self.pointers: list[str] = []
        self.pointed: dict[str, str] = {}

    def pointer(self, place: str) -> str:
        """The name of a pointer to a row."""
        if place not in self.pointed:
            name = self.pointed[place] = f"r{len(self.pointed)}"
            self.pointers.append(f"        real* const {name} = {place};")
        return self.pointed[place]

    def value(self, value: Node) -> str:
        """The name of a value in column j."""
        if value.op == "number":
            return _literal(value.note)
        if value.width == 1:
            return self.body.scalar(value)
        if value in self.known:
            return self.known[value]
        place = self.body.kernel.loaded(value, self.body.depth)
        if place is not None:
            code = f"{self.pointer(self.body.emitter.at(place, 'b'))}[j]"
        else:
            code = PRIMITIVES[value.op].code.format(*map(self.value, value.args))
        name = self.known[value] = f"v{next(self.body.names)}"
        self.lines.append(f"          const real {name} = {code};")
        return name


def _kind(name: str) -> str:
    return "packed_t" if name.startswith("packed") else "real"


def _literal(value: float) -> str:
    if math.isnan(value):
        return "real(NAN)"
    if math.isinf(value):
        return "real(INFINITY)" if value > 0 else "(-real(INFINITY))"
    return f"real({value!r})"
