"""Charts that several pages draw: lines with their names at the ends, and logarithmic axes."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from .figure_data import show
from .layer_styles import layer_style
from .number_formats import in_short
from .plot_labels import end_labels
from .theme import new_figure, plain

MIN_SPAN = 1.5  # the smallest ratio of the ends of an axis with the ticks of a logarithmic scale
Point = tuple[float, float]
Format = Callable[[float], str]  # writes a number at an axis


class ChartLine(NamedTuple):
    """A line of a chart: the name of its layer, its points, and intervals as ``(x, low, high)``."""

    name: str
    points: Sequence[Point]
    intervals: Sequence[tuple[float, float, float]] = ()


def tall_figure(names: int) -> tuple[Figure, Axes]:
    """Return a figure with one plot, tall enough for a number of names beside it."""
    figure, axes = new_figure(height=max(3.0, 0.7 + 0.17 * names))
    return figure, axes[0, 0]


def line_chart(
    lines: Iterable[ChartLine], *, x: str, y: str, x_format: Format = in_short, y_format: Format | None = None
) -> Figure | None:
    """Draw lines over a logarithmic axis, with their names at their ends; None without points.

    ``x`` and ``y`` name the axes, and the formats write their numbers. The vertical axis is linear without a format.
    """
    drawn = [line for line in lines if line.points]
    if not drawn:
        return None
    figure, axes = tall_figure(len(drawn))
    for line in drawn:
        look = layer_style(line.name)
        show(axes.plot(*zip(*line.points, strict=True), **look), line.name)
        for at, low, high in line.intervals:
            interval = axes.plot([at, at], [low, high], color=look["color"], linewidth=0.8)
            show(interval, line.name, is_interval=True)
    logarithmic(axes.xaxis, x_format)
    if y_format is not None:
        logarithmic(axes.yaxis, y_format)
    axes.set_xlabel(plain(x))
    axes.set_ylabel(plain(y))
    end_labels(axes, [(line.name, line.name, line.points[-1][1]) for line in drawn])
    return figure


def logarithmic(axis: XAxis | YAxis, written: Format) -> None:
    """Make an axis logarithmic, with its numbers written out; a short axis also has numbers between the powers."""
    horizontal = axis.axis_name == "x"
    (axis.axes.set_xscale if horizontal else axis.axes.set_yscale)("log")
    low, high = sorted(axis.get_view_interval())
    span = high / low if low > 0 else math.inf
    steps = {
        4: (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0),
        8: (1.0, 2.0, 3.0, 5.0),
        40 if horizontal else 200: (1.0, 2.0, 5.0),
    }
    between = next((numbers for limit, numbers in steps.items() if span < limit), (1.0,))
    axis.set_major_locator(LogLocator(subs=between, numticks=12) if span > MIN_SPAN else MaxNLocator(4))
    axis.set_major_formatter(FuncFormatter(lambda value, _: written(value)))
    axis.set_minor_formatter(NullFormatter())
