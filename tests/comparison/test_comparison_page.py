"""The page of a comparison states what the results state, whatever they lack."""

import copy
import json
import warnings
from itertools import pairwise
from pathlib import Path

import pytest

from seriatim.comparison import charts, tables
from seriatim.comparison.comparison_page import report, write_report
from seriatim.comparison.findings import headline
from seriatim.comparison.results import Results
from seriatim.evaluation.intervals import Metric
from seriatim.pages.chart import Chart, Switch
from seriatim.pages.chart_svg import spread
from seriatim.pages.wording import (
    in_bytes,
    in_short,
    in_time,
    in_time_range,
    listed,
    percent,
    rounded,
    same_digits,
    times,
)

from ..pages.test_page import HOSTILE, check_page
from .comparisons import failed_row, made_up, made_up_row

FEW = ("ngram", "lstm", "transformer")
DRAWN = (charts.learning, charts.quality_against_cost, charts.growth, charts.context)
MAX_WORDS = 1_200
"""Words of a page that are not folded, at most."""


def test_a_report_says_what_the_results_say(tmp_path: Path) -> None:
    results = json.loads(json.dumps(made_up(FEW, seeds=2, tune=True)))
    path = write_report(tmp_path, results)
    page = check_page(path.read_text(encoding="utf-8"))
    text = page.text()
    for row in results["rows"]:
        assert Metric(**results["metric"]).text(row["metrics"]) in text
        assert f"{row['parameters']:,}" in text
        assert all(run["command"] in text for run in row["runs"])
    assert results["command"] in text
    assert results["machine"]["processor"] in text
    assert headline(Results(results)) in text.replace("\N{NO-BREAK SPACE}", " ")
    first = page.source.index('class="ranking"')
    assert first < page.source.index("<nav"), "the chart is on the first screen"


def test_a_report_has_few_words() -> None:
    page = check_page(report(made_up()))
    assert len(" ".join(page.unfolded).split()) < MAX_WORDS


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
    assert headline(results)
    assert len(charts.ranking(results, {}).rows) == len(results.rows)
    for table in (tables.summary_table, tables.settings_table):
        assert len(table(results).rows) == len(results.rows)
    assert all(draw(results) for draw in DRAWN)


@pytest.mark.parametrize("draw", DRAWN)
def test_without_rows_nothing_is_drawn(draw) -> None:
    assert draw(Results(made_up(FEW)))
    assert draw(Results(made_up(FEW) | {"rows": [failed_row()]})) == []


@pytest.mark.parametrize("draw", DRAWN)
def test_a_layer_that_is_missing_from_a_figure_is_named(draw) -> None:
    values = made_up(FEW)
    bare = dict.fromkeys(("held_out", "distance", "state_bytes", "step_milliseconds", "reading_milliseconds"))
    values["rows"][1] |= bare | dict.fromkeys(("milliseconds_per_token", "parameters", "memory_bytes", "disk_bytes"))
    values["rows"][1]["runs"][0]["training_seconds"] = None
    (block,) = draw(Results(values))
    for figure in [block] if isinstance(block, Chart) else [each for _, each in block.choices]:
        assert "lstm" in figure.missing
        assert "lstm" not in {series.name for series in figure.series}
        shown = {series.name for series in figure.series} | set(figure.missing) | {name for name, _ in figure.levels}
        assert shown == set(FEW)


def test_a_chart_tells_why_a_layer_is_not_in_it() -> None:
    values = made_up(("prior", "lstm", "gru"))
    prior, lstm, _ = values["rows"]
    prior |= {"step_milliseconds": {}, "disk_bytes": None, "held_out": []}
    lstm["held_out"] = [point | {"key": "accuracy"} for point in lstm["held_out"]]
    results = Results(values | {"rows": [*values["rows"], failed_row()]})
    (costs,), (quality,), (learning,) = (draw(results) for draw in DRAWN[2::-1])
    assert dict(costs.choices)["state"].missing == {"prior": charts.NOTHING}
    assert dict(costs.choices)["time of a step"].missing == {"prior": charts.UNKNOWN}
    assert dict(quality.choices)["state"].missing == {"prior": charts.NOTHING}
    reasons = learning.choices[0][1].missing
    assert reasons["prior"] == charts.UNKNOWN
    assert reasons["lstm"] == charts.UNKNOWN
    assert reasons["mamba"] == "failed"
    lstm["held_out"] = made_up_row(1, "lstm")["held_out"][:1]
    (learning,) = charts.learning(Results(results.values))
    assert [series.name for series in learning.choices[0][1].series] == ["gru"], "one point is no curve"
    assert charts.learning(Results({**results.values, "rows": [lstm]})) == []


def test_learning_is_drawn_by_a_figure_that_all_layers_have() -> None:
    values = made_up(("prior", "lstm", "gru"))
    for row in values["rows"]:
        key = "perplexity" if row["layer"] == "lstm" else "loss"
        row["held_out"] = [point | {"key": key, "loss": i / 8} for i, point in enumerate(row["held_out"])]
    (learning,) = charts.learning(Results(values))
    figure = learning.choices[0][1]
    assert figure.missing == {}
    lstm = next(series for series in figure.series if series.name == "lstm")
    assert list(lstm.y) == [point["loss"] for point in values["rows"][1]["held_out"]]


def test_charts_show_the_figures_of_the_rows() -> None:
    results = Results(made_up(FEW))
    (learning,) = charts.learning(results)
    assert isinstance(learning, Switch)
    assert all(figure.levels == [] for _, figure in learning.choices), "the counted model has no validation here"
    against = dict(zip(("seconds", "tokens", "step"), learning.choices, strict=False))
    for key, (_, figure) in against.items():
        for series in figure.series:
            row = next(row for row in results.rows if row.layer == series.name)
            assert list(zip(series.x, series.y, strict=True)) == [(each[key], each["value"]) for each in row.held_out]
    (quality,) = charts.quality_against_cost(results)
    for cost, column, _ in charts.COSTS:
        for figure in (figure for name, figure in quality.choices if name == cost):
            assert {(each.name, each.x[0], each.y[0]) for each in figure.series} == {
                (row.layer, column.value(row), results.of(row)) for row in results.measured if column.value(row)
            }
    (context,) = charts.context(results)
    assert "perplexity" not in context.caption, "the axis has bits"
    assert results.at_distance().measured in context.caption
    ranking = charts.ranking(results, {})
    assert [(row.name, row.value, row.interval) for row in ranking.rows] == [
        (row.layer, results.of(row), row.interval("perplexity")) for row in results.ranked
    ]


def test_smoothing_averages_neighbours_only() -> None:
    assert charts._smoothed([3.0, 6.0, 9.0, 3.0]) == [3.0, 4.5, 6.0, 6.0]


def test_neighbours_of_one_rank_are_joined() -> None:
    values = made_up(FEW)
    for row, rank in zip(values["rows"], (3, 1, 1), strict=True):
        row["rank"] = rank
    ranking = charts.ranking(Results(values), {})
    by_name = dict(zip((row.name for row in ranking.rows), ranking.brackets, strict=True))
    assert by_name["ngram"] == ""
    assert {by_name["lstm"], by_name["transformer"]} == {"first", "last"}


def test_positions_of_a_ranking_keep_order_and_stay_inside() -> None:
    ranking = charts.ranking(Results(made_up()), {})
    places = [ranking.percent(row.value) for row in ranking.rows]
    assert places == sorted(places)
    assert all(0 < ranking.percent(end) < 100 for row in ranking.rows for end in row.interval)


def test_the_best_of_a_column_is_marked_only_where_the_figures_tell_it_from_the_others() -> None:
    def marked(heading: str = "ms per token", **rows: dict) -> dict[str, str]:
        values = made_up(FEW)
        for row in values["rows"]:
            row |= rows.get(row["layer"], {})
        table = tables.summary_table(Results(values))
        column = table.headings.index(heading)
        return {row[0].text: row[column].mark for row in table.rows}

    fast = {"milliseconds_per_token": 0.2, "milliseconds_spread": [0.19, 0.21]}
    slow = {"milliseconds_per_token": 0.9, "milliseconds_spread": [0.8, 1.0]}
    assert marked(ngram=slow, lstm=fast, transformer=slow) == {"ngram": "", "lstm": "best", "transformer": ""}
    wide = fast | {"milliseconds_spread": [0.1, 0.95]}
    assert set(marked(ngram=slow, lstm=wide, transformer=slow).values()) == {""}, "the ranges overlap"
    near = {"milliseconds_per_token": 0.201, "milliseconds_spread": [0.2005, 0.2015]}
    exact = {"milliseconds_per_token": 0.2, "milliseconds_spread": [0.1999, 0.2001]}
    assert set(marked(ngram=near, lstm=exact, transformer=slow).values()) == {""}, "the digits tie"
    for low, is_best in ((233e6, False), (150e6, True)):
        memory = marked("memory", ngram={"memory_bytes": low}, lstm={"memory_bytes": 234e6})
        assert (memory["ngram"] == "best") == is_best, "a peak of memory is measured once"


def test_a_column_has_the_same_digits() -> None:
    table = tables.summary_table(Results(made_up()))
    for name in ("perplexity per token", "ms per token", "training (s)"):
        column = table.headings.index(name)
        texts = [row[column].text for row in table.rows if not isinstance(row[column], str)]
        assert len({len(text.partition(".")[2]) for text in texts}) == 1
    assert same_digits([0.17, 0.214, 12.0]) == ["0.17", "0.21", "12.00"]
    assert same_digits([0.0, 1234.5]) == ["0", "1,234"]


def test_a_small_value_beside_very_large_ones_is_not_written_as_zero() -> None:
    values = made_up(FEW)
    for row, value in zip(values["rows"], (1796.08, 2.3e6, 1.3e14), strict=True):
        row["metrics"] |= {"perplexity": value, "perplexity_low": 0.6 * value, "perplexity_high": 1.4 * value}
    results = Results(values)
    texts = tables.texts_of(tables.metric_column(results, results.metric), results)
    assert list(texts.values())[:2] == ["1,800", "2,300,000"]


def test_the_state_of_a_model_with_a_source_is_that_of_a_long_source() -> None:
    values = made_up(FEW)
    row = values["rows"][0] | {"state_bytes": {"1000": 22_776}, "state_by_source": {"10": 12_416, "1000": 1_038_056}}
    values["rows"][0] = row
    table = tables.summary_table(Results(values))
    states = {each[0].text: each[table.headings.index("state")] for each in table.rows}
    assert (states[row["layer"]].value, states[row["layer"]].text) == (1_038_056, "1.04 MB")
    (bars,) = [each.bars for each in charts.ranking(Results(values), {}).rows if each.name == row["layer"]]
    assert bars[3].value == 1_038_056


def test_the_state_is_drawn_against_the_length_of_what_it_grows_with() -> None:
    values = made_up(FEW)
    (costs,), (quality,) = charts.growth(Results(values)), charts.quality_against_cost(Results(values))
    assert "source" not in dict(quality.choices)["state"].x.name
    assert dict(costs.choices)["state"].x.name == "tokens read"
    for row in values["rows"][1:]:
        row["state_by_source"] = {"10": 2_000, "1000": 1_000 * row["parameters"]}
    (costs,), (quality,) = charts.growth(Results(values)), charts.quality_against_cost(Results(values))
    assert [name for name, figure in costs.choices if figure.y.name.startswith("state")] == ["state"]
    for series in dict(costs.choices)["state"].series:
        row = next(row for row in values["rows"] if row["layer"] == series.name)
        assert list(zip(series.x, series.y, strict=True)) == [(10, 2_000), (1_000, 1_000 * row["parameters"])]
    assert "source" in dict(quality.choices)["state"].x.name


def test_answers_that_can_be_browsed_are_no_samples() -> None:
    results = without_plots(made_up(("rnn", "lstm")))
    assert 'id="samples"' in report(results)
    for row in results["rows"]:
        row["samples"] = [{"input": "a dog", "truth": "NOUN", "text": "NOUN"}]
    assert 'id="samples"' not in report(results)


def without_plots(results: dict) -> dict:
    """Only the metric is drawn of these, which is quick."""
    drawn = ("parameters", "held_out", "distance", "tokens_per_second", "milliseconds_per_token")
    for row in results["rows"]:
        row |= dict.fromkeys((*drawn, "memory_bytes", "state_bytes", "step_milliseconds", "reading_milliseconds"))
    return results


def test_the_same_results_give_the_same_page() -> None:
    results = without_plots(made_up(FEW, seeds=2))
    assert report(results) == report(copy.deepcopy(results))


def test_hostile_results_stay_text() -> None:
    results = made_up(("rnn", "lstm"))
    results["rows"][0]["layer"] = HOSTILE
    results = without_plots(results)
    for row in results["rows"]:
        row["options"] = {HOSTILE: HOSTILE}
        row["samples"] = [{"prompt": HOSTILE, "text": HOSTILE}]
        row["keeps"] = row["paper"] = row["runs"][0]["command"] = HOSTILE
    results["command"] = results["data"]["train"] = HOSTILE
    page = check_page(report(results))
    assert HOSTILE in page.text()
    assert not page.all("img")


def test_the_order_follows_the_metric() -> None:
    values = made_up(FEW)
    order = [row.layer for row in Results(values).ranked]
    values["metric"]["more_is_better"] = True
    assert [row.layer for row in Results(values).ranked] == order[::-1]


def test_figures_at_distances_are_drawn() -> None:
    values = without_plots(made_up(("lstm", "transformer")))
    for row, far in zip(values["rows"], (0.5, 0.9), strict=True):
        points = {"2": 1.0, "40": far}
        row["distance"] = {
            "kind": "distance",
            "of": "exact match",
            "name": "by distance",
            "unit": "letters",
            "values": points,
        }
    (chart,) = charts.context(Results(values))
    assert [(series.name, list(series.x), list(series.y)) for series in chart.series] == [
        ("lstm", [2, 40], [1.0, 0.5]),
        ("transformer", [2, 40], [1.0, 0.9]),
    ]
    assert chart.y.name == "exact match"


def test_layers_at_several_widths_are_drawn_against_their_states() -> None:
    def row(layer: str, width: int, size: int, accuracy: float) -> dict:
        state = {"tokens": 9, "bytes": size}
        name = {"layer": f"{layer}@{width}", "architecture": layer, "width": width}
        return {**name, "state_at_length": state, "metrics": {"accuracy": accuracy}}

    rows = [row("gru", 8, 32, 0.3), row("gru", 16, 64, 0.88), row("lstm", 8, 64, 0.95)]
    metric = {"key": "accuracy", "name": "accuracy", "digits": 2, "more_is_better": True}
    (chart,) = charts.state_sizes(Results({"metric": metric, "rows": rows[::-1]}))
    assert [(series.name, series.x, series.y) for series in chart.series] == [
        ("lstm", [64.0], [0.95]),
        ("gru", [32.0, 64.0], [0.3, 0.88]),
    ]
    assert charts.state_sizes(Results(made_up(FEW))) == []


@pytest.mark.parametrize("absurd", [pytest.param(1e17, marks=pytest.mark.exhaustive), 1e300])
def test_absurd_figures_are_drawn_without_a_warning(absurd: float) -> None:
    values = made_up(("rnn", "lstm"))
    measured = dict.fromkeys(("state_bytes", "step_milliseconds", "reading_milliseconds", "distance"))
    for row in values["rows"]:
        row |= measured | {"metrics": dict.fromkeys(row["metrics"], absurd)}
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
