"""Which rows of a comparison are measured, in which order they stand, and which can be told from the best."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
Rows = Sequence[Row]

CHANCE = 0.05
"""A p-value above which two rows cannot be told from each other."""


def value_of(row: Row, key: str) -> float | None:
    """A metric of a row, or None."""
    value: float | None = (row.get("metrics") or {}).get(key)
    return value if value is not None and math.isfinite(value) else None


def ranked(results: Row) -> list[Row]:
    """The rows, best first; those without the metric after them, as they were given."""
    metric = results["metric"]
    sign = -1 if metric["more_is_better"] else 1
    measured = [row for row in results["rows"] if value_of(row, metric["key"]) is not None]
    measured.sort(key=lambda row: sign * row["metrics"][metric["key"]])
    return measured + [row for row in results["rows"] if value_of(row, metric["key"]) is None]


def tested(row: Row) -> bool:
    """Whether a row was compared with the best by the paired bootstrap."""
    return (row.get("difference") or {}).get("p_value") is not None


def told_apart(row: Row) -> bool:
    """Whether it tells a row from the best: by chance a difference like theirs comes in at most 1 of 20."""
    return tested(row) and row["difference"]["p_value"] <= CHANCE


def distance_of(row: Row, kind: str) -> list[tuple[int, float]]:
    """The figure of a row at distances of a kind (``context``, ``distance`` or ``length``), nearest first."""
    distance = row.get("distance") or {}
    if distance.get("kind") != kind:
        return []
    return sorted((int(far), value) for far, value in (distance.get("values") or {}).items() if value is not None)
