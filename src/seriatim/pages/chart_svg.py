"""Draws charts as SVG for a page, in its colours, with their data for its script.

Matplotlib draws in the colours of the light theme; the SVG has CSS variables in their place, so that one drawing suits
both themes. Every figure is drawn twice, wide and narrow, because text that shrinks with a drawing cannot be read.
"""

import io
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from html import escape
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from ..evaluation.token_scores import visible
from .chart import Axis, Chart, HeatMap, Look, Series, can_be_drawn
from .palette import HEAT, INK, LIGHT, ON_DARK, ON_LIGHT, SOFT
from .theme import layer_style, new_figure, plain, printable
from .wording import cut

WIDE, NARROW = 10.4, 4.2
"""Widths of the two drawings of a figure, in inches; the text of the narrow one is legible at 320 pixels."""
HEIGHT, LINE = 3.4, 0.2
"""Height of a figure, and of a name in its legend, in inches."""
SIZE, TOKEN_SIZE, SPACED, LETTER = 9.0, 8, 0.14, 0.09
"""Font sizes of names and tokens in points; the smallest distance of tokens and the width of a letter in inches."""
LONGEST = 14  # characters of the name of a token or a category; longer names are cut
MIN_SPAN = 1.5  # the smallest ratio of the ends of an axis with the ticks of a logarithmic scale
MAX_CELLS = 20_000  # values of a heat map, above which they are left out of the page
MAX_COLUMNS = 4  # panels of a heat map side by side
Data = dict[str, object]
Numbers = list[int | float | None]


class Drawing(NamedTuple):
    """A figure as SVG, and the data that it shows, with the coordinates of each value in the drawing."""

    svg: str
    data: Data


def draw(figure: Chart | HeatMap, name: str, *, is_narrow: bool = False) -> Drawing:
    """Draw a figure; its ids begin with ``name``, unique in the page. The same figure gives the same drawing."""
    width = NARROW if is_narrow else WIDE
    drawn = _chart(figure, width) if isinstance(figure, Chart) else _heat_map(figure, width)
    title, description = printable(figure.title), printable(figure.description)
    with _laid_out(drawn.figure):
        data = {"series": drawn.series, "plots": [plot for data in drawn.plots if (plot := data())]}
        svg = _svg(drawn, title, description, name)
    return Drawing(svg, data if data["plots"] else {})


class _Drawn(NamedTuple):
    """A Matplotlib figure, the names of its series, the ids of its artists, and the data of its plots.

    The data are computed once the figure has been laid out; those of a plot with too many values are empty.
    """

    figure: Figure
    series: list[str]
    ids: dict[Artist, str]
    plots: Sequence[Callable[[], Data]]


# Charts of series


def _lines_data(axes: Axes, chart: Chart) -> Data:
    """Return the values of all series, and where they are drawn."""
    series = [*chart.series, *(Series(name, [math.nan], [y]) for name, y in chart.levels)]
    lines = [_line_data(axes, chart, i, each) for i, each in enumerate(series)]
    left, bottom, right, top = axes.bbox.extents
    (x0, y0), (x1, y1) = _in_points(axes, np.array([[left, top], [right, bottom]]))
    names = {
        f"{key}_{what}": value
        for key, axis in (("x", chart.x), ("y", chart.y))
        for what, value in (("name", axis.name), ("unit", _unit(axis)))
    }
    return {"box": [x0, y0, x1, y1], **names, "title": "", "lines": lines, "maps": []}


def _line_data(axes: Axes, chart: Chart, index: int, series: Series) -> Data:
    points = np.array([series.x, series.y], float).T
    inside = np.where(np.isnan(points), np.array([axes.get_xlim()[0], axes.get_ylim()[0]]), points)
    with np.errstate(all="ignore"):
        placed = _in_points(axes, axes.transData.transform(inside))
    at = [
        [None if nan else value for value, nan in zip(pair, unknown, strict=True)]
        for pair, unknown in zip(placed, np.isnan(points).tolist(), strict=True)
    ]
    line: Data = {"series": index, "x": _numbers(series.x), "y": _numbers(series.y), "at": at}
    names = series.names or [chart.x.names[int(x)] for x in series.x if chart.x.names]
    if names:
        line["names"] = list(names)
    for key, intervals in (("y", series.intervals), ("x", series.x_intervals)):
        if any(intervals):
            line[f"{key}_intervals"] = [each and _numbers(each) for each in intervals]
    return line


def _chart(chart: Chart, width: float) -> _Drawn:
    levels = [level for level in chart.levels if can_be_drawn(level[1])]
    chart = replace(chart, series=[series.drawable for series in chart.series], levels=levels)
    level_look: Look = {"color": SOFT, "linestyle": "--", "linewidth": 1.2}
    ends = {i: (each.look or layer_style(each.name), each.name, _last(each)) for i, each in enumerate(chart.series)}
    ends |= {i: (level_look | {"marker": ""}, *level) for i, level in enumerate(chart.levels, len(chart.series))}
    has_legend = len(ends) > 1
    height = max(HEIGHT, 0.8 + LINE * len(ends)) if has_legend else HEIGHT
    figure, grid = new_figure(width=width, height=height)
    axes: Axes = grid[0, 0]
    ids: dict[Artist, str] = {}
    for i, series in enumerate(chart.series):
        ids |= dict.fromkeys(_draw_series(axes, series), f"series-{i}")
    for i, (_, y) in enumerate(chart.levels, len(chart.series)):
        ids[axes.axhline(y, **level_look)] = f"series-{i}"
    if chart.has_diagonal:
        axes.axline((0, 0), slope=1, **level_look)

    # Limits come before names, which are placed at the ends of lines.
    if any(series.kind == "dots" for series in chart.series):
        axes.margins(0.12)
    for axis, drawn in ((chart.x, axes.xaxis), (chart.y, axes.yaxis)):
        _set_axis(axis, drawn, width)
    if has_legend:
        for index, artists in zip(ends, _end_labels(axes, list(ends.values())), strict=True):
            ids |= dict.fromkeys(artists, f"label-{index}")
    names = [series.name for series in chart.series] + [name for name, _ in chart.levels]
    return _Drawn(figure, names, ids, [partial(_lines_data, axes, chart)])


def _draw_series(axes: Axes, series: Series) -> list[Artist]:
    look = series.look or layer_style(series.name)
    x, y = np.asarray(series.x, float), np.asarray(series.y, float)
    known = [(at, *ends) for at, ends in zip(x, series.intervals, strict=False) if ends]
    artists: list[Artist] = []
    if series.is_band and known:
        at, low, high = zip(*known, strict=True)
        artists.append(axes.fill_between(at, low, high, color=look["color"], alpha=0.18, linewidth=0))
    else:
        artists += [axes.plot([at, at], ends, color=look["color"], linewidth=0.9)[0] for at, *ends in known]
    across = [(height, *ends) for height, ends in zip(y, series.x_intervals, strict=False) if ends]
    artists += [axes.plot(ends, [height, height], color=look["color"], linewidth=0.9)[0] for height, *ends in across]
    extra: Look = {"marker": ""} if series.kind == "curve" else {}
    extra |= {"linestyle": "none", "markersize": 7} if series.kind == "dots" else {}
    return [*artists, *axes.plot(x, y, **look | extra)]


def _last(series: Series) -> float:
    known = [value for value in series.y if math.isfinite(value)]
    return known[-1] if known else 0.0


def _unit(axis: Axis) -> str:
    """Return the unit that an axis writes after its numbers, such as ``B``."""
    found = re.fullmatch(r"1 (\S+)", axis.written(1.0))
    return found[1] if found else ""


def _set_axis(axis: Axis, drawn: XAxis | YAxis, width: float) -> None:
    drawn.set_label_text(plain(axis.name))
    if axis.names:
        _name_positions(drawn, axis.names, width - 1.6 if drawn.axis_name == "x" else HEIGHT - 0.8)
        return
    if axis.is_log:
        _logarithmic(drawn, axis)
    else:
        drawn.set_major_formatter(FuncFormatter(lambda value, _: axis.written(value)))
    if axis.limits is not None:
        (drawn.axes.set_xlim if drawn.axis_name == "x" else drawn.axes.set_ylim)(axis.limits)


def _logarithmic(drawn: XAxis | YAxis, axis: Axis) -> None:
    """Make an axis logarithmic, with its numbers written out; a short axis also has numbers between the powers."""
    horizontal = drawn.axis_name == "x"
    (drawn.axes.set_xscale if horizontal else drawn.axes.set_yscale)("log")
    low, high = sorted(drawn.get_view_interval())
    span = high / low if low > 0 else math.inf
    steps = {
        4: (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0),
        8: (1.0, 2.0, 3.0, 5.0),
        40 if horizontal else 200: (1.0, 2.0, 5.0),
    }
    between = next((numbers for limit, numbers in steps.items() if span < limit), (1.0,))
    drawn.set_major_locator(LogLocator(subs=between, numticks=12) if span > MIN_SPAN else MaxNLocator(4))
    drawn.set_major_formatter(FuncFormatter(lambda value, _: axis.written(value)))
    drawn.set_minor_formatter(NullFormatter())


def _name_positions(drawn: XAxis | YAxis, names: Sequence[str], inches: float) -> None:
    """Name the positions along an axis, or as many of them as there is room for, at equal distances."""
    step = max(1, math.ceil(len(names) * SPACED / inches))
    positions = range(0, len(names), step)
    labels = [plain(cut(" ".join(visible(names[i]).split()), LONGEST)) for i in positions]
    drawn.set_ticks(positions, labels, fontsize=TOKEN_SIZE)
    crowded = max(map(len, labels), default=0) * LETTER > step * inches / max(1, len(names))
    for tick in drawn.get_major_ticks(len(labels)) if drawn.axis_name == "x" and crowded else ():
        tick.label1.set_rotation(90)
    drawn.set_tick_params(length=0 if step == 1 else 3)


# Names that do not overlap: each at the height of the end of its line, or of its dot


_POINTS = SIZE * 1.25  # height of a line of text


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


def _end_labels(axes: Axes, ends: Sequence[tuple[Look, str, float]]) -> Iterator[list[Artist]]:
    """Draw a legend right of the plot, each name as near as possible to the end of its line; yield its artists."""
    height = _figure(axes).get_size_inches()[1] * 72 * 0.76  # points; the axis takes the rest of the figure
    bottom = axes.get_xlim()[0]
    places = [axes.transAxes.inverted().transform(axes.transData.transform((bottom, y)))[1] for *_, y in ends]
    gap = min(_POINTS / height, 0.96 / max(1, len(ends) - 1))
    moved = spread([min(1.0, max(0.0, float(y))) for y in places], gap)
    shift = max(0.0, 0.02 - min(moved)) - max(0.0, max(moved) - 0.98)
    width = _figure(axes).get_size_inches()[0]
    line, name_at = 0.42 / width, 0.5 / width
    for (look, name, _), at in zip(ends, moved, strict=True):
        options: Look = {"transform": axes.transAxes, "clip_on": False}
        y, start = at + shift, 1 + 0.1 / width
        artists: list[Artist] = [*axes.plot([start, start + line], [y, y], **options, **look | {"marker": ""})]
        artists += axes.plot([start + line / 2], [y], **options, **look)
        artists.append(
            axes.text(start + name_at, y, plain(name), transform=axes.transAxes, va="center", fontsize=SIZE, color=INK)
        )
        yield artists


# Heat maps


def _map_data(axes: Axes, heat_map: HeatMap, panel: int) -> Data:
    """Return the values of a panel with the names of rows and columns; empty where there are too many."""
    title, values = heat_map.panels[panel]
    if len(heat_map.panels) * len(heat_map.rows) * len(heat_map.columns) > MAX_CELLS:
        return {}
    corners = [[-0.5, -0.5], [len(heat_map.columns) - 0.5, len(heat_map.rows) - 0.5]]
    (x0, y0), (x1, y1) = _in_points(axes, axes.transData.transform(corners))
    box = [x0, y0, x1, y1]
    cells = {
        "box": box,
        "name": heat_map.value_name,
        "rows": [visible(name) for name in heat_map.rows],
        "columns": [visible(name) for name in heat_map.columns],
        "values": [_numbers([float(f"{value:.3g}") for value in row]) for row in values],
    }
    names = {"x_name": heat_map.column_name, "y_name": heat_map.row_name, "x_unit": "", "y_unit": ""}
    return {"box": box, **names, "title": title, "lines": [], "maps": [cells]}


def _heat_map(heat_map: HeatMap, width: float) -> _Drawn:
    panels, rows, columns = len(heat_map.panels), len(heat_map.rows), len(heat_map.columns)
    most = MAX_COLUMNS if width > NARROW else 2
    across = min(panels, most if columns * SPACED < width / 2 else 1)
    down = -(-panels // across)

    # Names of tokens are read before values are, so the size of a map follows the room that the names need.
    panel_width = (width - 1.2) / across
    height = min(max(1.2, panel_width * rows / max(1, columns)), max(1.2, 0.24 * rows), 6.0)
    figure, grid = new_figure(down, across, width=width, height=down * (height + 0.4) + 0.8, is_shared=True)
    norm, image = PowerNorm(heat_map.power, 0.0, 1.0), None
    for i, axes in enumerate(grid.flat):
        axes.set_visible(i < panels)
        if i < panels:
            axes.grid(visible=False)
            heading, values = heat_map.panels[i]
            image = axes.imshow(np.asarray(values, float), cmap=HEAT, norm=norm, interpolation="none", aspect="auto")
            axes.set_title(plain(heading))
            _name_positions(axes.xaxis, heat_map.columns, panel_width - 0.7)
            _name_positions(axes.yaxis, heat_map.rows, height)
    assert image is not None
    figure.colorbar(image, ax=grid, label=plain(heat_map.value_name))
    figure.supxlabel(plain(heat_map.column_name), fontsize=10)
    figure.supylabel(plain(heat_map.row_name), fontsize=10)
    return _Drawn(figure, [], {}, [partial(_map_data, grid.flat[i], heat_map, i) for i in range(panels)])


# From Matplotlib to the SVG of a page


def _figure(axes: Axes) -> Figure:
    figure = axes.get_figure(root=True)
    assert figure is not None
    return figure


def _in_points(axes: Axes, pixels: Any) -> list[Numbers]:
    """Return coordinates in the SVG of a figure: points from its upper left corner."""
    figure = _figure(axes)
    scale = 72 / figure.dpi
    return [[_number(round(x * scale, 1)), _number(round((figure.bbox.height - y) * scale, 1))] for x, y in pixels]


def _numbers(values: Sequence[float]) -> Numbers:
    return [_number(value) for value in values]


def _number(value: float) -> int | float | None:
    """Return a number for JSON with seven significant digits, integers whole; None if it is not finite."""
    if not math.isfinite(value):
        return None
    return int(value) if value == int(value) and abs(value) < 2**53 else float(f"{value:.7g}")


@contextmanager
def _laid_out(figure: Figure) -> Iterator[None]:
    """Lay a figure out once, so that coordinates are final and saving does not change them."""
    with mpl.rc_context(_SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # in Matplotlib's fonts; those of the page have them
        warnings.filterwarnings("ignore", "constrained_layout not applied")  # for names too long for the figure
        if (layout := figure.get_layout_engine()) is not None:
            layout.execute(figure)
            figure.set_layout_engine("none")
        yield


_SETTINGS: Any = {"svg.fonttype": "none", "svg.hashsalt": "seriatim", "svg.image_inline": True}
_GREY = re.compile(r"#([0-9a-f]{2})\1\1")
_OPENING = re.compile(r'<svg [^>]*viewBox="0 0 ([0-9.]+) ([0-9.]+)"[^>]*>')
_MARKED = re.compile(r"(series|label)-(\d+)")  # an id that becomes a data attribute


def _svg(drawn: _Drawn, title: str, description: str, name: str) -> str:
    """Return a figure as SVG: as wide as its container, with selectable text and the colours of the page."""
    for artist, mark in drawn.ids.items():
        artist.set_gid(mark)
    with io.StringIO() as stream:
        drawn.figure.savefig(stream, format="svg", dpi=144, metadata={"Date": None, "Creator": None})
        text = stream.getvalue()
    opening = _OPENING.search(text)
    assert opening, "the drawing of Matplotlib begins in an unknown way"
    body = _for_page(text[opening.end() :].rstrip().removesuffix("</svg>"), name)
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" role="img" '
        'style="fill: var(--ink)" '  # Matplotlib leaves out the colour of black parts
        f'viewBox="0 0 {opening[1]} {opening[2]}" aria-labelledby="{name}-title" aria-describedby="{name}-description">'
        f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-description">{escape(description)}</desc>'
        f"{body}</svg>"
    )


def _for_page(body: str, name: str) -> str:
    """Return a drawing without global styles, with prefixed ids, CSS variables as colours, and short numbers."""
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", body, flags=re.DOTALL)
    used = set(re.findall(r'(?:url\(|href=")#([^")]+)', body))
    body = re.sub(r' id="([^"]*)"', lambda found: _identified(found[1], name, used), body)
    body = re.sub(r'(url\(|href=")#', rf"\1#{name}-", body)
    body = re.sub(r' style="([^"]*)"', lambda found: f' style="{_themed(found[1])}"', body)
    body = re.sub(
        r' (?:d|x|y)="[^"]*"',
        lambda found: re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", found[0]),
        body,
    )
    return re.sub(r">\s+<", "><", re.sub(r"\n\s*", "\n", body))


def _identified(name: str, prefix: str, used: set[str]) -> str:
    """Return the attribute for an id: what a series is known by, an id if the drawing refers to it, or nothing."""
    if marked := _MARKED.fullmatch(name):
        return f' data-{marked[1]}="{marked[2]}"'
    return f' id="{prefix}-{name}"' if name in used else ""


def _themed(declarations: str) -> str:
    declarations = re.sub(r"font-family:[^;]*;? ?", "", declarations)
    for variable, colour in LIGHT.items():
        declarations = declarations.replace(colour, f"var(--{variable})")
    return _GREY.sub(_mixed, declarations)


def _mixed(grey: re.Match[str]) -> str:
    if grey[0] in (ON_DARK, ON_LIGHT):
        return grey[0]
    return f"color-mix(in srgb, var(--paper) {int(grey[1], 16) / 2.55:.0f}%, var(--ink))"
