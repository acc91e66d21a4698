"""The interfaces of the data that tasks read, and how metrics are displayed."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np

from ..evaluation.intervals import supported_digits, written
from ..processes.shares import Share

Figures: TypeAlias = Mapping[str, Any]
"""Metrics by name, each with its interval as ``NAME_low`` and ``NAME_high``, if it has one."""


class TaskBatch(Protocol):
    """A batch of sequences, or one window of them."""

    @property
    def rows(self) -> np.ndarray:
        """Indices of the sequences in the data, from 0 ``(batch,)``; for a running text, the indices of its parts."""

    @property
    def fresh(self) -> bool:
        """Whether the sequences begin in this batch, so that no state is carried into it."""

    @property
    def tokens(self) -> int:
        """Number of tokens read, from which the speed is computed."""

    @property
    def terms(self) -> int:
        """Number of terms that the loss sums over, for example tokens or documents."""


Batch = TypeVar("Batch", bound=TaskBatch, covariant=True)


class TaskBatches(Protocol[Batch]):
    """The batches of a data set, in an order that depends only on the seed and the epoch."""

    def shuffled(self, seed: int, epoch: int) -> Sequence[np.ndarray]:
        """Return groups of rows in the order in which an epoch reads them."""

    def windows(self, groups: Sequence[np.ndarray]) -> int:
        """Return the number of batches that the groups make."""

    def read(self, groups: Sequence[np.ndarray], *, skip: int = 0) -> Iterator[Batch]:
        """Yield the batches, without the first ``skip``."""

    def read_share(self, groups: Sequence[np.ndarray], share: Share, *, skip: int = 0) -> Iterator["Batch | TaskBatch"]:
        """Yield the part of each batch that one of several ranks computes, without the first ``skip``.

        All ranks have equally many batches: if a part is empty, it is an `IdleBatch`.
        """


class TaskData(Protocol):
    """Data that a task has read."""

    @property
    def key(self) -> str:
        """An identifier that is equal for equal data read in the same way, and only then."""


class Metric(NamedTuple):
    """A metric and how it is displayed: its ``digits`` after the decimal point, and which values are better.

    Fewer digits are shown of a value whose interval is too wide for them; see `supported_digits`. ``headline`` metrics
    are shown after every validation. ``ceiling`` is the largest possible value where larger ones are better.
    """

    key: str
    name: str
    digits: int
    headline: bool = False
    more_is_better: bool = False
    ceiling: float = 1.0

    def best(self, values: Iterable[float]) -> float:
        """Return the best of some values."""
        return max(values) if self.more_is_better else min(values)

    def written(self, value: float, bounds: tuple[float, float] | None = None) -> str:
        """Return a value as a table shows it, with the digits that its interval ``bounds`` supports."""
        return written(value, self.digits if bounds is None else supported_digits(*bounds, self.digits))

    def bounds(self, metrics: Figures) -> tuple[float, float] | None:
        """Return the confidence interval; None if the metrics have none, or an empty one, which says nothing."""
        low, high = metrics.get(f"{self.key}_low"), metrics.get(f"{self.key}_high")
        return None if low is None or high is None or low == high else (low, high)

    def text(self, metrics: Figures, beside: Figures | None = None) -> str:
        """Return the value among some metrics as a table shows it.

        A value without an interval has the digits of the value ``beside`` it.
        """
        return self.written(metrics[self.key], self.bounds(metrics) or self.bounds(beside or {}))

    def interval(self, metrics: Figures) -> str:
        """Return the confidence interval in words, or an empty string if the metrics have none."""
        bounds = self.bounds(metrics)
        return "" if bounds is None else " to ".join(self.written(bound, bounds) for bound in bounds)


class MetricsTable(NamedTuple):
    """Metrics that are shown in a table of their own: headings, rows of cells, and a note below the table."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
