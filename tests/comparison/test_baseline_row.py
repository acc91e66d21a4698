"""The row of the simple baseline in a comparison: added once, marked, and named in the report."""

from pathlib import Path

import seriatim
from seriatim.comparison.comparing import resume
from seriatim.comparison.findings import Setup
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
    assert Setup(Results(found.results)).baseline.layer == "bag"
    more = resume(tmp_path / "out", layers=["gru", "rnn"])
    assert [row["layer"] for row in more.results["rows"]] == ["gru", "rnn", "bag"]


def test_a_row_that_is_named_is_marked(tmp_path: Path, in_process: None) -> None:
    found = seriatim.compare(classify(tmp_path), layers=["bag", "gru"], tokens=200)
    assert [(row["layer"], row["baseline"]) for row in found.results["rows"]] == [("bag", True), ("gru", False)]
