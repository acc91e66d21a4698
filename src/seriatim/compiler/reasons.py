"""Reasons why a step cannot be compiled: what the user called, and where."""

import linecache
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

PACKAGE = Path(__file__).parents[1]
INTERNAL = tuple(f"{folder}/" for folder in (Path(torch.__file__).parent, PACKAGE / "compiler", PACKAGE / "recurrence"))
"""Files in these folders are not the user's code."""
SIGNS = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "matmul": "@", "pow": "**", "mod": "%", "invert": "~"}
SIGNS |= {"and": "&", "or": "|", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "neg": "-"}
SPECIAL = {"getitem": "indexing", "setitem": "an assignment to elements", "len": "len", "bool": "a condition"}


class Location(NamedTuple):
    """A line of source code."""

    file: str
    line: int

    @property
    def source(self) -> str:
        """The text of the line, empty if the file cannot be read."""
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        path = Path(self.file)
        return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{self.line}"


class Reason(NamedTuple):
    """One reason why a step cannot be compiled.

    Attributes:
        problem: the problem, in the user's words.
        location: the line that causes it, if it is known.
        about_step: whether the equations of the step cause it.
    """

    problem: str
    location: Location | None = None
    about_step: bool = True

    def __str__(self) -> str:
        return self.problem if self.location is None else f"{self.location}: {self.problem}"


class UnsupportedError(Exception):
    """A step cannot be compiled, for one or more reasons."""

    def __init__(self, reasons: Sequence[Reason]) -> None:
        super().__init__("; ".join(map(str, reasons)))
        self.reasons = tuple(dict.fromkeys(reasons))


def calling_line() -> Location | None:
    """Return the innermost line of the user's code that is being executed."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(INTERNAL):
            return Location(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None


def raising_line(error: BaseException) -> Location | None:
    """Return the innermost line of the user's code in the traceback of an exception."""
    lines = [Location(part.tb_frame.f_code.co_filename, part.tb_lineno) for part in _traceback(error.__traceback__)]
    return next((line for line in reversed(lines) if not line.file.startswith(INTERNAL)), None)


def _traceback(part: TracebackType | None) -> Iterator[TracebackType]:
    while part is not None:
        yield part
        part = part.tb_next


def function_name(function: Callable[..., object]) -> str:
    """Return the name by which users call a function of PyTorch, such as ``torch.einsum``."""
    name = str(getattr(function, "__name__", type(function).__name__))
    if name == "__get__":  # a property, such as Tensor.T
        name = str(getattr(getattr(function, "__self__", None), "__name__", name))
    if name.startswith("__") and name.endswith("__"):
        base = name.strip("_")
        for sign in (base, base[1:]):  # __rmatmul__ and __imatmul__ are the operator @, too
            if sign in SIGNS:
                return f"the operator {SIGNS[sign]}"
        return SPECIAL.get(base, f"Tensor.{name}")
    for prefix, home in (("torch", torch), ("torch.nn.functional", F), ("Tensor", Tensor)):
        if getattr(home, name, None) is function:
            return f"{prefix}.{name}"
    return f"torch.{name}" if not hasattr(Tensor, name) else f"Tensor.{name}"
