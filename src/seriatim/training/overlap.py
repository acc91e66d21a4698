"""Held-out data that the training data contain, too: figures on them say little about new data."""

import warnings
from typing import Protocol, runtime_checkable

import numpy as np

from ..data.holding_out import share_of
from ..data.repairs import DataWarning
from .task import AnyTask


@runtime_checkable
class DataOfRows(Protocol):
    """Data whose rows (a text with its label, a sentence with its tags, a pair, a line) can be compared."""

    def row_digests(self) -> np.ndarray | None:
        """Return a number for each row ``(rows,)``, equal for equal rows of one process; None if there are no rows."""


def warn_of_overlap(task: AnyTask, train: object, valid: object) -> None:
    """Warn if rows of the held-out data, with their answers, are rows of the training data.

    Nothing is said of built-in corpora, which have parts of their own, of a part of the training data, which has no row
    of the rest, and of data without rows.
    """
    spec = task.validation_spec() or ""
    if spec.startswith("builtin:") or share_of(spec):
        return
    if not isinstance(train, DataOfRows) or not isinstance(valid, DataOfRows):
        return
    known, held_out = train.row_digests(), valid.row_digests()
    if known is None or held_out is None or not len(held_out):
        return
    count = int(np.isin(held_out, known).sum())
    if count:
        share = f"{count:,} of the {len(held_out):,} held-out {task.items_name} ({count / len(held_out):.1%})"
        advice = "figures on them say little about new data; remove them from one of the files"
        warnings.warn(f"{spec}: {share} are in the training data, too; {advice}", DataWarning, stacklevel=2)
