"""Rows in shuffled groups of similar length, which are computed when they are read: there may be many millions."""

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np

POOL = 8  # the number of groups whose shuffled rows are sorted by length together: more pads less but mixes worse
POOLS_TOGETHER = 1 << 12  # the number of pools whose longest rows are computed together


class ShuffledGroups(Sequence[np.ndarray]):
    """Groups of shuffled rows; a function of the arguments only.

    Args:
        lengths: the length of each row ``(rows,)``.
        size: the number of rows of a group.
        seed: with ``epoch``, decides the order.
        epoch: see ``seed``.
    """

    def __init__(self, lengths: np.ndarray, size: int, seed: int, epoch: int) -> None:
        self.lengths, self.size = lengths, size
        generator = np.random.default_rng([seed, epoch])
        self.order = _shuffled(generator, len(lengths))
        self.places = _shuffled(generator, -(-len(lengths) // size))

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, index: int) -> np.ndarray: ...

    @overload
    def __getitem__(self, index: slice) -> list[np.ndarray]: ...

    def __getitem__(self, index: int | slice) -> np.ndarray | list[np.ndarray]:
        """Return the rows of a group ``(rows,)``, int64, from the shortest to the longest."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        pool, place = divmod(int(self.places[index]), POOL)
        rows = self.order[pool * POOL * self.size : (pool + 1) * POOL * self.size]
        by_length = np.argsort(self.lengths[rows], kind="stable")
        return rows[by_length[place * self.size : (place + 1) * self.size]].astype(np.int64)

    def longest(self) -> Iterator[np.ndarray]:
        """Iterate over the lengths of the longest rows of the groups ``(groups,)``, many at a time, in any order."""
        step = POOL * self.size
        whole = len(self.order) // step
        for start in range(0, whole, POOLS_TOGETHER):
            rows = self.order[start * step : min(whole, start + POOLS_TOGETHER) * step]
            lengths = np.sort(self.lengths[rows].reshape(-1, step), axis=1)
            yield lengths[:, self.size - 1 :: self.size].ravel()
        lengths = np.sort(self.lengths[self.order[whole * step :]])
        yield lengths[self.size - 1 :: self.size]
        if len(lengths) % self.size:
            yield lengths[-1:]


def _shuffled(generator: np.random.Generator, count: int) -> np.ndarray:
    """Return ``generator.permutation(count)`` in less memory."""
    order = np.arange(count, dtype=np.int32 if count < 1 << 31 else np.int64)
    generator.shuffle(order)
    return order
