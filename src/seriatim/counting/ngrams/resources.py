"""Processor cores and memory for counting n-grams: parallel maps and arrays that may lie in temporary files."""

import os
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import IO, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from ...processes.executors import ThreadExecutor

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_in_order(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int | None = None
) -> Iterator[Result]:
    """Yield ``function(item)`` for each item, in order, computed by threads that hold one result each.

    Threads suffice because NumPy releases the interpreter lock while it computes. None means as many as PyTorch has.
    """
    threads = threads or torch.get_num_threads()
    with ThreadExecutor(threads) as pool:
        pool.ahead = threads
        yield from pool.map_in_order(function, items)


def run_for_all(function: Callable[[Item], None], items: Iterable[Item]) -> None:
    """Call ``function(item)`` for each item, in parallel."""
    for _ in map_in_order(function, items):
        pass


class ArrayAllocator:
    """Allocates arrays in memory up to a limit in bytes, None for no limit, and beyond it in temporary files."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit, self.allocated = limit, 0

    def empty(self, size: int, dtype: npt.DTypeLike) -> np.ndarray:
        """Return an uninitialized array ``(size,)``."""
        needed = size * np.dtype(dtype).itemsize
        if self.is_full(needed):
            with tempfile.TemporaryFile() as file:  # has no name in its folder; the disk space is freed with the array
                reserve(file, 0, needed)
                return np.memmap(file, dtype=dtype, mode="w+", shape=(size,))
        array = np.empty(size, dtype=dtype)
        self.allocated += needed
        weakref.finalize(array, self.release, needed)
        return array

    def is_full(self, size: int) -> bool:
        """Return whether there is too little memory for so many bytes."""
        return self.limit is not None and size > 0 and self.allocated + size > self.limit

    def release(self, size: int) -> None:
        """Count ``size`` bytes as free again."""
        self.allocated -= size


class AppendedArray:
    """An array to which values are appended, up to a size; what is not appended takes no space."""

    def __init__(self, arrays: ArrayAllocator, size: int, dtype: npt.DTypeLike) -> None:
        self.end, self.file = 0, None
        if arrays.is_full(size * np.dtype(dtype).itemsize):
            self.file = tempfile.TemporaryFile()  # noqa: SIM115
            weakref.finalize(self, self.file.close)
            self.array: np.ndarray = np.memmap(self.file, dtype=dtype, mode="w+", shape=(size,))
        else:
            self.array = arrays.empty(size, dtype)

    def append(self, values: np.ndarray) -> None:
        """Append values.

        Raises:
            OSError: the disk is full.
        """
        begin, self.end = self.end, self.end + len(values)
        if self.file is not None and len(values):
            size = self.array.itemsize
            reserve(self.file, begin * size, len(values) * size)
        self.array[begin : self.end] = values

    def finish(self) -> np.ndarray:
        """Return what was appended."""
        if self.file is not None:
            self.file.close()
        return self.array[: self.end]


def reserve(file: IO[bytes], begin: int, size: int) -> None:
    """Reserve the space for a range of a temporary file: writing to a mapped file on a full disk ends the process.

    Raises:
        OSError: the disk is full.
    """
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(file.fileno(), begin, size)
    except OSError as error:
        raise OSError(error.errno, error.strerror, f"{tempfile.gettempdir()} (TMPDIR)") from None
