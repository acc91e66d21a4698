"""The row of the simple baseline in a comparison: added once, marked, and named in the report."""

from pathlib import Path

import pytest

import seriatim
from seriatim.comparison.comparing import resume
from seriatim.comparison.results import Results
from seriatim.comparison.verdict import beside_baseline

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
        (-0.2, 0.001, "Worse than the baseline: gru."),
        (0.0, 0.8, "Not significantly different from the baseline: gru."),
        (0.2, 0.001, "All other layers are better than the baseline."),
    ],
)
def test_the_sentence(difference: float, p_value: float, expected: str) -> None:
    rows = [
        {"layer": "bag", "baseline": True, "metrics": {"accuracy": 0.5}},
        {"layer": "gru", "metrics": {"accuracy": 0.5 + difference}, "beside_baseline": {"p_value": p_value}},
    ]
    metric = {"key": "accuracy", "name": "accuracy", "digits": 2, "headline": True, "more_is_better": True}
    sentence = beside_baseline(Results({"metric": metric, "rows": rows}))
    assert sentence == f"The simple baseline is bag: accuracy 0.50. {expected}"
