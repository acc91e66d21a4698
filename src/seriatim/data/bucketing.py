"""Sequences of like length side by side, in an order that is a function of seed and epoch alone."""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import numpy as np

POOL = 8
"""Batches' worth of shuffled sequences that are sorted by length together: larger pads less and mixes worse."""
MOST_TOKENS = 1 << 16
"""Tokens of a batch at most, padding included, so that a few long documents do not fill the memory."""

Batch = TypeVar("Batch")


def sorted_groups(lengths: np.ndarray, rows: np.ndarray, batch_size: int) -> list[np.ndarray]:
    """Rows sorted by length and cut into batches."""
    ordered = rows[np.argsort(lengths[rows], kind="stable")]
    return [ordered[i : i + batch_size] for i in range(0, len(ordered), batch_size)]


def shuffled_groups(lengths: np.ndarray, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Rows shuffled, then put beside others of about their length; the batches are shuffled too."""
    generator = np.random.default_rng([seed, epoch])
    order = generator.permutation(len(lengths))
    pool = batch_size * POOL
    pools = (order[i : i + pool] for i in range(0, len(order), pool))
    groups = [group for rows in pools for group in sorted_groups(lengths, rows, batch_size)]
    return [groups[i] for i in generator.permutation(len(groups))]


class Buckets(Generic[Batch]):
    """Whole sequences in batches.

    Args:
        lengths: tokens of each sequence ``(items,)``.
        batch_size: sequences side by side, fewer where they are long.
        make: a batch of these rows.
        most_tokens: of a batch, padding included.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        batch_size: int,
        make: Callable[[np.ndarray], Batch],
        *,
        most_tokens: int = MOST_TOKENS,
    ) -> None:
        self.lengths, self.batch_size, self.make, self.most_tokens = lengths, batch_size, make, most_tokens

    def shuffled(self, seed: int, epoch: int) -> list[np.ndarray]:
        """Groups of rows for training."""
        return self._bounded(shuffled_groups(self.lengths, self.batch_size, seed, epoch))

    def in_order(self) -> list[np.ndarray]:
        """Groups of rows for evaluation, from the shortest to the longest."""
        return self._bounded(sorted_groups(self.lengths, np.arange(len(self.lengths)), self.batch_size))

    def windows(self, groups: list[np.ndarray]) -> int:
        """How many batches the groups make."""
        return len(groups)

    def read(self, groups: list[np.ndarray], *, skip: int = 0) -> Iterator[Batch]:
        """Makes one batch after another, the first ``skip`` left out."""
        return (self.make(rows) for rows in groups[skip:])

    def _bounded(self, groups: list[np.ndarray]) -> list[np.ndarray]:
        """Cuts groups that hold more than ``most_tokens``."""
        found = []
        for rows in groups:
            most = max(1, self.most_tokens // max(1, int(self.lengths[rows].max())))
            found += [rows[i : i + most] for i in range(0, len(rows), most)]
        return found


def padded(ids: np.ndarray, starts: np.ndarray, lengths: np.ndarray, *, time: int | None = None) -> np.ndarray:
    """Sequences of one flat array as rows ``(rows, time)``, int64, zero behind their ends."""
    time = max(1, int(lengths.max(initial=0))) if time is None else time
    position = np.arange(time)
    index = (starts[:, None] + position).clip(max=max(0, len(ids) - 1))
    found = ids[index].astype(np.int64) if len(ids) else np.zeros((len(starts), time), np.int64)
    found[position >= lengths[:, None]] = 0
    return found
