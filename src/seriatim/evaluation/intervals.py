"""How sure a figure is: the percentile bootstrap over items, and the paired test of two systems.

Every figure here is a function of sums over independent items (sentences, documents): accuracy of hits, F1 of counts,
BLEU of n-gram matches. So an item is kept as a row of its *sufficient statistics*, a resample is a weighting of the
rows, and all resamples are computed in one call.

Sources: B. Efron and R. Tibshirani, *An Introduction to the Bootstrap* (1993), chapters 13 and 16; P. Koehn,
*Statistical significance tests for machine translation evaluation* (EMNLP 2004).
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ..core.errors import InputError

RESAMPLES = 1000
BLOCK = 1 << 21
"""Draws held in memory at once, which bounds the memory of any number of items to some 50 MB."""

Metrics = dict[str, Any]
Of = Callable[[np.ndarray], np.ndarray]
"""From sums ``(..., k)``, whatever shape leads, to figures ``(...)``; NaN where the sums count nothing."""

PLAIN_BELOW = 1e9
"""Larger numbers are shown with an exponent."""


class Measure(NamedTuple):
    """What a figure is computed from: ``of(statistics.sum(0))``.

    ``statistics`` are ``(items, k)``: one row an item, in the order of the items, so that two systems can be paired.
    """

    statistics: np.ndarray
    of: Of


class Paired(NamedTuple):
    """How far the first system is above the second.

    ``low`` and ``high`` bound the difference with 95 % confidence; ``p_value`` is two-sided. All three are None where
    there are fewer than 2 items.
    """

    difference: float
    low: float | None
    high: float | None
    p_value: float | None


def interval(
    statistics: np.ndarray, of: Of, *, counts: np.ndarray | None = None, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float | None, float | None]:
    """The value of the summed statistics, and its 95 % interval.

    Args:
        statistics: ``(items, k)``, one row an item.
        of: see `Of`.
        counts: ``(items,)``, how many items each row stands for, where many are alike; by default one each.
        resamples: how many times the items are drawn again.
        seed: of the draws: the same seed draws the same items.

    Returns:
        ``value, low, high``; the bounds are None where there are fewer than 2 items, or the value is NaN.

    Raises:
        InputError: there are no items.
    """
    statistics = _checked(statistics)
    counts = None if counts is None else np.asarray(counts)
    value = float(of(statistics.sum(0) if counts is None else counts @ statistics))
    if (len(statistics) if counts is None else counts.sum()) < 2 or np.isnan(value):
        return value, None, None
    return value, *_bounds(of(_resampled_sums(statistics, counts, resamples, seed)))


def with_interval(name: str, statistics: np.ndarray, of: Of, *, counts: np.ndarray | None = None) -> Metrics:
    """`interval` as ``NAME``, ``NAME_low`` and ``NAME_high``."""
    value, low, high = interval(statistics, of, counts=counts)
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def with_intervals(measures: Mapping[str, Measure]) -> Metrics:
    """`with_interval` of several measures of the same items, which are drawn once for all of them."""
    metrics: Metrics = {}
    columns = np.cumsum([0] + [measure.statistics.shape[1] for measure in measures.values()])
    together = _checked(np.concatenate([measure.statistics for measure in measures.values()], 1))
    sums, enough = together.sum(0), len(together) >= 2
    drawn = _resampled_sums(together, None, RESAMPLES, 0) if enough else None
    for (name, measure), (start, stop) in zip(measures.items(), pairwise(columns), strict=True):
        value = float(measure.of(sums[start:stop]))
        low, high = None, None
        if drawn is not None and not np.isnan(value):
            low, high = _bounds(measure.of(drawn[:, start:stop]))
        metrics |= {name: value, f"{name}_low": low, f"{name}_high": high}
    return metrics


def paired(first: np.ndarray, second: np.ndarray, of: Of, *, resamples: int = RESAMPLES, seed: int = 0) -> Paired:
    """Whether two systems differ on the same items: both are measured on the same resamples.

    The p-value is the share of resamples in which the difference strays from the one observed by at least as much as
    that one is from zero; the observed sample counts as one of them, so it is never 0.

    Args:
        first: ``(items, k)``, the statistics of one system.
        second: ``(items, k)``, those of the other, of the same items in the same order.
        of: see `Of`.
        resamples: how many times the items are drawn again; the p-value cannot fall below ``1 / (resamples + 1)``.
        seed: of the draws.

    Raises:
        InputError: there are no items, or the systems were not measured on the same ones.
    """
    first, second = _checked(first), _checked(second)
    if first.shape != second.shape:
        raise InputError(
            f"statistics of shape {first.shape} and {second.shape} cannot be paired; "
            "evaluate both systems on the same items"
        )
    values = [float(of(statistics.sum(0))) for statistics in (first, second)]
    difference = values[0] - values[1]
    if len(first) < 2 or not np.isfinite(values).all():  # what is impossible has no interval
        return Paired(difference, None, None, None)
    drawn = of(_resampled_sums(first, None, resamples, seed)) - of(_resampled_sums(second, None, resamples, seed))
    as_far = int((np.abs(drawn - difference) >= abs(difference)).sum())
    return Paired(difference, *_bounds(drawn), (as_far + 1) / (resamples + 1))


def ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Their quotient, and 0 where nothing was counted, as is the custom for precision and recall."""
    numerator, denominator = np.broadcast_arrays(np.asarray(numerator, float), np.asarray(denominator, float))
    quotient = np.zeros(numerator.shape)
    np.divide(numerator, denominator, out=quotient, where=denominator > 0)
    return quotient


def mean(sums: np.ndarray) -> np.ndarray:
    """The quotient of two sums ``(..., 2)``: hits and trials, or values and their number. NaN where nothing counts."""
    return np.where(sums[..., 1] > 0, ratio(sums[..., 0], sums[..., 1]), np.nan)


def written(value: float | None, digits: int, *, signed: bool = False) -> str:
    """A figure as a table shows it: ``12.34``, ``1.2e+45`` where it is very large, ``-`` where there is none."""
    if value is None or np.isnan(value):
        return "-"
    sign = "+" if signed else ""
    if np.isinf(value):
        return f"{value:{sign}}"
    return f"{value:{sign},.{digits}f}" if abs(value) < PLAIN_BELOW else f"{value:{sign}.1e}"


def _checked(statistics: np.ndarray) -> np.ndarray:
    statistics = np.asarray(statistics, float)
    assert statistics.ndim == 2, "statistics are (items, k)"
    if not len(statistics):
        raise InputError("there is nothing to evaluate; give at least one item")
    return statistics


def _resampled_sums(statistics: np.ndarray, counts: np.ndarray | None, resamples: int, seed: int) -> np.ndarray:
    """Sums ``(resamples, k)`` over as many items as there are, drawn with replacement."""
    random = np.random.default_rng(seed)
    items, width = statistics.shape
    block = max(1, BLOCK // items)
    sums = np.empty((resamples, width))
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        sums[start : start + rows] = _weights(random, rows, items, counts) @ statistics
    return sums


def _weights(random: np.random.Generator, rows: int, items: int, counts: np.ndarray | None) -> np.ndarray:
    """How often each item is drawn, ``(rows, items)``: multinomial."""
    if counts is not None:
        total = int(counts.sum())
        return random.multinomial(total, counts / total, size=rows).astype(float)
    # counting draws is many times faster than the generator's own multinomial, which draws a binomial for each item
    drawn = random.integers(items, size=(rows, items)) + items * np.arange(rows)[:, None]
    return np.bincount(drawn.ravel(), minlength=rows * items).reshape(rows, items).astype(float)


def _bounds(values: np.ndarray) -> tuple[float, float]:
    low, high = np.nanquantile(values, (0.025, 0.975))  # a resample that counts nothing says nothing
    return float(low), float(high)
