"""Reasons why a step cannot be compiled: what the user called, and where."""

import linecache
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from .contractions import rewritten

PACKAGE = Path(__file__).parents[1]
INTERNAL = (f"{Path(torch.__file__).parent}/", f"{PACKAGE}/compiler/", f"{PACKAGE}/recurrence/")
"""Files in these folders are not the user's code."""
SIGNS = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "matmul": "@", "pow": "**", "mod": "%", "invert": "~"}
SIGNS |= {"and": "&", "or": "|", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "neg": "-"}
OUTSIDE = {
    "numpy": "as a NumPy array",
    "__array__": "as a NumPy array",
    "tolist": "as a list",
    "data_ptr": "by its address",
}
OUTSIDE |= {"__dlpack__": "through DLPack"}
"""Methods that read the memory of a tensor, and how. While a step is traced, its tensors have none."""
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


class CallSite(NamedTuple):
    """What the step called to compute a value: the function, and the line of code if it is known."""

    function: str
    location: Location | None

    def reason(self, problem: str) -> Reason:
        """Return a problem with this call as a reason."""
        return Reason(f"{self.function} {problem}", self.location)


FallbackReasons = tuple[Reason, ...]
"""The reasons why there is no compiled code."""


class UnsupportedError(Exception):
    """A step cannot be compiled, for one or more reasons."""

    def __init__(self, reasons: Sequence[Reason]) -> None:
        super().__init__("; ".join(map(str, reasons)))
        self.reasons = tuple(dict.fromkeys(reasons))


def raising_line(error: BaseException) -> Location | None:
    """Return the innermost line of the user's code in the traceback of an exception."""
    return _line_of_user(reversed(list(traceback.walk_tb(error.__traceback__))))


def _line_of_user(frames: Iterable[tuple[FrameType, int]]) -> Location | None:
    """Return the first of some lines that is in the user's code."""
    lines = (Location(frame.f_code.co_filename, line) for frame, line in frames)
    return next((line for line in lines if not line.file.startswith(INTERNAL)), None)


class CallsInStep(TorchFunctionMode):
    """Notes which function of PyTorch the step calls, so that reasons name it rather than its operators."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.batch = batch
        self.function: str | None = None
        self.location: Location | None = None
        self.arguments: set[int] = set()
        """The ids of the tensors that the step is given and must not change."""
        self.in_place: list[Reason] = []
        self.untraced: list[Reason] = []

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Iterable[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        self.function, self.location = _function_name(func), _line_of_user(traceback.walk_stack(sys._getframe()))
        name = str(getattr(func, "__name__", ""))
        if name == "_set_grad_enabled":
            if args and not args[0]:
                self.untraced.append(Reason("torch.no_grad changes the gradients", self.location))
        elif name in OUTSIDE and args and isinstance(args[0], Tensor):
            raise NotImplementedError(f"{self.function} reads a tensor {OUTSIDE[name]}")
        elif args and id(args[0]) in self.arguments and _is_in_place(name):
            problem = f"{self.function} changes the inputs, the state or a parameter in place"
            self.in_place.append(Reason(problem, self.location))
        try:
            product = rewritten(func, args, kwargs or {}, self.batch)
            return func(*args, **(kwargs or {})) if product is None else product
        finally:
            self.function = self.location = None


def _is_in_place(name: str) -> bool:
    if name.startswith("__"):
        return name == "__setitem__" or (name.startswith("__i") and name != "__invert__")
    return name.endswith("_")


def _function_name(function: Callable[..., object]) -> str:
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
