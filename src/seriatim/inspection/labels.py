"""Tokens along the axes of a figure."""

from collections.abc import Sequence
from typing import Any

NAMED, LONGEST = 48, 12
"""Tokens that an axis names, and characters of their names; of more tokens only places are shown."""


def name_tokens(axis: Any, tokens: Sequence[str]) -> None:
    """Names the tokens along an axis where there are few; otherwise says what is counted."""
    across = axis.axis_name == "x"
    if 0 < len(tokens) <= NAMED:
        axis.set_ticks(range(len(tokens)), [shown(token) for token in tokens], rotation=90 if across else 0, fontsize=6)
    else:
        axis.set_label_text("token")


def shown(token: str) -> str:
    """A token for a label: white space made visible, long ones cut."""
    from .theme import plain

    visible = token.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥")
    return plain(visible if len(visible) <= LONGEST else visible[: LONGEST - 1] + "…")
