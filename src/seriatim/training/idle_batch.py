"""Batches of a rank that has no sequence of its own in a group of few sequences.

Every rank takes part in every step, because gradients are added up by all. An idle rank computes the first sequence of
the group, and its loss does not count.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..distributed.shares import Share
from .task_data import TaskBatch, TaskBatches


@dataclass(frozen=True)
class IdleBatch:
    """A batch that is computed without effect."""

    batch: TaskBatch
    tokens: int = 0
    terms: int = 0

    @property
    def rows(self) -> np.ndarray:
        """Indices of the sequences; see `TaskBatch.rows`."""
        return self.batch.rows

    @property
    def fresh(self) -> bool:
        """Whether the sequences begin in this batch."""
        return self.batch.fresh


def read_share(
    batches: TaskBatches[TaskBatch], groups: Sequence[np.ndarray], *, skip: int, share: Share
) -> Iterator[TaskBatch]:
    """Yield the share of each batch, without the first ``skip``; an `IdleBatch` where the share has no sequence."""
    read = batches.read(groups, skip=skip, share=share)
    if share.index == 0:  # the first share of a group is never empty
        yield from read
        return
    is_idle = (share.is_idle(group) for group in groups for _ in range(batches.windows([group])))
    for batch, idle in zip(read, itertools.islice(is_idle, skip, None), strict=True):
        yield IdleBatch(batch) if idle else batch
