"""Plans a single step as instructions of `cpp/step_machine.h`, and where its values are stored.

A loop is compiled as C++ of its own, which takes seconds for a new step and pays off over thousands of steps. A single
step is interpreted: the machine is compiled once for all models, so that the first token of any model comes at once.
Its instructions work on whole rows, so that reading them costs little (`benchmarks/decoding.py`).
"""

import itertools
import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from ..core.step_operators import OPERATORS as STEP_OPERATORS
from .buffers import Allocator, BufferKind, Slot, slot
from .expressions import LEAVES, Node, StridedView, common, contiguous, merged, node, refined, walk
from .fallback_reasons import Reason, UnsupportedError
from .operators import PRIMITIVES
from .recorder import Traced

DIMENSIONS = 4
LONG = 8192
"""Elements from which all threads share an instruction on few rows."""
OTHER_KINDS = {
    "where": "CHOOSE",
    "sum": "SUM",
    "amax": "AMAX",
    "contract": "CONTRACT",
    "gather": "GATHER",
    "count": "COUNT_ON",
    "rotate": "ROTATE",
    "sinusoids": "SINUSOIDS",
    "append_and_attend": "APPEND_AND_ATTEND",
    "attend_to_memory": "ATTEND_TO_MEMORY",
    "attend_to_rows": "ATTEND_TO_ROWS",
    "product": "PRODUCT",
}
"""The kinds of instructions other than functions of one or two elements, and their names in C++."""
KINDS = [*(name for name in PRIMITIVES if name != "where"), *OTHER_KINDS]
"""The kinds of instructions, in the order of their numbers in C++."""
SINGLE = (1,) * DIMENSIONS
RANDOM = "draws random numbers, which is not compiled in a single step"
"""A loop draws those of all steps before it; a single step has no such time."""


class Operand(NamedTuple):
    """Elements of a buffer: the slot of the first one, and the distances along the dimensions."""

    slot: Slot
    strides: tuple[int, ...] = (0,) * DIMENSIONS


NUMBERS = slot(BufferKind.NUMBERS, "all", 0)
NOTHING = Operand(NUMBERS)
"""An operand that an instruction does not have."""


@dataclass
class Instruction:
    """One instruction; see `cpp/step_machine.h`."""

    kind: str
    to: Operand
    sources: list[Operand]
    sizes: tuple[int, ...]
    number: float
    extra: tuple[int, ...]
    outer: bool  # whether all threads divide its outermost dimension on few rows; else the first computes it
    stage: int  # instructions of one stage need no results of each other, except that of an odd one in order
    wait: bool = False


class CacheEntries(NamedTuple):
    """Entries to attend to that a leaf of the state holds: before the step, or those that the step writes."""

    leaf: int
    is_after: bool = False


class Frequencies(NamedTuple):
    """The frequencies of positions: base^(−2 i / size) for i < number."""

    base: float
    number: int
    size: int


@dataclass
class StepProgram:
    """The instructions of a step, and what it reads and writes."""

    instructions: list[Instruction]
    slots: list[Slot]  # all features of every buffer
    numbers: list[float]
    frequencies: list[Frequencies]
    caches: list[CacheEntries]
    unchanged: list[int]  # leaves of the state that the step returns as they are


def preamble(double: bool) -> str:
    """Return the C++ text of all step programs."""
    maps = [
        f"  MAP{1 + ('{1}' in PRIMITIVES[name].code)}({i}, {PRIMITIVES[name].code.format('a', 'b')}) \\"
        for i, name in enumerate(KINDS)
        if name not in OTHER_KINDS
    ]
    kinds = ", ".join(f"{name} = {KINDS.index(kind)}" for kind, name in OTHER_KINDS.items())
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


def plan_step(traced: Traced) -> StepProgram:
    """Return the program of a step, or raise UnsupportedError."""
    draws = [traced.call_sites[value].reason(RANDOM) for value in traced.noise]
    if draws:
        raise UnsupportedError(draws)
    return _StepPlanner(traced).program()


class _StepPlanner:
    def __init__(self, traced: Traced) -> None:
        self.traced = traced
        self.instructions: list[Instruction] = []
        self.numbers: dict[float, int] = {}
        self.frequencies: dict[Frequencies, int] = {}
        self.caches: dict[CacheEntries, int] = {}
        self.slots: dict[Node, Slot] = {}
        self.phases: dict[Node, int] = {}
        self.copies: dict[Node, Node] = {}
        self.allocate = Allocator()

    def program(self) -> StepProgram:
        """Return the instructions in the order in which they run."""
        # results are stored where they are needed, and copied if they are leaves, views or needed twice
        unchanged, copied = [], []
        results = [(self.traced.outputs, slot(BufferKind.OUTPUTS, "now", self.traced.outputs.width))]
        for index, value in enumerate(self.traced.states):
            if value is self.traced.leaves[1 + index]:
                unchanged.append(index)
            else:
                results.append((value, slot(BufferKind.STATES, "after", value.width, index)))
        targets: dict[Node, Slot] = {}  # of values that are computed where they are returned
        for value, target in results:
            if value.op in LEAVES or value.op == "view" or value in targets:
                copied.append((value, target))
            else:
                targets[value] = target

        # products of elements that are only summed along some dimensions are not stored
        order = walk([self.traced.outputs, *self.traced.states])
        uses = Counter([*(arg for value in order for arg in value.args), *(value for value, _ in results)])
        sums = (value for value in order if value.op == "sum" and value.attribute)
        self.summed = {value.args[0] for value in sums if value.args[0].op == "mul" and uses[value.args[0]] == 1}

        # a product begins a new phase, because its threads wait for all of the rows that it multiplies
        for value in order:
            self.phases[value] = max((self.phases[arg] for arg in value.args), default=0)
            if value.op in LEAVES:
                self.slots |= self.leaf(value)
            elif value.op != "view" and value not in self.summed:
                self.slots[value] = targets.get(value) or self.allocate(BufferKind.SCRATCH, "now", value.width)
                self.emit(value, self.phases[value], Operand(self.slots[value]))
        for value, target in copied:
            self.map("detach", Operand(target), [value], value.width, self.phases[value])

        # only the order says how long a value is needed
        self.order()
        self.reuse()
        slots = {NUMBERS: None}
        for instruction in self.instructions:
            slots.update(dict.fromkeys(operand.slot.whole for operand in (instruction.to, *instruction.sources)))
        numbers, frequencies, caches = list(self.numbers), list(self.frequencies), list(self.caches)
        return StepProgram(self.instructions, list(slots), numbers, frequencies, caches, unchanged)

    def leaf(self, value: Node) -> dict[Node, Slot]:
        """Return where a leaf is stored; numbers are stored where they are used."""
        if value.op == "inputs":
            return {value: slot(BufferKind.INPUTS, "now", value.width)}
        if value.op == "state":
            return {value: slot(BufferKind.STATES, "before", value.width, value.attribute)}
        return {value: slot(BufferKind.VECTOR, "all", 0, value.attribute)} if value.op == "vector" else {}

    # ---- one instruction for each operation

    def emit(self, value: Node, phase: int, to: Operand) -> None:
        """Add the instructions that compute a value."""
        if value.op == "product":
            matrix = value.attribute
            assert (matrix.start, matrix.stop, matrix.transposed) == (0, value.width, False)
            self.phases[value] = phase + 1
            rows = self.flat(value.args[0], phase)
            packed = Operand(slot(BufferKind.PACKED, "all", 0, matrix.constant))
            extra = (value.args[0].width, value.width, 0)
            self.add("product", to, [rows, packed], SINGLE, phase + 1, extra=extra, stage=2 * phase + 2)
        elif value.op == "join":
            for arg, view in zip(value.args, value.attribute, strict=True):
                self.map("detach", to, [arg], arg.width, phase, target=view)
        elif value.op in ("sum", "amax"):
            view = value.attribute or StridedView((value.args[0].width,), (0,))
            kind, args = value.op, [value.args[0]]
            if value.args[0] in self.summed:
                kind, args = "contract", list(value.args[0].args)
            self.map(kind, to, args, value.args[0].width, phase, target=view)
        elif value.op == "gather":
            table = Operand(slot(BufferKind.VECTOR, "all", 0, value.attribute))
            index = self.operand(value.args[0], SINGLE)
            self.add("gather", to, [table, index], (1, 1, 1, value.width), phase)
        elif value.op == "count":
            self.add("count", to, [self.operand(value.args[0], SINGLE)], SINGLE, phase, number=value.attribute)
        elif value.op in STEP_OPERATORS:
            getattr(self, value.op)(value, phase, to)
        else:
            self.map(value.op, to, list(value.args), value.width, phase)

    def rotate(self, value: Node, phase: int, to: Operand) -> None:
        vectors, positions = value.args
        shape, _, base, num_heads = value.attribute
        size = shape[-1]
        even = 2 * max(size // 2, 1)
        scratch = Operand(self.allocate(BufferKind.SCRATCH, "now", even))
        frequencies = self.positions(Frequencies(base, size // 2, even))
        sources = [self.flat(vectors, phase), self.operand(positions, SINGLE), frequencies, scratch]
        self.add("rotate", to, sources, SINGLE, phase, extra=(math.prod(shape[:-1]), num_heads, size))

    def sinusoids(self, value: Node, phase: int, to: Operand) -> None:
        size, base = value.width, value.attribute[2]
        sources = [self.operand(value.args[0], SINGLE), self.positions(Frequencies(base, (size + 1) // 2, size))]
        self.add("sinusoids", to, sources, (1, 1, 1, size), phase)

    def append_and_attend(self, value: Node, phase: int, to: Operand) -> None:
        queries, entry, cache, seen, *biases = value.args
        (heads, size), (entry_heads, _), _, _, _, has_sinks, forgets, scale, window, keys = value.attribute
        number = self.cache(CacheEntries(cache.attribute))
        sources = [
            self.flat(queries, phase),
            self.flat(entry, phase),
            self.operand(seen, SINGLE),
            Operand(self.slots[biases[0]]) if biases else NOTHING,
        ]
        has_slopes = bool(biases) and biases[0].width > heads * has_sinks
        extra = (number, heads, keys, size, window, int(has_slopes), int(has_sinks), int(forgets))
        sizes = (keys, entry_heads, 1, 1)
        self.add("append_and_attend", to, sources, sizes, phase, number=scale, extra=extra, outer=True)

    def attend_to_memory(self, value: Node, phase: int, to: Operand) -> None:
        queries, memory, lengths = value.args
        (heads, size), _, _, scale = value.attribute
        sources = [self.flat(queries, phase), self.operand(lengths, SINGLE)]
        extra, sizes = (self.cache(CacheEntries(memory.attribute)), heads, size), (heads, 1, 1, 1)
        self.add("attend_to_memory", to, sources, sizes, phase, number=scale, extra=extra, outer=True)

    def attend_to_rows(self, value: Node, phase: int, to: Operand) -> None:
        queries, values, keys, lengths, *others = value.args  # perhaps a vector; perhaps weights and a filter
        (key_size,), (_, size), _, _, _, scale, *_ = value.attribute
        numbers = [self.cache(CacheEntries(entries.attribute)) for entries in (values, keys)]
        additive = self.flat(others[0], phase) if len(others) % 2 else NOTHING
        located = NOTHING
        weights: tuple[int, ...] = (0, 0, 0)
        if len(others) >= 2:
            before, taps = others[-2:]
            located = self.flat(taps, phase)
            entries = (CacheEntries(before.attribute, is_after) for is_after in (False, True))
            weights = (*map(self.cache, entries), taps.width)
        sources = [self.flat(queries, phase), self.operand(lengths, SINGLE), additive, located]
        extra = (*numbers, key_size, size, len(others) % 2, *weights)
        self.add("attend_to_rows", to, sources, SINGLE, phase, number=scale, extra=extra)

    def positions(self, frequencies: Frequencies) -> Operand:
        """Return where some frequencies are stored."""
        number = self.frequencies.setdefault(frequencies, len(self.frequencies))
        return Operand(slot(BufferKind.FREQUENCIES, "all", 0, number))

    def cache(self, entries: CacheEntries) -> int:
        """Return the number of a cache."""
        return self.caches.setdefault(entries, len(self.caches))

    # ---- operands

    def operand(self, value: Node, sizes: tuple[int, ...]) -> Operand:
        """Return where the elements of a value are, for an instruction of some sizes."""
        if value.op == "number":
            return Operand(NUMBERS.shifted(self.numbers.setdefault(value.attribute, len(self.numbers))))
        is_view, view = value.op == "view", value.attribute
        place = self.slots[value.args[0]].shifted(view.offset) if is_view else self.slots[value]
        if value.width == 1:  # which every element of the others meets
            return Operand(place)
        return Operand(place, refined(view, sizes) if is_view else contiguous(sizes))

    def flat(self, value: Node, phase: int) -> Operand:
        """Return a value as neighbouring features, copied if they are not."""
        if value.op == "view":
            sizes, strides = merged(value.attribute.sizes, value.attribute.strides)
            if len(sizes) == 1 and strides[0] == 1:
                return Operand(self.slots[value.args[0]].shifted(value.attribute.offset))
        if value.op in ("view", "number"):
            value = self.copy(value, phase)
        return Operand(self.slots[value])

    def copy(self, value: Node, phase: int) -> Node:
        """Return a value with memory of its own that holds the same features."""
        if value not in self.copies:
            copy = self.copies[value] = node("detach", value, width=value.width)
            self.slots[copy] = self.allocate(BufferKind.SCRATCH, "now", value.width)
            self.phases[copy] = self.phases[value]
            self.map("detach", Operand(self.slots[copy]), [value], value.width, self.phases[value])
        return self.copies[value]

    def map(
        self, kind: str, to: Operand, args: list[Node], width: int, phase: int, *, target: StridedView | None = None
    ) -> None:
        """Add an instruction on elements; ``target`` says where they are stored or summed."""
        if width == 0:
            return
        # all operands must be walked along the same dimensions; views that do not fit together are copied
        views = [arg.attribute for arg in args if arg.op == "view" and arg.width > 1] + ([target] if target else [])
        sizes = common([merged(view.sizes, view.strides)[0] for view in views] or [(width,)])
        if sizes is None or len(sizes) > DIMENSIONS:
            copied = [self.copy(arg, phase) if arg.op == "view" else arg for arg in args]
            if copied == args:
                raise UnsupportedError([Reason("it computes with tensors of more than five dimensions")])
            self.map(kind, to, copied, width, phase, target=target)
            return
        sizes = (1,) * (DIMENSIONS - len(sizes)) + sizes

        strides = refined(target, sizes) if target else contiguous(sizes) if width > 1 else to.strides
        to = Operand(to.slot.shifted(target.offset if target else 0), strides)
        operands = [self.operand(arg, sizes) for arg in args]
        # the machine is fast where the first operand moves and the second one stays, not the other way round
        is_symmetric = kind in ("add", "mul", "maximum", "minimum", "contract")
        if is_symmetric and (operands[0].strides[-1], operands[1].strides[-1]) == (0, 1):
            operands.reverse()
        is_long = math.prod(sizes) >= LONG
        if is_long:
            sizes, to, operands = _outermost(sizes, to, operands)
        outer = is_long and sizes[0] > 1 and bool(to.strides[0])
        self.add(kind, to, operands, sizes, phase, outer=outer)

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
        outer: bool = False,
        stage: int | None = None,
    ) -> None:
        stage = 2 * phase + 1 if stage is None else stage
        self.instructions.append(Instruction(kind, to, sources, sizes, number, extra, outer, stage))

    # ---- the order of the instructions, and which of their values share memory

    def order(self) -> None:
        """Sort instructions into stages; threads wait for one another between them and around shared instructions."""
        self.instructions.sort(key=lambda instruction: instruction.stage)
        for before, instruction in itertools.pairwise(self.instructions):
            is_shared = instruction.outer or before.outer
            instruction.wait = before.stage != instruction.stage or is_shared

    def reuse(self) -> None:
        """Let values that are not needed at the same time share memory, so that they stay in the processor's cache."""
        accessed = [
            dict.fromkeys(
                operand.slot.whole
                for operand in (instruction.to, *instruction.sources)
                if operand.slot.buffer.kind is BufferKind.SCRATCH
            )
            for instruction in self.instructions
        ]
        last = {value: i for i, values in enumerate(accessed) for value in values}

        # A value takes the memory of one of the same width that was last read by an earlier instruction. Threads share
        # the instructions of an even stage, its products, without an order: one of them must not overwrite what another
        # still reads. Within an odd stage every instruction on the same rows comes after those before it.
        free: dict[int, list[tuple[int, Slot]]] = defaultdict(list)  # by width, with the stage of their last use
        shared: dict[Slot, Slot] = {}
        for i, (instruction, values) in enumerate(zip(self.instructions, accessed, strict=True)):
            for value in values:
                if value not in shared:
                    is_ordered = instruction.stage % 2
                    choices = (choice for choice in free[value.width] if is_ordered or choice[0] < instruction.stage)
                    choice = next(choices, None)
                    shared[value] = value if choice is None else choice[1]
                    if choice is not None:
                        free[value.width].remove(choice)

            # freed after all values of the instruction have their memory: its result must not overwrite its operands
            for value in values:
                if last[value] == i:
                    free[value.width].append((instruction.stage, shared[value]))

        def renamed(operand: Operand) -> Operand:
            reused = shared.get(operand.slot.whole, operand.slot)
            return operand._replace(slot=operand.slot._replace(buffer=reused.buffer))

        for instruction in self.instructions:
            instruction.to = renamed(instruction.to)
            instruction.sources = list(map(renamed, instruction.sources))


# ---- instructions that threads share


def _outermost(
    sizes: tuple[int, ...], to: Operand, operands: list[Operand]
) -> tuple[tuple[int, ...], Operand, list[Operand]]:
    """Move a dimension of more than one element to the front, for threads to share; split the last one if need be."""
    outer = next((i for i in range(DIMENSIONS - 1) if sizes[i] > 1 and to.strides[i]), None)
    if outer is None:
        size = sizes[-1]
        factor = next((n for n in (16, 8, 4, 2) if size % n == 0 and to.strides[-1]), None)
        if factor is None or sizes[0] > 1:
            return sizes, to, operands
        sizes = (factor, *sizes[1:-1], size // factor)

        def reordered(operand: Operand) -> Operand:
            strides = operand.strides
            return operand._replace(strides=(strides[-1] * (size // factor), *strides[1:]))

    else:
        order = [outer, *(i for i in range(DIMENSIONS) if i != outer)]
        sizes = tuple(sizes[i] for i in order)

        def reordered(operand: Operand) -> Operand:
            return operand._replace(strides=tuple(operand.strides[i] for i in order))

    return sizes, reordered(to), [reordered(operand) for operand in operands]
