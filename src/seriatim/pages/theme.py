"""The look of plots: empty figures in the colours of the palette, and the styles of lines.

A figure is drawn in the colours of the light theme, so that it can be saved like any other Matplotlib figure. `drawing`
replaces them by CSS variables, such as ``var(--ink)`` and ``var(--c1)``; greys become mixtures of ink and paper.
No plot depends on colours alone: `style` gives every line its own dashes and marker as well.
"""

import hashlib
import itertools
import re
from itertools import chain
from typing import Any

import numpy as np

from ..core.errors import UnavailableError
from ..layers.registry import BUILT_IN
from ..tasks import FITTED
from .chart import Look
from .palette import COLOURS, INK, PAPER, RULE, SOFT

try:
    import matplotlib as mpl
    from matplotlib.figure import Figure
except ModuleNotFoundError as error:
    raise UnavailableError("a page of plots: needs matplotlib and jinja2; pip install 'seriatim[report]'") from error

DASHES: tuple[object, ...] = ("-", (0, (5, 1.8)), (0, (1.2, 1.4)), (0, (6, 1.6, 1.2, 1.6)), (0, (2.6, 1.4)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "p", "h", "d", "8")
STYLES = tuple(zip(itertools.islice(itertools.cycle(DASHES), len(MARKERS)), MARKERS, strict=True))
"""Dashes and marker of each colour."""

_LOOK: Any = {
    "axes.edgecolor": SOFT,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.labelsize": 10,
    "axes.linewidth": 0.7,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "figure.facecolor": "none",
    "font.size": 10,
    "grid.color": RULE,
    "grid.linewidth": 0.5,
    "text.color": INK,
    "xtick.color": SOFT,
    "xtick.labelcolor": INK,
    "xtick.labelsize": 9.5,
    "ytick.color": SOFT,
    "ytick.labelcolor": INK,
    "ytick.labelsize": 9.5,
}


_CONTROLS = {code: code + 0x2400 for code in range(32) if chr(code) not in "\t\n\r"} | {0x7F: 0x2421}
"""Control characters and their pictures."""
_SURROGATES = re.compile("[\ud800-\udfff]")


def style(index: int) -> Look:
    """Return colour, dashes and marker of a line by its position in a figure: ``axes.plot(x, y, **style(0))``.

    Architectures have the same style in all figures; see `layer_style`.
    """
    return look(COLOURS[index % len(COLOURS)], *STYLES[index % len(STYLES)])


def look(colour: str, dashes: object, marker: str) -> Look:
    """Return the options of Matplotlib for a line with a colour, dashes and a marker."""
    return {
        "color": colour,
        "linestyle": dashes,
        "marker": marker,
        "markersize": 7.0 if marker == "*" else 4.5,
        "markeredgecolor": PAPER,
        "markeredgewidth": 0.6,
        "linewidth": 1.5,
    }


def printable(text: str) -> str:
    """Return text without what no page, drawing or file may contain: control characters and halves of pairs."""
    return _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", text.translate(_CONTROLS))


def plain(text: str) -> str:
    """Return text of users for a figure, where no dollar sign begins a formula."""
    return printable(text).replace("$", r"\$")


def new_figure(
    rows: int = 1, columns: int = 1, *, width: float, height: float, is_shared: bool = False
) -> tuple[Figure, np.ndarray]:
    """Return an empty figure of some inches in the look of the pages, and its axes ``(rows, columns)``."""
    with mpl.rc_context(_LOOK):
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.subplots(rows, columns, sharex=is_shared, sharey=is_shared, squeeze=False)


# The style of an architecture: its colour, dashes and marker, the same in every figure of every page.
# A style follows from the name alone, never from the other lines of a figure. A built-in layer or standalone model has
# dashes and marker of its position in the registry; a name outside it, such as that of one's own cell, has those of its
# digest.


DEMONSTRATION = ("lstm", "transformer", "gru", "mamba", "ngram", "rnn", "prior", "convolution", "window")
"""The architectures of the demonstration, whose colours differ: those of `COLOURS`, in this order.

There are more names than colours. All other layers have the colour of their position, counted around, and standalone
models, of which a task has only one, share that of ``ngram``, which no layer has.
"""
TURNS = 3
"""The number of turns of the dashes against the markers that positions have; the other turns are those of digests."""


def layer_style(name: str) -> Look:
    """Return the options of Matplotlib for a line of an architecture: ``axes.plot(x, y, **layer_style("lstm"))``.

    ``name`` is that of a row of a comparison: a layer, a stack such as ``mamba+transformer``, or a layer with a width,
    ``lstm@32``, which has the colour of the layer.
    """
    name = name.replace(",", "+")  # as configurations write stacks
    names = list(dict.fromkeys(chain(BUILT_IN, FITTED)))
    if name in names:
        position, counted = names.index(name), DEMONSTRATION.index("ngram")
        others = [colour for index, colour in enumerate(COLOURS) if index != counted]
        colour = COLOURS[counted] if name in FITTED else others[position % len(others)]
        if name in DEMONSTRATION:
            colour = COLOURS[DEMONSTRATION.index(name)]
        return look(colour, *_dashes_and_marker(position, position // len(MARKERS)))
    digest = int.from_bytes(hashlib.sha256(printable(name).encode()).digest()[:8])
    base, _, width = name.partition("@")
    colour = layer_style(base)["color"] if width else COLOURS[digest % len(COLOURS)]
    rest = digest // len(COLOURS)
    turns = TURNS + rest // len(MARKERS) % (len(DASHES) - TURNS)
    return look(colour, *_dashes_and_marker(rest, turns))


def colour_name(name: str) -> str:
    """Return the CSS variable of the colour of an architecture, such as ``c1``; see `layer_style`."""
    return f"c{COLOURS.index(layer_style(name)['color']) + 1}"


def _dashes_and_marker(position: int, turns: int) -> tuple[object, str]:
    """Return a pair that no other position and number of turns has, up to the numbers of markers and of dashes."""
    marker = position % len(MARKERS)
    return DASHES[(marker + turns) % len(DASHES)], MARKERS[marker]
