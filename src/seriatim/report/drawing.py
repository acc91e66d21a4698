"""Figures as SVG for a page, in its colours, with their data for its script."""

import hashlib
import io
import re
import warnings
from html import escape
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure

from .figure_data import figure_data
from .heat_map_data import Data
from .palette import LIGHT, ON_DARK, ON_LIGHT
from .theme import printable

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
