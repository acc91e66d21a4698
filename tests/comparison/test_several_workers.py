"""Comparisons with several workers: the same rows as with one, after a signal, a kill and a resume, too."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import seriatim
from seriatim.cli.main import main
from seriatim.comparison import workers
from seriatim.comparison.comparing import Comparison, ComparisonProgress, ComparisonReporter, PresentTraining, resume
from seriatim.comparison.worker import WorkerJob
from seriatim.core.errors import InputError, TrainingError

from .comparisons import SMALL, small

FIXED = {"training": {**SMALL["training"], "evaluate_every": 3}}
"""Validations do not depend on the measured speed."""


def figures(found: Comparison) -> dict:
    """Everything of the rows that must not depend on the workers."""
    return {
        row["layer"]: (
            row["metrics"],
            row["parameters"],
            row["learning_rate"],
            row["tried"],
            [(run["steps"], run["tokens"]) for run in row["runs"]],
        )
        for row in found.results["rows"]
    }


@pytest.mark.exhaustive
def test_two_workers_give_the_rows_of_one(texts, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Two processes at the same time, and the same one after another in this process."""
    config = {**small(texts, tmp_path / "two"), **FIXED}
    two = seriatim.compare(config, layers=["window", "convolution"], steps=6, workers=2)
    assert not two.failures
    assert [run["at_once"] for row in two.rows for run in row["runs"]] == [2, 2]
    assert "2 trainings ran at the same time" in two.results["conditions"]
    for layer in ("window", "convolution"):
        machine = json.loads((tmp_path / "two" / "rows" / f"{layer}-1.json").read_text())["machine"]
        (start, nothing), (imported, importing), *_ = machine["used"]
        assert (start, nothing) == (machine["began"], 0.0), "the process counts from its start"
        assert imported - start > 0.5
        assert importing > 0.5
    request.getfixturevalue("in_process")
    one = seriatim.compare({**config, "out": str(tmp_path / "one")}, layers=["window", "convolution"], steps=6)
    assert figures(one) == figures(two)
    assert "same time" not in one.results["conditions"]


@pytest.mark.exhaustive
def test_rows_with_trials_and_seeds_are_the_same_with_two_workers(texts, tmp_path: Path) -> None:
    settings = {"layers": ["gru", "ngram"], "tokens": 4000, "tune": 2, "seeds": 2}
    model = {"model": {**SMALL["model"], "options": {"smoothing": "witten-bell"}}}
    one, two = (
        seriatim.compare({**small(texts, tmp_path / str(workers)), **FIXED, **model}, workers=workers, **settings)
        for workers in (1, 2)
    )
    assert figures(one) == figures(two)


def test_trials_come_before_their_row_and_the_order_is_that_of_the_layers(
    texts, tmp_path: Path, monkeypatch, in_process: None
) -> None:
    order, usual = [], workers.run_worker

    def run(job: WorkerJob, listen: Callable, signalled: Callable) -> dict:
        order.append((job.layer, job.seed, job.trial))
        if job.layer == "gru" and job.trial is not None:
            raise TrainingError("the loss became NaN") if job.seed == 1 else AssertionError
        return usual(job, listen, signalled)

    monkeypatch.setattr(workers, "run_worker", run)
    found = seriatim.compare(small(texts, tmp_path / "a"), layers=["rnn", "gru"], steps=4, tune=2, seeds=2)
    trials = [("rnn", 1, 1), ("rnn", 1, 2), ("rnn", 1, None), ("gru", 1, 1), ("gru", 1, 2)]
    assert order == [*trials, ("rnn", 2, None)]
    assert {failure["reason"] for failure in found.failures} == {
        "the training failed with every learning rate that was tried; the last reason: the loss became NaN"
    }
    assert len(found.failures) == 2
    assert [list(trial) for trial in found.rows[0]["tried"]] == 2 * [["learning_rate", "value", "more_is_better"]]


def test_bad_input_of_a_trial_fails_the_layer_and_is_tried_again(
    texts, tmp_path: Path, monkeypatch, in_process: None
) -> None:
    usual = workers.run_worker

    def run(job: WorkerJob, listen: Callable, signalled: Callable) -> dict:
        if job.layer == "gru":
            raise InputError("--minutes: 1 is too little")
        return usual(job, listen, signalled)

    with monkeypatch.context() as patch:
        patch.setattr(workers, "run_worker", run)
        found = seriatim.compare(small(texts, tmp_path / "a"), layers=["gru", "rnn"], steps=4, tune=2)
    assert [failure["reason"] for failure in found.failures] == ["--minutes: 1 is too little"]
    assert resume(tmp_path / "a", workers=2).failures == []


class Killer(ComparisonReporter):
    """Kills the process that trains a layer at its first step."""

    def __init__(self, layer: str) -> None:
        self.layer = layer

    def hear(self, progress: ComparisonProgress, training: PresentTraining, event: dict) -> None:
        if training.layer == self.layer and event["event"] == "step":
            for process in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):
                    *_, path = (process / "cmdline").read_text().rstrip("\0").split("\0")
                    parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
                    if int(parent) == os.getpid() and json.loads(Path(path).read_text())["layer"] == self.layer:
                        os.kill(int(process.name), signal.SIGKILL)


@pytest.mark.exhaustive
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_killed_process_fails_its_row_only(texts, tmp_path: Path) -> None:
    found = seriatim.compare(
        small(texts, tmp_path / "a"), layers=["gru", "rnn"], steps=400, workers=2, reporter=Killer("gru")
    )
    assert [failure["layer"] for failure in found.failures] == ["gru"]
    assert found.failures[0]["reason"].startswith("the training process was stopped by SIGKILL; it may have run out")
    assert found.rows[0]["failed"] is None


def command(texts: dict[str, str], out: Path) -> list[str]:
    data = ["--data", texts["train"], "--valid", texts["valid"], "--baseline", "none", "--no-report"]
    sizes = ["--model.hidden_size", "12", "--training.batch_size", "4", "--training.checkpoint_every", "20"]
    budget = ["--layers", "rnn,gru", "--steps", "1500", "--training.evaluate_every", "300"]
    return ["compare", "lm", *data, *sizes, *budget, "--out", str(out), "--workers", "2", "--quiet"]


def metrics(out: Path) -> list[dict]:
    return [row["metrics"] for row in json.loads((out / "results.json").read_text())["rows"]]


@pytest.mark.exhaustive
def test_a_signal_stops_both_processes_and_the_comparison_goes_on(texts, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = subprocess.Popen(
        [sys.executable, "-m", "seriatim", *command(texts, out)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 60
    while not all(any((out / "runs" / f"{layer}-1").glob("checkpoints/*")) for layer in ("rnn", "gru")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    (line,) = errors.splitlines()
    assert line.endswith(f"go on with: seriatim compare --resume {out} --workers 2")
    assert not list((out / "rows").glob("*.json"))
    assert main(["compare", "--resume", str(out), "--workers", "2", "--no-report", "--quiet"]) == 0
    assert main(command(texts, tmp_path / "whole")) == 0
    assert metrics(out) == metrics(tmp_path / "whole")
