"""A text on which a reader points at a token, and earlier tokens are shaded by their weights for it.

The weights are attention or influence. Every row of a view is stored as three digits for each token, the square root of
its weight relative to the largest of the row. So small weights keep their digits, and a hundred rows of a hundred
tokens take 30 kB.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

LONGEST = 24
"""Characters of a token that are shown; a longer one ends with an ellipsis and is shown whole when it is selected."""
DIGITS = 3
STEPS = 999
"""Steps between no weight and the largest weight of a row."""
BLANK = DIGITS * " "
"""Stands for a token that a row leaves out."""


class LinkedToken(NamedTuple):
    """A token as it appears in a text, with the space after it; a ``symbol`` such as ``</s>`` is not part of a text."""

    text: str
    symbol: bool = False

    @property
    def shown(self) -> str:
        """The token, cut if it is long."""
        body = self.text.rstrip(" ")
        end = self.text[len(body) :]
        return (body[: LONGEST - 1] + "…" if len(body) > LONGEST else body) + end

    @property
    def apart(self) -> bool:
        """Whether a space follows it, so that its neighbours are no part of the same word."""
        return len(self.text) > 1 and self.text.endswith(" ") and not self.symbol

    @property
    def cut(self) -> bool:
        """Whether not all of it is shown."""
        return len(self.text.rstrip(" ")) > LONGEST


class LinkView(NamedTuple):
    """Weights of some tokens for others: a choice ``name`` in a ``group`` of the selector, with a sentence about it.

    ``rows`` belong to the tokens from ``first_row`` on; each has the weights of the tokens from ``first_column`` on. A
    row leaves out the tokens with NaN and those after its end. Tokens are counted over all texts.
    """

    group: str
    name: str
    sentence: str
    rows: Sequence[Sequence[float]]
    first_row: int = 0
    first_column: int = 0


@dataclass(frozen=True)
class TokenLinks:
    """Texts, as ``(heading, tokens)``, and views of the links between their tokens; there is at least one view."""

    texts: Sequence[tuple[str, Sequence[LinkedToken]]]
    views: Sequence[LinkView]
    caption: str = ""

    @property
    def pinned(self) -> int:
        """The token whose row is shown first: the last one that has weights in the first view."""
        view = self.views[0]
        filled = [i for i, row in enumerate(view.rows) if any(weight > 0 for weight in row)]
        return view.first_row + max(filled, default=0)

    @property
    def first_shades(self) -> list[float | None]:
        """The shades of all tokens, from 0 to 1, that are shown first; None for a token that the row leaves out."""
        view = self.views[0]
        shades: list[float | None] = [None] * sum(len(tokens) for _, tokens in self.texts)
        digits = encoded_row(view.rows[self.pinned - view.first_row])[0]
        for place in range(0, len(digits), DIGITS):
            if (shade := digits[place : place + DIGITS]) != BLANK:
                shades[view.first_column + place // DIGITS] = int(shade) / STEPS
        return shades

    @property
    def data(self) -> list[dict[str, object]]:
        """The views as the script reads them."""
        return [_encoded(view) for view in self.views]

    @property
    def groups(self) -> list[tuple[str, list[tuple[int, str]]]]:
        """The choices of the selector by group: the index of each view and its name."""
        by_group: dict[str, list[tuple[int, str]]] = {}
        for i, view in enumerate(self.views):
            by_group.setdefault(view.group, []).append((i, view.name))
        return list(by_group.items())


def encoded_row(weights: Sequence[float]) -> tuple[str, float]:
    """Return the digits of each weight, see above, and the largest weight; NaN gives `BLANK`."""
    known = [weight for weight in weights if math.isfinite(weight)]
    largest = max(known, default=0.0)
    scale = 1 / largest if largest > 0 else 0.0
    steps = (round(STEPS * math.sqrt(weight * scale)) if math.isfinite(weight) else None for weight in weights)
    digits = "".join(BLANK if step is None else f"{step:0{DIGITS}d}" for step in steps)
    return digits.rstrip(), float(f"{largest:.4g}")


def _encoded(view: LinkView) -> dict[str, object]:
    rows = [encoded_row(row) for row in view.rows]
    return {
        "sentence": view.sentence,
        "row": view.first_row,
        "column": view.first_column,
        "rows": [digits for digits, _ in rows],
        "largest": [largest for _, largest in rows],
    }
