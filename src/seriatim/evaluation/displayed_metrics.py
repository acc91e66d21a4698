"""How metrics are displayed: their names, their digits, and which values are better."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from .intervals import supported_digits, written

Figures: TypeAlias = Mapping[str, Any]
"""Metrics by name, each with its interval as ``NAME_low`` and ``NAME_high``, if it has one."""


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
