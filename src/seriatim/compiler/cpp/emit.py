"""Emits a program as C++: a forward and a backward function with the whole loop; sizes are read from a table.

If all values of a step have the same width, threads share its columns and synchronize once per phase, before its
products. Otherwise they share columns in products and rows elsewhere, and synchronize in between.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..buffers import Buffer, BufferKind, Numbers, Rows, Slot, slot
from ..expressions import Node, merge_neighbours, operands_of, segments
from ..operators import PRIMITIVES
from ..program import AttentionCall, Kernel, Phase, Product, Write

TYPES = {BufferKind.PACKED: "packed_t", BufferKind.LENGTHS: "const count_t", BufferKind.ORDER: "const count_t"}
"""The types of numbers in a buffer, where they are not `real`."""
LANES = 16
"""Columns of packed matrices are padded to a multiple of this number, the widest vector of floats on any machine."""


class Stride(NamedTuple):
    """The distance in memory between rows (dimension 0) or columns (1) of a matrix."""

    matrix: int
    dimension: int


class Time(NamedTuple):
    """The number of entries of a memory."""

    memory: int


class Function(NamedTuple):
    """One direction as C++, and the arguments of its function."""

    name: str
    code: str
    buffers: list[Buffer]  # the buffers in the table of pointers, in order
    sizes: list[int | Stride | Time]  # the numbers in the table of sizes, in order
    packed: list[Product]  # the products whose matrices are packed, by the number of their buffer


def packed_size(depth: int, width: int) -> int:
    """Return how many numbers a packed matrix has, whose columns are padded to whole vectors."""
    return depth * -(-width // LANES) * LANES


def emit(kernels: Mapping[str, Kernel], numbers: Numbers) -> tuple[str, list[Function]]:
    """Return the whole text, with one function for each kernel by its name, and each function's tables."""
    functions = [_Emitter(kernel, name).function() for name, kernel in kernels.items()]
    head = f"typedef {'double' if numbers.double else 'float'} real;\n"
    head += ("#define REDUCED\n" if numbers.reduced else "") + '#include "kernel.h"\n'
    attends = any(phase.attentions for kernel in kernels.values() for phase in kernel.phases)
    head += '#include "attention.h"\n\n' if attends else "\n"
    return head + "\n".join(function.code for function in functions), functions


def merge_products(products: Sequence[Product]) -> list[Product]:
    """Join products into the same slot whose rows are adjacent in memory and whose matrices are adjacent parts."""

    def merge(left: Product, right: Product) -> Product | None:
        matrix = left.matrix.joined(right.matrix)
        if matrix is None or not matrix.transposed:
            return None
        if (left.slot, left.rows.shifted(left.depth)) != (right.slot, right.rows):
            return None
        return left._replace(matrix=matrix, depth=left.depth + right.depth, add=left.add and right.add)

    ordered = sorted(products, key=lambda p: (p.slot, p.matrix.constant, p.matrix.start, not p.add))
    return sorted(merge_neighbours(ordered, merge), key=lambda p: (p.slot, p.add))


class _Emitter:
    def __init__(self, kernel: Kernel, name: str) -> None:
        self.kernel, self.name = kernel, name
        self.pointers: dict[tuple[Buffer, Rows], str] = {}
        self.buffers: dict[Buffer, None] = {}
        self.sizes: dict[int | Stride | Time, int] = {}
        self.widths: dict[Buffer, int] = {}
        self.packed: list[Product] = []
        self.packing: list[str] = []
        self.width = kernel.width

    def function(self) -> Function:
        """Return one direction of the loop as a function."""
        # the body comes first, because writing it finds out which buffers, sizes and packed matrices there are
        body = "\n".join([self.phase(depth, phase) for depth, phase in enumerate(self.kernel.phases)])
        if self.width is None:
            body += "\n      barrier.wait(thread.count);"
        kinds = {buffer: TYPES.get(buffer.kind, "real") for buffer in self.buffers}
        packed_size = " + ".join(f"{self.size(item.depth)} * {self.size(item.width)}" for item in self.packed) or "0"
        lines = [
            f'extern "C" void {self.name}(void** p, const count_t* d, const count_t* row_counts, '
            "const count_t* row_starts, count_t steps, count_t batch, int threads, int is_packed) {",
            *(f"  const count_t n{i} = d[{i}]; (void)n{i};" for i in range(len(self.sizes))),
            *(f"  {kind}* const {buffer.name} = ({kind}*)p[{i}];" for i, (buffer, kind) in enumerate(kinds.items())),
            "  Barrier barrier;",
            "  #pragma omp parallel num_threads(threads)",
            "  {",
            "    const Thread thread;",
            f"    const bool far = ({packed_size}) * count_t(sizeof(packed_t)) > SECOND_CACHE * thread.count;",
            *self.packing,
            "    for (count_t step = 0; step < steps; ++step) {",
            f"      const count_t t = {'steps - 1 - step' if self.kernel.backward else 'step'}, rows = row_counts[t];",
            "      const count_t now = row_starts[t], after = batch + now, before = t ? batch + row_starts[t - 1] : 0;",
            "      const count_t in = (step & 1) * batch, out = batch - in;",
            "      (void)now; (void)after; (void)before; (void)in; (void)out;",
            *(self.pointer(buffer, rows) for buffer, rows in self.pointers),
            body,
            "    }",
            "  }",
            "}",
        ]
        return Function(self.name, "\n".join(lines) + "\n", list(self.buffers), list(self.sizes), self.packed)

    def pointer(self, buffer: Buffer, rows: Rows) -> str:
        """Declare the pointer to the rows of a buffer that a step accesses."""
        row = ("thread.id" if buffer.kind is BufferKind.VECTOR_SUM else "") if rows == "all" else rows
        start = f" + {row} * {self.size(self.widths[buffer])}" if row else ""
        return f"      real* const {self.pointers[buffer, rows]} = {buffer.name}{start};"

    def size(self, value: int | Stride | Time) -> str:
        """Return the name of a number that depends on the widths."""
        return f"n{self.sizes.setdefault(value, len(self.sizes))}"

    def at(self, slot: Slot, row: str) -> str:
        """Return the address of the first feature of a slot in a row."""
        buffer, rows, width, first = slot
        start = f" + {self.size(first)}" if first else ""
        self.widths[buffer], self.buffers[buffer] = width, None
        size = self.size(width)
        pointer = self.pointers.setdefault((buffer, rows), f"{buffer.name}_{rows}")
        return f"{pointer}{start}" if rows == "all" else f"{pointer} + {row} * {size}{start}"

    def phase(self, depth: int, phase: Phase) -> str:
        lines = []
        if phase.products:
            lines.append("      barrier.wait(thread.count);")
            lines += [self.product(product) for product in merge_products(phase.products)]
            if self.width is None:
                lines.append("      barrier.wait(thread.count);")
        if phase.attentions:
            head = "      for (count_t b = thread.first_row(rows), end = thread.last_row(rows); b < end; ++b) {"
            lines += [head, *map(self.attention, phase.attentions), "      }"]
        if phase.writes:
            lines.append(_Body(self, depth, phase).text())
        return "\n".join(lines)

    def product(self, product: Product) -> str:
        """Emit a thread's columns of one product."""
        packed = Buffer(BufferKind.PACKED, len(self.packed))
        matrix = Buffer(BufferKind.MATRIX, product.matrix.constant)
        self.packed.append(product)
        depth, width = self.size(product.depth), self.size(product.width)
        self.buffers |= dict.fromkeys((packed, matrix))
        row, column = (self.size(Stride(product.matrix.constant, dimension)) for dimension in range(2))
        first, last = f"thread.first({width})", f"thread.last({width})"
        skip = f"{self.size(product.matrix.start)} * {column}"
        strides = f"{column}, {row}" if product.matrix.transposed else f"{row}, {column}"
        self.packing.append(
            f"    if (!is_packed) pack({matrix.name} + {skip}, {strides}, {depth}, {first}, {last}, "
            f"{packed.name} + {first} * {depth});"
        )
        rows, target = self.at(product.rows, "0"), self.at(product.slot, "0")
        return (
            f"      product<{'true' if product.add else 'false'}>(rows, {rows}, "
            f"{self.size(product.rows.width)}, {packed.name} + {first} * {depth}, {target} + {first}, "
            f"{self.size(product.slot.width)}, {depth}, {last} - {first}, far);"
        )

    def attention(self, attention: AttentionCall) -> str:
        """Emit attention of row b to its memory, or the vector-Jacobian product."""
        value, number, query, slot, cotangent, parameters = attention
        operands = operands_of(value)
        time, key_size, size = (
            self.size(length) for length in (Time(operands.values.attribute), operands.query.width, value.width)
        )

        def row(kind: BufferKind, index: int, row: str, width: str = time) -> str:
            buffer = Buffer(kind, index)
            self.buffers[buffer] = None
            return f"{buffer.name} + ({row}) * {width}"

        # what the scores depend on beside query and key; a filter also reads the weights of the step before
        addresses = iter([self.at(parameter, "0") for parameter in parameters])
        vector, filters, taps, before = "nullptr", "nullptr", 0, "nullptr"
        if operands.vector:
            vector = next(addresses)
        if operands.filter:
            filters, taps = next(addresses), operands.filter.width
            before = row(BufferKind.WEIGHTS, number, "before + b")

        # rows of the loop are sorted by length, those of the memory are not: m is the row of the memory
        entries = [
            row(BufferKind.MEMORY, operands.keys.attribute, "m", f"{time} * {key_size}"),
            row(BufferKind.MEMORY, operands.values.attribute, "m", f"{time} * {size}"),
            *(key_size, size, f"clamped(length, {time})", time, key_size, size),
        ]
        weights = row(BufferKind.WEIGHTS, number, "after + b")
        lines = [
            f"const count_t m = *({row(BufferKind.ORDER, 0, 'b', '1')});",
            f"const count_t length = *({row(BufferKind.LENGTHS, operands.lengths.attribute, 'm', '1')});",
            f"const Entries entries{{{', '.join(entries)}}};",
            f"const Scoring scoring{{{literal(value.attribute.scale)}, {vector}, {filters}, {taps}}};",
        ]
        arguments, result = f"entries, scoring, {self.at(query, 'b')}, {before}, {weights}", self.at(slot, "b")
        if cotangent is None:
            lines.append(f"attend_entries({arguments}, {result});")
        else:  # each thread adds up gradients of parameters of its own; in a step a row of the memory has one thread
            keys, carry, out = "nullptr", "nullptr", "nullptr"
            if operands.vector:
                keys = row(BufferKind.KEY_COTANGENT, number, "m", f"{time} * {key_size}")
                vector = self.vector_sum(operands.vector)
            if operands.filter:
                carry, out = (row(BufferKind.WEIGHT_CARRY, number, f"{rows} + b") for rows in ("in", "out"))
                filters = self.vector_sum(operands.filter)
            scores = row(BufferKind.SCORE_COTANGENT, number, "now + b")
            gradients = ", ".join([scores, result, keys, vector, out, filters])
            lines.append(
                f"attend_gradient({arguments}, {self.at(cotangent, 'b')}, {carry}, AttentionGradients{{{gradients}}});"
            )
        return "\n".join(["        {", *(f"          {line}" for line in lines), "        }"])

    def vector_sum(self, vector: Node) -> str:
        """Return the address of a thread's part of the cotangent of a constant row."""
        return self.at(slot(BufferKind.VECTOR_SUM, "all", vector.width, vector.attribute), "0")


class _Body:
    """The code of a phase for one row: reductions, then one loop over columns for each width that it writes."""

    def __init__(self, emitter: _Emitter, depth: int, phase: Phase) -> None:
        self.emitter, self.depth, self.phase = emitter, depth, phase
        self.names: dict[Node, str] = {}  # of scalars, which are the same for all columns
        self.numbers = itertools.count()
        self.lines: list[str] = []

    def text(self) -> str:
        by_width: dict[int, list[Write]] = defaultdict(list)
        for write in self.phase.writes:
            by_width[write.value.width].append(write)
        loops = [self.loop(width, writes) for width, writes in by_width.items()]
        divides_rows = self.emitter.width is None
        first, last = ("thread.first_row(rows)", "thread.last_row(rows)") if divides_rows else ("0", "rows")
        head = f"      for (count_t b = {first}, end = {last}; b < end; ++b) {{"
        return "\n".join([head, *self.lines, *loops, "      }"])

    def loop(self, width: int, writes: list[Write]) -> str:
        """Emit the loop over columns for all writes of one width."""
        columns = _Columns(self)
        ends = []
        for write in writes:
            value = columns.value(write.value)
            operator = "+=" if write.slot.is_sum else "="
            ends.append(f"          {columns.pointer(self.emitter.at(write.slot, 'b'))}[j] {operator} {value};")
        size = self.emitter.size(width)
        low, high = ("0", size) if self.emitter.width is None else (f"thread.first({size})", f"thread.last({size})")
        bounds = f"        const count_t first = {low}, last = {high};"
        head = "        for (count_t j = first; j < last; ++j) {"
        return columns.text([bounds, "        #pragma omp simd", head], ends, "        }")

    def reduction(self, value: Node) -> str:
        """Emit a loop over the features of a row, and return the name of its result."""
        name = self.names[value] = f"s{next(self.numbers)}"
        join, neutral = ("f_add", "real(0)") if value.op == "sum" else ("f_maximum", "-real(INFINITY)")
        loops = []
        for _, segment in segments(value.args[0]):
            columns = _Columns(self)
            ends = [f"          return {columns.value(segment)};"]
            size = self.emitter.size(segment.width)
            head = f"        {name} = {join}({name}, reduce({size}, {neutral}, {join}, [&](count_t j) INLINED {{"
            loops.append(columns.text([head], ends, "        }));"))
        self.lines.append(f"        real {name} = {neutral};")
        self.lines.extend(loops)
        return name


class _Columns:
    """One loop over columns."""

    def __init__(self, body: _Body) -> None:
        self.body = body
        self.names: dict[Node, str] = {}
        self.lines: list[str] = []
        self.pointers: dict[str, str] = {}

    def text(self, head: list[str], ends: list[str], tail: str) -> str:
        declarations = [f"        real* const {name} = {address};" for address, name in self.pointers.items()]
        return "\n".join(["        {", *declarations, *head, *self.lines, *ends, tail, "        }"])

    def pointer(self, address: str) -> str:
        return self.pointers.setdefault(address, f"r{len(self.pointers)}")

    def value(self, value: Node) -> str:
        """Return the name of a value: in column j, or of the row if its width is 1."""
        if value.op == "number":
            return literal(value.attribute)
        body, is_scalar = self.body, value.width == 1
        names, lines = (body.names, body.lines) if is_scalar else (self.names, self.lines)
        if value in names:
            return names[value]
        if (slot := body.emitter.kernel.loaded(value, body.depth)) is not None:
            address = body.emitter.at(slot, "b")
            code = f"({address})[0]" if is_scalar else f"{self.pointer(address)}[j]"
        elif value.op in ("sum", "amax"):
            return body.reduction(value)
        else:
            code = PRIMITIVES[value.op].code.format(*map(self.value, value.args))
        name = names[value] = f"{'s' if is_scalar else 'v'}{next(body.numbers)}"
        lines.append(f"{'        ' if is_scalar else '          '}const real {name} = {code};")
        return name


def literal(value: float) -> str:
    """Return a number as C++."""
    if math.isnan(value):
        return "real(NAN)"
    if math.isinf(value):
        return "real(INFINITY)" if value > 0 else "(-real(INFINITY))"
    return f"real({value!r})"
