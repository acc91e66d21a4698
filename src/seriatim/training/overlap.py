"""Held-out data that the training data contain, too: figures on them say little about new data."""

import warnings
from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import numpy as np

from ..data.corpus import Corpus
from ..data.repairs import DataWarning
from ..data.split import share_of
from ..tasks.task import Task

SHARE = 0.05
"""Share of the long lines of a running text from which on an overlap is reported."""


@runtime_checkable
class DataOfRows(Protocol):
    """Data whose rows (a text, a sentence, a pair, a line) can be compared."""

    def row_digests(self) -> np.ndarray | None:
        """Return a number for each row ``(rows,)``, equal for equal rows of one process; None if there are no rows."""


@runtime_checkable
class DataOfManyRows(Protocol):
    """Data that need not fit in memory, whose rows are compared block by block."""

    def row_digest_blocks(self) -> Iterator[np.ndarray]:
        """Iterate over the numbers of `DataOfRows.row_digests`, many at a time."""


def _blocks(data: DataOfRows) -> Iterator[np.ndarray]:
    if isinstance(data, DataOfManyRows):
        yield from data.row_digest_blocks()
    elif (digests := data.row_digests()) is not None:
        yield digests


def warn_of_overlap(task: Task, train: object, valid: object) -> None:
    """Warn if rows of the held-out data, whatever their labels, are rows of the training data.

    Running text, which may repeat a line, needs a share of `SHARE` of its long lines.

    Nothing is said of built-in corpora, which have parts of their own, of a part of the training data, which has no row
    of the rest, and of data without rows.
    """
    spec = task.files.validation_source() or ""
    if spec.startswith("builtin:") or share_of(spec):
        return
    if not isinstance(train, DataOfRows) or not isinstance(valid, DataOfRows):
        return

    # The training data may not fit in memory: its rows are looked up block by block among the held-out ones.
    held_out = valid.row_digests()
    if held_out is None or not len(held_out):
        return
    distinct, places = np.unique(held_out, return_inverse=True)
    seen = np.zeros(len(distinct), dtype=bool)
    for known in _blocks(train):
        seen |= np.isin(distinct, known)
    count = int(seen[places].sum())

    # A running text repeats a line now and then, which says nothing.
    running_text = isinstance(valid, Corpus) and valid.ends is None
    if count and (not running_text or count >= SHARE * len(held_out)):
        share = f"{count:,} of the {len(held_out):,} held-out {task.kind.items_name} ({count / len(held_out):.1%})"
        advice = "figures on them say little about new data; remove them from one of the files"
        warnings.warn(f"{spec}: {share} are in the training data, too; {advice}", DataWarning, stacklevel=2)
