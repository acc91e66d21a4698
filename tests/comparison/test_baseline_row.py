"""The row of the simple baseline in a comparison: added once, marked, and named in the report."""

from pathlib import Path

import pytest
from seriatim.comparison.verdict import beside_baseline

import seriatim
from seriatim.comparison.comparing import resume
from seriatim.comparison.results import Results

from .comparisons import LINES, SMALL


def classify(folder: Path) -> dict:
    (folder / "data.tsv").write_text(LINES["classify"])
    data = str(folder / "data.tsv")
    training = {key: value for key, value in SMALL["training"].items() if key != "baseline"}
    return {
        "task": "classify",
        "data": {"train": data, "valid": data},
        "model": SMALL["model"],
        "training": training,
        "out": str(folder / "out"),
    }


def test_it_is_added_marked_and_kept(tmp_path: Path, in_process: None) -> None:
    found = seriatim.compare(classify(tmp_path), layers=["gru"], steps=1)
    marks = {row["layer"]: row["baseline"] for row in found.results["rows"]}
    assert marks == {"gru": False, "bag": True}
    assert not list(tmp_path.rglob("baseline"))  # no row trains one of its own
    assert "The simple baseline is bag" in beside_baseline(Results(found.results))
    more = resume(tmp_path / "out", layers=["gru", "rnn"])
    assert [row["layer"] for row in more.results["rows"]] == ["gru", "rnn", "bag"]


def test_a_row_that_is_named_is_marked(tmp_path: Path, in_process: None) -> None:
    found = seriatim.compare(classify(tmp_path), layers=["bag", "gru"], steps=1)
    assert [(row["layer"], row["baseline"]) for row in found.results["rows"]] == [("bag", True), ("gru", False)]


@pytest.mark.parametrize(
    ("difference", "p_value", "expected"),
    [
        (-0.2, 0.001, "Worse than the baseline: gru (difference −0.20, 95 % interval −0.25 to −0.15)."),
        (
            0.01,
            0.8,
            "Not significantly different from the baseline: gru (difference +0.01, 95 % interval −0.04 to +0.06).",
        ),
        (0.2, 0.001, "gru (difference +0.20, 95 % interval +0.15 to +0.25) is better than the baseline."),
        (0.2, None, "Not tested against the baseline: gru."),
    ],
)
def test_the_sentence(difference: float, p_value: float | None, expected: str) -> None:
    ends = {"low": difference - 0.05, "high": difference + 0.05}
    test = {"to": "bag", "difference": difference, **ends, "p_value": p_value}
    rows = [
        {"layer": "bag", "baseline": True, "metrics": {"accuracy": 0.5}},
        {"layer": "gru", "metrics": {"accuracy": 0.5 + difference}, "beside_baseline": test},
    ]
    metric = {"key": "accuracy", "name": "accuracy", "digits": 2, "headline": True, "more_is_better": True}
    sentence = beside_baseline(Results({"metric": metric, "rows": rows}))
    assert sentence == f"The simple baseline is bag: accuracy 0.50. {expected}"


def test_all_layers_are_only_called_better_if_all_were_tested() -> None:
    better = {"p_value": 0.001, "to": "bag", "difference": 0.4, "low": 0.3, "high": 0.5}
    rows = [{"layer": "bag", "baseline": True, "metrics": {"accuracy": 0.5}}]
    rows += [{"layer": f"l{i}", "metrics": {"accuracy": 0.9}, "beside_baseline": better} for i in range(4)]
    metric = {"key": "accuracy", "name": "accuracy", "digits": 2, "headline": True, "more_is_better": True}
    assert "All other layers are better" in beside_baseline(Results({"metric": metric, "rows": rows}))
    rows += [{"layer": "rnn", "metrics": {"accuracy": 0.3}}]
    sentence = beside_baseline(Results({"metric": metric, "rows": rows}))
    assert "l0, l1, l2 and l3 are better than the baseline. Not tested against the baseline: rnn." in sentence
