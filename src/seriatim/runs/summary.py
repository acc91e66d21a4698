"""`summary.json` of a run: read, and checked before anything is shown of it."""

import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from ..core.errors import InputError, shown
from ..storage.safe_files import read_json

LARGEST = 1 << 20
"""Bytes of a summary at most."""
REMEDY = "remove the file to use the run without its summary"


def read_summary(path: Path, figures: Collection[str] = ()) -> dict[str, Any]:
    """What a training wrote when it ended; empty where there is no file.

    Args:
        path: the file.
        figures: metrics that are shown as numbers, each with its interval ``NAME_low`` to ``NAME_high``.

    Raises:
        InputError: the file is damaged, or a field has another type than `seriatim train` writes.
    """
    if not path.exists() and not path.is_symlink():
        return {}
    found = read_json(path, max_bytes=LARGEST, remedy=REMEDY)
    if not isinstance(found, dict):
        raise InputError(f"{path}: damaged, or not a summary; {REMEDY}")
    for name, value in found.items():
        fits, expected = FIELDS.get(name, (_is_value, "a value"))
        if not fits(value):
            raise InputError(f"{path}: {shown(name)[1:-1]} must be {expected}, got {shown(value)}; {REMEDY}")
    for part in METRICS:
        for name, value in found.get(part, {}).items():
            if name.removesuffix("_low").removesuffix("_high") in figures and not _is_number(value):
                raise InputError(f"{path}: {part}.{name} must be a number or null, got {shown(value)}; {REMEDY}")
    return found


METRICS = ("valid", "baseline")
"""Fields that hold the metrics of a task."""
BY_CLASS = ("classes", "entities")
"""Metrics that hold the figures of each label, or of each type of entity."""
BY_ORDER = "ngrams"
"""The metric that holds the figures of each order of n-grams."""


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def _is_number(value: object) -> bool:
    if value is None:
        return True
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max  # also of integers that no float can hold


def _is_time(value: object) -> bool:
    return _is_number(value) and isinstance(value, int | float) and value >= 0


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_texts(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_text, value.values()))


def _is_metrics(value: object) -> bool:
    """Figures by name; some metrics also have texts, lists, or the figures of each class."""
    return isinstance(value, dict) and all(_is_metric(name, each) for name, each in value.items())


def _is_metric(name: object, value: object) -> bool:
    if name == BY_ORDER:
        return _is_orders(value)
    return _is_number(value) or isinstance(value, dict if name in BY_CLASS else str | list)


def _is_orders(value: object) -> bool:
    """A list, not empty, of the figures of each order, which say what order it is."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(row, dict) and all(map(_is_number, row.values())) for row in value)
        and all(_is_count(row.get("order")) and _is_count(row.get("predicted")) for row in value)
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
    **dict.fromkeys(METRICS, (_is_metrics, "figures by name")),
    "versions": (_is_texts, "texts by name"),
}
"""What the fields of a summary hold: a check, and its words."""
