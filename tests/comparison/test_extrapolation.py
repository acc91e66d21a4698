"""A power law is continued exactly, and what cannot be known is not said."""

import numpy as np
import pytest

from seriatim.comparison.tables_and_plots import FACTOR, HELD_BACK, extrapolate

TOKENS = np.arange(1, 9) * 1000.0


@pytest.mark.parametrize(("floor", "scale", "exponent"), [(1.2, 30.0, 0.5), (0.0, 8.0, 0.1), (2.0, 500.0, 1.0)])
def test_a_power_law_is_continued(floor: float, scale: float, exponent: float) -> None:
    values = floor + scale * TOKENS**-exponent
    found = extrapolate(list(zip(TOKENS, values, strict=True)), ceiling=None)
    assert found.now == values[-1]
    assert found.error < 0.01 * (values[0] - values[-1])
    assert found.value == pytest.approx(floor + scale * (FACTOR * TOKENS[-1]) ** -exponent, rel=0.01)


def test_a_share_stays_below_one() -> None:
    shares = 1 - 10 * TOKENS**-0.5
    found = extrapolate(list(zip(TOKENS, shares, strict=True)), ceiling=1.0)
    assert shares[-1] < found.value < 1
    assert found.value == pytest.approx(1 - 10 * (FACTOR * TOKENS[-1]) ** -0.5, rel=0.01)


def test_a_curve_that_turns_is_not_continued() -> None:
    values = [3.0, 2.5, 2.2, 2.0, 1.9, 1.85, 2.3, 2.9]  # overfits at the end
    found = extrapolate(list(zip(TOKENS, values, strict=True)), ceiling=None)
    assert found.value is None
    assert found.error > 0.3


def test_a_change_that_is_not_twice_the_error_is_not_given() -> None:
    """The held-out accuracy of a classifier that had reached its best value before the end."""
    shares = [0.683, 0.7996, 0.8262, 0.8303, 0.8691, 0.865, 0.8773, 0.863, 0.863, 0.863, 0.8671]
    tokens = [22556, 44690, 50763, 66516, 88630, 101494, 110411, 132651, 152321, 155121, 176700]
    found = extrapolate(list(zip(tokens, shares, strict=True)), ceiling=1.0)
    assert found.value is None
    assert found.horizon == pytest.approx(176700 / 152321)


def test_the_largest_score_is_that_of_the_metric_not_of_the_values() -> None:
    scores = 100 - 99.9 * TOKENS**-0.0005
    found = extrapolate(list(zip(TOKENS, scores, strict=True)), ceiling=100.0)
    assert scores.max() < 1
    assert found.value == pytest.approx(100 - 99.9 * (FACTOR * TOKENS[-1]) ** -0.0005, rel=0.01)


def test_too_few_points() -> None:
    assert extrapolate([(1.0, 2.0)] * (HELD_BACK + 1), ceiling=None) is None
    assert extrapolate([(float(i), np.inf) for i in range(10)], ceiling=None) is None
