"""Arrays in memory as far as it is given, and beyond that in files."""

import tempfile
import weakref

import numpy as np
import numpy.typing as npt


class Room:
    """Gives arrays; what goes beyond a limit lies in temporary files, which the system writes out and reads back.

    Args:
        limit: bytes held in memory at once; None for no limit.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit, self.held = limit, 0

    def empty(self, size: int, dtype: npt.DTypeLike) -> np.ndarray:
        """An array ``(size,)`` with nothing in it yet."""
        needed = size * np.dtype(dtype).itemsize
        if self.limit is not None and size and self.held + needed > self.limit:
            with tempfile.TemporaryFile() as file:  # gone from its folder at once, from the disk with its last reader
                return np.memmap(file, dtype=dtype, mode="w+", shape=(size,))
        found = np.empty(size, dtype=dtype)
        self.held += needed
        weakref.finalize(found, self.release, needed)
        return found

    def release(self, size: int) -> None:
        """What was held is free again."""
        self.held -= size
