"""What a longer budget would bring: a curve through the held-out figures of a training, and its error.

The error of a model (a loss, or the distance of a share from 1) falls with the tokens read as a power law with a floor,
``a + b · tokens^−c`` (J. Hestness et al., "Deep learning scaling is predictable, empirically", 2017). The same fit
without the last validations predicts them, which shows how far it can be trusted.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

FACTOR = 4
"""The budget of the extrapolation, in budgets of the comparison."""
MIN_POINTS, HELD_BACK = 6, 2
"""The smallest number of validations that are extrapolated, and how many of the last are held back for the error."""
CERTAIN = 2
"""How many times larger than the error a change must be to be shown."""
EXPONENTS = np.geomspace(0.02, 3, 120)
"""Exponents c that are tried."""
Point = tuple[float, float]


class Extrapolation(NamedTuple):
    """The value now and at `FACTOR` times the budget, and the largest error at the points that were held back.

    All are in the unit of the figure. ``value`` is None unless the change is at least `CERTAIN` times the error.
    ``horizon`` is how far ahead the error was measured: the tokens at the last point, in tokens at the last one that
    was not held back.
    """

    now: float
    value: float | None
    error: float
    horizon: float


def extrapolate(points: Sequence[Point], *, ceiling: float | None = None) -> Extrapolation | None:
    """Extrapolate a figure at several numbers of tokens, ``(tokens, value)``, to `FACTOR` times the last number.

    ``ceiling`` is the largest possible value of a figure of which more is better; None for one that falls towards 0 or
    a floor above it. Perplexities should be given as losses. None if there are fewer than `MIN_POINTS` points.
    """
    known = np.array([point for point in points if np.isfinite(point).all() and point[0] > 0])
    if len(known) < MIN_POINTS:
        return None
    tokens, values = known.T
    errors = values if ceiling is None else ceiling - values
    shown = errors[:-HELD_BACK]
    held_back = np.abs(_predict(tokens[:-HELD_BACK], shown, tokens[-HELD_BACK:]) - errors[-HELD_BACK:]).max()
    later = float(_predict(tokens, errors, tokens[-1:] * FACTOR)[0])
    value = later if ceiling is None else ceiling - later
    is_certain = abs(later - errors[-1]) >= CERTAIN * held_back
    horizon = float(tokens[-1] / tokens[-HELD_BACK - 1])
    return Extrapolation(float(values[-1]), value if is_certain else None, float(held_back), horizon)


def _predict(tokens: np.ndarray, errors: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Fit the law to errors by least squares of relative deviations, with a, b ≥ 0, and return its values ``at``."""
    scale, weights = tokens[-1], 1 / np.maximum(errors, 1e-9)
    best, result = np.inf, np.full(len(at), errors.mean())
    for exponent in EXPONENTS:
        powers = (tokens / scale) ** -exponent
        for columns in (np.stack([np.ones_like(powers), powers], 1), powers[:, None]):
            coefficients, *_ = np.linalg.lstsq(columns * weights[:, None], errors * weights, rcond=None)
            deviation = float((((columns @ coefficients) * weights - 1) ** 2).sum())
            if (coefficients >= 0).all() and deviation < best:
                later = (at / scale) ** -exponent
                best, result = deviation, coefficients[-1] * later + (coefficients[0] if len(coefficients) > 1 else 0)
    return result
