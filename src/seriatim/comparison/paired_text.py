"""Paired differences between rows in words, each with its 95 % interval."""

from collections.abc import Sequence

from ..evaluation.displayed_metrics import Metric
from ..evaluation.intervals import interval_digits, is_significant, written
from ..report.number_formats import listed
from .results import Json, ResultRow, Results

MAX_DIFFERENCES = 3  # layers of a sentence that are named with their differences


def between(row: ResultRow, other: ResultRow) -> Json | None:
    """Return the test of how far a row is above another one; None if they were not tested."""
    for first, second, sign in ((row, other, 1), (other, row, -1)):
        for test in (first.beside_best_trained, first.difference, first.beside_baseline):
            if test.get("to") == second.layer and test.get("p_value") is not None:
                return test if sign == 1 else _reversed(test)
    return None


def is_clear(test: Json) -> bool:
    """Return whether a difference is significant; see `is_significant`."""
    return is_significant(*(test.get(name) for name in ("p_value", "low", "high")))


def difference_and_interval(results: Results, test: Json) -> tuple[str, str]:
    """Return a difference and its interval: ``−0.052``, ``−0.086 to −0.018``; both are empty if it is not known.

    The interval is left out if it is empty, or excludes 0 although the difference is not significant.
    """
    value, low, high = (test.get(name) for name in ("difference", "low", "high"))
    figure = _figure(results, test)
    if value is None or low is None or high is None:
        return "", ""
    digits = interval_digits(low, high, figure.digits)
    size, *ends = (_signed(number, digits) for number in (value, low, high))
    if low == high:
        return ("0" if value == 0 else size), ""
    return size, " to ".join(ends) if low <= 0 <= high or is_clear(test) else ""


def difference_text(results: Results, test: Json, *, other: str = "") -> str:
    """Return a difference in words: ``difference −0.052, 95 % interval −0.086 to −0.018``; empty if not known.

    ``other`` is the layer that the difference is from, where the sentence does not name it.
    """
    size, ends = difference_and_interval(results, test)
    figure = _figure(results, test)
    of = "" if figure.key == results.metric.key else f" in {figure.name}"
    interval = f", 95 % interval {ends}" if ends else ""
    return f"difference{of}{f' from {other}' if other else ''} {size}{interval}" if size else ""


def named_with_differences(results: Results, tests: Sequence[tuple[ResultRow, Json]]) -> str:
    """Return the names of rows, each with its difference unless there are more than `MAX_DIFFERENCES`."""
    texts = [(row.layer, difference_text(results, test)) for row, test in tests]
    if len(texts) > MAX_DIFFERENCES:
        return listed([layer for layer, _ in texts])
    return listed([f"{layer} ({text})" if text else layer for layer, text in texts])


def _reversed(test: Json) -> Json:
    ends = {"difference": "difference", "low": "high", "high": "low"}
    return {**test, **{name: -test[other] for name, other in ends.items() if test.get(other) is not None}}


def _figure(results: Results, test: Json) -> Metric:
    """Return the figure that was tested, which may stand for the metric; see `metric.SAME_ORDER`."""
    key = test.get("key", results.metric.key)
    return next((figure for figure in results.figures if figure.key == key), results.metric)


def _signed(value: float, digits: int) -> str:
    return f"{'−' if value < 0 else '+'}{written(abs(value), digits)}"
