"""Quotations in sentences, and the names of data."""

import unicodedata
from pathlib import PurePath

from ..evaluation.token_scores import visible

DOTTED_CIRCLE = "\N{DOTTED CIRCLE}"
"""Stands below a mark that has no letter, as in Unicode's charts."""


def isolated(text: str) -> str:
    """Return a text for a sentence or a list; text from right to left does not reorder what is around it."""
    return f"\N{FIRST STRONG ISOLATE}{text}\N{POP DIRECTIONAL ISOLATE}"


def without_isolates(text: str) -> str:
    """Return a text for a terminal, without the marks of `isolated`."""
    return text.replace("\N{FIRST STRONG ISOLATE}", "").replace("\N{POP DIRECTIONAL ISOLATE}", "")


def seen(text: str) -> str:
    """Return a text that can be seen: a lone combining mark, or a text without width, has a dotted circle."""
    categories = [unicodedata.category(character) for character in text.rstrip(" ")]
    alone = categories and (categories[0].startswith("M") or all(category == "Cf" for category in categories))
    return f"{DOTTED_CIRCLE}{text}" if alone else text


def quoted(token: str) -> str:
    """Return a token in quotation marks, with visible white space."""
    return f"“{isolated(visible(token))}”"


def sentence_case(text: str) -> str:
    """Return a text with a capital first letter, and the others as they are: ``Macro F1``."""
    return f"{text[:1].upper()}{text[1:]}"


def short_name(data: str) -> str:
    """Return the name of some data without folders: ``train.en, train.de``, ``builtin:copy``, ``10 % of a.txt``."""

    def short(part: str) -> str:
        share, of, path = part.rpartition("% of ")
        name = part if ":" in part else PurePath(path).name or path
        return f"{share} {of}{name}" if of and ":" not in part else name

    return ", ".join(short(part.strip()) for part in data.split(","))
