"""What a comparison says follows from its figures: each statement holds exactly where its figures support it."""

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from seriatim.comparison import assemble
from seriatim.comparison.findings import (
    CONSOLE,
    HEADLINE,
    Caveats,
    Verdict,
    facts_of,
    gap_text,
    headline,
    value_text,
    warnings_of,
)
from seriatim.comparison.results import Results
from seriatim.pages.statements import told

from .comparisons import failed_row, made_up

FEW = ("ngram", "lstm", "transformer")
NGRAM, LSTM, TRANSFORMER = range(3)
CLEAR, TIED = 0.001, 0.4


def with_metric(values: dict[str, Any], p_value: float = CLEAR, **perplexities: float) -> Results:
    """Replace the metric of some rows, and test all rows against the best and the best trained one."""
    for row in values["rows"]:
        if (value := perplexities.get(row["layer"])) is not None:
            row["metrics"] |= {"perplexity": value, "perplexity_low": 0.98 * value, "perplexity_high": 1.02 * value}
    ranked = sorted(values["rows"], key=lambda row: row["metrics"]["perplexity"])
    trained = next(row for row in ranked if not row["counted"])
    for name, best in (("difference", ranked[0]), ("beside_best_trained", trained)):
        for row in values["rows"]:
            by = row["metrics"]["perplexity"] - best["metrics"]["perplexity"]
            test = {"to": best["layer"], "difference": by, "p_value": p_value}
            ends = {"low": by - 0.5, "high": by + 0.5} if p_value <= 0.05 else {"low": -1.0, "high": by + 1.0}
            row[name] = None if row is best else test | ends
    return Results(values)


def changed(**by_layer: dict[str, Any]) -> dict[str, Any]:
    values = made_up(FEW)
    for row in values["rows"]:
        row |= by_layer.get(row["layer"], {})
    return values


def spent(values: dict[str, Any], *amounts: float, of: str = "minutes") -> dict[str, Any]:
    """Results whose trainings spent so much of their budget, one amount for each trained row."""
    trained = [row for row in values["rows"] if not row.get("counted") and not row.get("failed")]
    for row, amount in zip(trained, amounts, strict=False):
        row["runs"][0] |= {"training_seconds": amount} if of == "minutes" else {of: amount}
    return values | {"budget": {of: 2}}


def test_one_winner_is_named_with_its_figures_and_those_of_the_next() -> None:
    results = with_metric(changed(), lstm=8.0, transformer=9.0, ngram=20.0)
    found = Verdict(results)
    assert found.is_decided
    assert not found.is_counted_best
    assert (found.best.layer, found.next.layer) == ("lstm", "transformer")
    assert found.best_value == "8.00 (7.84–8.16)"
    assert found.next_gap == "1.00 worse (0.50–1.50)"
    text = headline(results)
    assert all(figure in text for figure in ("lstm", "8.00 (7.84–8.16)", "transformer", "1.00 worse (0.50–1.50)"))
    assert "2.0 min" in text, "what the training cost"
    assert "0.35 ms a token (0.34 to 0.36 ms)" in text


def test_values_that_a_test_tells_apart_are_not_written_alike() -> None:
    values = with_metric(changed(), lstm=1.8106, transformer=1.8144, ngram=20.0).values
    test = {"to": "lstm", "difference": 0.0039, "low": 0.001, "high": 0.0068, "p_value": CLEAR}
    values["rows"][TRANSFORMER]["difference"] = test
    results = Results(values)
    found = Verdict(results)
    assert found.next_gap == "0.0039 worse (0.0010–0.0068)"
    assert value_text(results, found.best).startswith("1.811 (")
    assert value_text(results, found.next).startswith("1.814 (")
    test["p_value"] = TIED
    assert value_text(Results(values), found.best).startswith("1.81 (")


def test_a_tie_names_all_that_do_not_differ_and_no_winner() -> None:
    values = changed(lstm={"milliseconds_per_token": 0.2, "milliseconds_spread": [0.19, 0.21]})
    results = with_metric(values, TIED, lstm=8.0, transformer=8.1, ngram=8.2)
    found = Verdict(results)
    assert not found.is_decided
    assert [row.layer for row in found.equals] == ["lstm", "transformer", "ngram"]
    assert found.fastest.layer == "lstm"
    assert found.tied_names == "transformer and ngram", "the best one is not equal to itself"
    for high in (0.9, 0.338):  # the ranges overlap, or touch as they are written
        values["rows"][LSTM]["milliseconds_spread"] = [0.19, high]
        assert Verdict(Results(values)).fastest is None


def test_a_counted_model_that_is_best_is_told_with_the_best_trained_one() -> None:
    found = Verdict(with_metric(changed(), ngram=5.0, lstm=8.0, transformer=9.0))
    assert found.is_counted_best
    assert found.trained.layer == "lstm"
    assert found.trained_gap == "3.00 worse (2.50–3.50)"
    tied = Verdict(with_metric(changed(), TIED, ngram=7.9, lstm=8.0, transformer=8.1))
    assert not tied.is_counted_best


@pytest.mark.parametrize(
    ("of", "amounts", "equal"),
    [("minutes", (9, 25), False), ("minutes", (10, 10.9), True), ("tokens", (100, 150), False)],
)
def test_unequal_budgets_have_no_winner_and_say_how_to_repeat(of: str, amounts: tuple, equal: bool) -> None:
    values = with_metric(changed(), lstm=8.0, transformer=9.0).values
    results = Results(spent(values, *amounts, of=of))
    found = Caveats(results)
    assert found.is_equal_budget == equal
    assert ("wins" in headline(results)) == equal
    assert any(found.repeat in warning for warning in warnings_of(results)) != equal
    if of == "minutes":
        assert found.repeat == "--tokens 3800000"  # of 3,891,200 tokens that each layer has read
        assert found.spent == ("10 to 11 s" if equal else "9.0 to 25 s")


def test_an_amount_that_all_have_spent_is_written_once() -> None:
    results = Results(spent(changed(), 401408, 401408, of="tokens"))
    assert Caveats(results).spent == "401,408 tokens"


def test_one_layer_alone_is_not_called_the_lowest() -> None:
    results = Results(made_up(("lstm",)))
    (first, _) = told(HEADLINE, found := Verdict(results))
    assert found.best_value in first
    assert found.degree not in first


def test_exactly_one_headline_holds() -> None:
    draw = random.Random(0)
    for _ in range(300):
        values = made_up(tuple(draw.sample(FEW, draw.randint(1, 3))))
        if any(not row["counted"] for row in values["rows"]):
            figures = {row["layer"]: draw.choice([5.0, 8.0, 9.0]) for row in values["rows"]}
            values = with_metric(values, draw.choice([CLEAR, TIED]), **figures).values
        for row in values["rows"]:
            if draw.random() < 0.2:
                row["difference"] = None
            if draw.random() < 0.1:
                row["metrics"] = {}
        results = Results(spent(values, 10, draw.choice([10, 20])))
        verdict = Verdict(results)
        holding = [statement for statement in HEADLINE[1:9] if statement.when(verdict)]
        assert len(holding) == 1, [statement.template for statement in holding]
        assert all("{" not in line for line in (*told(HEADLINE, verdict), *warnings_of(results)))
        assert len([1 for _, statement in CONSOLE if statement.when(verdict)]) <= 3
        facts = facts_of(results)
        assert len(dict(facts)) == len(facts) <= 5


def test_differences_of_fractions_are_in_points() -> None:
    metric = {"key": "accuracy", "name": "accuracy", "digits": 4, "more_is_better": True}
    rows = [{"layer": layer, "metrics": {"accuracy": value}} for layer, value in (("bag", 0.906), ("gru", 0.832))]
    results = Results({"metric": metric, "rows": rows})
    test = {"difference": -0.074, "low": -0.101, "high": -0.048, "p_value": 0.001}
    assert gap_text(results, test) == "7.4 points worse (4.8–10.1)"
    assert value_text(results, results.measured[0]) == "0.9060"


def test_rows_that_are_no_better_than_the_simplest_answer_are_named() -> None:
    values = changed() | {"simplest": {"name": "the most frequent label", "perplexity": 10.0}}
    found = Caveats(with_metric(values, ngram=5.0, lstm=10.1, transformer=20.0))
    assert found.below_simplest == "lstm"
    assert found.worse_than_simplest == "transformer"
    assert Caveats(with_metric(values, lstm=6.0, transformer=7.0)).below_simplest == ""
    for best, is_below in ((6.0, False), (10.05, True)):
        assert Verdict(with_metric(values, lstm=best, transformer=12.0, ngram=13.0)).is_below_simplest == is_below


def test_how_little_of_the_data_was_read_is_told() -> None:
    for epochs, is_told in ((0.06, True), (0.5, False), (3.0, False)):
        rows = {layer: {"epochs": epochs} for layer in ("lstm", "transformer")}
        results = with_metric(changed(**rows), lstm=6.0, transformer=7.0)
        assert any("6 %" in warning for warning in warnings_of(results)) == is_told


@pytest.mark.parametrize(("by", "p_value", "below"), [(-0.2, 0.001, True), (-0.2, 0.3, False), (0.2, 0.001, False)])
def test_rows_below_the_baseline_are_named_if_a_test_shows_it(by: float, p_value: float, below: bool) -> None:
    test = {"to": "bag", "difference": by, "low": by - 0.05, "high": by + 0.05, "p_value": p_value}
    rows = [
        {"layer": "bag", "baseline": True, "counted": True, "metrics": {"accuracy": 0.5}},
        {"layer": "gru", "metrics": {"accuracy": 0.5 + by}, "beside_baseline": test},
    ]
    metric = {"key": "accuracy", "name": "accuracy", "digits": 2, "more_is_better": True}
    found = Caveats(Results({"metric": metric, "rows": rows}))
    assert found.below_baseline == "gru" * below
    assert found.setup.baseline.layer == "bag"


def test_a_busy_machine_is_told_of_the_rows_that_it_disturbed() -> None:
    assert Caveats(Results(made_up(FEW))).busy == {}
    values = changed()
    values["rows"][LSTM]["runs"][0]["others_processors"] = 0.9
    found = Caveats(Results(values))
    assert found.busy == {"lstm": pytest.approx(0.9)}
    assert (found.busy_most, found.processors) == ("0.9", 2)
    values["rows"][LSTM]["runs"][0]["others_processors"] = None
    assert Caveats(Results(values)).busy == {}


@pytest.mark.parametrize(("seconds", "missed"), [(110.0, False), (131.0, False), (90.0, True), (140.0, True)])
def test_a_missed_budget_is_told_with_its_times(seconds: float, missed: bool) -> None:
    values = changed()
    values["rows"][LSTM]["runs"][0]["training_seconds"] = seconds
    found = Caveats(Results(values))
    assert found.missed_budget == missed
    assert found.planned == " instead of 2.0 min"


def test_failed_rows_are_told_and_only_on_the_page() -> None:
    values = made_up(FEW) | {"rows": [*made_up(FEW)["rows"], failed_row()]}
    results = Results(values)
    on_page, on_console = (set(warnings_of(results, on_console=console)) for console in (False, True))
    (failure,) = on_page - on_console
    assert "mamba" in failure


def test_without_a_paired_test_there_are_no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    results = Results(made_up(FEW))
    monkeypatch.setattr(assemble, "_statistics", lambda folder, row: {})
    for row in results.rows:
        row.rank, row.difference = None, {}
    assemble._add_differences(Path(), results.metric, results.rows, None, None)
    assert [row.rank for row in results.rows] == [None] * 3
    assert not Verdict(results).is_decided


def test_any_one_thing_may_be_missing() -> None:
    values = made_up(FEW)
    for key in itertools.chain(values.keys() - {"metric", "rows"}):
        assert headline(Results(values | {key: None}))
    assert headline(Results(values | {"rows": [failed_row()]}))


def test_a_counted_model_that_is_tied_with_another_one_does_not_win() -> None:
    values = changed(transformer={"counted": True})
    results = with_metric(values, ngram=8.0, transformer=9.0, lstm=12.0)
    assert Verdict(results).is_counted_best
    values["rows"][TRANSFORMER]["difference"] |= {"p_value": TIED, "low": -0.5, "high": 0.7}
    found = Verdict(Results(values))
    assert not found.is_counted_best
    assert [row.layer for row in found.equals] == ["ngram", "transformer"]
    assert len(told(HEADLINE[:8], found)) == 1


def test_the_fastest_of_equals_is_faster_than_each_of_them() -> None:
    """The second one has a narrow range, and a third one a wide one."""
    times = {"ngram": (1.0, [0.9, 1.1]), "lstm": (1.5, [1.4, 1.6]), "transformer": (2.0, [1.0, 3.0])}
    rows = {layer: {"milliseconds_per_token": at, "milliseconds_spread": ends} for layer, (at, ends) in times.items()}
    values = changed(**rows)
    with_metric(values, TIED, ngram=8.0, transformer=8.1, lstm=8.2)
    assert Verdict(Results(values)).fastest is None
    values["rows"][TRANSFORMER]["milliseconds_spread"] = [1.9, 3.0]
    assert Verdict(Results(values)).fastest.layer == "ngram"


@pytest.mark.parametrize(("threads", "others", "disturbed"), [(1, 0.9, False), (1, 1.3, True), (2, 0.3, True)])
def test_other_programs_disturb_a_training_that_lacks_processors(threads: int, others: float, disturbed: bool) -> None:
    values = changed()
    run = values["rows"][LSTM]["runs"][0]
    run["others_processors"], run["machine"] = others, {"processor": "EPYC", "device": "cpu", "threads": threads}
    assert (Caveats(Results(values)).busy == {"lstm": pytest.approx(others)}) == disturbed


def test_a_layer_without_a_state_is_the_simplest_prediction_itself() -> None:
    values = changed() | {"simplest": {"name": "the most frequent label", "perplexity": 10.0}}
    lstm, *others = (row for row in values["rows"] if not row["counted"])
    values["rows"] = [lstm | {"state_bytes": {"1000": 0}}, *others]
    found = Caveats(Results(values))
    assert "lstm" not in found.below_simplest + found.worse_than_simplest
