"""The page of a comparison states what the results state, whatever they lack."""

import copy
import json
import warnings
from itertools import pairwise
from pathlib import Path

import pytest

from seriatim.comparison import tables_and_plots
from seriatim.comparison.comparison_page import report, write_report
from seriatim.comparison.results import Results
from seriatim.comparison.sentences import (
    controlled_variables,
    kept_state,
    metric_in_words,
    state_sizes,
    training,
    training_remarks,
    using_context,
)
from seriatim.comparison.verdict import finding
from seriatim.pages.charts import spread
from seriatim.pages.drawing import to_svg
from seriatim.pages.wording import in_bytes, in_short, in_time, in_time_range, listed, percent, rounded, times

from ..pages.test_page import HOSTILE, check_page
from .comparisons import failed_row, made_up, made_up_row

FEW = ("ngram", "lstm", "transformer")
DRAWN = {
    "metric": tables_and_plots.metric_plot,
    "loss": lambda results: tables_and_plots.learning_curves(results, "tokens"),
    "held out": lambda results: tables_and_plots.held_out_curves(
        results, "tokens", key="perplexity", name="$perplexity$"
    ),
    "size": lambda results: tables_and_plots.quality_against(results, lambda row: row.parameters, name="parameters"),
    "state": lambda results: tables_and_plots.growth(results, "state_bytes", x="tokens", y="bytes"),
    "step": lambda results: tables_and_plots.growth(results, "step_milliseconds", x="tokens", y="milliseconds"),
    "reading": lambda results: tables_and_plots.growth(results, "reading_milliseconds", x="tokens", y="milliseconds"),
    "distance": tables_and_plots.distance_plot,
}


def test_a_report_is_whole_and_says_what_the_results_say(tmp_path: Path) -> None:
    results = json.loads(json.dumps(made_up(FEW, seeds=2, tune=True)))
    path = write_report(tmp_path, results)
    page = check_page(path.read_text(encoding="utf-8"))
    text = page.text()
    for row in results["rows"]:
        assert tables_and_plots.Metric(**results["metric"]).text(row["metrics"]) in text
        assert f"{row['parameters']:,}" in text
        assert all(run["command"] in text for run in row["runs"])
    assert results["command"] in text
    assert results["machine"]["processor"] in text
    assert len(page.all("svg")) == 13
    assert "perplexity per token against number of parameters" in text.lower()  # the counted model has many more
    titles = ["Perplexity per token against training time", "Training loss against tokens read"]
    assert 0 <= text.index(titles[0]) < text.index(titles[1])  # held-out curves come first
    read = Results(results)
    best = read.trained[0]
    assert finding(read).startswith(
        f"{best.layer} has the lowest perplexity per token of the trained layers: {read.text(best)}"
    )


@pytest.mark.parametrize("lacking", ["everything", "all but the metric", "all rows"])
def test_a_report_copes_with_what_is_missing(lacking: str) -> None:
    results = made_up(FEW)
    bare = {"layer": "lstm", "keeps": None, "failed": None}
    if lacking == "everything":
        results["rows"] = [bare, failed_row()]
    elif lacking == "all but the metric":
        results["rows"] = [bare | {"metrics": {"perplexity": 3.0, "loss": None}} for _ in range(2)]
    else:
        results["rows"] = [failed_row("lstm"), failed_row()]
    for key in ("data", "tokenizer", "machine", "versions", "seeds", "budget", "command", "finished", "seconds"):
        results[key] = None
    check_page(report(results))


def test_any_one_thing_may_be_missing() -> None:
    """A row without each of the keys, and one where it is null."""
    results, rows = made_up(("rnn", "lstm")), []
    for key in made_up_row(4, "lstm").keys() - {"layer", "failed"}:
        rows += [made_up_row(4, "lstm") | {key: None}, made_up_row(4, "lstm")]
        del rows[-1][key]
    results["rows"] += rows
    results = Results(results)
    assert all(metric_in_words(row, results) and training_remarks(row, results) for row in results.rows)
    assert all(kept_state(row) and training(row, results) for row in results.rows)
    assert finding(results)
    assert controlled_variables(results)
    for table in (tables_and_plots.summary_table, tables_and_plots.words_table, tables_and_plots.shapes_table):
        assert len(table(results).rows) == len(results.rows)
    for draw in DRAWN.values():
        assert draw(results) is not None


@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)
def test_without_rows_nothing_is_drawn(draw) -> None:
    assert draw(Results(made_up(FEW))) is not None
    assert draw(Results(made_up(FEW) | {"rows": [failed_row()]})) is None


def without_plots(results: dict) -> dict:
    """Only the metric is drawn of these, which is quick."""
    drawn = ("parameters", "curve", "held_out", "distance", "tokens_per_second", "milliseconds_per_token")
    for row in results["rows"]:
        row |= dict.fromkeys((*drawn, "memory_bytes", "state_bytes", "step_milliseconds", "reading_milliseconds"))
    return results


def test_the_same_results_give_the_same_page() -> None:
    results = without_plots(made_up(FEW, seeds=2))
    assert report(results) == report(copy.deepcopy(results))


def test_hostile_results_stay_text() -> None:
    results = made_up(("rnn", "lstm"))
    results["rows"][0]["layer"] = HOSTILE
    svg = to_svg(DRAWN["state"](Results(results)), title=HOSTILE, description=HOSTILE)
    assert HOSTILE in check_page(f"<h1>a plot</h1><script></script>{svg}").text()
    results = without_plots(results)
    for row in results["rows"]:
        row["options"] = {HOSTILE: HOSTILE}
        row["samples"] = [{"input": HOSTILE, "truth": HOSTILE, "text": HOSTILE}]
        row["keeps"] = row["paper"] = row["runs"][0]["command"] = HOSTILE
    results["command"] = results["data"]["train"] = HOSTILE
    page = check_page(report(results))
    assert HOSTILE in page.text()
    assert not page.all("img")


def test_wrong_answers_are_marked_by_more_than_colour() -> None:
    results = without_plots(made_up(("rnn", "lstm")))
    for row, answer in zip(results["rows"], ("NOUN", "VERB"), strict=True):
        row["samples"] = [{"input": "dog", "truth": "NOUN", "text": answer}]
    text = check_page(report(results)).text()
    assert text.count("✗") == text.count("(wrong)") == 1
    assert text.count("✓") == 1


def test_wrong_tags_are_marked_one_by_one() -> None:
    results = without_plots(made_up(("rnn", "lstm"))) | {"tags_words": True}
    truth = "DET ADJECTIVE NOUN VERB ADVERB PUNCTUATION"
    for row in results["rows"]:
        row["samples"] = [{"input": "the old dog barks loudly .", "truth": truth, "text": truth}]
    results["rows"][0]["samples"][0]["text"] = truth.replace("VERB A", "NOUN A")
    text = check_page(report(results)).text()
    assert "rnn: 1 of 6 wrong" in text
    assert "NOUN NOUN✗ ADVERB" in text
    assert "lstm✓ (right)" in text


def test_the_order_follows_the_metric_and_ties_are_stated() -> None:
    values = made_up(FEW)
    order = [row.layer for row in Results(values).ranked]
    values["metric"]["more_is_better"] = True
    assert [row.layer for row in Results(values).ranked] == order[::-1]
    values["metric"]["more_is_better"] = False
    second = Results(values).ranked[1]
    assert second.differs
    second.difference["p_value"] = 0.3
    results = Results(values)
    second = results.ranked[1]
    assert f"Not significantly different from it (paired bootstrap): {second.layer}" in finding(results)
    assert "not significantly different from the best" in metric_in_words(second, results)


def changed(row: int, **values: object) -> Results:
    """Results of three layers, with fields of one row replaced."""
    results = made_up(FEW)
    results["rows"][row] |= values
    return Results(results)


def test_sentences_follow_the_figures() -> None:
    ngram, lstm, transformer = range(3)
    results = changed(lstm)
    assert "for a text of any length" in kept_state(results.rows[lstm])
    assert "grows to" in kept_state(results.rows[transformer])
    assert "ngram is not trained by steps, so budget and size do not apply" in controlled_variables(results)
    growing = changed(transformer, state_bytes={"1": 8, "100": 800, "10000": 80_000})
    assert "8 B more for every token" in kept_state(growing.rows[transformer])
    fastest = 10 * max(row.tokens_per_second for row in results.rows)
    results = changed(lstm, tokens_per_second=fastest)
    assert "the fastest here" in training(results.rows[lstm], results)
    assert training(results.rows[transformer], results).endswith("of the fastest")
    results = changed(ngram, tokens_per_second=1e9)
    assert "the fastest here" in training(results.rows[transformer], results)  # counting is not compared
    assert "except lstm" in controlled_variables(changed(lstm, parameters=2_000_000))
    assert "uses no context" in using_context(changed(lstm, state_bytes={"1": 0, "10000": 0}).rows[lstm])


def test_given_widths_are_not_called_equal_parameters() -> None:
    values = made_up(("lstm", "gru"))
    values["parameters"] = None
    assert "the number of parameters within 2 %" in controlled_variables(Results(values))
    for row in values["rows"]:
        row["width"] = 16
    assert "within 2 %" not in controlled_variables(Results(values))
    assert "the numbers of parameters differ" in controlled_variables(Results(values))


@pytest.mark.parametrize("kind", ["distance", "length"])
def test_distance_is_named_by_its_kind(kind: str) -> None:
    values = without_plots(made_up(("lstm", "transformer")))
    for row, far in zip(values["rows"], (0.5, 0.9), strict=True):
        points = {"2": 1.0, "40": far}
        row["distance"] = {"kind": kind, "of": "exact match", "name": f"by {kind}", "unit": "letters", "values": points}
    results = Results(values)
    expected = {
        "distance": "exact match 1 at 2 and 0.5 at 40 letters",
        "length": "exact match 1 on the shortest inputs (up to 2 tokens), 0.5 on the longest (up to 40 tokens)",
    }
    assert using_context(results.rows[0]) == expected[kind]
    assert "exact match" in check_page(report(values)).text()


def test_the_smallest_sufficient_states_are_named() -> None:
    def row(layer: str, width: int, size: int, accuracy: float) -> dict:
        state = {"tokens": 9, "bytes": size}
        name = {"layer": f"{layer}@{width}", "architecture": layer, "width": width}
        return {**name, "state_at_length": state, "metrics": {"accuracy": accuracy}}

    rows = [row("gru", 8, 32, 0.3), row("gru", 16, 64, 0.88), row("lstm", 8, 64, 0.95), row("rnn", 8, 32, 0.2)]
    metric = {"key": "accuracy", "name": "accuracy", "digits": 2, "more_is_better": True}
    results = Results({"metric": metric, "rows": rows[::-1]})
    assert [one.width for one in results.by_width()["gru"]] == [8, 16]
    best, near, far = state_sizes(results)
    assert best == "The best accuracy is 0.95: lstm at width 8, with a state of 64 B."
    assert near.endswith("of the best: lstm with 64 B (width 8) and gru with 64 B (width 16).")
    assert far == "No width of rnn reaches it."
    for one in rows:
        if one is not rows[2]:
            one["difference"] = {"to": "lstm@8", "p_value": 0.4}
    (_, tied) = state_sizes(Results({"metric": metric, "rows": rows}))
    assert tied == "No other row differs significantly from it, so no effect of the state size is shown."


@pytest.mark.parametrize("absurd", [pytest.param(1e17, marks=pytest.mark.exhaustive), 1e300])
def test_absurd_figures_are_drawn_without_a_warning(absurd: float) -> None:
    values = made_up(("rnn", "lstm"))
    measured = dict.fromkeys(("state_bytes", "step_milliseconds", "reading_milliseconds", "distance"))
    for row in values["rows"]:
        row |= measured | {"metrics": dict.fromkeys(row["metrics"], absurd)}
        row["curve"] = [point | {"loss": absurd} for point in row["curve"]]
        row["held_out"] = [point | {"value": absurd} for point in row["held_out"]]
    values["figures"] = values["figures"][:1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_page(report(values))


def test_labels_are_spread_as_little_as_possible() -> None:
    assert spread([0.1, 0.5, 0.9], 0.1) == pytest.approx([0.1, 0.5, 0.9])
    assert spread([0.5, 0.5], 0.1) == pytest.approx([0.45, 0.55])
    moved = spread([0.3, 0.31, 0.32, 0.9], 0.1)
    assert all(after - before >= 0.1 - 1e-9 for before, after in pairwise(moved))
    assert sum(moved[:3]) == pytest.approx(0.93)
    assert spread([], 0.1) == []


def test_numbers_are_written_for_readers() -> None:
    assert [in_bytes(number) for number in (0, 512, 3210, 2.05e6)] == ["0 B", "512 B", "3.21 kB", "2.05 MB"]
    assert [in_bytes(number) for number in (999.4, 999_499, 999_999)] == ["999 B", "999 kB", "1 MB"]
    assert in_short(999_999) == "1M"
    assert [in_time_range(*ends) for ends in ((0.062, 0.11), (35_100, 35_300))] == ["0.062 to 0.11 ms", "35 s"]
    assert [in_time(number) for number in (0.02, 0.314, 1500, 90_000, 150_000)] == [
        "20 μs",
        "0.31 ms",
        "1.5 s",
        "90 s",
        "2.5 min",
    ]
    assert [in_short(number) for number in (1, 2000, 1e6, 1e12, 2e12)] == ["1", "2k", "1M", "1T", "2T"]
    assert [rounded(number) for number in (0, 41_234, 0.1234, 12.345)] == ["0", "41,200", "0.123", "12.3"]
    assert [percent(share) for share in (0.0042, 0.16)] == ["0.4 %", "16 %"]
    assert [times(ratio) for ratio in (3.14, 40)] == ["3.1 times", "40 times"]
    assert [listed(names) for names in ([], ["a"], ["a", "b", "c"])] == ["", "a", "a, b and c"]
