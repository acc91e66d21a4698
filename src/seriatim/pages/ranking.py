"""The chart of a comparison: a row for each model, with a dot, its interval, and small bars of what it costs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Bar(NamedTuple):
    """A cost of a model: how it is written, its value, and ends of a range ``(low, high)`` where there is one.

    Without a value only the text is shown.
    """

    text: str
    value: float | None = None
    ends: Sequence[float] = ()


class RankedRow(NamedTuple):
    """A row: a name that leads to an address, a note, the value with its interval, costs, and a rank.

    A row whose ``value`` is None shows its note in place of the dot. ``colour`` is a CSS variable such as ``c1``.
    """

    name: str
    value: float | None
    text: str = ""
    interval: Sequence[float] | None = None
    bars: Sequence[Bar] = ()
    rank: int | None = None
    note: str = ""
    colour: str = "ink"
    address: str = ""


@dataclass(frozen=True)
class Ranking:
    """Rows, best first, on one axis; rows that share a rank are joined by a bracket.

    ``level`` is a value that is drawn through all rows, with its name, such as the baseline.
    """

    axis: str
    rows: Sequence[RankedRow]
    costs: Sequence[str] = ()
    is_log: bool = False
    level: tuple[str, float] | None = None
    caption: str = ""

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of the axis: those of all values and intervals, with a margin."""
        known = [x for row in self.rows if row.value is not None for x in (row.value, *(row.interval or ()))]
        known += [self.level[1]] if self.level else []
        places = [self._scaled(x) for x in known if math.isfinite(x)]
        low, high = min(places, default=0.0), max(places, default=1.0)
        margin = 0.04 * (high - low) or 0.5 * max(1.0, abs(high))
        return low - margin, high + margin

    def percent(self, value: float) -> float:
        """Return the position of a value on the axis, in percent of its width."""
        low, high = self.ends
        return round(100 * (self._scaled(value) - low) / (high - low), 2)

    def _scaled(self, value: float) -> float:
        return math.log(value) if self.is_log else value

    @property
    def largest(self) -> list[float]:
        """The largest value of each cost, which has the whole width of a bar."""
        columns = zip(*(row.bars for row in self.rows if row.bars), strict=True)
        return [max((max([bar.value or 0.0, *bar.ends]) for bar in column), default=0.0) for column in columns]

    @property
    def longest(self) -> int:
        """The number of characters of the longest value, which makes the axes of all rows equally wide."""
        return max((len(row.text) for row in self.rows), default=0)

    @property
    def brackets(self) -> list[str]:
        """For each row ``first``, ``middle`` or ``last`` of neighbours of one rank; empty if it is alone."""
        ranks = [row.rank for row in self.rows]
        before = [rank is not None and rank == other for rank, other in zip(ranks, [None, *ranks], strict=False)]
        after = [*before[1:], False]
        names = {(False, True): "first", (True, True): "middle", (True, False): "last", (False, False): ""}
        return [names[pair] for pair in zip(before, after, strict=True)]
