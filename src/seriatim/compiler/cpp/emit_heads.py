"""Emits the loop of one head as C++: forward, and backward between checkpoints of the state.

A step is a list of nests of loops. All sums and stored values that need the same elements at the same time share one
nest, so that a matrix is read once for them. Sums, what a view reads, and single numbers are stored; everything else is
computed where it is used. Sizes are constants of the code, so that the compiler unrolls the innermost loops.
"""

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ..buffers import Numbers
from ..expressions import LEAVES, Node, common, contiguous, merged, node, number, refined, walk
from ..fallback_reasons import Reason, UnsupportedError
from ..heads import HeadStep, differentiate_heads
from ..operators import FUNCTIONS, PRIMITIVES
from .emit import literal

BLOCK = 16
"""Steps between two checkpoints of the state."""
REDUCTIONS = {"sum": ("real(0)", "f_add"), "amax": ("-real(INFINITY)", "f_maximum")}
ROWS = 4
"""Rows of a matrix that a nest with sums takes at once."""
COSTLY = {*FUNCTIONS, "div", "power"} - {"abs"}
"""Operations that are not repeated in several nests."""
ALIGNED = 16
"""Numbers of which the offsets of arrays are multiples."""


class Store(NamedTuple):
    """A value that a step writes to an address, or adds to what is there."""

    value: Node
    address: str
    adds: bool = False


class Arena:
    """Memory of a thread that a step uses: names an address for each value."""

    def __init__(self, name: str) -> None:
        self.name, self.size = name, 0

    def __call__(self, width: int) -> str:
        """Return the address of a new array."""
        start = self.size
        self.size += -(-width // ALIGNED) * ALIGNED
        return f"({self.name} + {start})"


class _Statement(NamedTuple):
    """A value that a nest stores; for a reduction, its argument is what the nest computes."""

    value: Node
    address: str
    adds: bool


class StepCode:
    """The code of one step of one head.

    Args:
        stores: the results.
        leaves: the addresses of what is known before the step.
        kept: memory for vectors and numbers that a later step of the same time may read.
        scratch: memory for matrices.
    """

    def __init__(self, stores: Sequence[Store], leaves: Mapping[Node, str], kept: Arena, scratch: Arena) -> None:
        self.leaves = dict(leaves)
        self.order = [v for v in walk([s.value for s in stores], self.is_known) if not self.is_known(v)]
        self.uses = Counter(arg for value in self.order for arg in value.args)
        self.dimensions = self.find_dimensions()

        # what is stored, and where; a second copy of a result is a statement of its own
        self.stored: dict[Node, _Statement] = {}
        copies: list[tuple[Node, Store]] = []
        for store in stores:
            if self.is_known(store.value) or store.value in self.stored:
                copies.append((node("detach", store.value, width=store.value.width), store))
            else:
                self.stored[store.value] = _Statement(*store)
        viewed = {value.args[0] for value in self.order if value.op == "view"}
        scalars = {arg for v in self.order for arg in v.args if arg.width == 1 < v.width}
        self.kept: dict[Node, str] = {}
        for value in self.order:
            is_reused = value.op in COSTLY and self.uses[value] > 1
            if value in self.stored and self.stored[value].adds and (value in viewed or self.uses[value]):
                copies.append((node("detach", value, width=value.width), Store(*self.stored.pop(value))))
            if value not in self.stored and (value.op in REDUCTIONS or value in viewed | scalars or is_reused):
                is_small = sum(size > 1 for size in self.sizes(value)) < 2
                address = (kept if is_small else scratch)(value.width)
                self.stored[value] = _Statement(value, address, adds=False)
                if is_small:
                    self.kept[value] = address
        self.levels: dict[Node, int] = {}
        for value in self.order:
            self.levels[value] = max((self.ready(arg, value) for arg in value.args), default=0)
        self.statements = list(self.stored.values())
        for value, store in copies:
            self.levels[value] = self.ready(value.args[0], value)
            self.dimensions[value] = self.sizes(value.args[0])
            self.statements.append(_Statement(value, store.address, store.adds))

    def is_known(self, value: Node) -> bool:
        """Return whether a value is there before the step."""
        return value.op == "number" or value in self.leaves

    def ready(self, arg: Node, user: Node) -> int:
        """Return the level of the first nest that can use a value; a nest of a higher level comes later."""
        if self.is_known(arg):
            return 0
        is_other_nest = arg.op in REDUCTIONS or user.op == "view" or (arg.width == 1 < user.width)
        return self.levels[arg] + is_other_nest

    # ---- dimensions

    def find_dimensions(self) -> dict[Node, tuple[int, ...]]:
        """Return the dimensions of each value: those in which all that it is combined with can be walked."""
        parents: dict[Node, Node] = {}

        def root(value: Node) -> Node:
            while parents.setdefault(value, value) is not value:
                value = parents[value]
            return value

        shapes: dict[Node, list[tuple[int, ...]]] = defaultdict(list)
        constraints = []
        for value in self.order:
            if value.op in REDUCTIONS:
                constraints.append((value.args[0], value.attribute))
            elif value.op == "view":
                constraints.append((value, value.attribute))
            else:
                for arg in value.args:
                    if arg.width == value.width and not self.is_known(arg):
                        parents[root(arg)] = root(value)
        for value, view in constraints:
            shapes[root(value)].append(merged(view.sizes, view.strides)[0])
        dimensions = {}
        for value in {member for user in self.order for member in (user, *user.args)}:
            sizes = common(shapes[root(value)] or [(value.width,)])
            if sizes is None:
                raise UnsupportedError([Reason("it combines dimensions of the state that do not fit together")])
            dimensions[value] = sizes
        return dimensions

    def sizes(self, value: Node) -> tuple[int, ...]:
        """Return the dimensions of a value."""
        return self.dimensions.get(value, (value.width,))

    # ---- text

    def text(self) -> str:
        """Return the code of the step."""
        nests: dict[tuple[int, tuple[int, ...]], list[_Statement]] = defaultdict(list)
        for statement in self.statements:
            value = statement.value
            walked = value.args[0] if value.op in REDUCTIONS else value
            nests[self.levels[value], self.sizes(walked)].append(statement)
        return "\n".join(_Nest(self, level, sizes).text(nests[level, sizes]) for level, sizes in sorted(nests))


class _Nest:
    """One nest of loops."""

    def __init__(self, step: StepCode, level: int, sizes: tuple[int, ...]) -> None:
        self.step, self.level, self.sizes = step, level, sizes
        self.names: dict[Node, str] = {}
        self.numbers: Iterator[int] = itertools.count()
        self.outer_lines: list[str] = []  # before the innermost loop
        self.inner_lines: list[str] = []
        self.loaded: dict[str, str] = {}
        self.indices = [f"i{i}" for i in range(len(sizes))]
        self.before: list[str] = []  # all loops
        self.after: list[str] = []  # the innermost loop
        self.sums: list[str] = []  # along the innermost loop
        self.targets: dict[str, str] = {}  # sums along other loops, by their address
        self.is_simd = True

    def text(self, statements: Sequence[_Statement]) -> str:
        """Return the loops. Several rows of a matrix are taken at once where sums then stay in registers."""
        last, count = len(self.sizes) - 1, 1
        if last and any(statement.value.op == "sum" for statement in statements):
            count = next(count for count in (ROWS, 2, 1) if self.sizes[last - 1] % count == 0)
        for row in range(count):
            self.names.clear()
            if count > 1:
                self.indices[last - 1] = f"(i{last - 1} + {row})"
            for statement in statements:
                self.add(statement, is_first=not row)

        # elements of the innermost loop are independent but for the sums along it
        lines = ["{", *self.before]
        for i, size in enumerate(self.sizes[:-1]):
            lines.append(f"for (count_t i{i} = 0; i{i} < {size}; i{i} += {count if i == last - 1 else 1}) {{")
        lines += self.outer_lines
        if self.is_simd and self.sizes[last] > 1:
            lines.append("#pragma omp simd" + (f" reduction(+:{', '.join(self.sums)})" if self.sums else ""))
        lines.append(f"for (count_t i{last} = 0; i{last} < {self.sizes[last]}; ++i{last}) {{")
        ends = [*self.inner_lines, *(f"{target} = {name};" for target, name in self.targets.items())]
        return "\n".join([*lines, *ends, "}", *self.after, *["}"] * last, "}"])

    def add(self, statement: _Statement, *, is_first: bool) -> None:
        """Add a statement for the present indices; ``is_first`` of several rows."""
        value, address, adds = statement
        if value.op not in REDUCTIONS:
            code = f"{self.at(address, contiguous(self.sizes))} {'+=' if adds else '='} "
            self.inner_lines.append(f"{code}{self.value(value, computed=True)};")
            return
        neutral, join = REDUCTIONS[value.op]
        strides, is_sum = refined(value.attribute, self.sizes), value.op == "sum"
        target = self.at(address, strides, value.attribute.offset)
        if is_first and not adds:
            self.before.append(f"for (count_t j = 0; j < {value.width}; ++j) {address}[j] = {neutral};")
        if strides[-1]:
            if target not in self.targets:
                name = self.targets[target] = f"s{next(self.numbers)}"
                self.inner_lines.append(f"real {name} = {target};")
            name = self.targets[target]
        else:
            name = f"s{next(self.numbers)}"
            self.outer_lines.append(f"real {name} = {neutral};")
            self.after.append(f"{target} = {join}({target}, {name});")
            self.sums.append(name)
            self.is_simd &= is_sum
        code = self.added(value.args[0], name) if is_sum else f"{join}({name}, {self.value(value.args[0])})"
        self.inner_lines.append(f"{name} = {code};")

    def at(self, address: str, strides: Sequence[int], offset: int = 0) -> str:
        """Return the element of an array that belongs to the indices of the loops."""
        pairs = zip(self.indices, strides, strict=True)
        terms = [f"{index} * {stride}" if stride > 1 else index for index, stride in pairs if stride]
        return f"{address}[{' + '.join([*terms, *([str(offset)] if offset or not terms else [])])}]"

    def load(self, address: str, strides: Sequence[int], offset: int = 0) -> str:
        code = self.at(address, strides, offset)
        if code not in self.loaded:
            name = self.loaded[code] = f"x{next(self.numbers)}"
            is_outer = not strides or not strides[-1]
            (self.outer_lines if is_outer else self.inner_lines).append(f"const real {name} = {code};")
        return self.loaded[code]

    def address(self, value: Node) -> str | None:
        """Return where a value is stored when the nest begins, if it is."""
        step = self.step
        if value in step.leaves:
            return step.leaves[value]
        if value in step.stored:
            is_earlier = step.levels[value] < self.level
            return step.stored[value].address if is_earlier and not step.stored[value].adds else None
        return None

    def value(self, value: Node, *, computed: bool = False) -> str:
        """Return the name or the text of the element of a value at the indices of the loops."""
        if value.op == "number":
            return literal(value.attribute)
        if value in self.names:
            return self.names[value]
        address = None if computed else self.address(value)
        if address is not None:
            strides = contiguous(self.sizes) if value.width > 1 else (0,) * len(self.sizes)
            return self.load(address, strides)
        if value.op == "view":
            source = value.args[0]
            if source.op == "number":
                return literal(source.attribute)
            address = self.address(source)
            assert address is not None, "the source of a view is stored in an earlier nest"
            return self.load(address, refined(value.attribute, self.sizes), value.attribute.offset)
        if value.op == "add":
            first, second = value.args if self.is_product(value.args[0]) else value.args[::-1]
            code = self.added(first, self.value(second))
        else:
            code = PRIMITIVES[value.op].code.format(*map(self.value, value.args))
        name = self.names[value] = f"v{next(self.numbers)}"
        self.inner_lines.append(f"const real {name} = {code};")
        return name

    def is_product(self, value: Node) -> bool:
        return value.op == "mul" and value not in self.names and self.address(value) is None

    def added(self, value: Node, total: str) -> str:
        """Return the text of a total plus a value, as one operation if that is a product."""
        if self.is_product(value):
            return f"multiply_add({self.value(value.args[0])}, {self.value(value.args[1])}, {total})"
        return f"({total} + {self.value(value)})"


# ---- both directions


class HeadCode(NamedTuple):
    """The text of a loop, and its buffers."""

    text: str
    buffers: list[tuple[str, int]]  # the buffers in the table of pointers, in order: the kind and the number of each
    state_size: int  # numbers in a checkpoint of one head


def emit_heads(step: HeadStep, numbers: Numbers) -> HeadCode:
    """Return both directions of a loop as C++, which `seriatim.recurrence.head_loop` calls.

    Raises:
        UnsupportedError: values that are combined have no common dimensions.
    """
    return _HeadEmitter(step, numbers).code()


class _HeadEmitter:
    def __init__(self, step: HeadStep, numbers: Numbers) -> None:
        self.step, self.numbers = step, numbers
        self.buffers: list[tuple[str, int]] = []
        self.pointers: list[str] = []
        widths = (-(-state.width // ALIGNED) * ALIGNED for state in step.states)
        self.offsets = list(itertools.accumulate(widths, initial=0))

    def buffer(self, kind: str, number: int, start: str) -> str:
        """Return the name of the features of a row and a head in a buffer, which begin at ``start``."""
        self.pointers.append(f"real* const {kind}{number} = (real*)p[{len(self.buffers)}] + {start};")
        self.buffers.append((kind, number))
        return f"{kind}{number}"

    def at_states(self, name: str) -> list[str]:
        return [f"({name} + {offset})" for offset in self.offsets[:-1]]

    def code(self) -> HeadCode:
        """Return the whole text."""
        step, heads = self.step, self.step.heads
        before = [node("state", width=state.width, attribute=i) for i, state in enumerate(step.states)]
        leaves = dict(zip(before, self.at_states("before"), strict=True))
        for i, leaf in enumerate(step.inputs):
            _, is_shared, is_constant = leaf.attribute
            row = "0" if is_constant else f"row * {leaf.width * (1 if is_shared else heads)}"
            leaves[leaf] = self.buffer("input", i, row if is_shared else f"{row} + h * {leaf.width}")
        outputs = list(dict.fromkeys(step.outputs.values()))
        rows = [f"row * {value.width * heads} + h * {value.width}" for value in outputs]

        # The forward step, the same step without outputs, and the gradient, which reads the state after a step and the
        # vectors of the second. Its sums and products of matrices are computed again.
        scratch, kept, own = Arena("scratch"), Arena("kept"), Arena("own")
        states = list(map(Store, step.states, self.at_states("after")))
        results = [Store(value, self.buffer("output", i, rows[i])) for i, value in enumerate(outputs)]
        forward = StepCode([*states, *results], leaves, own, scratch)
        again = StepCode(states, leaves, kept, scratch)
        leaves |= again.kept
        for state, address in zip(step.states, self.at_states("after"), strict=True):
            if state.op not in LEAVES:
                leaves[state] = address
        adjoint = StepCode(self.gradient(outputs, rows, leaves), leaves, own, scratch)

        sizes = {
            "HEADS": heads,
            "STATE": self.offsets[-1],
            "BLOCK": BLOCK,
            "KEPT": kept.size,
            "OWN": own.size,
            "SCRATCH": scratch.size,
            "LEAVES": len(states),
        }
        widths = ", ".join(str(state.width) for state in step.states)
        head = [
            f"typedef {'double' if self.numbers.double else 'float'} real;",
            '#include "kernel.h"',
            f"enum {{ {', '.join(f'{name} = {size}' for name, size in sizes.items())} }};",
            f"static const count_t state_offsets[] = {{{', '.join(map(str, self.offsets))}}};",
            f"static const count_t state_widths[] = {{{widths}}};",
        ]
        functions = [
            self.function("forward_step", "real* after, real* own", forward),
            self.function("again_step", "real* after, real* kept", again),
            self.function("adjoint_step", "real* after, real* kept, real* own, real* carry, real* next", adjoint),
        ]
        text = "\n".join([*head, *functions, '#include "head_loop.h"', ""])
        return HeadCode(text, self.buffers, self.offsets[-1])

    def gradient(self, outputs: Sequence[Node], rows: Sequence[str], leaves: dict[Node, str]) -> list[Store]:
        """Return what the backward step stores; the cotangents of its results are added to the leaves."""
        step, cotangents = self.step, dict[Node, Node]()
        addresses = [
            *zip(step.states, self.at_states("carry"), strict=True),
            *((value, self.buffer("output_cotangent", i, rows[i])) for i, value in enumerate(outputs)),
        ]
        for i, (value, address) in enumerate(addresses):
            cotangent = node("cotangent", width=value.width, attribute=i)
            leaves[cotangent] = address
            cotangents[value] = cotangents[value] + cotangent if value in cotangents else cotangent
        gradient = differentiate_heads(cotangents)
        stores = []
        for i, address in enumerate(self.at_states("next")):
            leaf = node("state", width=step.states[i].width, attribute=i)
            stores.append(Store(gradient.get(leaf, number(0, leaf.width)), address))

        # the heads of a row write the cotangents of what they share side by side, and threads those of constants
        for i, leaf in enumerate(step.inputs):
            if leaf not in gradient:
                continue
            _, is_shared, is_constant = leaf.attribute
            size = leaf.width * (1 if is_shared and is_constant else step.heads)
            start = f"{'thread' if is_constant else 'row'} * {size}"
            start += "" if is_shared and is_constant else f" + h * {leaf.width}"
            stores.append(Store(gradient[leaf], self.buffer("input_cotangent", i, start), adds=is_constant))
        return stores

    def function(self, name: str, arguments: str, code: StepCode) -> str:
        """Return one step as a function."""
        used = code.text()
        pointers = [line for line in self.pointers if re.search(rf"\b{line.split()[2]}\b", used)]
        common_arguments = "void* const* p, count_t row, count_t h, count_t thread, real* scratch, real* before"
        return "\n".join([f"static void {name}({common_arguments}, {arguments}) {{", *pointers, used, "}"])
