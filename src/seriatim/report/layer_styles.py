"""The style of an architecture: its colour, dashes and marker, the same in every figure of every page.

A style follows from the name alone, never from the other lines of a figure. A built-in layer or standalone model has
the style of its place in the registry; a name outside it, such as that of one's own cell, has one by its digest.
"""

import hashlib
from itertools import chain

from ..layers.registry import BUILT_IN
from ..tasks import FITTED
from .palette import COLOURS
from .theme import DASHES, MARKERS, Look, look, style

COLOUR_OF_PLACE = (5, 1, 3, 6, 4, 7, 9, 8, 0, 1, 7, 8, 0, 6, 0, 4, 5, 4, 9, 2, 2, 2, 2)
"""The index of the colour of each place.

There are more names than colours. Of the assignments, this one has the largest differences, on light and dark pages,
between names that are often compared, and between variants of one architecture; it gives standalone models, of which a
task has only one, a colour of their own. A place beyond the end has the colour of its number, counted around.
"""
TURNS = 3
"""The number of turns of the dashes against the markers that places have; the other turns are those of digests."""


def layer_style(name: str) -> Look:
    """Return the options of Matplotlib for a line of an architecture: ``axes.plot(x, y, **layer_style("lstm"))``.

    ``name`` is that of a row of a comparison: a layer, a stack such as ``mamba+transformer``, or a layer with a width,
    ``lstm@32``, which has the colour of the layer.
    """
    name = name.replace(",", "+")  # as configurations write stacks
    places = {known: place for place, known in enumerate(dict.fromkeys(chain(BUILT_IN, FITTED)))}
    if name in places:
        place = places[name]
        return look(_colour(place), *_dashes_and_marker(place, place // len(MARKERS)))
    digest = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
    base, _, width = name.partition("@")
    colour = layer_style(base)["color"] if width else COLOURS[digest % len(COLOURS)]
    rest = digest // len(COLOURS)
    turns = TURNS + rest // len(MARKERS) % (len(DASHES) - TURNS)
    return look(colour, *_dashes_and_marker(rest, turns))


def model_style(layer: str) -> Look:
    """Return the style of the only model of a figure: that of its layer, or the first style where none is named."""
    return layer_style(layer) if layer else style(0)


def _colour(place: int) -> str:
    return COLOURS[COLOUR_OF_PLACE[place] if place < len(COLOUR_OF_PLACE) else place % len(COLOURS)]


def _dashes_and_marker(place: int, turns: int) -> tuple[object, str]:
    """Return a pair that no other place and number of turns has, up to the numbers of markers and of dashes."""
    marker = place % len(MARKERS)
    return DASHES[(marker + turns) % len(DASHES)], MARKERS[marker]
