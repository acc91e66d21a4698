"""Fixtures of comparisons that train without processes of their own, which take seconds to start."""

import json
from collections.abc import Callable

import pytest

from seriatim.comparison import row, runner
from seriatim.comparison.worker import WorkerJob, work
from seriatim.core.errors import TrainingError
from seriatim.inspection import cost
from seriatim.recurrence.obstacles import uncompiled
from seriatim.training import pace


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train in the process of the test, and measure little."""

    def run(job: WorkerJob, listen: Callable, signalled: Callable) -> dict:
        events: list[dict] = []

        def tell(event: dict) -> None:
            events.append(json.loads(json.dumps(event)))
            listen(events[-1])

        with uncompiled():
            work(job, tell)
        return events[-1]

    monkeypatch.setattr(runner, "run_worker", run)
    monkeypatch.setattr(pace, "SHORTEST", 0.0)
    monkeypatch.setattr(pace, "ROUGH", 0.0)
    monkeypatch.setattr(cost, "STATE_AFTER", (1, 10, 100))
    monkeypatch.setattr(cost, "TEXT_LENGTHS", (16,))
    monkeypatch.setattr(cost, "GENERATED", 5)
    monkeypatch.setattr(row, "CHARACTERS", 10)
    monkeypatch.setattr(row, "POSITIONS", 10)
    monkeypatch.setattr(row, "CONTEXTS", (1, 4))


@pytest.fixture
def gru_fails(in_process: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let every training of a gru fail; the fixture is a function that repairs it."""
    usual = runner.run_worker

    def run(job: WorkerJob, listen: Callable, signalled: Callable) -> dict:
        if job.layer == "gru":
            raise TrainingError("its process was ended by SIGKILL")
        return usual(job, listen, signalled)

    monkeypatch.setattr(runner, "run_worker", run)
    return lambda: monkeypatch.setattr(runner, "run_worker", usual)
