"""Trainings at the same time: how many, what a signal or an error does to the others, and who hears of what."""

import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from seriatim.comparison import workers
from seriatim.comparison.worker import WorkerJob
from seriatim.comparison.workers import LocalWorkers, run_jobs
from seriatim.core.errors import InputError, TrainingError
from seriatim.processes.child import Stopped
from seriatim.processes.executors import ThreadExecutor, WorkersLostError
from seriatim.processes.signals import signals_deferred

SECONDS = 20.0  # until a test that hangs fails


class Listed:
    """A schedule of trainings in a list, which keeps what it hears."""

    def __init__(self, count: int, on_event: Callable[[dict], None] = lambda event: None) -> None:
        self.left = [WorkerJob("comparison", f"layer{i}", 1) for i in range(count)]
        self.outcomes: dict[str, object] = {}
        self.events: list[tuple[str, dict]] = []
        self.threads: set[threading.Thread] = set()
        self.on_event = on_event

    def next_job(self, running: int) -> WorkerJob | None:
        return self.left.pop(0) if self.left else None

    def keep(self, job: WorkerJob, event: dict) -> None:
        self.events.append((job.layer, event))
        self.threads.add(threading.current_thread())
        self.on_event(event)

    def end(self, job: WorkerJob, outcome: object) -> None:
        self.outcomes[job.layer] = outcome


def run_listed(used: LocalWorkers, schedule: Listed, stop_signal: Callable[[], int | None]) -> None:
    run_jobs(used, stop_signal, next_job=schedule.next_job, on_event=schedule.keep, on_end=schedule.end)


@pytest.fixture
def two_workers() -> Iterator[LocalWorkers]:
    with ThreadExecutor(2) as threads:
        yield LocalWorkers(threads)


def test_as_many_trainings_run_at_the_same_time_as_there_are_workers(two_workers, monkeypatch) -> None:
    pairs, present, counts = threading.Barrier(2, timeout=SECONDS), set[str](), set[int]()

    def run(job: WorkerJob, listen: Callable, signalled: Callable) -> dict:
        present.add(job.layer)
        pairs.wait()  # for the other of the two
        counts.add(len(present))
        listen({"event": "step", "of": job.layer})
        pairs.wait()
        present.remove(job.layer)
        pairs.wait()
        return {"event": "done"}

    monkeypatch.setattr(workers, "run_worker", run)
    schedule = Listed(6)
    run_listed(two_workers, schedule, lambda: None)
    assert counts == {2}
    assert schedule.outcomes == {f"layer{i}": {"event": "done"} for i in range(6)}
    assert all(event["of"] == layer for layer, event in schedule.events)
    assert len(schedule.events) == 6
    assert schedule.threads == {threading.current_thread()}


def test_a_failed_training_leaves_the_others_alone(two_workers, monkeypatch) -> None:
    errors = {"layer0": InputError("too short"), "layer2": TrainingError("it became NaN")}

    def run(job: WorkerJob, listen: Callable, signalled: Callable) -> dict:
        if job.layer in errors:
            raise errors[job.layer]
        return {"event": "done"}

    monkeypatch.setattr(workers, "run_worker", run)
    schedule = Listed(4)
    run_listed(two_workers, schedule, lambda: None)
    assert schedule.outcomes == {"layer1": {"event": "done"}, "layer3": {"event": "done"}, **errors}


def until_stopped(job: WorkerJob, listen: Callable, signalled: Callable) -> dict:
    """A training without an end."""
    listen({"event": "step"})
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        if signalled() is not None:
            raise Stopped
        time.sleep(0.001)
    raise AssertionError("was not stopped")


def test_a_signal_stops_all_trainings_and_starts_no_other(two_workers, monkeypatch) -> None:
    monkeypatch.setattr(workers, "run_worker", until_stopped)
    schedule = Listed(4)
    schedule.on_event = lambda event: signal.raise_signal(signal.SIGINT) if len(schedule.events) == 2 else None
    with signals_deferred() as signalled:
        run_listed(two_workers, schedule, signalled)
        assert signalled() == signal.SIGINT
    assert [type(schedule.outcomes[f"layer{i}"]) for i in range(2)] == [Stopped, Stopped]
    assert len(schedule.left) == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_an_exception_here_ends_all_trainings(error: type[BaseException], two_workers, monkeypatch) -> None:
    """The second signal raises KeyboardInterrupt; then nothing waits until a training has saved its state."""

    def fail(event: dict) -> None:
        raise error

    monkeypatch.setattr(workers, "run_worker", until_stopped)
    with pytest.raises(error):
        run_listed(two_workers, Listed(2, fail), lambda: None)


def test_nothing_is_started_once_the_workers_are_lost(two_workers, monkeypatch) -> None:
    lost = WorkersLostError("the connection to the cluster at tcp://there:8786 was lost")

    def run(job: WorkerJob, listen: Callable, signalled: Callable) -> dict:
        two_workers.executor.lost = lost
        raise lost

    monkeypatch.setattr(workers, "run_worker", run)
    schedule = Listed(4)
    run_listed(two_workers, schedule, lambda: None)
    assert schedule.outcomes["layer0"] is lost
    assert {"layer2", "layer3"} <= {job.layer for job in schedule.left}


def test_an_error_of_the_program_is_raised(two_workers, monkeypatch) -> None:
    monkeypatch.setattr(workers, "run_worker", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_listed(two_workers, Listed(1), lambda: None)


def test_a_warning_of_a_training_is_given_here(two_workers, monkeypatch) -> None:
    def run(job: WorkerJob, listen: Callable, signalled: Callable) -> dict:
        listen({"event": "warning", "text": "line 3 was repaired"})
        return {"event": "done"}

    monkeypatch.setattr(workers, "run_worker", run)
    schedule = Listed(1)
    with pytest.warns(UserWarning, match="line 3 was repaired"):
        run_listed(two_workers, schedule, lambda: None)
    assert schedule.events == []


@pytest.mark.parametrize(
    ("count", "trainings", "threads", "used", "each"),
    [(1, 9, 4, 1, 4), (2, 9, 4, 2, 2), (3, 9, 4, 3, 1), (8, 9, 4, 8, 1), (8, 2, 4, 2, 2), (2, 0, 4, 1, 4)],
)
def test_the_threads_are_shared_among_the_workers_that_have_work(
    monkeypatch, count: int, trainings: int, threads: int, used: int, each: int
) -> None:
    given: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(workers, "run_worker", lambda job, *_: given.append(job.threads))
    with ThreadExecutor(count) as executor:
        local = LocalWorkers(executor)
        local.set_parallelism(trainings)
        assert executor.worker_count == used
        local.start(WorkerJob("comparison", "rnn", 1), lambda event: None, lambda: None).result()
    assert given == [each]
