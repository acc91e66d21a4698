"""A model is built no larger than its file, whatever sizes the configuration beside it asks for."""

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..core.errors import InputError

CONSTRUCTORS = {torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.arange}
METHODS = {torch.Tensor.new_empty, torch.Tensor.new_zeros, torch.Tensor.new_ones, torch.Tensor.new_full}
TIMES, SPARE = 4, 1 << 20
"""How much more may be asked for: tied parameters are made twice, and some values come and go."""
CALLS, BYTES = 1 << 17, 256
"""Calls of PyTorch while one model is built: some hundred a layer; and bytes of a file that let it make one more."""


class TooLargeError(Exception):
    """More was asked for than there may be: ``values`` in all, as far as they were counted."""

    def __init__(self, values: int) -> None:
        super().__init__(f"{values:,} values")
        self.values = values


class bounded(TorchFunctionMode):  # noqa: N801 (a context manager, used like a function)
    """Counts the values of new tensors before they are made.

    Args:
        values: that may be made.
        calls: of PyTorch that may be made.

    Raises:
        TooLargeError: more are asked for.
    """

    def __init__(self, values: int, *, calls: int) -> None:
        super().__init__()
        self.values, self.left, self.calls = values, values, calls

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls -= 1
        if func in CONSTRUCTORS:
            self.left -= _asked(func, args, kwargs or {})
        elif func in METHODS:
            self.left -= _asked(func, args[1:], kwargs or {})
        if self.left < 0 or self.calls < 0:
            raise TooLargeError(self.values - self.left)
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def no_larger_than(*files: Path) -> Iterator[None]:
    """Within it a model is built whose values, of four bytes each, the largest of some files holds.

    Raises:
        InputError: it is larger, or cannot be built.
    """
    size = max((file.stat().st_size for file in files if file.is_file()), default=0)
    try:
        with bounded(TIMES * size // 4 + SPARE, calls=CALLS + size // BYTES):
            yield
    except (TooLargeError, RuntimeError, OverflowError, MemoryError, ZeroDivisionError):
        raise InputError(
            f"{files[0]}: not the weights of the model that config.yaml describes, which is larger or none at all; "
            "restore the run's own files"
        ) from None


def _asked(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """How many values a constructor makes."""
    if func is torch.arange:
        return int(max(args, key=abs, default=0))
    sizes = kwargs.get("size", args[:1] if func in (torch.full, torch.Tensor.new_full) else args)
    while len(sizes) == 1 and not isinstance(sizes[0], int):
        sizes = sizes[0]
    return math.prod(sizes)
