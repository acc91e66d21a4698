"""What a comparison says follows from its figures: each sentence is tested on figures for which it is false, too."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from seriatim.comparison import assemble
from seriatim.comparison.comparison_page import _front, meanings_table, report
from seriatim.comparison.differences_section import _bucket_sentence
from seriatim.comparison.results import Distance, ResultRow, Results
from seriatim.comparison.row import _by_length
from seriatim.comparison.sentences import controlled_variables, generating, training, training_remarks, using_context
from seriatim.comparison.tables_and_plots import (
    longer_budget_table,
    metrics_table,
    pareto_front,
    seeds_table,
    summary_table,
)
from seriatim.comparison.verdict import beside_simplest, busy, finding, missed_budgets
from seriatim.pages.page import Cell
from seriatim.tasks import FITTED

from ..pages.test_page import check_page
from .comparisons import made_up

FEW = ("ngram", "lstm", "transformer")
NGRAM, LSTM, TRANSFORMER = range(3)


def changed(**by_layer: dict) -> Results:
    """Results with some fields of some rows replaced."""
    values = made_up(FEW)
    for row in values["rows"]:
        row |= by_layer.get(row["layer"], {})
    return Results(values)


def with_metric(results: Results, **perplexities: float) -> Results:
    """Replace the metric of some rows, with an interval of 2 % to either side; the tests of differences stay."""
    for row in results.values["rows"]:
        if (value := perplexities.get(row["layer"])) is not None:
            row["metrics"] |= {"perplexity": value, "perplexity_low": 0.98 * value, "perplexity_high": 1.02 * value}
    return Results(results.values)


def test_a_better_counted_model_is_named_with_its_size_and_how_often_the_others_read_the_data() -> None:
    results = with_metric(changed(), ngram=5.0, lstm=8.0, transformer=9.0)
    p = {"p_value": 0.001, "to": "lstm", "difference": -3.0, "low": -3.5, "high": -2.5}
    results.values["rows"][NGRAM]["beside_best_trained"] = p
    results.values["rows"][TRANSFORMER] |= {"beside_best_trained": p, "difference": {"p_value": 0.001, "to": "ngram"}}
    sentences = finding(Results(results.values))
    assert sentences.startswith("lstm has the lowest perplexity per token of the trained layers: 8.00")
    assert "ngram, which is not trained by steps, has a better perplexity per token" in sentences
    assert "difference from lstm −3.00, 95 % interval −3.50 to −2.50" in sentences
    assert "it has 3.46M parameters, the trained layers have 1M" in sentences
    assert "they read the training data 1.5 to 2.5 times" in sentences
    results.values["rows"][NGRAM]["beside_best_trained"] = p | {"p_value": 0.2}
    assert "the difference from lstm is not significant" in finding(Results(results.values))
    worse = with_metric(results, ngram=50.0)
    assert "not trained by steps" not in finding(worse)


def test_what_the_tests_do_not_cover_is_said_for_one_seed_and_for_several() -> None:
    covered = "the intervals and tests cover other texts, but not other seeds."
    assert f"Each layer was trained with one seed: {covered}" in finding(Results(made_up(FEW)))
    assert f"lstm was trained with one seed: {covered}" in finding(Results(made_up(FEW[:2])))
    assert "one seed" not in finding(Results(made_up(("ngram",))))
    several = finding(Results(made_up(FEW, seeds=2)))
    assert "Over 2 seeds, the perplexity per token of transformer ranged from 9.03 to 9.12" in several
    assert "the intervals and tests do not cover differences between seeds." in several


def held_out(*values: float, error: float = 0.1) -> dict:
    """Validations with values that are known to within an error."""
    bounds = [{"value": value, "low": value - error, "high": value + error} for value in values]
    return {"held_out": [{"key": "perplexity", "step": i, "tokens": 10 * i, **each} for i, each in enumerate(bounds)]}


@pytest.mark.parametrize(
    ("values", "clause"),
    [
        (
            [9.0, 8.0, 7.0],
            "still improving: 12 % better at the last validation than on average at the others in the last",
        ),
        ([9.0, 7.0, 6.95], ""),
        ([9.0, 7.0, 8.0], "got worse: 14 % worse at the last validation"),
        ([9.0, 7.0, 7.08], ""),  # within the sampling error
        ([9.0, 7.0], "validated too rarely to know whether it was still improving"),
        ([9.0], "validated too rarely"),
    ],
)
def test_a_training_that_had_not_ended_is_named(values: list[float], clause: str) -> None:
    results = changed(lstm=held_out(*values), transformer=held_out(9.0, 7.0, 7.0))
    text = training_remarks(results.rows[LSTM], results)
    assert clause in text
    assert any(word in text for word in ("improving", "worse", "rarely")) == bool(clause)
    named = {"still": "lstm was still improving when the budget ended, so a longer budget may change the order"}
    named["validated"] = f"lstm was {text[text.index('validated') :]}." if "validated" in text else "validated too"
    for word, sentence in named.items():
        assert (sentence in finding(results)) == clause.startswith(word)


def test_without_an_interval_of_the_validations_nothing_is_said_of_them() -> None:
    results = changed(lstm=held_out(9.0, 8.0, 5.0))
    for point in results.values["rows"][LSTM]["held_out"]:
        del point["low"], point["high"]
    assert not any(word in training_remarks(results.rows[LSTM], results) for word in ("improving", "worse"))


def test_one_trained_layer_has_no_order() -> None:
    values = made_up(("lstm",))
    values["rows"][0] |= held_out(9.0, 8.0, 7.0)
    assert "lstm was still improving when the budget ended. " in finding(Results(values))


def test_differences_stand_with_their_intervals() -> None:
    results = Results(made_up(FEW))
    apart = "difference +1.46, 95 % interval +1.06 to +1.76"
    assert f"Significantly worse (paired bootstrap): lstm ({apart})" in finding(results)
    table = summary_table(results)
    column = table.headings.index("difference from the best")
    cells = {row[0].text: row[column] for row in table.rows}
    assert (cells["lstm"].text, cells["lstm"].note) == ("+1.46", "+1.06 to +1.76")
    assert cells["transformer"] == "–"
    results.values["rows"][LSTM]["difference"]["key"] = "loss"
    results = Results(results.values)
    assert "difference in loss from the best" in summary_table(results).headings
    assert "difference in loss (nats per token) +1.46, 95 % interval" in finding(results)


def test_a_figure_without_a_paired_test_has_no_ranks_and_no_words_on_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    values = made_up(FEW)
    for row in values["rows"]:
        row |= {"difference": None, "rank": None}
    text = finding(Results(values))
    assert "The layers were not tested against each other on perplexity per token, so they have no ranks." in text
    assert "the intervals cover other texts" in text
    table = summary_table(Results(values))
    assert "rank" not in table.headings
    assert "The layers were not tested against each other on perplexity per token" in table.caption
    assert "difference from the best" not in {row[0] for row in meanings_table(Results(values)).rows}
    monkeypatch.setattr(assemble, "_statistics", lambda folder, row: {})
    rows = Results(values).rows
    assemble._add_differences(Path(), Results(values).metric, rows, None, None)
    assert [row.rank for row in rows] == [None] * 3


@pytest.mark.parametrize(
    ("seconds", "equal"), [({"lstm": 100, "transformer": 109}, True), ({"lstm": 100, "transformer": 111}, False)]
)
def test_trainings_with_unequal_budgets_have_no_ranks_and_are_not_compared(
    monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float], equal: bool
) -> None:
    values = made_up(FEW)
    for row in values["rows"]:
        row |= {"difference": None, "rank": None}
        row["runs"][0]["training_seconds"] = seconds.get(row["layer"], 1.0)
    results = Results(values)
    assert results.spent == ("seconds", 100, 111 if not equal else 109)
    assert results.spent.is_equal == equal

    # Every item is better under the transformer than under the lstm, and best under the n-gram.
    losses = {"ngram": 1.0, "transformer": 2.0, "lstm": 3.0}
    items = np.random.default_rng(0).random(50)
    sums = {layer: {"perplexity": np.stack([loss + items, np.ones(50)], 1)} for layer, loss in losses.items()}
    monkeypatch.setattr(assemble, "_statistics", lambda folder, row: sums[row.layer])
    rows = {row.layer: row for row in results.rows}
    best_first = [rows["ngram"], rows["transformer"], rows["lstm"]]
    assemble._add_differences(Path(), results.metric, best_first, "ngram", results.spent)
    assert [row.rank for row in best_first] == ([1, 2, 3] if equal else [None] * 3)
    assert bool(rows["lstm"].beside_best_trained) == equal
    assert rows["ngram"].beside_best_trained["difference"] < 0
    assert rows["lstm"].beside_baseline["low"] > 0
    assert rows["lstm"].difference["to"] == "ngram"


def test_what_is_equal_depends_on_the_budget_and_not_on_a_training_that_stopped_by_itself() -> None:
    values = made_up(FEW)
    values["rows"][LSTM]["runs"][0] |= {"training_seconds": 50.0, "tokens": 1000}
    assert not Results(values).spent.is_equal
    values["budget"] = {"steps": 1900}
    assert Results(values).spent == ("steps", 1900, 1900)
    values["budget"] = {"tokens": 1900 * 2048}
    assert not Results(values).spent.is_equal
    values["rows"][LSTM]["runs"][0]["ended_early"] = True
    assert Results(values).spent == ("tokens", 1900 * 2048, 1900 * 2048)
    assert Results(made_up(("ngram",))).spent is None


def test_figures_have_the_digits_that_their_intervals_support() -> None:
    values = made_up(FEW, seeds=2)
    values["rows"][LSTM] |= {
        "held_out": [
            {"key": "perplexity", "tokens": 100 * i, "value": 9 + 3 / i, "low": 8 + 3 / i, "high": 10 + 3 / i}
            for i in range(1, 9)
        ]
    }
    del values["rows"][LSTM]["metrics"]["loss_low"], values["rows"][LSTM]["metrics"]["loss_high"]
    for row in values["rows"]:
        row["metrics"] = {key: value for key, value in row["metrics"].items() if not key.startswith("loss_")}
    results = Results(values)
    (row,) = [row for row in longer_budget_table(results).rows if row[0] == "lstm"]
    assert (row[1].text, row[1].note) == ("9.4", "8.4 to 10.4")
    assert row[3].text.endswith("% at 1.3 times the tokens")
    assert "No interval is known for loss (nats per token)." in metrics_table(results).caption
    table = seeds_table(results)
    assert table.caption.startswith("Perplexity per token of each seed")
    assert [row[1:] for row in table.rows if row[0] == "lstm"] == [["10.49", "10.59", "0.10"]]
    values["metric"]["name"] = "macro F1"
    assert seeds_table(Results(values)).caption.startswith("Macro F1 of each seed")


def test_models_that_are_fitted_are_not_called_counted() -> None:
    results = changed(ngram={"learned": "fitted"}, lstm={"learned": "trained"})
    assert training(results.rows[NGRAM], results).startswith("fitted, not trained by steps")
    assert {name: kind.fitting for name, kind in FITTED.items()} == {
        "ngram": "counted",
        "bag": "fitted",
        "features": "fitted",
        "rules": "counted",
    }


def test_only_one_layer_is_the_fastest() -> None:
    fast = {"milliseconds_per_token": 0.2}
    results = changed(ngram=fast, lstm={"milliseconds_per_token": 0.205}, transformer={"milliseconds_per_token": 0.9})
    assert generating(results.rows[NGRAM], results).endswith("the fastest here")
    assert generating(results.rows[LSTM], results).endswith("about as fast as the fastest")


def test_layers_without_a_cost_are_named_at_the_front() -> None:
    results = Results(made_up(("prior", "lstm", "transformer")))
    text = _front(results, lambda row: row.state_bytes["1000"])
    assert text.endswith("Not drawn, because this cost is 0 or not known: prior.")
    assert text.startswith(
        "lstm and transformer: no other layer that is drawn is as good at a smaller cost (the dotted"
    )
    cheap = _front(results, lambda row: 1.0 if row.layer == "transformer" else 2.0)
    assert cheap == "transformer: no other layer that is drawn is as good at a smaller cost."


def test_an_interval_of_a_range_that_holds_zero_is_not_printed() -> None:
    """The p-value is adjusted for the number of ranges, the interval is not."""
    tests = [
        {"bucket": 1, "difference": -0.1, "low": -0.2, "high": 0.001, "p_value": 0.04},
        {"bucket": 0, "difference": 0.1, "low": 0.05, "high": 0.15, "p_value": 0.04},
    ]
    buckets = {"name": "length of the input (tokens)", "by": "length", "of": "accuracy", "names": ["4–5", "7"]}
    text = _bucket_sentence({**buckets, "tests": {"first": "bag", "second": "lstm", "results": tests}})
    assert (
        "lower accuracy than bag in 1 of 2 ranges (the largest difference is for inputs of 7 tokens: by 0.10)" in text
    )
    assert "(the largest difference is for inputs of 4–5 tokens: by 0.100, 95 % interval 0.050 to 0.150)" in text


def test_inputs_of_one_length_are_in_one_group() -> None:
    def measured(lengths: list[int]) -> Distance | None:
        hits = np.stack([np.arange(len(lengths)) % 2, np.ones(len(lengths))], 1)
        return _by_length(SimpleNamespace(lengths=np.array(lengths)), "accuracy", "accuracy", {"accuracy": hits})

    assert measured([3] * 100) is None
    assert measured([3, 4]) is None
    found = measured([3, 5] * 50)
    assert found is not None
    assert found.values == {"3": 0.0, "5": 1.0}
    assert found.bounds["3"][1] > 0


def test_trainings_that_miss_the_budget_are_marked_and_others_are_not() -> None:
    def rows(seconds: float) -> Results:
        results = changed()
        results.values["rows"][LSTM]["runs"][0]["training_seconds"] = seconds
        return Results(results.values)

    for seconds, missed in ((119.0, False), (123.0, False), (90.0, True), (140.0, True)):
        results = rows(seconds)
        assert results.rows[LSTM].missed_budget == missed
        assert bool(missed_budgets(results)) == missed
        assert ("More than 3 % off: lstm" in controlled_variables(results)) == missed
        table = summary_table(results)
        (column,) = [i for i, heading in enumerate(table.headings) if heading == "training time"]
        cells = {row[0].text: row[column] for row in table.rows}
        assert cells["lstm"].text.startswith("≠") == missed
        assert not cells["transformer"].text.startswith("≠")
        assert cells["lstm"].note == "1.5 epochs"
    results = rows(90.0)
    assert "1.5 to 2.0 min instead of 2.0 min. More" in missed_budgets(results)
    results.values["tune"] = 3
    tuned = "instead of 2.0 min, which is half of the budget; trials of learning rates took the other half. More"
    assert tuned in missed_budgets(results)


def test_layers_that_are_no_better_than_the_simplest_answer_are_named() -> None:
    results = changed()
    results.values["simplest"] = {"name": "the most frequent label", "perplexity": 10.0}
    text = beside_simplest(with_metric(results, ngram=5.0, lstm=10.1, transformer=20.0))
    assert "The simplest prediction, the most frequent label, gives perplexity per token 10" in text
    assert "Worse than that: transformer." in text
    assert "Not clearly better than that: lstm." in text
    text = beside_simplest(with_metric(results, lstm=6.0, transformer=7.0))
    assert "Worse" not in text
    assert "Not clearly" not in text


def test_a_busy_machine_is_said() -> None:
    assert busy(Results(made_up(FEW))) == ""
    load = {"seconds": 100.0, "cpu_seconds": 100.0, "other_cpu_seconds": 90.0}
    results = changed()
    results.values["rows"][LSTM]["runs"][0]["load"] = load
    text = busy(Results(results.values))
    assert "while lstm was trained, other programs used up to 0.9 of 2 processors" in text
    results.values["rows"][LSTM]["runs"][0]["load"] = load | {"other_cpu_seconds": None}
    assert busy(Results(results.values)) == ""


def test_use_of_context_is_only_claimed_where_the_interval_excludes_zero() -> None:
    def row(*gains: tuple[int, float, float, float]) -> ResultRow:
        named = [dict(zip(("beyond", "bits", "low", "high"), one, strict=True)) for one in gains]
        return ResultRow.read({"layer": "gru", "distance": {"kind": "context", "gains": named}})

    assert using_context(row((4, 0.18, 0.14, 0.22), (16, 0.05, 0.02, 0.08), (64, 0.001, -0.01, 0.012))) == (
        "context beyond 4 tokens saves 0.180 bits (0.140 to 0.220) a token; context beyond 16 tokens saves 0.050 bits "
        "(0.020 to 0.080) a token; no significant effect of context beyond 64 tokens"
    )
    assert using_context(row((1, 0.01, -0.01, 0.03))) == "no significant effect of context beyond 1 token"
    assert "costs 0.050 bits (0.030 to 0.070) a token" in using_context(row((64, -0.05, -0.07, -0.03)))


def test_pages_name_files_without_folders() -> None:
    values = made_up(("rnn", "lstm"))
    values["data"] |= {
        "train": "/home/someone/raw/train.en,/home/someone/raw/train.de",
        "measured_on": "/home/someone/raw/v.tsv",
    }
    text = check_page(report(values)).text()
    assert "2 sequence models on train.en, train.de" in text
    assert "measured on (v.tsv, 100,000 tokens" in text


def test_the_pareto_front_has_the_layers_that_no_cheaper_one_equals() -> None:
    results = Results(made_up())
    costs = {row.layer: float(i + 1) for i, row in enumerate(results.rows[::-1])}
    costs["prior"] = 0.0  # a cost of 0 has no place on the axis
    front = pareto_front(results, lambda row: costs[row.layer])
    for row in results.measured:
        cheaper = [other for other in results.measured if 0 < costs[other.layer] < costs[row.layer]]
        beaten = any(results.of(other) <= results.of(row) for other in cheaper)
        assert (row in front) == (costs[row.layer] > 0 and not beaten)
    values = [results.of(row) for row in front]
    assert values == sorted(values, reverse=True)


def test_ranks_stand_in_the_summary() -> None:
    results = changed(lstm={"rank": 1}, transformer={"rank": 1}, ngram={"rank": 3})
    table = summary_table(results)
    assert table.headings[1] == "rank"
    assert {row[0].text if isinstance(row[0], Cell) else row[0]: row[1] for row in table.rows} == {
        "lstm": "1",
        "transformer": "1",
        "ngram": "3",
    }


@pytest.mark.parametrize(("spread", "said"), [([0.20, 0.22], True), ([0.20, 0.95], False)])
def test_the_fastest_is_named_where_repetitions_differ_less(spread: list[float], said: bool) -> None:
    fast = {"milliseconds_per_token": 0.21, "milliseconds_spread": spread}
    slow = {"milliseconds_per_token": 0.9, "milliseconds_spread": [0.85, 1.0]}
    results = with_metric(changed(lstm=fast, ngram=slow), ngram=5.0, lstm=5.1)
    text = finding(results)
    assert ("needs the least time per token" in text) == said
    if said:
        named = (
            "lstm, with 5.10 (95 % interval 5.00 to 5.20), needs the least time per token: 0.21 ms (0.20 to 0.22 ms)"
        )
        assert f"{named}; ngram needs 0.90 ms (0.85 to 1.0 ms)." in text
