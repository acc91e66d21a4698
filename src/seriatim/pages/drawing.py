"""Figures as SVG for a page, in its colours, with their data for its script."""

import hashlib
import io
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import PathCollection
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter

from .palette import LIGHT, ON_DARK, ON_LIGHT
from .theme import printable

# The values of heat maps, and numbers and coordinates, for the script of a page.


MAX_CELLS = 20_000  # cells of the heat maps of a figure, above which their values are left out of the page
Data = dict[str, object]
Numbers = list[int | float | None]
_NAMED: WeakKeyDictionary[AxesImage, tuple[list[str], list[str]]] = WeakKeyDictionary()


def name_cells(image: AxesImage, rows: Sequence[str], columns: Sequence[str]) -> None:
    """State the names of rows and columns, for axes without room for them; none are the names at the axis."""
    _NAMED[image] = list(rows), list(columns)


def heat_map(image: AxesImage) -> Data:
    """Return the values of a heat map with the names of rows and columns; empty where there are too many or none."""
    values, axes = image.get_array(), image.axes
    if values is None or values.ndim != 2 or _cells(image) > MAX_CELLS:
        return {}
    left, right, bottom, top = image.get_extent()
    if image.origin == "lower":
        bottom, top = top, bottom
    corners = in_points(axes, axes.transData.transform([[left, top], [right, bottom]]))
    rounded = [[_short(value) for value in row] for row in np.ma.filled(values.astype(float), np.nan).tolist()]
    bars = [each.colorbar for each in [image, *_images(image)] if each.colorbar is not None]
    name = unescaped(bars[0].ax.get_ylabel()) if bars else ""
    stated = _NAMED.get(image, ([], []))
    rows, columns = _names(axes.yaxis, values.shape[0], stated[0]), _names(axes.xaxis, values.shape[1], stated[1])
    return {"box": [*corners[0], *corners[1]], "name": name, "rows": rows, "columns": columns, "values": rounded}


def cells_left_out(figure: Figure) -> int:
    """Return the number of values of heat maps that are too many for the page."""
    images = [image for axes in figure.axes for image in axes.images]
    cells = _cells(images[0]) if images else 0
    return cells if cells > MAX_CELLS else 0


def _images(image: AxesImage) -> list[AxesImage]:
    assert image.figure is not None
    return [each for axes in image.figure.axes for each in axes.images]


def _cells(image: AxesImage) -> int:
    return sum(math.prod(each.get_size()) for each in _images(image))


def _names(axis: Axis, count: int, stated: list[str]) -> list[str]:
    """Return the stated names of rows or columns, or those at the axis, or numbers from 0 where not all are named."""
    formatter, ticks = axis.get_major_formatter(), list(axis.get_majorticklocs())
    at_axis = list(map(unescaped, formatter.format_ticks(ticks))) if ticks == list(range(count)) else []
    return next((names for names in (stated, at_axis) if len(names) == count), [str(i) for i in range(count)])


def in_points(axes: Axes, pixels: np.ndarray) -> list[Numbers]:
    """Return coordinates in the SVG of a figure: points from its upper left corner."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    height = figure.bbox.height
    scale = 72 / figure.dpi
    return [[_short(x * scale, 1), _short((height - y) * scale, 1)] for x, y in np.asarray(pixels).tolist()]


def numbers(values: np.ndarray) -> Numbers:
    """Return numbers for JSON with seven significant digits, and None for those that are not finite."""
    return [_number(value) for value in values.ravel().tolist()]


def _number(value: float) -> int | float | None:
    """Return a number for JSON with seven significant digits, integers whole; None if it is not finite."""
    if not math.isfinite(value):
        return None
    return int(value) if value == int(value) and abs(value) < 2**53 else float(f"{value:.7g}")


def _short(value: float, decimals: int | None = None) -> int | float | None:
    """Return a number with so many decimal places, or with three significant digits."""
    return _number(value if not math.isfinite(value) else round(value, decimals) if decimals else float(f"{value:.3g}"))


def unescaped(text: str) -> str:
    """Return text of users from what `plain` makes of it."""
    return text.replace(r"\$", "$")


# The data of a figure for the script of a page: what its lines, points, bars and heat maps show, and where.
# Every artist with a label is a series, as in a legend of Matplotlib. `show` adds what labels cannot tell: that several
# artists belong to one series, that a line is an interval, the names of points, or the sample of a legend.


class Shown(NamedTuple):
    """What an artist shows: a part of a ``series``, with the name of the part and those of its points.

    An interval is a line with two points, vertical or horizontal. A sample belongs to a legend and has no data.
    """

    series: str
    part: str = ""
    names: Sequence[str] = ()
    is_interval: bool = False
    is_sample: bool = False


_SHOWN: WeakKeyDictionary[Artist, Shown] = WeakKeyDictionary()


def show(
    artists: Sequence[Artist],
    series: str,
    *,
    part: str = "",
    names: Sequence[str] = (),
    is_interval: bool = False,
    is_sample: bool = False,
) -> None:
    """State what artists show; see `Shown`. All artists of a series are selected together, in all figures."""
    for artist in artists:
        _SHOWN[artist] = Shown(series, part, names, is_interval, is_sample)


def shown_by(artist: Artist) -> Shown | None:
    """Return what an artist shows; None where nothing is stated and it has no label."""
    label = next((str(each.get_label()) for each in _containers(artist)), str(artist.get_label() or ""))
    return _SHOWN.get(artist) or (Shown(unescaped(label)) if label and not label.startswith("_") else None)


def figure_data(figure: Figure) -> tuple[Data, dict[Artist, str]]:
    """Return the data of a figure that has its final layout, and the ids of artists by which a page finds them.

    Coordinates are points from the upper left corner of the figure, as in its SVG. ``series-3`` is the id of artists
    of the series of that index, and ``label-3`` that of its name in a legend.
    """
    artists = [artist for axes in figure.axes for artist in _artists(axes)]
    shown = {artist: what for artist in artists if (what := shown_by(artist))}
    series = list(dict.fromkeys(what.series for what in shown.values()))
    ids = {
        artist: f"{'label' if what.is_sample else 'series'}-{series.index(what.series)}"
        for first, what in shown.items()
        for artist in _together(first)
    }
    if len(series) > 1:
        ids |= {artist: f"label-{series.index(name)}" for artist, name in _labels(figure, shown)}
    plots = [plot for axes in figure.axes if (plot := _plot(axes, shown, series))]
    return {"series": series, "plots": plots} if plots else {}, ids


def _artists(axes: Axes) -> Iterator[Artist]:
    yield from (each.patches[0] for each in axes.containers if isinstance(each, BarContainer) and each.patches)
    yield from axes.lines
    yield from (each for each in axes.collections if isinstance(each, PathCollection))


def _containers(artist: Artist) -> list[BarContainer]:
    """Return the bars that are drawn together with a bar; empty for other artists."""
    if not isinstance(artist, Rectangle) or artist.axes is None:
        return []
    return [each for each in artist.axes.containers if isinstance(each, BarContainer) and artist in each.patches]


def _together(artist: Artist) -> Sequence[Artist]:
    """Return all upright bars that are drawn with the first one, or the artist alone."""
    return next((each.patches for each in _containers(artist)), [artist])


def _labels(figure: Figure, shown: dict[Artist, Shown]) -> Iterator[tuple[Artist, str]]:
    """Find the texts that name a series, and what stands before them in legends of Matplotlib."""
    names = {what.series: what.series for what in shown.values()}
    for artist, what in shown.items():
        names.setdefault(unescaped(str(artist.get_label())), what.series)
    for text in figure.findobj(Text):
        if isinstance(text, Text) and (name := unescaped(text.get_text())) in names:
            yield text, names[name]
    for legend in filter(None, (axes.get_legend() for axes in figure.axes)):
        for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True):
            if handle is not None and (name := unescaped(text.get_text())) in names:
                yield handle, names[name]


def _plot(axes: Axes, shown: dict[Artist, Shown], series: Sequence[str]) -> Data:
    """Return the data of one plot, empty where there are none."""
    artists = list(_artists(axes))
    intervals = dict(_interval(line, shown[line]) for line in axes.lines if line in shown and shown[line].is_interval)

    # An interval is drawn as a line of its own, and belongs to the point at its position.
    lines = []
    for artist in artists:
        what = shown.get(artist)
        if what is None or what.is_interval or what.is_sample or not len(points := _points(artist)):
            continue
        x, y = np.hsplit(points, 2)
        line: Data = {"series": series.index(what.series), "x": numbers(x), "y": numbers(y), "at": _at(axes, points)}
        if what.part:
            line["part"] = what.part
        if what.names:
            line["names"] = list(what.names)
        for along, positions in (("y", x), ("x", y)):
            ends = [intervals.get((what.series, along, at)) for at in positions.ravel().tolist()]
            if any(ends):
                line[f"{along}_intervals"] = [pair and numbers(np.array(pair)) for pair in ends]
        lines.append(line)
    maps = [image for image in map(heat_map, axes.images) if image]
    if not lines and not maps:
        return {}
    left, bottom, right, top = axes.bbox.extents
    box = in_points(axes, np.array([[left, top], [right, bottom]]))
    names = {f"{name}_{key}": value for name in "xy" for key, value in _axis(axes, name).items()}
    title = unescaped(axes.get_title("left") or axes.get_title())
    return {"box": [*box[0], *box[1]], **names, "title": title, "lines": lines, "maps": maps}


def _axis(axes: Axes, name: str) -> dict[str, str]:
    """Return the name of an axis, which one of the plots that share it has, and the unit after its numbers."""
    shared = axes.get_shared_x_axes() if name == "x" else axes.get_shared_y_axes()
    formatter = _axis_of(axes, name).get_major_formatter()
    unit = re.fullmatch(r"1 (\S+)", formatter(1.0)) if isinstance(formatter, FuncFormatter) else None
    labels = [_axis_of(each, name).get_label_text() for each in [axes, *shared.get_siblings(axes)]]
    return {"name": unescaped(next(filter(None, labels), "")), "unit": unit[1] if unit else ""}


def _axis_of(axes: Axes, name: str) -> Axis:
    return axes.xaxis if name == "x" else axes.yaxis


def _points(artist: Artist) -> np.ndarray:
    """Return the data ``(points, 2)`` of an artist; a coordinate is NaN where a level line has all its values."""
    if isinstance(artist, PathCollection):
        return np.ma.filled(np.ma.asarray(artist.get_offsets(), dtype=float), np.nan)
    if isinstance(artist, Rectangle):
        boxes = [bar.get_bbox() for bar in _together(artist) if isinstance(bar, Rectangle)]
        return np.array([((box.x0 + box.x1) / 2, box.y1) for box in boxes])
    assert isinstance(artist, Line2D)
    assert artist.axes is not None
    x_is_data, y_is_data = artist.get_transform().contains_branch_seperately(artist.axes.transData)
    points: np.ndarray = np.ma.filled(np.ma.asarray(artist.get_xydata(), dtype=float), np.nan)
    if x_is_data and y_is_data:
        return points
    if not x_is_data and not y_is_data:
        return points[:0]
    return np.where([x_is_data, y_is_data], points[:1], np.nan)


def _interval(line: Line2D, what: Shown) -> tuple[tuple[str, str, float], tuple[float, float]]:
    """Return the series of an interval, the axis along which it lies, its position on the other one, and its ends."""
    (x, y), (other_x, other_y) = np.asarray(line.get_xydata(), dtype=float).tolist()
    along_y = x == other_x
    return (what.series, *(("y", x) if along_y else ("x", y))), ((y, other_y) if along_y else (x, other_x))


def _at(axes: Axes, points: np.ndarray) -> list[Numbers]:
    """Return the coordinates in the drawing; None where a level line has all values, or a value has no position."""
    with np.errstate(all="ignore"):
        inside = np.where(np.isnan(points), np.array([axes.get_xlim()[0], axes.get_ylim()[0]]), points)
        placed = in_points(axes, axes.transData.transform(inside))
    unknown = np.isnan(points).tolist()
    return [
        [None if nan else value for value, nan in zip(*pair, strict=True)] for pair in zip(placed, unknown, strict=True)
    ]


_GREY = re.compile(r"#([0-9a-f]{2})\1\1")
_OPENING = re.compile(r'<svg [^>]*viewBox="0 0 ([0-9.]+) ([0-9.]+)"[^>]*>')
_MARKED = re.compile(r"(series|label)-(\d+)")  # an id of `figure_data`, which becomes a data attribute


class Drawing(NamedTuple):
    """A figure as SVG, and the data that it shows; see `figure_data`."""

    svg: str
    data: Data


def to_svg(figure: Figure, *, title: str, description: str, name: str = "") -> str:
    """Return the SVG of `drawing`."""
    return drawing(figure, title=title, description=description, name=name).svg


def drawing(figure: Figure, *, title: str, description: str, name: str = "") -> Drawing:
    """Return a figure as SVG for a page: as wide as its place, with selectable text and the colours of the page.

    The title is the accessible name, and the description is for readers who cannot see the figure. Its ids begin with
    ``name``, unique in the page, by default a digest of the drawing. The same figure gives the same SVG.
    """
    title, description = printable(title), printable(description)
    for axes in figure.axes:
        for image in axes.images:
            image.set_interpolation("none")  # one pixel for each value, sharp at any size
    drawn, data = _drawn(figure)
    name = name or f"plot-{hashlib.sha256((title + description + drawn).encode()).hexdigest()[:8]}"
    opening = _OPENING.search(drawn)
    assert opening, "the drawing of Matplotlib begins in an unknown way"
    body = drawn[opening.end() :].rstrip().removesuffix("</svg>")
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" role="img" '
        'style="fill: var(--ink)" '  # Matplotlib leaves out the colour of black parts
        f'viewBox="0 0 {opening[1]} {opening[2]}" aria-labelledby="{name}-title" aria-describedby="{name}-description">'
        f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-description">{escape(description)}</desc>'
        f"{_for_page(body, name)}</svg>"
    )
    return Drawing(svg, data)


def _drawn(figure: Figure) -> tuple[str, Data]:
    """Return what Matplotlib writes, without dates and random ids, and the data of the figure."""
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": "seriatim", "svg.image_inline": True}
    with mpl.rc_context(settings), io.StringIO() as stream, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # in Matplotlib's fonts; those of the page have them
        warnings.filterwarnings("ignore", "constrained_layout not applied")  # for names too long for the figure
        layout = figure.get_layout_engine()
        if layout is not None:  # saving would lay it out twice
            layout.execute(figure)
            figure.set_layout_engine("none")
        data, ids = figure_data(figure)
        before = {artist: artist.get_gid() for artist in ids}
        for artist, mark in ids.items():
            artist.set_gid(mark)
        figure.savefig(stream, format="svg", dpi=144, metadata={"Date": None, "Creator": None})
        for artist, gid in before.items():
            artist.set_gid(gid)
        figure.set_layout_engine(layout)
        return stream.getvalue(), data


def _for_page(body: str, name: str) -> str:
    """Return a drawing without global styles, with prefixed ids, CSS variables as colours, and short numbers."""
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", body, flags=re.DOTALL)
    used = set(re.findall(r'(?:url\(|href=")#([^)"]+)', body))
    body = re.sub(r' id="([^"]*)"', lambda found: _identified(found[1], name, used), body)
    body = re.sub(r'(url\(|href=")#', rf"\1#{name}-", body)
    body = re.sub(r' style="([^"]*)"', lambda found: f' style="{_themed(found[1])}"', body)
    body = re.sub(r' (?:d|x|y)="[^"]*"', lambda found: _rounded(found[0]), body)
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


def _rounded(attribute: str) -> str:
    return re.sub(r"-?\d+\.\d{3,}", lambda found: f"{float(found[0]):.2f}", attribute)
