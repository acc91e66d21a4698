"""What a comparison says follows from its figures: each sentence is tested on figures for which it is false, too."""

import numpy as np
import pytest

from seriatim.comparison.comparison_figures import pareto_front
from seriatim.comparison.comparison_page import report
from seriatim.comparison.comparison_tables import summary_table
from seriatim.comparison.distances import gain, summed
from seriatim.comparison.results import ResultRow, Results
from seriatim.comparison.sentences import held_equal, remarks, using_context
from seriatim.comparison.verdict import beside_simplest, busy, finding, missed_budgets
from seriatim.report.page import Cell

from ..report.test_page import check_page
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
    p = {"p_value": 0.001, "to": "lstm"}
    results.values["rows"][NGRAM]["beside_best_trained"] = p
    results.values["rows"][TRANSFORMER] |= {"beside_best_trained": p, "difference": {"p_value": 0.001, "to": "ngram"}}
    sentences = finding(Results(results.values))
    assert sentences.startswith("lstm has the lowest perplexity per token of the trained layers: 8.00")
    assert "ngram, which is not trained by steps, has a better perplexity per token" in sentences
    assert "it has 3.46M parameters, the trained layers have 1M" in sentences
    assert "they read the training data 1.5 to 2.5 times" in sentences
    results.values["rows"][NGRAM]["beside_best_trained"] = p | {"p_value": 0.2}
    assert "the difference from lstm is not significant" in finding(Results(results.values))
    worse = with_metric(results, ngram=50.0)
    assert "not trained by steps" not in finding(worse)


def test_one_seed_is_a_caveat_of_the_first_paragraph_and_several_are_not() -> None:
    assert "with one seed" in finding(Results(made_up(FEW)))
    assert "one seed" not in finding(Results(made_up(FEW, seeds=2)))


@pytest.mark.parametrize(
    ("values", "clause"),
    [
        ([9.0, 8.0, 7.0], "still improving: the last validation was 12 % better"),
        ([9.0, 7.0, 6.99], ""),
        ([9.0, 7.0, 8.0], "got worse: the last validation was 14 % worse"),
        ([9.0], ""),
    ],
)
def test_a_training_that_had_not_ended_is_named(values: list[float], clause: str) -> None:
    points = [
        {"key": "perplexity", "value": value, "step": i + 1, "tokens": 10 * i + 10} for i, value in enumerate(values)
    ]
    results = changed(lstm={"held_out": points}, transformer={"held_out": points[:1]})
    text = remarks(results.rows[LSTM], results)
    assert clause in text
    assert ("improving" in text) == ("improving" in clause)
    assert ("lstm was still improving" in finding(results)) == ("improving" in clause)


def test_trainings_that_miss_the_budget_are_marked_and_others_are_not() -> None:
    def rows(seconds: float) -> Results:
        results = changed()
        results.values["rows"][LSTM]["runs"][0]["training_seconds"] = seconds
        return Results(results.values)

    for seconds, missed in ((119.0, False), (123.0, False), (90.0, True), (140.0, True)):
        results = rows(seconds)
        assert results.rows[LSTM].missed_budget == missed
        assert bool(missed_budgets(results)) == missed
        assert ("More than 3 % off: lstm" in held_equal(results)) == missed
        table = summary_table(results)
        (column,) = [i for i, heading in enumerate(table.headings) if heading == "training time"]
        cells = {row[0].text: row[column] for row in table.rows}
        assert cells["lstm"].text.startswith("≠") == missed
        assert not cells["transformer"].text.startswith("≠")
        assert cells["lstm"].note == "1.5 epochs"


def test_layers_that_are_no_better_than_the_simplest_answer_are_named() -> None:
    results = changed()
    results.values["simplest"] = {"name": "the commonest label", "perplexity": 10.0}
    text = beside_simplest(with_metric(results, ngram=5.0, lstm=10.1, transformer=20.0))
    assert "Without any model, the commonest label gives perplexity per token 10" in text
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
        named = [dict(zip(("beyond", "share", "low", "high"), one, strict=True)) for one in gains]
        return ResultRow.read({"layer": "gru", "distance": {"kind": "context", "gains": named}})

    assert using_context(row((4, 0.18, 0.14, 0.22), (16, 0.05, 0.02, 0.08), (64, 0.001, -0.01, 0.012))) == (
        "context beyond 4 tokens lowers perplexity by 18.0 % (14.0 to 22.0 %); context beyond 16 tokens lowers "
        "perplexity by 5.0 % (2.0 to 8.0 %); no significant effect of context beyond 64 tokens"
    )
    assert using_context(row((1, 0.01, -0.01, 0.03))) == "no significant effect of context beyond 1 token"
    assert "raises perplexity by 5.0 % (3.0 to 7.0 %)" in using_context(row((64, -0.05, -0.07, -0.03)))


def test_the_gain_from_context_is_found_if_it_exists_and_only_then() -> None:
    random = np.random.default_rng(0)
    whole, item_of = random.gamma(2, 1, 4000), np.arange(4000) // 100
    found = gain(4, summed(whole + 0.2 + random.normal(0, 0.5, 4000), item_of), summed(whole, item_of))
    assert found is not None
    assert found["low"] < 1 - np.exp(-0.2) < found["high"]
    assert found["low"] > 0.1
    covered = 0
    for _ in range(40):
        none = gain(4, summed(whole + random.normal(0, 0.5, 4000), item_of), summed(whole, item_of))
        covered += none["low"] < 0 < none["high"]
    assert covered >= 34
    infinite = whole.copy()
    infinite[0] = np.inf
    assert gain(4, summed(infinite, item_of), summed(whole, item_of)) is None


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
    assert ("lstm needs the least time per token" in finding(results)) == said
