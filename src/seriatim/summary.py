"""`summary.json` of a run: read, and checked before anything is shown of it."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .errors import InputError, shown
from .reading import read_json

LARGEST = 1 << 20
"""Bytes of a summary at most."""
REMEDY = "remove the file to use the run without its summary"


def read_summary(path: Path) -> dict[str, Any]:
    """What a training wrote when it ended; empty where there is no file.

    Raises:
        InputError: the file is damaged, or a field has another type than `seriatim train` writes.
    """
    if not path.exists() and not path.is_symlink():
        return {}
    found = read_json(path, most=LARGEST, hint=REMEDY)
    if not isinstance(found, dict):
        raise InputError(f"{path}: damaged, or not a summary; {REMEDY}")
    for name, value in found.items():
        fits, expected = FIELDS.get(name, (_is_value, "a value"))
        if not fits(value):
            raise InputError(f"{path}: {shown(name)[1:-1]} must be {expected}, got {shown(value)}; {REMEDY}")
    return found


BY_CLASS = ("classes", "entities")
"""Metrics that hold the figures of each label, or of each type of entity."""


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def _is_number(value: object) -> bool:
    if value is None:
        return True
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_time(value: object) -> bool:
    return _is_number(value) and isinstance(value, int | float) and value >= 0


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_texts(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_text, value.values()))


def _is_metrics(value: object) -> bool:
    """Figures by name; some metrics also have texts, lists, or the figures of each class."""
    return isinstance(value, dict) and all(
        _is_number(each) or isinstance(each, dict if name in BY_CLASS else str | list) for name, each in value.items()
    )


def _is_value(value: object) -> bool:
    """A field that this version does not know."""
    return True


FIELDS: dict[str, tuple[Callable[[object], bool], str]] = {
    **dict.fromkeys(("task", "layer", "precision", "device"), (_is_text, "a text")),
    **dict.fromkeys(
        ("parameters", "vocabulary_size", "steps", "epochs", "tokens", "documents", "skipped_steps", "threads"),
        (_is_count, "a count, 0 or more"),
    ),
    **dict.fromkeys(("seconds", "tokens_per_second"), (_is_time, "a number, 0 or more")),
    "best_valid": (_is_number, "a number or null"),
    **dict.fromkeys(("valid", "baseline"), (_is_metrics, "figures by name")),
    "versions": (_is_texts, "texts by name"),
}
"""What the fields of a summary hold: a check, and its words."""
