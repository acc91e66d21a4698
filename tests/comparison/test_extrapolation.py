"""A power law is continued exactly, and what cannot be known is not said."""

import numpy as np
import pytest

from seriatim.comparison.extrapolation import FACTOR, HELD_BACK, extrapolate

TOKENS = np.arange(1, 9) * 1000.0


@pytest.mark.parametrize(("floor", "scale", "exponent"), [(1.2, 30.0, 0.5), (0.0, 8.0, 0.1), (2.0, 500.0, 1.0)])
def test_a_power_law_is_continued(floor: float, scale: float, exponent: float) -> None:
    values = floor + scale * TOKENS**-exponent
    found = extrapolate(list(zip(TOKENS, values, strict=True)), more_is_better=False)
    assert found.now == values[-1]
    assert found.error < 0.01 * (values[0] - values[-1])
    assert found.value == pytest.approx(floor + scale * (FACTOR * TOKENS[-1]) ** -exponent, rel=0.01)


def test_a_share_stays_below_one() -> None:
    shares = 1 - 10 * TOKENS**-0.5
    found = extrapolate(list(zip(TOKENS, shares, strict=True)), more_is_better=True)
    assert shares[-1] < found.value < 1
    assert found.value == pytest.approx(1 - 10 * (FACTOR * TOKENS[-1]) ** -0.5, rel=0.01)


def test_a_curve_that_turns_is_not_continued() -> None:
    values = [3.0, 2.5, 2.2, 2.0, 1.9, 1.85, 2.3, 2.9]  # overfits at the end
    found = extrapolate(list(zip(TOKENS, values, strict=True)), more_is_better=False)
    assert found.value is None
    assert found.error > 0.3


def test_too_few_points() -> None:
    assert extrapolate([(1.0, 2.0)] * (HELD_BACK + 1), more_is_better=False) is None
    assert extrapolate([(float(i), np.inf) for i in range(10)], more_is_better=False) is None
