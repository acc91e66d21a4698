"""Processor cores and memory for counting n-grams: parallel maps and arrays that may lie in temporary files."""

import tempfile
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

Part = TypeVar("Part")
Result = TypeVar("Result")


def map_in_order(
    function: Callable[[Part], Result], parts: Iterable[Part], threads: int | None = None
) -> Iterator[Result]:
    """Yield ``function(part)`` for each part, in order, computed by threads that hold one result each.

    Threads suffice because NumPy releases the interpreter lock while it computes. None means as many as PyTorch has.
    """
    threads = threads or torch.get_num_threads()
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[Result]] = deque()
        for part in parts:
            waiting.append(pool.submit(function, part))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def run_for_all(function: Callable[[Part], None], parts: Iterable[Part]) -> None:
    """Call ``function(part)`` for each part, in parallel."""
    for _ in map_in_order(function, parts):
        pass


class ArrayAllocator:
    """Allocates arrays in memory up to a limit in bytes, None for no limit, and beyond it in temporary files."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit, self.allocated = limit, 0

    def empty(self, size: int, dtype: npt.DTypeLike) -> np.ndarray:
        """Return an uninitialized array ``(size,)``."""
        needed = size * np.dtype(dtype).itemsize
        if self.limit is not None and size and self.allocated + needed > self.limit:
            with tempfile.TemporaryFile() as file:  # has no name in its folder; the disk space is freed with the array
                return np.memmap(file, dtype=dtype, mode="w+", shape=(size,))
        array = np.empty(size, dtype=dtype)
        self.allocated += needed
        weakref.finalize(array, self.release, needed)
        return array

    def release(self, size: int) -> None:
        """Count ``size`` bytes as free again."""
        self.allocated -= size
