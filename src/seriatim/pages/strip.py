"""A text as a strip of tokens under a lens: values of its tokens, or weights of some tokens for others.

A lens is data, so that every measurement can add one. Its scale is absolute: a shade means the same in every text, and
the page names its ends. Several rows, such as the same text read by several models, share one choice of lens.

Weights are stored as three digits each (base 36), the square root of the weight, so that small ones keep their digits
and a hundred rows of a hundred tokens take 30 kB.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

LONGEST = 24
"""Characters of a token that are shown; a longer one ends with an ellipsis and is shown whole when it is selected."""
DIGITS, BASE = 3, "0123456789abcdefghijklmnopqrstuvwxyz"
STEPS = len(BASE) ** DIGITS - 1
"""Steps between the weights 0 and 1."""
BLANK = DIGITS * " "
"""Stands for a token that a row leaves out."""
LEVELS = 4
"""Steps of the scale below a strip, which also underlines show."""


class StripToken(NamedTuple):
    """A token as it appears in a text, with the space after it.

    A ``symbol`` such as ``</s>`` is not part of the text, and does not decide the direction in which it is written.
    ``above`` stands above the token, such as its tag; it is marked as wrong if there is another ``gold`` one.
    """

    text: str
    symbol: bool = False
    above: str = ""
    gold: str = ""

    @property
    def body(self) -> str:
        """The token without the space after it, cut if it is long."""
        body = self.text.rstrip(" ")
        return body[: LONGEST - 1] + "…" if self.is_cut else body

    @property
    def space(self) -> str:
        """The space after it."""
        return self.text[len(self.text.rstrip(" ")) :]

    @property
    def is_apart(self) -> bool:
        """Whether a space follows it, so that its neighbours are no part of the same word."""
        return len(self.text) > 1 and self.text.endswith(" ") and not self.symbol

    @property
    def is_cut(self) -> bool:
        """Whether not all of it is shown."""
        return len(self.text.rstrip(" ")) > LONGEST


class StripRow(NamedTuple):
    """Tokens with a heading, which may be empty."""

    heading: str
    tokens: Sequence[StripToken]


@dataclass(frozen=True)
class Values:
    """A value for each token from ``first`` on, counted over all rows; NaN for a token that has none.

    Attributes:
        name: of the lens, in the choice.
        values: the full shade is that of ``full``, no shade that of 0 and less.
        full: positive.
        unit: follows each value.
        sentence: what the values are.
        group: heading of related lenses in the choice.
        first: the first token that has a value.
        ends: what no shade and the full shade mean, beside their numbers.
        notes: stands in place of the value of each token when it is selected; may be empty.
        details: alternatives of each token with their probabilities; may be empty.
        details_name: introduces them.
    """

    name: str
    values: Sequence[float]
    full: float
    unit: str = ""
    sentence: str = ""
    group: str = ""
    first: int = 0
    ends: tuple[str, str] = ("", "")
    notes: Sequence[str] = ()
    details: Sequence[Sequence[tuple[str, float]]] = ()
    details_name: str = "Expected:"

    @property
    def scale(self) -> list[str]:
        """The names of the shades, from none to the full one."""
        unit = f" {self.unit}" if self.unit else ""
        numbers = [f"{self.full * level / LEVELS:.3g}" for level in range(LEVELS + 1)]
        ends = [f" ({end})" if end else "" for end in self.ends]
        return [f"{numbers[0]}{unit}{ends[0]}", *numbers[1:-1], f"{numbers[-1]}{unit}{ends[1]}"]

    def shades(self, size: int) -> list[float | None]:
        """Return the shade of each of so many tokens, from 0 to 1; None for those that are left out."""
        known = [None if math.isnan(value) else min(1.0, max(0.0, value / self.full)) for value in self.values]
        return [*[None] * self.first, *known, *[None] * (size - self.first - len(known))]

    @property
    def data(self) -> dict[str, object]:
        """The lens as the script reads it; infinite values have the spelling of JavaScript."""
        values = [
            None if math.isnan(value) else float(f"{value:.4g}") if math.isfinite(value) else "Infinity"
            for value in self.values
        ]
        blank: list[list[list[object]]] = [[]] * self.first if self.details else []
        return {
            "sentence": self.sentence,
            "scale": self.scale,
            "values": [*[None] * self.first, *values],
            "full": self.full,
            "unit": self.unit,
            "notes": [*[""] * self.first, *self.notes] if self.notes else [],
            "details": [*blank, *([[name, float(f"{share:.3g}")] for name, share in each] for each in self.details)],
            "about": self.details_name,
        }


class Weights(NamedTuple):
    """Weights for the tokens from ``first_row`` on; each row has those of the tokens from ``first_column`` on.

    A row leaves out the tokens with NaN and those after its end. Tokens are counted over all rows of a strip.
    """

    rows: Sequence[Sequence[float]]
    first_row: int = 0
    first_column: int = 0


@dataclass(frozen=True)
class Links:
    """Weights, from 0 to 1, of tokens for the token that a reader selects; the shade is their square root."""

    name: str
    weights: Sequence[Weights]
    sentence: str = ""
    group: str = ""

    @property
    def scale(self) -> list[str]:
        """The names of the shades, from none to the full one."""
        return [f"{100 * (level / LEVELS) ** 2:.0f}\N{NO-BREAK SPACE}%" for level in range(LEVELS + 1)]

    @property
    def pinned(self) -> int:
        """The token whose row is shown first: the last one that has weights."""
        filled = (
            block.first_row + i
            for block in self.weights
            for i, row in enumerate(block.rows)
            if any(weight > 0 for weight in row)
        )
        return max(filled, default=0)

    def shades(self, size: int) -> list[float | None]:
        """Return the shades for the pinned token; see `Values.shades`."""
        shades: list[float | None] = [None] * size
        for block in self.weights:
            if 0 <= self.pinned - block.first_row < len(block.rows):
                for i, weight in enumerate(block.rows[self.pinned - block.first_row]):
                    if math.isfinite(weight):
                        shades[block.first_column + i] = math.sqrt(min(1.0, max(0.0, weight)))
        return shades

    @property
    def data(self) -> dict[str, object]:
        """The lens as the script reads it."""
        blocks = [
            {"row": block.first_row, "column": block.first_column, "rows": list(map(encoded_row, block.rows))}
            for block in self.weights
        ]
        return {"sentence": self.sentence, "scale": self.scale, "weights": blocks, "pinned": self.pinned}


Lens = Values | Links


def encoded_row(weights: Sequence[float]) -> str:
    """Return the digits of each weight; NaN gives `BLANK`, which is left out at the end."""

    def digits(weight: float) -> str:
        step = round(STEPS * math.sqrt(min(1.0, max(0.0, weight))))
        return BASE[step // 1296] + BASE[step // 36 % 36] + BASE[step % 36]

    return "".join(digits(weight) if math.isfinite(weight) else BLANK for weight in weights).rstrip()


@dataclass(frozen=True)
class Strip:
    """Rows of tokens under one lens at a time, at first the first one; there is at least one lens."""

    rows: Sequence[StripRow]
    lenses: Sequence[Lens]

    @property
    def size(self) -> int:
        """Number of tokens of all rows."""
        return sum(len(row.tokens) for row in self.rows)

    @property
    def first_shades(self) -> list[float | None]:
        """The shades that are shown first."""
        return self.lenses[0].shades(self.size)

    @property
    def groups(self) -> list[tuple[str, list[tuple[int, str]]]]:
        """The choices of the lens by group: the index of each lens and its name."""
        by_group: dict[str, list[tuple[int, str]]] = {}
        for i, lens in enumerate(self.lenses):
            by_group.setdefault(lens.group, []).append((i, lens.name))
        return list(by_group.items())


def joined(strips: Sequence[tuple[str, Strip]]) -> Strip:
    """Return one strip with the rows of several, each below its name, under the lenses that all of them have.

    A strip without lenses has no values. Values have one scale, the largest of them.
    """
    rows, offsets = list[StripRow](), list[int]()
    for name, strip in strips:
        offsets.append(sum(len(row.tokens) for row in rows))
        rows += [row._replace(heading=f"{name}, {row.heading}" if row.heading else name) for row in strip.rows]
    by_name = [{(lens.group, lens.name): lens for lens in strip.lenses} for _, strip in strips]
    known = [(lenses, offset) for lenses, offset in zip(by_name, offsets, strict=True) if lenses]
    shared = [key for key in known[0][0] if all(key in lenses for lenses, _ in known)] if known else []
    return Strip(rows, [_joined([(lenses[key], offset) for lenses, offset in known]) for key in shared])


def _joined(lenses: Sequence[tuple[Lens, int]]) -> Lens:
    """Return one lens for the lenses of one name, whose tokens are moved by the offsets."""
    first = lenses[0][0]
    if isinstance(first, Links):
        blocks = [
            Weights(block.rows, block.first_row + offset, block.first_column + offset)
            for lens, offset in lenses
            for block in (lens.weights if isinstance(lens, Links) else ())
        ]
        return replace(first, weights=blocks)
    values, notes, details, full = list[float](), list[str](), list[Sequence[tuple[str, float]]](), 0.0
    for lens, offset in lenses:
        assert isinstance(lens, Values)
        gap, size = offset + lens.first - len(values), len(lens.values)
        values += [*[math.nan] * gap, *lens.values]
        notes += [*[""] * gap, *(lens.notes or [""] * size)]
        details += [*[()] * gap, *(lens.details or [()] * size)]
        full = max(full, lens.full)
    return replace(first, values=values, notes=notes, details=details, first=0, full=full)
