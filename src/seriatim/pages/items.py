"""A browser over the items that models answered: filtered, ordered and searched, with the answers of two models."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from ..core.json_object import JsonObject
from ..evaluation.error_analysis import AnsweredItem
from .wording import cut

WITHOUT_SCRIPT = 20  # items that a page shows without its script
MAX_CHARACTERS, MAX_WORDS = 300, 60
"""Size of a text and of an answer, and of a tagged sentence; longer ones are cut."""
MAX_SIZE = 1_200_000
"""Bytes of all items together, as JSON: less than half of a page, which a browser reads in a tenth of a second."""
FULL_BITS = 10
"""Surprisal of a token, or difference of two, that has the full shade."""
Kind = Literal["answers", "tags", "tokens"]


@dataclass(frozen=True)
class Items:
    """Items with the answers of ``models``, of which a page compares two.

    ``figure`` is the name of that of the answers, and ``more_is_better`` says which values of it are better.
    """

    title: str
    models: Sequence[str]
    items: Sequence[AnsweredItem]
    figure: str = ""
    more_is_better: bool = False
    caption: str = ""

    @property
    def kind(self) -> Kind:
        """What answers are: texts or labels, tags of words, or surprisals of tokens."""
        if not self.items or isinstance(self.items[0].text, str):
            return "answers"
        return "tags" if self.items[0].truth else "tokens"

    full: ClassVar[int] = FULL_BITS

    @property
    def compared(self) -> Sequence[str]:
        """The models that are compared first."""
        return self.models[:2]

    @property
    def first(self) -> Sequence[AnsweredItem]:
        """The items that are shown without a script."""
        return self.items[:WITHOUT_SCRIPT]

    @property
    def data(self) -> JsonObject:
        """What the script reads."""
        facts = {
            "kind": self.kind,
            "models": self.models,
            "figure": self.figure,
            "full": self.full,
            "digits": self.digits,
        }
        return {**facts, "sign": 1 if self.more_is_better else -1, "items": self.items}

    @property
    def digits(self) -> int:
        """The number of decimal places of every figure."""
        known = [abs(value) for item in self.items for value in item.figures if value is not None]
        if all(value == int(value) for value in known):
            return 0
        return 1 if max(known) >= 100 else 2 if max(known) > 1 else 3

    def written(self, figure: float | None) -> str:
        """Write a figure, of which None is infinite."""
        return "∞" if figure is None else f"{figure:.{self.digits}f}"

    @staticmethod
    def shade(bits: float | None, other: float | None = 0.0) -> float:
        """Return the shade of a token from −1 to 1: negative if the first model is better, else positive."""
        first, second = (math.inf if value is None else value for value in (bits, other))
        return 0.0 if first == second else max(-1.0, min(1.0, (first - second) / FULL_BITS))


def for_page(items: Sequence[AnsweredItem]) -> list[AnsweredItem]:
    """Return items with long texts cut and figures without NaN; of items that are too many, evenly spread ones."""
    short = [_shortened(item) for item in items]
    size = len(json.dumps(short, ensure_ascii=False, separators=(",", ":")).encode())
    count = min(len(short), int(len(short) * MAX_SIZE / max(1, size)))
    return [short[i * len(short) // count] for i in range(count)]


def _shortened(item: AnsweredItem) -> AnsweredItem:
    figures = [round(value, 3) if value is not None and math.isfinite(value) else None for value in item.figures]
    if isinstance(item.text, str):
        text, truth, *answers = (cut(str(each), MAX_CHARACTERS) for each in (item.text, item.truth, *item.answers))
        return AnsweredItem(text, truth, answers, figures, item.right)
    if not item.truth:
        return item._replace(figures=figures)
    words = [cut(word, MAX_CHARACTERS) for word in item.text[:MAX_WORDS]]
    given = [each[:MAX_WORDS] for each in item.answers]
    return AnsweredItem(words, item.truth[:MAX_WORDS], given, figures, item.right)
