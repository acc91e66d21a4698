"""Which rows of a comparison are measured, in which order they stand, and which can be told from the best."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
Rows = Sequence[Row]


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
    difference = row.get("difference") or {}
    return difference.get("low") is not None and difference.get("high") is not None


def told_apart(row: Row) -> bool:
    """Whether it tells a row from the best: the interval of their difference leaves zero out."""
    return tested(row) and not row["difference"]["low"] <= 0 <= row["difference"]["high"]
