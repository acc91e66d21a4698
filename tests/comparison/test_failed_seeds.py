"""A seed that failed never improves the standing of its layer, and what it would have measured is taken from others."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import seriatim
from seriatim.comparison import workers
from seriatim.comparison.comparing import Comparison, resume
from seriatim.comparison.comparison_page import first_runs
from seriatim.comparison.findings import Caveats, Verdict, warnings_of
from seriatim.comparison.results import Results
from seriatim.comparison.tables import summary_table
from seriatim.comparison.worker import WorkerJob
from seriatim.core.errors import TrainingError

from .comparisons import LINES, SMALL


def compared(folder: Path, monkeypatch: pytest.MonkeyPatch, fails: tuple[str, int]) -> Comparison:
    """A comparison of two classifiers with two seeds, of which one training fails."""
    usual = workers.run_worker

    def run(job: WorkerJob, listen: Callable, signalled: Callable) -> dict:
        if (job.layer, job.seed) == fails:
            raise TrainingError("the loss became NaN at step 2")
        return usual(job, listen, signalled)

    (folder / "data.tsv").write_text(LINES["classify"])
    data = {"train": str(folder / "data.tsv"), "valid": str(folder / "data.tsv")}
    config = {**SMALL, "task": "classify", "data": data, "tokenizer": {"kind": "char"}, "out": str(folder / "out")}
    with monkeypatch.context() as patch:
        patch.setattr(workers, "run_worker", run)
        return seriatim.compare(config, layers=["rnn", "gru"], steps=1, seeds=2)


def test_a_layer_of_which_a_seed_failed_is_not_ranked(tmp_path: Path, monkeypatch, in_process: None) -> None:
    values = compared(tmp_path, monkeypatch, ("gru", 2)).results
    rnn, gru = values["rows"]
    assert gru["missing_seeds"] == [2]
    assert gru["rank"] is None
    gru["metrics"] |= {"accuracy": 1.0}
    results = Results(values)
    found = Caveats(results)
    assert found.lacking == "gru (1 of 2 seeds failed)"
    assert any(found.lacking in warning for warning in warnings_of(results))
    assert Verdict(results).best.layer == "rnn"
    assert [row.layer for row in results.measured] == ["rnn"]
    assert [row.layer for row in results.ranked] == ["rnn", "gru"]
    assert Verdict(Results({**values, "rows": [gru]})).best is None, "the only row lacks a seed"
    cells = {row[0].text: row for row in summary_table(results).rows}
    assert cells["gru"][0].note == "1 of 2 seeds failed"
    assert not any(cell.mark == "best" for cell in cells["gru"] if not isinstance(cell, str))
    shutil.rmtree(tmp_path / "out" / "runs" / "rnn-1")
    again = resume(tmp_path / "out").results  # trains what failed, and what was removed
    assert [row["missing_seeds"] for row in again["rows"]] == [[], []]
    assert again["rows"][0]["metrics"] == rnn["metrics"]
    assert (tmp_path / "out" / "runs" / "rnn-1" / "config.yaml").is_file()


def test_the_simplest_answer_does_not_depend_on_one_training(tmp_path: Path, monkeypatch, in_process: None) -> None:
    values = compared(tmp_path, monkeypatch, ("rnn", 1)).results
    assert values["simplest"]["accuracy"] == 0.5
    assert first_runs(values) == {"gru": "gru-1", "rnn": "rnn-2"}
