"""Fixtures of comparisons."""

from collections.abc import Callable

import pytest

from seriatim.comparison import workers
from seriatim.comparison.worker import WorkerJob
from seriatim.core.errors import TrainingError


@pytest.fixture
def gru_fails(in_process: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let every training of a gru fail; the fixture is a function that repairs it."""
    usual = workers.run_worker

    def run(job: WorkerJob, listen: Callable, signalled: Callable) -> dict:
        if job.layer == "gru":
            raise TrainingError("its process was ended by SIGKILL")
        return usual(job, listen, signalled)

    monkeypatch.setattr(workers, "run_worker", run)
    return lambda: monkeypatch.setattr(workers, "run_worker", usual)
