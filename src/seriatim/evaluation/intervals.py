"""Metrics as they are displayed, their confidence intervals by the percentile bootstrap, and the paired test.

Every metric here is a function of sums over independent items (sentences, documents): accuracy of hits, F1 of counts,
BLEU of n-gram matches. An item is therefore a row of its *sufficient statistics*, and a resample weights the rows.

Sources: B. Efron and R. Tibshirani, *An Introduction to the Bootstrap* (1993), chapters 13 and 16; P. Koehn,
*Statistical significance tests for machine translation evaluation* (EMNLP 2004).
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ..core.errors import EmptyError, MismatchError
from ..core.json_object import JsonMapping, JsonObject

RESAMPLES = 1000
METHOD = f"percentile bootstrap, {RESAMPLES:,} resamples"
"""How the intervals of all figures are computed, in words; Wilson's for a fraction that is 0 or 1 in every item."""
BOUNDS, Z = (0.025, 0.975), 1.959964
"""Quantiles of an interval of 95 %, and the corresponding quantile of the normal distribution."""
SIGNIFICANT = 0.05
"""The largest p-value of a difference that is called significant."""
BLOCK = 1 << 21  # draws held in memory at once; limits the memory to about 50 MB for any number of items

Compute = Callable[[np.ndarray], np.ndarray]
"""Maps summed statistics ``(..., k)`` to metrics ``(...)``; NaN where the sums count no item."""

PLAIN_BELOW = 1e9  # numbers from this size on are shown with an exponent
MAX_DIGITS = 8  # after the decimal point


class Measure(NamedTuple):
    """The sufficient statistics of a metric, whose value is ``compute(statistics.sum(0))``.

    The statistics are ``(items, k)``, in the order of the items, so that two systems can be paired.
    """

    statistics: np.ndarray
    compute: Compute

    @property
    def value(self) -> float:
        """The metric of all items."""
        return float(self.compute(self.statistics.sum(0)))

    def paired_with(self, other: "Measure") -> "Paired":
        """Compare the metric with that of another system on the same items; see `paired`."""
        return paired(self.statistics, other.statistics, self.compute)


class Measurement(NamedTuple):
    """The metrics of a model on some data, and what every item adds to each, by which models are compared."""

    metrics: JsonObject
    measures: Mapping[str, Measure]


class Paired(NamedTuple):
    """Difference of a metric, first system minus second, with its 95 % interval and a two-sided p-value.

    The last three are None if there are fewer than 2 items.
    """

    difference: float
    low: float | None
    high: float | None
    p_value: float | None


def is_significant(p_value: float | None, low: float | None, high: float | None) -> bool:
    """Return whether a difference is called significant: by its p-value, and by its interval, which excludes 0.

    The two can disagree: few items that differ have a large p-value, whatever their interval.
    """
    if p_value is None or low is None or high is None:
        return False
    return p_value <= SIGNIFICANT and not low <= 0 <= high


def interval(
    statistics: np.ndarray,
    compute: Compute,
    *,
    counts: np.ndarray | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[float, float | None, float | None]:
    """Compute a metric of the summed statistics ``(items, k)``, and its 95 % interval; no items are an InputError.

    ``counts`` is the number of equal items that each row stands for ``(items,)``; None for one each.

    Returns:
        ``value, low, high``; the bounds are None if the value is NaN or infinite, or if there are fewer than 2 items
        and the value is not a share.
    """
    statistics = _checked(statistics)
    items = len(statistics) if counts is None else int(counts.sum())
    value = float(compute(statistics.sum(0) if counts is None else counts @ statistics))
    drawn = _resampled_sums(statistics, counts, resamples, seed) if items > 1 else None
    present = statistics if counts is None else statistics[counts > 0]
    return value, *_bounds(drawn, present, compute, items, value)


def with_interval(
    name: str, statistics: np.ndarray, compute: Compute, *, counts: np.ndarray | None = None
) -> JsonObject:
    """Return the result of `interval` as ``NAME``, ``NAME_low`` and ``NAME_high``."""
    value, low, high = interval(statistics, compute, counts=counts)
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def with_intervals(measures: Mapping[str, Measure]) -> JsonObject:
    """Return the result of `with_interval` for several measures of the same items, which are resampled once."""
    metrics: JsonObject = {}
    columns = np.cumsum([0] + [measure.statistics.shape[1] for measure in measures.values()])
    statistics = _checked(np.concatenate([measure.statistics for measure in measures.values()], 1))
    sums = statistics.sum(0)
    drawn = _resampled_sums(statistics, None, RESAMPLES, 0) if len(statistics) > 1 else None
    for (name, measure), (start, stop) in zip(measures.items(), pairwise(columns), strict=True):
        value = float(measure.compute(sums[start:stop]))
        resampled = None if drawn is None else drawn[:, start:stop]
        low, high = _bounds(resampled, statistics[:, start:stop], measure.compute, len(statistics), value)
        metrics |= {name: value, f"{name}_low": low, f"{name}_high": high}
    return metrics


def paired(
    first: np.ndarray, second: np.ndarray, compute: Compute, *, resamples: int = RESAMPLES, seed: int = 0
) -> Paired:
    """Test whether two systems, given by their statistics ``(items, k)``, differ on the same items in the same order.

    Both are measured on the same resamples. The p-value is the fraction of resamples whose difference deviates from the
    observed difference by at least as much as the observed difference deviates from zero. The observed sample counts as
    one of them, so that the p-value is at least ``1 / (resamples + 1)``. It is also at least 2 / 2ⁿ, where n items
    differ, as in a test that exchanges the systems of each item (R. Fisher, *The Design of Experiments*, 1935): fewer
    than 6 items are no evidence. No items, or different shapes, are an InputError.
    """
    first, second = _checked(first), _checked(second)
    if first.shape != second.shape:
        shapes = f"{first.shape} and {second.shape}"
        raise MismatchError(f"statistics of shape {shapes} cannot be paired; evaluate both systems on the same items")
    values = [float(compute(statistics.sum(0))) for statistics in (first, second)]
    difference = values[0] - values[1]
    if len(first) < 2 or not np.isfinite(values).all():  # an infinite loss has no interval
        return Paired(difference, None, None, None)

    # Both systems are resampled with the same seed, so that each resample holds the same items of both.
    drawn, other = (compute(_resampled_sums(rows, None, resamples, seed)) for rows in (first, second))
    with np.errstate(invalid="ignore"):
        drawn = drawn - other
    drawn = drawn[~np.isnan(drawn)]  # a resample without any counted item has no difference
    low, high = _ends(drawn)
    if low is None:
        return Paired(difference, None, None, None)

    # Few items that differ are no evidence, however large their difference is.
    as_far = int((np.abs(drawn - difference) >= abs(difference)).sum())
    differing = min(int(np.any(first != second, axis=1).sum()), 1000)
    least = min(1.0, 2.0 ** (1 - differing))
    return Paired(difference, low, high, max(least, (as_far + 1) / (len(drawn) + 1)))


def ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Return the quotient, and 0 where the denominator is 0, as is usual for precision and recall."""
    numerator, denominator = np.broadcast_arrays(np.asarray(numerator, float), np.asarray(denominator, float))
    quotient = np.zeros(numerator.shape)
    np.divide(numerator, denominator, out=quotient, where=denominator > 0)
    return quotient


def mean(sums: np.ndarray) -> np.ndarray:
    """Return the quotient of two sums ``(..., 2)``, such as hits and trials; NaN where the second sum is 0."""
    return np.where(sums[..., 1] > 0, ratio(sums[..., 0], sums[..., 1]), np.nan)


def exp_mean(sums: np.ndarray) -> np.ndarray:
    """Return the exponential of `mean`, which is infinite beyond what a float can hold."""
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(mean(sums)))


def supported_digits(low: float, high: float, most: int) -> int:
    """Return how many digits after the point a value with this interval supports, at most ``most``.

    The first two digits of half the width of the interval are shown; further ones would only be noise. The result can
    be negative: −2 is hundreds.
    """
    half = (high - low) / 2
    return min(most, 1 - math.floor(math.log10(half))) if 0 < half < math.inf else most


def interval_digits(low: float, high: float, most: int) -> int:
    """Return the `supported_digits` of an interval, and more if one of its bounds would be rounded to 0."""
    digits = supported_digits(low, high, most) if low < high else most
    smallest = min((abs(bound) for bound in (low, high) if bound), default=1.0)
    return max(digits, min(MAX_DIGITS, math.ceil(-math.log10(2 * smallest))))


def written(value: float | None, digits: int, *, signed: bool = False) -> str:
    """Format a figure for a table: ``12.34``, ``1.2e+45`` for a very large number, ``-`` for None and NaN.

    Negative ``digits`` round before the point: with −2, hundreds are shown.
    """
    if value is None or np.isnan(value):
        return "-"
    sign = "+" if signed else ""
    if np.isinf(value):
        return f"{value:{sign}}"
    return f"{round(value, digits):{sign},.{max(0, digits)}f}" if abs(value) < PLAIN_BELOW else f"{value:{sign}.1e}"


def _checked(statistics: np.ndarray) -> np.ndarray:
    statistics = np.asarray(statistics, float)
    assert statistics.ndim == 2, "statistics are (items, k)"
    if not len(statistics):
        raise EmptyError("there is nothing to evaluate; give at least one item")
    return statistics


def _resampled_sums(statistics: np.ndarray, counts: np.ndarray | None, resamples: int, seed: int) -> np.ndarray:
    """Return the sums ``(resamples, k)`` over resamples of the items, drawn with replacement."""
    random, items = np.random.default_rng(seed), len(statistics)
    block = max(1, BLOCK // items)
    sizes = [min(block, resamples - start) for start in range(0, resamples, block)]
    with np.errstate(invalid="ignore"):  # 0 · ∞, of a metric that is infinite and has no interval
        return np.concatenate([_weights(random, size, items, counts) @ statistics for size in sizes])


def _weights(random: np.random.Generator, rows: int, items: int, counts: np.ndarray | None) -> np.ndarray:
    """Return how often each item is drawn ``(rows, items)``, which is multinomial."""
    if counts is not None:
        total = int(counts.sum())
        return random.multinomial(total, counts / total, size=rows).astype(float)
    # counting draws is many times faster than numpy's multinomial, which draws a binomial for each item
    drawn = random.integers(items, size=(rows, items)) + items * np.arange(rows)[:, None]
    return np.bincount(drawn.ravel(), minlength=rows * items).reshape(rows, items).astype(float)


def _bounds(
    drawn: np.ndarray | None, statistics: np.ndarray, compute: Compute, items: int, value: float
) -> tuple[float | None, float | None]:
    """Return the interval of the value of some statistics, by the sums over resamples ``drawn``; None of one item.

    Resamples of equal items are equal, whatever the population is. Wilson's interval of a fraction that is 0 or 1 in
    every item is not empty; other figures then have twice the value, and pages show no interval.
    """
    if not np.isfinite(value):
        return None, None
    if drawn is not None:
        low, high = _ends(compute(drawn))
        if low != high:
            return low, high
    for fraction in (0, 1):
        if compute is mean and np.all(statistics[:, 1] > 0) and np.all(statistics[:, 0] == fraction * statistics[:, 1]):
            return wilson(fraction * items, items)
    return (None, None) if drawn is None else (value, value)


def _ends(drawn: np.ndarray) -> tuple[float | None, float | None]:
    """Return the interval of figures of resamples, without those that count no item; None if there is none."""
    known = drawn[~np.isnan(drawn)]
    if not len(known):
        return None, None
    with np.errstate(invalid="ignore"):
        low, high = np.quantile(known, BOUNDS)
    return (None, None) if np.isnan([low, high]).any() else (float(low), float(high))  # NaN between two infinities


def wilson(hits: int, trials: int) -> tuple[float, float]:
    """Return the 95 % interval of a fraction of ``hits`` in at least one trial (E. Wilson, JASA 22, 1927)."""
    fraction, squared = hits / trials, Z**2
    centre, scale = fraction + squared / (2 * trials), 1 + squared / trials
    half = Z * math.sqrt(fraction * (1 - fraction) / trials + squared / (4 * trials**2))
    low, high = max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)
    return min(low, fraction), max(high, fraction)  # which rounding could exclude


class Metric(NamedTuple):
    """A metric and how it is displayed: its ``digits`` after the decimal point, and which values are better.

    Fewer digits are shown of a value whose interval is too wide for them; see `supported_digits`. ``headline`` metrics
    are shown after every validation. ``ceiling`` is the largest possible value where larger ones are better. Where
    ``metrics`` are given by name, the interval of one is ``NAME_low`` and ``NAME_high``, if it has one.
    """

    key: str
    name: str
    digits: int
    headline: bool = False
    more_is_better: bool = False
    ceiling: float = 1.0

    @property
    def is_fraction(self) -> bool:
        """Whether values are fractions from 0 to 1, so that a difference is told in points: 100 times as much."""
        return self.more_is_better and self.ceiling == 1.0

    def best(self, values: Iterable[float]) -> float:
        """Return the best of some values."""
        return max(values) if self.more_is_better else min(values)

    def written(self, value: float, bounds: tuple[float, float] | None = None) -> str:
        """Return a value as a table shows it, with the digits that its interval ``bounds`` supports."""
        return written(value, self.digits if bounds is None else supported_digits(*bounds, self.digits))

    def bounds(self, metrics: JsonMapping) -> tuple[float, float] | None:
        """Return the confidence interval; None if the metrics have none, or an empty one, which says nothing."""
        low, high = metrics.get(f"{self.key}_low"), metrics.get(f"{self.key}_high")
        return None if low is None or high is None or low == high else (low, high)

    def text(self, metrics: JsonMapping, beside: JsonMapping | None = None) -> str:
        """Return the value among some metrics as a table shows it.

        A value without an interval has the digits of the value ``beside`` it, unless these would round it to 0.
        """
        value, bounds = metrics[self.key], self.bounds(metrics) or self.bounds(beside or {})
        is_lost = bounds is not None and value and not round(value, supported_digits(*bounds, self.digits))
        return self.written(value, None if is_lost else bounds)

    def interval(self, metrics: JsonMapping) -> str:
        """Return the confidence interval in words, or an empty string if the metrics have none."""
        bounds = self.bounds(metrics)
        return "" if bounds is None else " to ".join(self.written(bound, bounds) for bound in bounds)


class MetricsTable(NamedTuple):
    """Metrics that are shown in a table of their own: headings, rows of cells, and a note below the table."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
