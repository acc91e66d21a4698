"""A table of what is confused: true labels in rows, predicted labels in columns."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..evaluation.error_analysis import ConfusionCounts
from .wording import cut

MAX_NAME, MAX_LEVEL = 24, 3  # characters of a label, and of one that is not turned above a column
STRONGEST = 60
"""Per cent of the colour in the cell of a label that is always confused; ink can be read on it in both themes."""


class ConfusionCell(NamedTuple):
    """A count, and its colour in per cent: None for right predictions, 0 where nothing is confused."""

    number: int
    strength: int | None


@dataclass(frozen=True)
class Confusion:
    """Counts of true and predicted labels as a table, in which errors are coloured by their share of the true label."""

    title: str
    counts: ConfusionCounts

    @property
    def labels(self) -> Sequence[str]:
        """The labels, cut if they are long."""
        return [cut(label, MAX_NAME) or "(no name)" for label in self.counts.labels]

    @property
    def has_long_labels(self) -> bool:
        """Whether the headings of columns are turned."""
        return any(len(label) > MAX_LEVEL for label in self.labels)

    @property
    def has_others(self) -> bool:
        """Whether labels are left out, so that rows and columns have counts of others."""
        return len(self.counts.labels) < self.counts.all_labels

    @property
    def rows(self) -> list[tuple[list[ConfusionCell], int]]:
        """The cells of each true label, and how often other labels were predicted for it."""
        found = []
        for i, (row, total) in enumerate(zip(self.counts.matrix, self.counts.true, strict=True)):
            strengths = [math.ceil(STRONGEST * math.sqrt(count / max(1, total))) for count in row]
            cells = [ConfusionCell(count, None if i == j else strengths[j]) for j, count in enumerate(row)]
            found.append((cells, total - sum(row)))
        return found

    @property
    def of_others(self) -> list[int]:
        """How often each label was predicted for labels that are left out."""
        columns = zip(*self.counts.matrix, strict=True)
        return [given - sum(column) for given, column in zip(self.counts.predicted, columns, strict=True)]
