"""The share of every batch that one of several ranks computes."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Share:
    """Part ``index`` of ``count`` consecutive parts of nearly equal size."""

    index: int
    count: int

    def slice(self, size: int) -> slice:
        """Return which of ``size`` rows are in the part: none where there are fewer rows than parts."""
        each, more = divmod(size, self.count)
        start = self.index * each + min(self.index, more)
        return slice(start, start + each + (self.index < more))

    def is_idle(self, rows: np.ndarray) -> bool:
        """Return whether no row of a batch is in the part."""
        return len(rows) <= self.index

    def of(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows of the part; the first row if there are none, because every rank computes something."""
        return rows[:1] if self.is_idle(rows) else rows[self.slice(len(rows))]


WHOLE = Share(0, 1)
"""All rows."""
