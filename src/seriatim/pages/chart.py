"""Charts as data: what is drawn, against which axes; `chart_svg` draws them.

There is one way to declare a figure of a page: a `Chart` of series over two axes, a `HeatMap`, or a `Switch` between
several figures of which a page shows one.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ..evaluation.token_scores import counted
from .wording import in_short

FURTHEST = 1e100
"""The largest coordinate, such as the perplexity of a training that diverged, with which axes can be laid out."""

Look = dict[str, Any]
"""Options of Matplotlib for a line, such as its colour, dashes and marker: ``axes.plot(x, y, **look)``."""


@dataclass(frozen=True)
class Axis:
    """An axis: its name with the unit, how its numbers are written, and whether it is logarithmic.

    ``names`` are those of the positions 0, 1, 2 … of categories or tokens. ``limits`` are its ends; None for those of
    the data.
    """

    name: str = ""
    written: Callable[[float], str] = "{:g}".format
    is_log: bool = False
    limits: tuple[float, float] | None = None
    names: Sequence[str] = ()


@dataclass(frozen=True)
class Series:
    """Values of one name, such as a layer, which has the same look in every figure.

    Attributes:
        name: in the legend; a layer has its look by its name.
        x, y: coordinates of the points; a value that is not finite, or beyond ``FURTHEST``, leaves a gap.
        kind: a ``line`` with markers, a ``curve`` without them, or single ``dots``.
        intervals: ``(low, high)`` of y at each point, None where it is not known; drawn as strokes, or as a band.
        x_intervals: the same of x.
        names: of the points, for the box that shows a point.
        look: None for that of the layer called ``name``.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    kind: Literal["line", "curve", "dots"] = "line"
    intervals: Sequence[tuple[float, float] | None] = ()
    is_band: bool = False
    x_intervals: Sequence[tuple[float, float] | None] = ()
    names: Sequence[str] = ()
    look: Look | None = None

    @property
    def drawable(self) -> "Series":
        """The series with gaps in place of the values and intervals that cannot be drawn."""
        x, y = ([value if can_be_drawn(value) else math.nan for value in values] for values in (self.x, self.y))
        intervals, x_intervals = (
            [ends if ends and all(map(can_be_drawn, ends)) else None for ends in each]
            for each in (self.intervals, self.x_intervals)
        )
        return replace(self, x=x, y=y, intervals=intervals, x_intervals=x_intervals)


@dataclass(frozen=True)
class Chart:
    """A figure of series over two axes, with horizontal ``levels`` as ``(name, y)``, such as a baseline.

    The title and the caption stand below it. ``missing`` has the reason why a series is not drawn, by
    its name, which the caption says.
    """

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    caption: str = ""
    levels: Sequence[tuple[str, float]] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    has_diagonal: bool = False

    def __bool__(self) -> bool:
        """Return whether there is anything to draw."""
        return any(can_be_drawn(value) for series in self.series for value in series.y)

    @property
    def description(self) -> str:
        """The figure in words, for readers who cannot see it."""
        names = ", ".join(dict.fromkeys(series.name for series in self.series))
        return f"{self.y.name} against {self.x.name}: {names}."


@dataclass(frozen=True)
class HeatMap:
    """Values in rows and columns as colours: one map for each of the ``panels``, ``(heading, values)``.

    All panels share rows, columns and one scale, which goes from 0 to 1 and is named ``value_name``. NaN is
    blank. Colours stand for the ``power`` of the values.
    """

    title: str
    panels: Sequence[tuple[str, Sequence[Sequence[float]]]]
    rows: Sequence[str]
    columns: Sequence[str]
    value_name: str
    caption: str = ""
    row_name: str = ""
    column_name: str = ""
    power: float = 1.0
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def description(self) -> str:
        """The figure in words, for readers who cannot see it."""
        return f"{self.value_name}: {counted(len(self.rows), 'rows')}, {counted(len(self.columns), 'columns')}."


@dataclass(frozen=True)
class Switch:
    """Several figures by name, of which a page shows the one that is chosen, at first the first one.

    ``label`` stands before the choice.
    """

    title: str
    choices: Sequence[tuple[str, Chart | HeatMap]] = field(default_factory=tuple)
    label: str = "against"


def can_be_drawn(value: float) -> bool:
    """Return whether a coordinate is finite and within ``FURTHEST``."""
    return abs(value) <= FURTHEST  # False for NaN


def log_axis(name: str, written: Callable[[float], str] = in_short) -> Axis:
    """Return a logarithmic axis."""
    return Axis(name, written, is_log=True)
