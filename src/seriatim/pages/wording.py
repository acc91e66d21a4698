"""Numbers, units, lists, quotations and names of data in sentences."""

import math
import unicodedata
from collections.abc import Sequence
from pathlib import PurePath

from ..evaluation.token_scores import visible

MAX_LISTED = 20  # names in a sentence
PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
UNITS = {"h": 3.6e6, "min": 6e4, "s": 1e3, "ms": 1.0, "μs": 1e-3}
"""Units of time in milliseconds."""
SMALLEST = {"h": 7.2e6, "min": 1.2e5, "s": 1e3, "ms": 0.1}
"""The shortest times, in milliseconds, that are written in a unit."""


def in_short(number: float) -> str:
    """Write a number for an axis: ``200``, ``5k``, ``10M``, ``1.5T``."""
    return "".join(_prefixed(number))


def in_bytes(number: float) -> str:
    """Write a number of bytes in units of a thousand: ``512 B``, ``3.2 kB``, ``1.1 GB``."""
    return "{} {}B".format(*_prefixed(number))


def _prefixed(number: float) -> tuple[str, str]:
    """Return a number with three digits, and its prefix, which is that of the rounded number."""
    texts = {prefix: f"{number / size:.3g}" for prefix, size in PREFIXES.items()}
    prefix = next((prefix for prefix, text in texts.items() if abs(float(text)) < 1000), "E")
    return texts[prefix], prefix


def in_time(milliseconds: float) -> str:
    """Write a time with two significant digits, or in whole units: ``20 μs``, ``0.31 ms``, ``4.5 s``, ``2.1 min``."""
    return in_time_range(milliseconds, milliseconds)


def in_time_range(low: float, high: float) -> str:
    """Write two times in the unit of the longer one: ``0.062 to 0.11 ms``; only one if they are written alike."""
    unit = next((unit for unit, shortest in SMALLEST.items() if high >= shortest), "μs")
    first, last = (rounded(milliseconds / UNITS[unit], 2) for milliseconds in (low, high))
    return f"{last} {unit}" if first == last else f"{first} to {last} {unit}"


def same_digits(numbers: Sequence[float]) -> list[str]:
    """Write the numbers of a column with the same digits after the point: two of a number in the middle."""
    known = sorted(abs(number) for number in numbers if number)
    if not known:
        return ["0"] * len(numbers)
    after = max(0, 1 - math.floor(math.log10(known[(len(known) - 1) // 2])))
    least = 10.0**-after
    return [f"{number:,.{after}f}" if not 0 < number < least / 2 else f"<{least:.{after}f}" for number in numbers]


def rounded(number: float, digits: int = 3) -> str:
    """Write a number with significant digits, and commas in thousands: ``41,200``."""
    if number == 0:
        return "0"
    after = digits - 1 - math.floor(math.log10(abs(number)))
    return f"{round(number, after) if abs(number) >= 1000 else number:,.{max(0, after)}f}"


def percent(fraction: float) -> str:
    """Write a fraction as ``0.4 %``, ``3 %`` or ``16 %``; only nothing is ``0 %``, and only all is ``100 %``."""
    if 0 < fraction < 0.0005:
        return "under 0.1 %"
    if 0.9995 <= fraction < 1:
        return "over 99.9 %"
    number = f"{100 * fraction:.{1 if fraction < 0.1 or 0.995 <= fraction < 1 else 0}f}"
    return f"{number.removesuffix('.0')} %"


def times(ratio: float) -> str:
    """Write a ratio as ``3.1 times`` or ``40 times``."""
    return f"{ratio:.1f} times" if ratio < 9.95 else f"{ratio:,.0f} times"


def listed(names: Sequence[str]) -> str:
    """Join names: ``a``, ``a and b``, ``a, b and c``; of very many, the first ones and the number of the others."""
    if len(names) > MAX_LISTED + 1:
        names = [*names[:MAX_LISTED], f"{len(names) - MAX_LISTED:,} others"]
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


DOTTED_CIRCLE = "\N{DOTTED CIRCLE}"
"""Stands below a mark that has no letter, as in Unicode's charts."""


def isolated(text: str) -> str:
    """Return a text for a sentence or a list; text from right to left does not reorder what is around it."""
    return f"\N{FIRST STRONG ISOLATE}{text}\N{POP DIRECTIONAL ISOLATE}"


def without_isolates(text: str) -> str:
    """Return a text for a terminal, without the marks of `isolated`."""
    return text.replace("\N{FIRST STRONG ISOLATE}", "").replace("\N{POP DIRECTIONAL ISOLATE}", "")


def cut(text: str, limit: int) -> str:
    """Return the beginning of a long text, with an ellipsis."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


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

    def short(source: str) -> str:
        percentage, of, path = source.rpartition("% of ")
        name = source if ":" in source else PurePath(path).name or path
        return f"{percentage} {of}{name}" if of and ":" not in source else name

    return ", ".join(short(source.strip()) for source in data.split(","))
