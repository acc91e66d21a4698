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
EXPONENTS = np.geomspace(0.02, 3, 120)
"""Exponents c that are tried."""
Point = tuple[float, float]


class Extrapolation(NamedTuple):
    """The value now and at `FACTOR` times the budget, and the largest error at the points that were held back.

    All are in the unit of the figure. ``value`` is None where the error is at least as large as the change.
    """

    now: float
    value: float | None
    error: float


def extrapolate(points: Sequence[Point], *, more_is_better: bool) -> Extrapolation | None:
    """Extrapolate a figure at several numbers of tokens, ``(tokens, value)``, to `FACTOR` times the last number.

    Perplexities should be given as losses. Shares are at most 1, and scores at most 100; other figures are positive.
    None if there are fewer than `MIN_POINTS` points.
    """
    known = np.array([point for point in points if np.isfinite(point).all() and point[0] > 0])
    if len(known) < MIN_POINTS:
        return None
    tokens, values = known.T
    ceiling = (1.0 if values.max() <= 1 else 100.0) if more_is_better else 0.0
    errors = ceiling - values if more_is_better else values
    shown = errors[:-HELD_BACK]
    held_back = np.abs(_predict(tokens[:-HELD_BACK], shown, tokens[-HELD_BACK:]) - errors[-HELD_BACK:]).max()
    later = float(_predict(tokens, errors, tokens[-1:] * FACTOR)[0])
    value = ceiling - later if more_is_better else later
    known_better = abs(later - errors[-1]) > held_back
    return Extrapolation(float(values[-1]), value if known_better else None, float(held_back))


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
