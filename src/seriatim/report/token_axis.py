"""Names of tokens along the axes of a figure."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axis import XAxis, YAxis

from ..evaluation.token_scores import visible

LETTERS = 8
"""Font size of a name, in points."""
SPACED = 0.14
"""The smallest distance between names, in inches."""
NARROW, WIDE = 4.2, 8.4
"""Widths of a figure in inches: beside other figures, and over the whole page."""
LONGEST = 12
"""Characters of a name; longer names are cut."""


def width_for(tokens: int) -> float:
    """Return the width of a figure with a number of tokens across it, in inches."""
    return NARROW if tokens * SPACED < NARROW - 1 else WIDE


def name_tokens(axis: "XAxis | YAxis", tokens: Sequence[str], inches: float) -> None:
    """Name the tokens along an axis of some length if there is room; else label the axis ``token``."""
    across = axis.axis_name == "x"
    if tokens and len(tokens) * SPACED <= inches:
        names = [shown(token) for token in tokens]
        axis.set_ticks(range(len(tokens)), names, rotation=90 if across else 0, fontsize=LETTERS)
        axis.set_tick_params(length=0)
    else:
        axis.set_label_text("token", fontsize=10)


def shown(token: str) -> str:
    """Return a token as a label: with visible white space, and cut if it is long."""
    from .theme import plain

    name = visible(token)
    return plain(name if len(name) <= LONGEST else name[: LONGEST - 1] + "…")
