"""Trials of learning rates that failed: their reasons are kept, and a resumed comparison makes them again."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import seriatim
from seriatim.comparison import workers
from seriatim.comparison.comparing import resume
from seriatim.comparison.worker import WorkerJob
from seriatim.config import resolve
from seriatim.core.errors import TrainingError

from .comparisons import small

KILLED = "the training process was stopped by SIGKILL; it may have run out of memory"


class Trainings:
    """Trainings in this process; those in ``failing``, of a seed and a trial, are killed, others are as usual."""

    def __init__(self) -> None:
        self.usual = workers.run_worker
        self.failing: set[tuple[int, int | None]] = set()
        self.order: list[tuple[int, int | None]] = []

    def run(self, job: WorkerJob, listen: Callable, signalled: Callable) -> dict:
        self.order.append((job.seed, job.trial))
        if (job.seed, job.trial) in self.failing:
            raise TrainingError(KILLED)
        return self.usual(job, listen, signalled)

    def fail(self, *failing: tuple[int, int | None]) -> None:
        self.failing, self.order = set(failing), []


@pytest.fixture
def trainings(in_process: None, monkeypatch: pytest.MonkeyPatch) -> Trainings:
    made = Trainings()
    monkeypatch.setattr(workers, "run_worker", made.run)
    return made


def stored(folder: Path) -> list[dict]:
    return json.loads((folder / "trials" / "rnn.json").read_text())


def test_a_layer_of_which_all_trials_failed_says_why_and_is_tried_again(texts, tmp_path, trainings: Trainings) -> None:
    trainings.fail((1, 1), (1, 2))
    with pytest.raises(TrainingError, match=f"every learning rate that was tried; the last reason: {KILLED}"):
        seriatim.compare(small(texts, tmp_path / "a"), layers=["rnn"], steps=4, tune=2)
    assert [(trial["value"], trial["reason"]) for trial in stored(tmp_path / "a")] == 2 * [(None, KILLED)]
    trainings.fail()
    assert resume(tmp_path / "a").failures == []
    assert trainings.order == [(1, 1), (1, 2), (1, None)]


def test_only_the_trial_that_failed_is_made_again(texts, tmp_path: Path, trainings: Trainings) -> None:
    trainings.fail((1, 2), (1, None))
    with pytest.raises(TrainingError, match="SIGKILL"):
        seriatim.compare(small(texts, tmp_path / "a"), layers=["rnn"], steps=6, tune=3)
    first, failed, last = stored(tmp_path / "a")
    trainings.fail()
    resume(tmp_path / "a")
    assert trainings.order == [(1, 2), (1, None)]
    assert stored(tmp_path / "a")[::2] == [first, last]
    assert stored(tmp_path / "a")[1]["learning_rate"] == failed["learning_rate"]
    assert stored(tmp_path / "a")[1]["value"] is not None


def test_a_run_that_was_begun_with_another_rate_begins_again(texts, tmp_path: Path, trainings: Trainings) -> None:
    trainings.fail((1, 2))
    (row,) = seriatim.compare(small(texts, tmp_path / "a"), layers=["rnn"], steps=4, tune=2).rows
    first = row["learning_rate"]
    run = tmp_path / "a" / "runs" / "rnn-1" / "config.yaml"
    assert resolve(run).training.learning_rate == first
    (tmp_path / "a" / "rows" / "rnn-1.json").unlink()  # as if it had not been measured
    trainings.fail()
    (row,) = resume(tmp_path / "a").rows
    best = min(stored(tmp_path / "a"), key=lambda trial: trial["value"])["learning_rate"]
    assert best != first
    assert row["learning_rate"] == resolve(run).training.learning_rate == best


def test_all_seeds_have_the_rate_of_the_finished_ones(texts, tmp_path: Path, trainings: Trainings) -> None:
    trainings.fail((1, 2), (2, None))
    found = seriatim.compare(small(texts, tmp_path / "a"), layers=["rnn"], steps=4, tune=2, seeds=2)
    assert [failure["seed"] for failure in found.failures] == [2]
    trainings.fail()
    resume(tmp_path / "a")
    assert trainings.order == [(2, None)]
