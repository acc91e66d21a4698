"""What the console concludes: under which conditions, and with which figures."""

import pytest

from seriatim.cli.conclusions import DIFFERENCES, Difference, cautions, conclusion
from seriatim.evaluation.intervals import Metric, Paired

ACCURACY = Metric("accuracy", "accuracy", 4, headline=True, more_is_better=True)
PERPLEXITY = Metric("perplexity", "perplexity", 2, headline=True)


def simple(value: float, p_value: float, low: float, high: float) -> dict[str, object]:
    interval = {"difference_low": low, "difference_high": high, "p_value": p_value}
    return {"name": "a bag", "accuracy": value, "metric": "accuracy", "verdict": "", **interval}


@pytest.mark.parametrize(
    ("value", "baseline", "expected"),
    [
        (0.8, {"accuracy": 0.5}, []),
        (0.5, {"accuracy": 0.5}, ["0.5"]),
        (0.4, {"accuracy": 0.5}, ["0.4"]),
        (0.8, {"accuracy": 0.5, "simple": simple(0.7, 0.001, 0.05, 0.15)}, []),
        (0.8, {"accuracy": 0.5, "simple": simple(0.9, 0.001, -0.15, -0.05)}, ["0.9"]),
        (0.8, {"accuracy": 0.5, "simple": simple(0.7, 0.2, -0.05, 0.15)}, ["0.7"]),
        (0.4, {"accuracy": 0.5, "simple": simple(0.9, 0.001, -0.6, -0.4)}, ["0.5", "0.9"]),  # the gravest first
    ],
)
def test_a_training_is_told_what_reaches_it(value: float, baseline: dict[str, object], expected: list[str]) -> None:
    record = {"valid": {"accuracy": value}, "baseline": {"name": "a constant", **baseline}, "ended": "the budget"}
    told = cautions(record, [ACCURACY], is_fitted=False)
    assert len(told) == len(expected)
    assert all(
        f"{value:.4f}" in sentence and number in sentence for sentence, number in zip(told, expected, strict=True)
    )


def test_a_network_that_hides_behind_its_baseline_is_told() -> None:
    baseline = {"name": "a constant", "accuracy": 0.5, "simple": simple(0.8, 0.001, 0.05, 0.15)}
    record = {"valid": {"accuracy": 0.9}, "network": {"accuracy": 0.6}, "baseline": baseline, "ended": "the budget"}
    (sentence,) = cautions(record, [ACCURACY], is_fitted=False)
    assert "0.6000" in sentence
    assert "0.8000" in sentence


def test_nothing_is_told_where_nothing_is_held_out() -> None:
    assert cautions({"ended": "the budget"}, [ACCURACY], is_fitted=False) == []


@pytest.mark.parametrize(
    ("metric", "paired", "better", "size", "interval"),
    [
        (ACCURACY, Paired(-0.052, -0.08, -0.02, 0.01), "b", "+5.2 points", "+2.0 to +8.0"),
        (ACCURACY, Paired(0.052, 0.02, 0.08, 0.01), "a", "+5.2 points", "+2.0 to +8.0"),
        (PERPLEXITY, Paired(-3.0, -4.0, -2.0, 0.01), "a", "-3.0", "-4.0 to -2.0"),
        (PERPLEXITY, Paired(3.0, 2.0, 4.0, 0.01), "b", "-3.0", "-4.0 to -2.0"),
    ],
)
def test_the_better_of_two_comes_first(metric: Metric, paired: Paired, better: str, size: str, interval: str) -> None:
    (sentence,) = conclusion(Difference("a", "b", metric, paired))
    assert sentence.startswith(better)
    assert f"{size} ({interval})" in sentence


@pytest.mark.parametrize(
    ("paired", "holds"),
    [
        (Paired(0.1, 0.05, 0.15, 0.01), 0),
        (Paired(0.1, -0.05, 0.25, 0.2), 1),
        (Paired(0.1, 0.05, 0.15, 0.25), 1),  # only three items differ
        (Paired(0.0, 0.0, 0.0, 1.0), 1),
        (Paired(0.1, None, None, None), 2),
    ],
)
def test_one_statement_holds_of_a_difference(paired: Paired, holds: int) -> None:
    facts = Difference("a", "b", ACCURACY, paired)
    assert [i for i, statement in enumerate(DIFFERENCES) if statement.when(facts)] == [holds]


def test_a_run_that_exceeds_the_constant_answer_in_one_metric_is_not_warned_of() -> None:
    bleu, exact = (Metric(key, key, 2, headline=True, more_is_better=True) for key in ("bleu", "exact_match"))
    trivial = {"name": "the source itself", "bleu": 0.0, "exact_match": 0.0}
    record = {"ended": "the budget", "baseline": trivial, "valid": {"bleu": 0.0, "exact_match": 1.0}}
    assert cautions(record, [bleu, exact], is_fitted=False) == []
    assert cautions(record | {"valid": {"bleu": 0.0, "exact_match": 0.0}}, [bleu, exact], is_fitted=False)
