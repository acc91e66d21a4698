"""Tokens along the axes of a figure."""

from collections.abc import Sequence
from typing import Any

from ..evaluation.token_scores import visible

LETTERS = 8
"""Size of a token's name, in points."""
SPACED = 0.14
"""Inches from one name to the next, at least."""
NARROW, WIDE = 4.2, 8.4
"""Widths of a figure in inches: of one beside others, and of one that needs the whole page."""
LONGEST = 12
"""Characters of a name; of more the first are shown."""


def width_for(tokens: int) -> float:
    """How wide a figure with so many tokens across it should be, in inches."""
    return NARROW if tokens * SPACED < NARROW - 1 else WIDE


def name_tokens(axis: Any, tokens: Sequence[str], inches: float) -> None:
    """Names the tokens along an axis of that length where they have room; otherwise says what is counted."""
    across = axis.axis_name == "x"
    if tokens and len(tokens) * SPACED <= inches:
        names = [shown(token) for token in tokens]
        axis.set_ticks(range(len(tokens)), names, rotation=90 if across else 0, fontsize=LETTERS)
        axis.set_tick_params(length=0)
    else:
        axis.set_label_text("token", fontsize=10)


def shown(token: str) -> str:
    """Return the label of a token: white space is made visible, and long tokens are shortened."""
    from .theme import plain

    name = visible(token)
    return plain(name if len(name) <= LONGEST else name[: LONGEST - 1] + "…")
