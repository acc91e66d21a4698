"""The values of heat maps, and numbers and coordinates, for the script of a page."""

import math
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

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
    shares = [[_short(value) for value in row] for row in np.ma.filled(values.astype(float), np.nan).tolist()]
    bars = [each.colorbar for each in [image, *_images(image)] if each.colorbar is not None]
    name = unescaped(bars[0].ax.get_ylabel()) if bars else ""
    stated = _NAMED.get(image, ([], []))
    rows, columns = _names(axes.yaxis, values.shape[0], stated[0]), _names(axes.xaxis, values.shape[1], stated[1])
    return {"box": [*corners[0], *corners[1]], "name": name, "rows": rows, "columns": columns, "values": shares}


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
    formatter, places = axis.get_major_formatter(), list(axis.get_majorticklocs())
    at_axis = list(map(unescaped, formatter.format_ticks(places))) if places == list(range(count)) else []
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


def _short(value: float, places: int | None = None) -> int | float | None:
    """Return a number with so many decimal places, or with three significant digits."""
    return _number(value if not math.isfinite(value) else round(value, places) if places else float(f"{value:.3g}"))


def unescaped(text: str) -> str:
    """Return text of users from what `plain` makes of it."""
    return text.replace(r"\$", "$")
