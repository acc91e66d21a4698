"""Turns the expressions of a step into the instructions of `cpp/step_machine.h`, and assigns memories to values."""

import itertools
import math
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from .expressions import LEAVES, Node, View, contiguous, merged, node, walk
from .operators import PRIMITIVES
from .reasons import UnsupportedError
from .recorder import Traced

DIMENSIONS = 4
LONG = 8192
"""Elements from which all threads share an instruction on few rows."""
KINDS = [
    *(name for name in PRIMITIVES if name != "where"),
    *(
        "where",
        "sum",
        "amax",
        "gather",
        "count",
        "rotate",
        "sinusoids",
        "append_and_attend",
        "attend_to_memory",
        "attend_to_rows",
        "product",
    ),
]
"""The kinds of instructions, in the order of their numbers in C++."""
IN_CPP = (
    *("CHOOSE", "SUM", "AMAX", "GATHER", "COUNT_ON", "ROTATE", "SINUSOIDS"),
    *("APPEND_AND_ATTEND", "ATTEND_TO_MEMORY", "ATTEND_TO_ROWS", "PRODUCT"),
)
"""The last of the kinds, in C++, in the same order."""
Share = Literal["first", "outer"]
"""Which threads compute an instruction on few rows: the first one, or all, which divide the outermost dimension."""
MemoryKind = Literal[
    "inputs", "state", "new_state", "outputs", "numbers", "constant", "packed", "scratch", "frequencies"
]


class Memory(NamedTuple):
    """A tensor that a step reads or writes; ``number`` tells those of one kind apart."""

    kind: MemoryKind
    number: Hashable = 0
    width: int = 0  # features of a row; 0 where there is one row for all


class Operand(NamedTuple):
    """Elements of a memory: the place of the first one, and the distances along the dimensions."""

    memory: Memory
    offset: int = 0
    strides: tuple[int, ...] = (0,) * DIMENSIONS


@dataclass
class Instruction:
    """One instruction; see `cpp/step_machine.h`."""

    kind: str
    to: Operand
    sources: list[Operand]
    sizes: tuple[int, ...] = (1,) * DIMENSIONS
    number: float = 0.0
    extra: tuple[int, ...] = ()
    share: Share = "first"
    slot: int = 0
    wait: bool = False


@dataclass
class StepProgram:
    """The instructions of a step, and what its memories and caches are."""

    instructions: list[Instruction]
    memories: list[Memory]
    numbers: list[float]
    caches: list[int]  # parts of the state that are caches, by their numbers; see `step_program.rewritten`
    unchanged: dict[int, int]  # parts of the new state that are parts of the old state


def preamble(double: bool) -> str:
    """Return the C++ text of all step programs."""
    maps = []
    for number, name in enumerate(KINDS):
        if name not in PRIMITIVES or name == "where":
            continue
        code = PRIMITIVES[name].code
        maps.append(f"  MAP{1 + ('{1}' in code)}({number}, {code.format('a', 'b')}) \\")
    first = KINDS.index("where")
    kinds = ", ".join(f"{name} = {first + i}" for i, name in enumerate(IN_CPP))
    lines = [
        f"typedef {'double' if double else 'float'} real;",
        '#include "kernel.h"',
        f"enum Kind {{ {kinds} }};",
        "#define STEP_MAPS \\",
        *maps,
        "",
        '#include "step_machine.h"',
    ]
    return "\n".join(lines) + "\n"


SINGLE = (1,) * DIMENSIONS
RANDOM = "draws random numbers, which is not compiled in a single step"
"""A loop draws those of all steps before it; a single step has no such time."""


def plan_step(traced: Traced) -> StepProgram:
    """Return the program of a step."""
    return _Planner(traced).program()


def rewritten(part: int) -> int:
    """Return the number that stands for a part of the state after the step, or the part again for this number."""
    return -1 - part


class _Planner:
    def __init__(self, traced: Traced) -> None:
        self.traced = traced
        self.roots = [traced.outputs, *traced.states]
        self.instructions: list[Instruction] = []
        self.numbers: dict[float, int] = {}
        self.caches: dict[int, int] = {}
        self.places: dict[Node, Memory] = {}
        self.phases: dict[Node, int] = {}
        self.copies: dict[Node, Node] = {}
        self.scratch = itertools.count()

    def program(self) -> StepProgram:
        unchanged = {}
        targets: dict[Node, Memory] = {}
        copied: list[tuple[Node, Memory]] = []
        for i, value in enumerate(self.roots):
            memory = Memory("outputs", 0, value.width) if i == 0 else Memory("new_state", i - 1, value.width)
            if i and value.op == "state" and value.note == i - 1:
                unchanged[i - 1] = i - 1
            elif value.op in LEAVES or value.op == "view" or value in targets:
                copied.append((value, memory))
            else:
                targets[value] = memory
        values = walk(self.roots)
        draws = [self.traced.origins[value].reason(RANDOM) for value in values if value.op == "noise"]
        if draws:
            raise UnsupportedError(draws)
        for value in values:
            self.place(value, targets)
            if value.op not in LEAVES and value.op != "view":
                self.emit(value)
        for value, memory in copied:
            self.map("detach", Operand(memory), [value], value.width, self.phase(value))
        self.order()
        self.reuse()
        memories = {Memory("numbers"): None}
        for instruction in self.instructions:
            memories.update(dict.fromkeys(operand.memory for operand in (instruction.to, *instruction.sources)))
        return StepProgram(self.instructions, list(memories), list(self.numbers), list(self.caches), unchanged)

    def place(self, value: Node, targets: dict[Node, Memory]) -> None:
        """Decide where a value is stored."""
        if value.op == "inputs":
            memory = Memory("inputs", 0, value.width)
        elif value.op == "state":
            memory = Memory("state", value.note, value.width)
        elif value.op == "vector":
            memory = Memory("constant", value.note, 0)
        elif value.op in ("number", "view"):
            return
        else:
            memory = targets.get(value) or Memory("scratch", next(self.scratch), value.width)
        self.places[value] = memory

    def phase(self, value: Node) -> int:
        if value.op in LEAVES:
            return 0
        if value.op == "view":
            return self.phase(value.args[0])
        return self.phases[value]

    def emit(self, value: Node) -> None:
        """Add the instructions that compute a value."""
        phase = max((self.phase(arg) for arg in value.args), default=0)
        to = Operand(self.places[value])
        if value.op == "product":
            self.product(value, phase, to)
            return
        self.phases[value] = phase
        if value.op == "join":
            for part, view in zip(value.args, value.note, strict=True):
                self.map("detach", to, [part], part.width, phase, target=view)
        elif value.op in ("sum", "amax"):
            view = value.note or View((value.args[0].width,), (0,))
            self.map(value.op, to, [value.args[0]], value.args[0].width, phase, target=view)
        elif value.op == "gather":
            table = Operand(Memory("constant", value.note, 0))
            index = self.operand(value.args[0], SINGLE, phase)
            self.add("gather", to, [table, index], (1, 1, 1, value.width), phase, extra=(-1,))
        elif value.op == "count":
            source = self.operand(value.args[0], SINGLE, phase)
            self.add("count", to, [source], SINGLE, phase, number=value.note)
        elif value.op in ("rotate", "sinusoids", "append_and_attend", "attend_to_memory", "attend_to_rows"):
            getattr(self, value.op)(value, phase, to)
        else:
            self.map(value.op, to, list(value.args), value.width, phase)

    def product(self, value: Node, phase: int, to: Operand) -> None:
        matrix = value.note
        assert (matrix.start, matrix.stop, matrix.transposed) == (0, value.width, False)
        self.phases[value] = phase + 1
        rows = self.flat(value.args[0], phase)
        packed = Operand(Memory("packed", matrix.constant, 0))
        extra = (value.args[0].width, value.width, 0)
        self.add("product", to, [rows, packed], SINGLE, phase + 1, extra=extra, slot=2 * phase + 2)

    def rotate(self, value: Node, phase: int, to: Operand) -> None:
        vectors, positions = value.args
        shape, _, base, num_heads = value.note
        size = shape[-1]
        scratch = Operand(Memory("scratch", next(self.scratch), 2 * max(size // 2, 1)))
        sources = [
            self.flat(vectors, phase),
            self.operand(positions, SINGLE, phase),
            Operand(self.frequencies(base, size // 2, 2 * max(size // 2, 1))),
            scratch,
        ]
        self.add("rotate", to, sources, SINGLE, phase, extra=(math.prod(shape[:-1]), num_heads, size))

    def sinusoids(self, value: Node, phase: int, to: Operand) -> None:
        size, base = value.width, value.note[2]
        sources = [
            self.operand(value.args[0], SINGLE, phase),
            Operand(self.frequencies(base, (size + 1) // 2, size)),
        ]
        self.add("sinusoids", to, sources, (1, 1, 1, size), phase)

    def frequencies(self, base: float, count: int, size: int) -> Memory:
        return Memory("frequencies", (base, count, size))

    def append_and_attend(self, value: Node, phase: int, to: Operand) -> None:
        queries, entry, cache, seen, *slopes = value.args
        shape, entry_shape, _, _, _, scale, window = value.note
        number = self.cache(cache.note)
        heads, size = shape[0], shape[-1]
        keys = (entry_shape[0] + 1) // 2
        sources = [
            self.flat(queries, phase),
            self.flat(entry, phase),
            self.operand(seen, SINGLE, phase),
            Operand(self.places[slopes[0]] if slopes else Memory("numbers")),
        ]
        extra = (number, heads, keys, size, window, bool(slopes))
        sizes = (keys, entry_shape[0], 1, 1)
        self.add("append_and_attend", to, sources, sizes, phase, number=scale, extra=extra, share="outer")

    def attend_to_memory(self, value: Node, phase: int, to: Operand) -> None:
        queries, memory, lengths = value.args
        (heads, size), _, _, scale = value.note
        number = self.cache(memory.note)
        sources = [self.flat(queries, phase), self.operand(lengths, SINGLE, phase)]
        extra, sizes = (number, heads, size), (heads, 1, 1, 1)
        self.add("attend_to_memory", to, sources, sizes, phase, number=scale, extra=extra, share="outer")

    def attend_to_rows(self, value: Node, phase: int, to: Operand) -> None:
        queries, values, keys, lengths, *others = value.args  # perhaps a vector; perhaps weights and a filter
        (key_size,), (_, size), _, _, _, scale, *_ = value.note
        numbers = [self.cache(part.note) for part in (values, keys)]
        additive, located = (Operand(Memory("numbers")) for _ in range(2))
        if len(others) % 2:
            additive = self.flat(others[0], phase)
        extra = (*numbers, key_size, size, len(others) % 2, 0, 0, 0)
        if len(others) >= 2:
            weights, width = others[-2].note, others[-1].width
            located = self.flat(others[-1], phase)
            extra = (*extra[:5], self.cache(weights), self.cache(rewritten(weights)), width)
        sources = [self.flat(queries, phase), self.operand(lengths, SINGLE, phase), additive, located]
        self.add("attend_to_rows", to, sources, SINGLE, phase, number=scale, extra=extra)

    def cache(self, part: int) -> int:
        """Return the number of a cache, given the part of the state, or the result of `rewritten` for it."""
        return self.caches.setdefault(part, len(self.caches))

    def flat(self, value: Node, phase: int) -> Operand:
        """Return a value as neighbouring features, copied if they are not."""
        if value.op == "view":
            sizes, strides = merged(value.note.sizes, value.note.strides)
            if len(sizes) == 1 and strides[0] == 1:
                return Operand(self.places[value.args[0]], value.note.offset)
            value = self.copy(value, phase)
        elif value.op == "number":
            value = self.copy(value, phase)
        return Operand(self.places[value])

    def copy(self, value: Node, phase: int) -> Node:
        """Return a value with memory of its own that holds the same features."""
        if value not in self.copies:
            copy = self.copies[value] = node("detach", value, width=value.width)
            self.places[copy] = Memory("scratch", next(self.scratch), value.width)
            self.phases[copy] = self.phase(value)
            self.map("detach", Operand(self.places[copy]), [value], value.width, self.phase(value))
        return self.copies[value]

    def map(
        self,
        kind: str,
        to: Operand,
        args: list[Node],
        width: int,
        phase: int,
        *,
        target: View | None = None,
    ) -> None:
        """Add an instruction on elements; ``target`` says where they are stored or summed."""
        if width == 0:
            return
        views = [arg.note for arg in args if arg.op == "view"]
        shapes = [(view.sizes, view.strides) for view in views] + ([(target.sizes, target.strides)] if target else [])
        sizes = common([merged(*shape)[0] for shape in shapes] or [(width,)])
        if sizes is None or len(sizes) > DIMENSIONS:
            copied = [self.copy(arg, phase) if arg.op == "view" else arg for arg in args]
            assert copied != args, "a target has too many dimensions"
            self.map(kind, to, copied, width, phase, target=target)
            return
        sizes = (1,) * (DIMENSIONS - len(sizes)) + sizes
        offset, strides = (target.offset, refined(target, sizes)) if target else (0, contiguous(sizes))
        if target is None and width == 1:
            strides = (0,) * DIMENSIONS
        operands = [self.operand(arg, sizes, phase) for arg in args]
        if (
            kind in ("add", "mul", "maximum", "minimum")
            and operands[0].strides[-1] == 0
            and operands[1].strides[-1] == 1
        ):
            operands.reverse()
        to = Operand(to.memory, offset, strides)
        is_long = math.prod(sizes) >= LONG
        if is_long:
            sizes, to, operands = outermost(sizes, to, operands)
        share: Share = "outer" if is_long and sizes[0] > 1 and to.strides[0] else "first"
        self.add(kind, to, operands, sizes, phase, share=share)

    def operand(self, value: Node, sizes: tuple[int, ...], phase: int) -> Operand:
        if value.op == "number":
            return Operand(Memory("numbers"), self.numbers.setdefault(value.note, len(self.numbers)))
        if value.op == "view":
            return Operand(self.places[value.args[0]], value.note.offset, refined(value.note, sizes))
        if value.width == 1:
            return Operand(self.places[value])
        return Operand(self.places[value], 0, contiguous(sizes))

    def add(
        self,
        kind: str,
        to: Operand,
        sources: list[Operand],
        sizes: tuple[int, ...],
        phase: int,
        *,
        number: float = 0.0,
        extra: tuple[int, ...] = (),
        share: Share = "first",
        slot: int | None = None,
    ) -> None:
        slot = 2 * phase + 1 if slot is None else slot
        self.instructions.append(Instruction(kind, to, sources, sizes, number, extra, share, slot))

    def order(self) -> None:
        """Sort instructions into slots; threads wait for one another between slots and around shared instructions."""
        self.instructions.sort(key=lambda instruction: instruction.slot)
        before = None
        for instruction in self.instructions:
            shared = "outer" in (instruction.share, before.share if before else "first")
            instruction.wait = before is not None and (before.slot != instruction.slot or shared)
            before = instruction

    def reuse(self) -> None:
        """Let values that are not needed at the same time share memory."""
        last: dict[Memory, tuple[int, int]] = {}
        for i, instruction in enumerate(self.instructions):
            for operand in (instruction.to, *instruction.sources):
                last[operand.memory] = (instruction.slot, i)
        free: dict[int, list[tuple[int, int, Memory]]] = defaultdict(list)
        names: dict[Memory, Memory] = {}
        released: set[Memory] = set()
        for i, instruction in enumerate(self.instructions):
            for operand in (instruction.to, *instruction.sources):
                memory = operand.memory
                if memory.kind != "scratch" or memory in names:
                    continue
                choices = free[memory.width]
                usable = [c for c in choices if c[0] < instruction.slot or (instruction.slot % 2 and c[1] < i)]
                if usable:
                    choices.remove(usable[0])
                    names[memory] = usable[0][2]
                else:
                    names[memory] = memory
            for memory, (slot, end) in [
                (m, last[m]) for m in {o.memory for o in (instruction.to, *instruction.sources)}
            ]:
                if memory.kind == "scratch" and end == i and memory not in released:
                    released.add(memory)
                    free[memory.width].append((slot, i, names[memory]))
        for instruction in self.instructions:
            instruction.to = self.renamed(instruction.to, names)
            instruction.sources = [self.renamed(source, names) for source in instruction.sources]

    def renamed(self, operand: Operand, names: dict[Memory, Memory]) -> Operand:
        return operand._replace(memory=names.get(operand.memory, operand.memory))


def outermost(
    sizes: tuple[int, ...], to: Operand, operands: list[Operand]
) -> tuple[tuple[int, ...], Operand, list[Operand]]:
    """Move a dimension of more than one element to the front, for threads to share; split the last one if need be."""
    outer = next((i for i in range(DIMENSIONS - 1) if sizes[i] > 1 and to.strides[i]), None)
    if outer is None:
        size = sizes[-1]
        parts = next((n for n in (16, 8, 4, 2) if size % n == 0 and to.strides[-1]), None)
        if parts is None or sizes[0] > 1:
            return sizes, to, operands
        sizes = (parts, *sizes[1:-1], size // parts)

        def split(operand: Operand) -> Operand:
            strides = operand.strides
            return operand._replace(strides=(strides[-1] * (size // parts), *strides[1:]))

        return sizes, split(to), [split(operand) for operand in operands]
    order = [outer, *(i for i in range(DIMENSIONS) if i != outer)]

    def moved(operand: Operand) -> Operand:
        return operand._replace(strides=tuple(operand.strides[i] for i in order))

    return tuple(sizes[i] for i in order), moved(to), [moved(operand) for operand in operands]


def common(shapes: list[tuple[int, ...]]) -> tuple[int, ...] | None:
    """Return dimensions from which each shape follows by joining neighbours, or None."""
    cuts = sorted({math.prod(shape[i:]) for shape in shapes for i in range(len(shape))})
    if any(b % a for a, b in itertools.pairwise(cuts)):
        return None
    sizes = [cuts[0], *(b // a for a, b in itertools.pairwise(cuts))]
    return tuple(reversed([size for size in sizes if size > 1] or [1]))


def refined(view: View, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the distances of a view along dimensions that divide its own."""
    own, distances = (list(part) for part in merged(view.sizes, view.strides))
    strides: list[int] = []
    rest, distance = own.pop(), distances.pop()
    for size in reversed(sizes):
        if size == 1:
            strides.append(0)
            continue
        if rest == 1:
            rest, distance = own.pop(), distances.pop()
        assert rest % size == 0
        strides.append(distance)
        rest, distance = rest // size, distance * size
    return tuple(reversed(strides))
