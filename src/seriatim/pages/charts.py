"""Charts that several pages draw: lines with their names at the ends, and logarithmic axes."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from ..evaluation.token_scores import visible
from .drawing import show
from .palette import INK, SOFT
from .theme import layer_style, new_figure, plain
from .wording import cut, in_short

# Names in plots that do not overlap: at the ends of lines, beside points, and of tokens along an axis.


SIZE = 9.0  # font size of a name, in points
TOKEN_SIZE = 8  # font size of the name of a token, in points
SPACED = 0.14  # the smallest distance between names of tokens, in inches
LETTER = 0.09  # the largest width of a letter of such a name, in inches
NARROW, WIDE = 4.2, 8.4  # widths of a figure in inches: beside other figures, and over the whole page
LONGEST = 12  # characters of the name of a token; longer names are cut
_LINE = SIZE * 1.25


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Move heights apart until neighbours have a distance of ``gap``, with the least sum of squared moves.

    Without the gaps, this is an isotonic regression of the heights, which pools neighbours in the wrong order.
    """
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    pools: list[list[float]] = []  # mean and size of each pool
    for rank, i in enumerate(order):
        pools.append([heights[i] - rank * gap, 1])
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            mean, size = pools.pop()
            last = pools[-1]
            last[0] = (last[0] * last[1] + mean * size) / (last[1] + size)
            last[1] += size
    moved = [mean for mean, size in pools for _ in range(int(size))]
    result = [0.0] * len(heights)
    for rank, i in enumerate(order):
        result[i] = moved[rank] + rank * gap
    return result


def end_labels(axes: Axes, ends: Sequence[tuple[str, str, float]]) -> None:
    """Draw a legend to the right of the plot, with each name as near as possible to the end of its line.

    The plot has its final limits and scales; an end is the name of a layer, the text of the legend, and the last value
    of the line.
    """
    assert isinstance(axes.figure, Figure)
    height = axes.figure.get_size_inches()[1] * 72 * 0.76  # points; the axis takes the rest of the figure
    bottom = axes.get_xlim()[0]
    points = [axes.transAxes.inverted().transform(axes.transData.transform((bottom, value))) for *_, value in ends]
    heights = [min(1.0, max(0.0, float(y))) for _, y in points]
    gap = min(_LINE / height, 0.96 / max(1, len(ends) - 1))
    moved = spread(heights, gap)
    shift = max(0.0, 0.02 - min(moved, default=0.5)) - max(0.0, max(moved, default=0.5) - 0.98)
    for (layer, name, _), at in zip(ends, moved, strict=True):
        look = layer_style(layer)
        for xs, options in (([1.02, 1.10], look | {"marker": ""}), ([1.06], look)):
            sample = axes.plot(
                xs, [at + shift] * len(xs), transform=axes.transAxes, clip_on=False, **options, label=name
            )
            show(sample, layer, is_sample=True)
        axes.text(1.12, at + shift, plain(name), transform=axes.transAxes, va="center", fontsize=SIZE, color=INK)


def point_labels(axes: Axes, points: Sequence[tuple[str, float, float]]) -> None:
    """Draw a name beside each point, where it covers no point and no other name; a line leads to distant names.

    The plot has its final limits and scales; the points are names and coordinates.
    """
    assert isinstance(axes.figure, Figure)
    axes.figure.draw_without_rendering()  # computes the position of the plot in its figure
    pixels = axes.figure.dpi / 72
    positions = [tuple(axes.transData.transform((x, y)) / pixels) for _, x, y in points]
    (left, bottom), (right, top) = (axes.transAxes.transform(corner) / pixels for corner in ((0, 0), (1, 1)))

    # Names are placed from the top, each where it covers least: the points come first, then the names before it.
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in positions]
    for (name, *data), (x, y) in sorted(zip(points, positions, strict=True), key=lambda each: -each[1][1]):
        width = _width(name)
        box = min(
            (_box(x, y, width, *way) for way in _WAYS),
            key=lambda box: (
                sum(_overlap(box, other) for other in taken)
                + 10 * _outside(box, (left, bottom, right, top))
                + abs((box[1] + box[3]) / 2 - y)
                + abs((box[0] + box[2]) / 2 - x) / 4
            ),
        )
        taken.append(box)
        middle = (box[1] + box[3]) / 2 - y
        far = abs(middle) > 0.7 * _LINE
        axes.annotate(
            plain(name),
            (data[0], data[1]),
            xytext=((box[2] if box[2] < x else box[0]) - x, middle),
            ha="right" if box[2] < x else "left",
            textcoords="offset points",
            va="center",
            fontsize=SIZE,
            color=INK,
            arrowprops={"arrowstyle": "-", "color": SOFT, "linewidth": 0.5, "shrinkB": 4} if far else None,
        ).set_in_layout(False)


_WAYS = [(side, line * 0.5) for line, side in product(range(-10, 11), (1, -1, 0))]
"""Right of the point, left of it or centred on it; and the number of lines above or below it."""
_Box = tuple[float, float, float, float]


def _width(name: str) -> float:
    """Return the width of a name in points, with a small margin."""
    width, _, _ = text_to_path.get_text_width_height_descent(name, FontProperties(size=SIZE), ismath=False)
    return float(width) + 2


def _box(x: float, y: float, width: float, side: int, lines: float) -> _Box:
    left = x + 6 if side > 0 else x - 6 - width if side < 0 else x - width / 2
    return left, y + lines * _LINE - _LINE / 2, left + width, y + lines * _LINE + _LINE / 2


def _overlap(one: _Box, other: _Box) -> float:
    across = min(one[2], other[2]) - max(one[0], other[0])
    along = min(one[3], other[3]) - max(one[1], other[1])
    return max(0.0, across) * max(0.0, along)


def _outside(box: _Box, frame: _Box) -> float:
    return sum(max(0.0, by) for by in (frame[0] - box[0], frame[1] - box[1], box[2] - frame[2], box[3] - frame[3]))


def width_for(tokens: int) -> float:
    """Return the width of a figure with a number of tokens across it, in inches."""
    return NARROW if tokens * SPACED < NARROW - 1 else WIDE


def name_tokens(axis: XAxis | YAxis, tokens: Sequence[str], inches: float, *, longest: int = LONGEST) -> None:
    """Name the tokens along an axis of some length, or as many of them as there is room for, at equal distances."""
    across = axis.axis_name == "x"
    if tokens:
        step = max(1, math.ceil(len(tokens) * SPACED / inches))
        positions = range(0, len(tokens), step)
        names = [shown(tokens[position], longest) for position in positions]
        axis.set_ticks(positions, names, fontsize=TOKEN_SIZE)
        for tick, name in zip(axis.get_major_ticks(len(names)), names, strict=True):
            tick.label1.set_rotation(90 if across and len(name) * LETTER > step * inches / len(tokens) else 0)
        axis.set_tick_params(length=0 if step == 1 else 3)
        if step > 1 and inches >= NARROW / 2:
            axis.set_label_text(f"one of {step} tokens is named", fontsize=TOKEN_SIZE)
    else:
        axis.set_label_text("place of the token", fontsize=10)
        axis.set_major_locator(MaxNLocator(integer=True))


def shown(token: str, longest: int = LONGEST) -> str:
    """Return a token as a label: with visible white space, and cut if it is long."""
    return shortened(visible(token), longest)


def shortened(name: str, longest: int) -> str:
    """Return a name for a figure in one line, cut to some number of characters."""
    name = " ".join(name.split())
    return plain(cut(name, longest))


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
