"""The rate at which a gradient shrinks or grows with every step back.

In a recurrence, the gradient k steps back is a product of k Jacobians, so that the logarithm of its norm is close to a
straight line in k. The gradient vanishes if the slope is negative and explodes if it is positive (R. Pascanu, T.
Mikolov and Y. Bengio, "On the difficulty of training recurrent neural networks", ICML 2013). The slope is fitted by
least squares in every window of text; the mean over the windows and its interval are reported.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..evaluation.intervals import BOUNDS, RESAMPLES, interval, mean

MIN_LAGS = 16
"""Steps back that must be measured before anything is said about reach or rate."""
MIN_CUT_LAGS = 3
"""The same for windows in which the norm leaves the range of floating-point numbers earlier."""
UNDERFLOW = 1e-30
"""A zero after a norm below this is an underflow; after a larger norm, the layer does not see further back."""
MIN_WINDOWS = 4
"""Windows needed for an interval."""
MIN_FIT = 0.9
"""Fraction of the variance of log-norms that a straight line must explain for its slope to describe them."""
MIN_REACH = 5
"""Lags without which a straight line says nothing."""
REACH_FRACTION = 0.01
"""Fraction of the norm at lag 1 below which the gradient no longer counts."""
MIN_CHANGE = 10.0
"""Factor by which the norm must change over the measured steps to count as vanishing or exploding."""


class Trend(NamedTuple):
    """A straight line through the log-norms of a layer up to its reach, or through all of them if it has none.

    One more step back multiplies the norm by ``factor`` on average, with the 95 % interval ``low`` to ``high`` by the
    bootstrap over windows. ``fit`` is the R² of the lines, ``lags`` the mean number of lags of the windows.
    """

    factor: float
    low: float
    high: float
    fit: float
    lags: float
    windows: int

    @property
    def kind(self) -> Literal["vanishing", "exploding"] | None:
        """Whether the gradient vanishes or explodes, or None if the numbers support neither word.

        They do if the interval excludes 1, a straight line fits, and the norm changes at least `MIN_CHANGE`-fold.
        """
        change = abs(math.log(self.factor)) * (self.lags - 1) if self.factor > 0 else math.inf
        if self.fit < MIN_FIT or change < math.log(MIN_CHANGE):
            return None
        return "vanishing" if self.high < 1 else "exploding" if self.low > 1 else None


def lag_below(norms: Sequence[float], limit: float) -> int | None:
    """Return the lag from which on all norms are 0 or below a limit; None if the last one is not."""
    lag = len(norms)
    while lag and (norms[lag - 1] < limit or norms[lag - 1] == 0):
        lag -= 1
    return lag + 1 if lag < len(norms) else None


def reach(norms: Sequence[float], *, fraction: float = REACH_FRACTION) -> int | None:
    """Return the lag from which on all norms are 0 or below a fraction of that at lag 1; None if there is none."""
    return lag_below(norms, fraction * norms[0]) if norms else None


def trend(rows: Sequence[Tensor]) -> Trend | None:
    """Fit the rate of the norms ``(lags,)`` of windows of one length; None if fewer than `MIN_WINDOWS` are long enough.

    In every window, the norms before the first one that is zero, infinite or not a number are used, up to the reach of
    the mean of all windows; with a reach below `MIN_REACH` there is no rate. Windows with fewer than `MIN_LAGS` such
    norms are left out. Neither limit holds if the norm overflows or underflows after `MIN_CUT_LAGS` or more.
    """
    counted = [_usable(row) for row in rows]
    usable = [norms for norms, least in counted if len(norms) >= least]
    if len(usable) < MIN_WINDOWS:
        return None
    end = reach(torch.stack(list(rows)).double().mean(0).tolist())
    if end is not None and end < MIN_REACH and all(least == MIN_LAGS for _, least in counted):
        return None
    lines = [_line(norms[: end and max(end, MIN_CUT_LAGS)]) for norms in usable]
    slopes, totals, rests, lags = np.array(lines).T
    value, low, high = interval(np.stack([slopes, np.ones(len(slopes))], axis=1), mean)
    assert low is not None
    assert high is not None
    fit = 1 - float(rests.sum() / totals.sum()) if totals.any() else 0.0
    return Trend(math.exp(value), math.exp(low), math.exp(high), fit, float(lags.mean()), len(lines))


def band(rows: Sequence[Tensor]) -> tuple[list[float], list[float]] | None:
    """Return the 95 % intervals of the means of norms ``(lags,)``, by the bootstrap over windows of one length.

    The lower and the upper bounds are lists over the lags. None for a single window.
    """
    if len(rows) < 2:
        return None
    norms = np.stack([row.double().cpu().numpy() for row in rows])  # (windows, lags)
    drawn = np.random.default_rng(0).integers(len(norms), size=(RESAMPLES, len(norms)))
    counts = np.stack([np.bincount(draw, minlength=len(norms)) for draw in drawn])
    with np.errstate(invalid="ignore", over="ignore"):  # exploding gradients may be infinite
        low, high = np.quantile(counts @ norms / len(norms), BOUNDS, axis=0)
    return low.tolist(), high.tolist()


def _usable(row: Tensor) -> tuple[np.ndarray, int]:
    """Return the norms to which a line can be fitted, and how many of them are needed."""
    norms = row.double().cpu().numpy()
    valid = np.isfinite(norms) & (norms > 0)
    if valid.all():
        return norms, MIN_LAGS
    count = int(np.argmin(valid))
    out_of_range = not np.isfinite(norms[count]) or (count > 0 and norms[count - 1] < UNDERFLOW)
    return norms[:count], MIN_CUT_LAGS if out_of_range else MIN_LAGS


def _line(norms: np.ndarray) -> tuple[float, float, float, int]:
    """Fit log-norms against lags; return the slope, the sums of squares before and after the fit, and the lags."""
    logs, lags = np.log(norms), np.arange(len(norms), dtype=float)
    logs, lags = logs - logs.mean(), lags - lags.mean()
    slope = float(lags @ logs / (lags @ lags))
    return slope, float(logs @ logs), float(np.square(logs - slope * lags).sum()), len(norms)
