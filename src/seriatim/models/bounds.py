"""Refuses to build a model that is larger than its file, whatever sizes the configuration beside it names."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
from torch.overrides import TorchFunctionMode

from ..core.errors import MismatchError
from ..recurrence.deferred_gradients import Arguments

CONSTRUCTORS = {torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.arange}
METHODS = {torch.Tensor.new_empty, torch.Tensor.new_zeros, torch.Tensor.new_ones, torch.Tensor.new_full}
FACTOR, SPARE = 4, 1 << 20
"""Tolerance: tied parameters are created twice, and some tensors are temporary."""
CALLS, BYTES_PER_CALL = 1 << 17, 256
"""Calls of PyTorch while one model is built (about a hundred per layer), and bytes of the file that allow one more."""


class TooLargeError(Exception):
    """A model is too large: it has at least ``values`` values."""

    def __init__(self, values: int) -> None:
        super().__init__(f"{values:,} values")
        self.values = values


class bounded(TorchFunctionMode):  # noqa: N801 (a context manager, used like a function)
    """Raises TooLargeError before more than so many values of tensors are created, or more calls of PyTorch made."""

    def __init__(self, values: int, *, calls: int) -> None:
        super().__init__()
        self.values, self.left, self.calls = values, values, calls

    def __torch_function__(
        self, func: Callable[..., object], types: Iterable[type], args: Arguments = (), kwargs: Arguments = None
    ) -> object:
        self.calls -= 1
        if func in CONSTRUCTORS:
            self.left -= _num_values(func, args, kwargs or {})
        elif func in METHODS:
            self.left -= _num_values(func, args[1:], kwargs or {})
        if self.left < 0 or self.calls < 0:
            raise TooLargeError(self.values - self.left)
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def no_larger_than(*files: Path) -> Iterator[None]:
    """Within this context a model may have as many values of four bytes as the largest of some files holds.

    Raises:
        InputError: the model is larger, or cannot be built.
    """
    size = max((file.stat().st_size for file in files if file.is_file()), default=0)
    try:
        with bounded(FACTOR * size // 4 + SPARE, calls=CALLS + size // BYTES_PER_CALL):
            yield
    except (TooLargeError, RuntimeError, OverflowError, MemoryError, ZeroDivisionError):
        raise MismatchError(
            f"{files[0]}: config.yaml describes a larger model than these weights, or one that cannot be built; "
            "restore both files of the run"
        ) from None


def _num_values(func: Callable[..., object], args: Arguments, kwargs: Arguments) -> int:
    """Return how many values a constructor creates."""
    if func is torch.arange:
        return int(max(args, key=abs, default=0))
    sizes = kwargs.get("size", args[:1] if func in (torch.full, torch.Tensor.new_full) else args)
    while len(sizes) == 1 and not isinstance(sizes[0], int):
        sizes = sizes[0]
    return math.prod(sizes)
