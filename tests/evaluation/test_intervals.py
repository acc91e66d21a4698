"""Intervals have their stated coverage, and a paired test finds only differences that exist."""

import math

import numpy as np
import pytest

from seriatim.evaluation import intervals
from seriatim.evaluation.intervals import (
    SIGNIFICANT,
    Measure,
    Metric,
    exp_mean,
    interval,
    interval_digits,
    mean,
    paired,
    ratio,
    supported_digits,
    wilson,
    with_interval,
    with_intervals,
    written,
)

from ..refusals import refused


def values_and_ones(values: np.ndarray) -> np.ndarray:
    return np.stack([values, np.ones(len(values))], 1)


def test_the_interval_of_a_mean_covers_it_about_95_times_in_100() -> None:
    random = np.random.default_rng(3)
    covered = 0
    for trial in range(300):
        _, low, high = interval(values_and_ones(random.normal(5, 2, 60)), mean, resamples=400, seed=trial)
        covered += low <= 5 <= high
    assert 0.9 <= covered / 300 <= 0.98


def test_the_interval_of_a_mean_is_that_of_its_standard_error() -> None:
    values = np.random.default_rng(0).normal(0, 1, 2000)
    value, low, high = interval(values_and_ones(values), mean, resamples=4000)
    error = 1.96 * values.std() / np.sqrt(2000)
    assert value == pytest.approx(values.mean())
    np.testing.assert_allclose([low, high], [value - error, value + error], atol=0.1 * error)


def test_rows_that_stand_for_many_items_give_the_same_distribution() -> None:
    kinds, counts = np.array([[0.0, 1.0], [1.0, 1.0]]), np.array([300, 700])
    alike = interval(kinds, mean, counts=counts, resamples=4000)
    apart = interval(np.repeat(kinds, counts, axis=0), mean, resamples=4000)
    assert alike[0] == apart[0] == 0.7
    np.testing.assert_allclose(alike[1:], apart[1:], atol=0.003)


def test_one_item_gives_the_interval_of_a_share_and_of_nothing_else() -> None:
    one = np.array([[1.0, 1.0]])
    assert interval(one, mean) == (1.0, *wilson(1, 1))
    assert with_interval("a", 0 * one + [[0, 1]], mean)["a_high"] == pytest.approx(wilson(0, 1)[1])
    assert with_intervals({"a": Measure(one, mean)}) == {"a": 1.0, "a_low": wilson(1, 1)[0], "a_high": 1.0}
    assert interval(one * 0.5 + [[0, 0.5]], mean) == (0.5, None, None)


def test_blocks_do_not_change_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    statistics = values_and_ones(np.random.default_rng(1).normal(size=37))
    whole = interval(statistics, mean)
    monkeypatch.setattr(intervals, "BLOCK", 100)
    assert interval(statistics, mean) == pytest.approx(whole)
    monkeypatch.setattr(intervals, "BLOCK", 1)
    assert interval(statistics, mean) == pytest.approx(whole)


def test_weights_are_multinomial() -> None:
    weights = intervals._weights(np.random.default_rng(0), 20000, 5, None)
    assert (weights.sum(1) == 5).all()
    np.testing.assert_allclose(weights.mean(0), 1, atol=0.03)
    np.testing.assert_allclose(np.cov(weights.T), np.eye(5) - 1 / 5, atol=0.03)


def test_the_same_seed_gives_the_same_interval() -> None:
    statistics = values_and_ones(np.random.default_rng(1).normal(size=50))
    assert interval(statistics, mean, seed=4) == interval(statistics, mean, seed=4)
    assert interval(statistics, mean, seed=4) != interval(statistics, mean, seed=5)


def test_one_item_has_no_interval_and_none_is_refused() -> None:
    assert interval(np.array([[3.0, 1.0]]), mean) == (3.0, None, None)
    assert with_interval("x", np.array([[3.0, 1.0]]), mean) == {"x": 3.0, "x_low": None, "x_high": None}
    assert interval(np.array([[3.0, 1.0]]), mean, counts=np.array([2])) == (3.0, 3.0, 3.0)
    metric = Metric("x", "x", 4)
    assert metric.interval({"x": 3.0, "x_low": 3.0, "x_high": 3.0}) == ""  # equal items say nothing
    assert paired(np.ones((1, 2)), np.array([[0.0, 1.0]]), mean) == (1.0, None, None, None)
    with refused("empty"):
        interval(np.zeros((0, 2)), mean)
    with refused("empty"):
        paired(np.zeros((0, 2)), np.zeros((0, 2)), mean)


@pytest.mark.parametrize("share", [0, 1])
def test_a_share_of_none_or_all_has_an_interval_of_its_own(share: int) -> None:
    """It is not empty, holds the share, narrows with more items, and is the same for items given by their counts."""
    widths = []
    for items in (10, 1000):
        value, low, high = interval(np.tile([share, 1.0], (items, 1)), mean)
        assert value == share
        assert 0 <= low <= share <= high <= 1
        rows, counts = np.array([[share, 1.0], [1 - share, 1.0]]), np.array([items, 0])
        assert interval(rows, mean, counts=counts) == (value, low, high)
        widths.append(high - low)
    assert widths[0] > 10 * widths[1] > 0


def test_wilson_agrees_with_its_equation() -> None:
    """Both ends are the shares p from which the observed one is z standard errors sqrt(p (1 − p) / n) away."""
    for hits, trials in ((0, 7), (3, 7), (450, 500), (7, 7)):
        for bound in wilson(hits, trials):
            distance = abs(hits / trials - bound)
            assert distance == pytest.approx(1.959964 * math.sqrt(bound * (1 - bound) / trials), abs=1e-9)


@pytest.mark.parametrize(
    ("half", "digits"), [(0.02, 3), (0.0021, 4), (1.9, 1), (0.5, 2), (20, 0), (0, 4), (1e-9, 4), (350, -1)]
)
def test_digits_follow_from_the_width_of_the_interval(half: float, digits: int) -> None:
    assert supported_digits(1 - half, 1 + half, 4) == digits


def test_digits_before_the_point_are_rounded_and_bounds_are_not_rounded_to_zero() -> None:
    assert written(743_532.4, supported_digits(468_541, 1_179_918, 2)) == "740,000"
    assert written(-1234.5, -2, signed=True) == "-1,200"
    assert [written(bound, interval_digits(*ends, 2)) for ends in [(0.02, 2.14)] for bound in ends] == ["0.02", "2.14"]
    assert interval_digits(0.0, 2.1, 2) == supported_digits(0.0, 2.1, 2)


def test_measures_drawn_together_are_as_those_drawn_alone() -> None:
    random = np.random.default_rng(2)
    first, second = values_and_ones(random.normal(size=40)), random.integers(0, 9, (40, 3))
    measures = {"a": Measure(first, mean), "b": Measure(second, lambda sums: ratio(sums[..., 0], sums.sum(-1)))}
    alone = [with_interval(name, *measure) for name, measure in measures.items()]
    assert with_intervals(measures) == pytest.approx(alone[0] | alone[1])


def test_a_system_does_not_differ_from_itself() -> None:
    statistics = values_and_ones(np.random.default_rng(0).normal(size=100))
    assert paired(statistics, statistics.copy(), mean) == (0.0, 0.0, 0.0, 1.0)


def test_a_better_system_is_detected() -> None:
    random = np.random.default_rng(0)
    hard = random.normal(size=200)  # what both find hard cancels: the pairing sees a difference that intervals hide
    first, second = values_and_ones(hard + 0.2 + 0.1 * random.normal(size=200)), values_and_ones(hard)
    found = paired(first, second, mean)
    assert found.p_value < 0.01
    assert 0.15 < found.low < found.difference < found.high < 0.25
    assert interval(first, mean)[1] < interval(second, mean)[2]
    back = paired(second, first, mean)
    assert back.difference == pytest.approx(-found.difference)
    assert back.p_value == found.p_value


def test_p_values_of_equal_systems_are_uniform() -> None:
    random = np.random.default_rng(5)
    small = 0
    for _ in range(300):
        first, second = random.normal(size=(2, 60))
        small += paired(values_and_ones(first), values_and_ones(second), mean, resamples=300).p_value < 0.1
    assert 0.05 <= small / 300 <= 0.17


def test_systems_measured_on_different_items_are_not_paired() -> None:
    with refused("mismatch"):
        paired(np.ones((5, 2)), np.ones((6, 2)), mean)


def test_a_ratio_of_nothing_is_zero() -> None:
    np.testing.assert_array_equal(ratio(np.array([1, 0, 3]), np.array([2, 0, 4])), [0.5, 0, 0.75])


def test_a_mean_of_nothing_is_not_a_number_and_is_shown_as_a_dash() -> None:
    nothing = np.zeros((3, 2))
    assert np.isnan(mean(nothing.sum(0)))
    value, low, high = interval(nothing, mean)
    assert np.isnan(value)
    assert (low, high) == (None, None)
    found = with_intervals({"loss": Measure(nothing, mean), "accuracy": Measure(np.ones((3, 2)), mean)})
    assert np.isnan(found["loss"])
    assert (found["loss_low"], found["accuracy"], found["accuracy_high"]) == (None, 1, 1)
    assert (written(value, 4), written(None, 4)) == ("-", "-")
    assert paired(nothing, nothing, mean).p_value is None


def test_items_that_count_nothing_do_not_move_an_interval() -> None:
    """A resample without counted items has no mean and does not change the interval."""
    low, high = interval(np.array([[2.0, 1.0], [4.0, 1.0], [0.0, 0.0]]), mean)[1:]
    assert low == pytest.approx(2)
    assert high == pytest.approx(4)


def test_large_numbers_are_shown_with_an_exponent() -> None:
    assert written(1234.567, 2) == "1,234.57"
    assert written(1.2345e45, 2) == "1.2e+45"
    assert written(-3e300, 2, signed=True) == "-3.0e+300"
    assert written(float("inf"), 2) == "inf"
    assert written(0.25, 3, signed=True) == "+0.250"


@pytest.mark.parametrize("differing", [1, 3, 5, 6, 40])
def test_few_items_are_no_evidence(differing: int) -> None:
    first = values_and_ones(np.concatenate([np.ones(differing), np.zeros(30)]))
    found = paired(first, values_and_ones(np.zeros(differing + 30)), mean)
    assert found.p_value >= 2.0 ** (1 - differing)
    assert (found.p_value <= SIGNIFICANT) == (differing >= 6)


def test_a_value_without_an_interval_has_the_digits_of_the_one_beside_it() -> None:
    metric = Metric("accuracy", "accuracy", 4)
    beside = {"accuracy": 0.571428, "accuracy_low": 0.33, "accuracy_high": 0.76}
    assert (metric.text({"accuracy": 0.285714}, beside), metric.text({"accuracy": 0.285714})) == ("0.29", "0.2857")
    assert metric.text(beside) == "0.57"


def test_an_infinite_figure_has_no_interval() -> None:
    statistics = values_and_ones(np.array([1.0, 2.0, math.inf, 3.0]))
    assert interval(statistics, mean) == (math.inf, None, None)
    both = with_intervals({"loss": Measure(statistics, mean), "other": Measure(values_and_ones(np.arange(4.0)), mean)})
    assert (both["loss"], both["loss_low"], both["loss_high"]) == (math.inf, None, None)
    assert both["other_low"] < 1.5 < both["other_high"]
    assert interval(values_and_ones(np.array([700.0, 720.0])), exp_mean)[0] == math.inf
    assert np.isfinite(interval(values_and_ones(np.array([700.0, 701.0])), exp_mean)).all()
    for other in (statistics, values_and_ones(np.arange(4.0))):
        assert paired(statistics, other, mean)[1:] == (None, None, None)


def test_resamples_without_any_counted_item_decide_nothing() -> None:
    """Only one item of three is counted, so that many resamples have no mean."""
    statistics = np.array([[3.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    assert paired(statistics, statistics * [1 / 3, 1], mean) == (2.0, 2.0, 2.0, 1.0)
    assert interval(statistics, mean) == (3.0, 3.0, 3.0)
    assert paired(0 * statistics, 0 * statistics, mean)[1:] == (None, None, None)
