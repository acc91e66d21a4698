"""Differences as they are written: digits, signs and significance agree with the tests."""

import pytest

from seriatim.comparison.findings import gap_text, is_clear
from seriatim.comparison.results import Results
from seriatim.evaluation.intervals import is_significant

METRIC = {"key": "perplexity", "name": "perplexity", "digits": 4}


@pytest.mark.parametrize(
    ("p_value", "low", "high", "expected"),
    [(0.01, 0.1, 0.3, True), (0.06, 0.1, 0.3, False), (0.01, -0.1, 0.3, False), (None, 0.1, 0.3, False)],
)
def test_a_significant_difference_has_a_small_p_value_and_an_interval_without_0(p_value, low, high, expected) -> None:
    assert is_significant(p_value, low, high) == expected
    assert is_clear({"p_value": p_value, "low": low, "high": high}) == expected


def test_a_gap_has_the_digits_of_its_interval_and_no_sign() -> None:
    results = Results({"metric": METRIC, "figures": [METRIC], "rows": []})
    test = {"difference": -0.05, "low": -0.1, "high": -0.01}
    assert gap_text(results, test) == "0.050 worse (0.010–0.100)"
    assert gap_text(results, {"difference": 12.34, "low": 2.3, "high": 22.4}) == "12 worse (2–22)"
    assert gap_text(results, {"difference": 1.0, "low": None, "high": None}) == "not tested"
