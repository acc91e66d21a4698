"""Differences in words: their intervals agree with what the sentence says of them."""

import pytest
from seriatim.comparison.verdict import difference_text, is_clear

from seriatim.comparison.results import Results
from seriatim.evaluation.intervals import is_significant
from seriatim.pages.wording import percent_and_interval

METRIC = {"key": "accuracy", "name": "accuracy", "digits": 4, "headline": True, "more_is_better": True}


def text(difference: float, low: float, high: float, p_value: float) -> str:
    test = {"difference": difference, "low": low, "high": high, "p_value": p_value}
    return difference_text(Results({"metric": METRIC, "figures": [METRIC], "rows": []}), test)


@pytest.mark.parametrize(
    ("p_value", "low", "high", "expected"),
    [(0.01, 0.1, 0.3, True), (0.06, 0.1, 0.3, False), (0.01, -0.1, 0.3, False), (None, 0.1, 0.3, False)],
)
def test_a_significant_difference_has_a_small_p_value_and_an_interval_without_0(p_value, low, high, expected) -> None:
    assert is_significant(p_value, low, high) == expected
    assert is_clear({"p_value": p_value, "low": low, "high": high}) == expected


def test_an_interval_stands_only_where_it_agrees_with_the_test() -> None:
    assert text(-0.05, -0.1, -0.01, 0.06) == "difference −0.050"
    assert text(-0.05, -0.1, -0.01, 0.01) == "difference −0.050, 95 % interval −0.100 to −0.010"
    assert text(0.0, 0.0, 0.0, 1.0) == "difference 0"


def test_a_bound_that_is_not_0_is_not_written_as_0() -> None:
    assert text(-0.03, -0.06, -0.0004, 0.01) == "difference −0.0300, 95 % interval −0.0600 to −0.0004"
    assert percent_and_interval(0.05, 0.003, 0.1) == ("5.0 %", "95 % interval 0.3 to 10.0 %")
    assert percent_and_interval(0.05, 0.0, 0.1) == ("5 %", "95 % interval 0 to 10 %")
