"""The instructions of a step program, as `cpp/step_machine.h` runs them."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from .primitives import PRIMITIVES

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
