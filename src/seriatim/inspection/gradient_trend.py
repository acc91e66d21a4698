"""How fast a gradient shrinks or grows with every step back.

In a recurrence the gradient k steps back is a product of k Jacobians, so that the logarithm of its norm is close to a
straight line in k: it vanishes where the slope is negative and explodes where it is positive (R. Pascanu, T. Mikolov
and Y. Bengio, "On the difficulty of training recurrent neural networks", ICML 2013). The slope is fitted by least
squares in every window of text by itself; the windows give the mean and its interval.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from torch import Tensor

from ..evaluation.intervals import interval, mean

MIN_LAGS = 16
"""Steps back that must be measured before anything is said about reach or rate."""
MIN_CUT_LAGS = 3
"""The same for windows in which the norm leaves the range of floating-point numbers before."""
UNDERFLOW = 1e-30
"""A zero that follows a norm below this is an underflow; after a larger norm it is the end of what a layer sees."""
MIN_WINDOWS = 4
"""Windows needed for an interval."""
MIN_FIT = 0.5
"""Share of the variance of log-norms that a straight line must explain for its slope to describe them."""
MIN_CHANGE = 10.0
"""Factor by which the norm must change over the measured steps to count as vanishing or exploding."""


class Trend(NamedTuple):
    """A straight line through the log-norms of a layer.

    Attributes:
        factor: what one more step back multiplies the norm by, on average.
        low: lower bound of the 95 % interval of ``factor``, by the bootstrap over windows.
        high: upper bound.
        fit: R² of the lines within their windows, 0 to 1.
        lags: steps back that the fitted windows have, on average.
        windows: number of windows fitted.
    """

    factor: float
    low: float
    high: float
    fit: float
    lags: float
    windows: int

    @property
    def kind(self) -> Literal["vanishing", "exploding"] | None:
        """What the gradient does, or None where the numbers do not support either word.

        They do if the interval excludes 1, a straight line fits, and the norm changes at least `MIN_CHANGE`-fold.
        """
        change = abs(math.log(self.factor)) * (self.lags - 1) if self.factor > 0 else math.inf
        if self.fit < MIN_FIT or change < math.log(MIN_CHANGE):
            return None
        return "vanishing" if self.high < 1 else "exploding" if self.low > 1 else None


def trend(rows: Sequence[Tensor]) -> Trend | None:
    """Fits the rate of norms ``(lags,)`` each, one for every window.

    Of every window the norms before the first that is zero, infinite or not a number are used. Windows with fewer than
    `MIN_LAGS` of them are left out, unless the norm overflows or underflows there, after `MIN_CUT_LAGS` or more.

    Returns:
        None where fewer than `MIN_WINDOWS` windows are long enough.
    """
    lines = [_line(norms) for norms, least in map(_usable, rows) if len(norms) >= least]
    if len(lines) < MIN_WINDOWS:
        return None
    slopes = np.array([line.slope for line in lines])
    value, low, high = interval(np.stack([slopes, np.ones(len(slopes))], axis=1), mean)
    assert low is not None
    assert high is not None
    total, rest = sum(line.total for line in lines), sum(line.rest for line in lines)
    fit = 1 - rest / total if total > 0 else 0.0
    lags = sum(line.lags for line in lines) / len(lines)
    return Trend(math.exp(value), math.exp(low), math.exp(high), fit, lags, len(lines))


class _Line(NamedTuple):
    slope: float
    total: float
    rest: float
    lags: int


def _usable(row: Tensor) -> tuple[np.ndarray, int]:
    """The norms that a line can be fitted to, and how many of them are needed."""
    norms = row.double().cpu().numpy()
    valid = np.isfinite(norms) & (norms > 0)
    if valid.all():
        return norms, MIN_LAGS
    count = int(np.argmin(valid))
    left = not np.isfinite(norms[count]) or (count > 0 and norms[count - 1] < UNDERFLOW)
    return norms[:count], MIN_CUT_LAGS if left else MIN_LAGS


def _line(norms: np.ndarray) -> _Line:
    """Least squares of log-norms against lags, with the sums of squares before and after the fit."""
    logs, lags = np.log(norms), np.arange(len(norms), dtype=float)
    logs, lags = logs - logs.mean(), lags - lags.mean()
    slope = float(lags @ logs / (lags @ lags))
    return _Line(slope, float(logs @ logs), float(np.square(logs - slope * lags).sum()), len(norms))
