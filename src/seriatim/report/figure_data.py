"""The data of a figure for the script of a page: what its lines, points, bars and heat maps show, and where.

Every artist with a label is a series, as in a legend of Matplotlib. `show` adds what labels cannot tell: that several
artists belong to one series, that a line is an interval, the names of points, or the sample of a legend.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import PathCollection
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter

from .heat_map_data import Data, Numbers, heat_map, in_points, numbers, unescaped


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
        for along, places in (("y", x), ("x", y)):
            ends = [intervals.get((what.series, along, at)) for at in places.ravel().tolist()]
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
    """Return the series of an interval, the axis along which it lies and its place on the other one; and its ends."""
    (x, y), (other_x, other_y) = np.asarray(line.get_xydata(), dtype=float).tolist()
    along_y = x == other_x
    return (what.series, *(("y", x) if along_y else ("x", y))), ((y, other_y) if along_y else (x, other_x))


def _at(axes: Axes, points: np.ndarray) -> list[Numbers]:
    """Return the coordinates in the drawing; None where a level line has all values, or where a value has no place."""
    with np.errstate(all="ignore"):
        inside = np.where(np.isnan(points), np.array([axes.get_xlim()[0], axes.get_ylim()[0]]), points)
        placed = in_points(axes, axes.transData.transform(inside))
    unknown = np.isnan(points).tolist()
    return [
        [None if nan else value for value, nan in zip(*pair, strict=True)] for pair in zip(placed, unknown, strict=True)
    ]
