"""Reasons why a step cannot be compiled: what the user called, and where."""

import linecache
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
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
        """The text of the line; empty if the file cannot be read."""
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        path = Path(self.file)
        return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{self.line}"


class Reason(NamedTuple):
    """Why a step cannot be compiled: in words, at which line if it is known, and whether its equations cause it."""

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
    lines = (Location(frame.f_code.co_filename, line) for frame, line in traceback.walk_stack(sys._getframe()))
    return next((line for line in lines if not line.file.startswith(INTERNAL)), None)


def raising_line(error: BaseException) -> Location | None:
    """Return the innermost line of the user's code in the traceback of an exception."""
    lines = [Location(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    return next((line for line in reversed(lines) if not line.file.startswith(INTERNAL)), None)


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
    return f"Tensor.{name}" if hasattr(Tensor, name) else f"torch.{name}"
