"""Workers of a cluster, with a made-up connection: what is checked first, what ends a training, and how it is told."""

import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from seriatim.comparison import cluster_jobs
from seriatim.comparison.cluster_jobs import ClusterSession
from seriatim.comparison.planning import ComparisonSettings, make_plan
from seriatim.comparison.worker import WorkerJob
from seriatim.comparison.workers import ClusterWorkers
from seriatim.core.errors import TrainingError
from seriatim.processes.child import Stopped
from seriatim.processes.cluster import ClusterExecutor, open_cluster
from seriatim.storage.files import locked
from seriatim.storage.written_folders import COMPARISON, SESSION
from seriatim.training.run_files import check_out

from ..refusals import refused

SECONDS = 20.0  # until a test that hangs fails


class GivenBackError(Exception):
    """Stands for Dask's `Reschedule`."""


class GivingBack(ThreadPoolExecutor):
    """Runs a function that gives itself back again, as Dask does."""

    def submit(self, function: Callable, /, *args: object, **kwargs: object) -> Future:
        def call() -> object:
            while True:
                with suppress(GivenBackError):
                    return function(*args, **kwargs)

        return super().submit(call)


class MadeUpClient:
    """A connection to a cluster of two threads. ``before_check`` is done before a worker looks at the files."""

    status = "running"

    def __init__(self, pool: Executor, before_check: Callable[[], object]) -> None:
        self.pool, self.before_check = pool, before_check

    def nthreads(self) -> dict:
        return {"a": 1, "b": 1}

    def get_executor(self, *, pure: bool) -> Executor:
        return self.pool

    def run(self, function: Callable, *args: object) -> dict:
        self.before_check()
        return {worker: function(*args) for worker in self.nthreads()}

    def subscribe_topic(self, topic: str, on_event: Callable[[tuple[float, object]], None]) -> None:
        self.receive = lambda message: on_event((0.0, message))


@contextmanager
def prepared(
    texts: dict[str, str], folder: Path, before_check: Callable[[], object] = lambda: None
) -> Iterator[tuple[ClusterWorkers, MadeUpClient]]:
    plan = make_plan({"data": {"train": texts["train"], "valid": texts["valid"]}}, ComparisonSettings(["rnn"]))
    folder.mkdir(exist_ok=True)
    with GivingBack(2) as pool:
        client = MadeUpClient(pool, before_check)
        executor = ClusterExecutor(client, "tcp://there:8786")  # type: ignore[arg-type]
        workers = ClusterWorkers(executor)
        with workers.session(folder, plan):
            yield workers, client
        executor.shutdown()


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable], None]:
    """A function that replaces the process of a training; Dask is not needed."""
    monkeypatch.setattr(cluster_jobs, "threads_of_worker", lambda: 3)
    monkeypatch.setattr(cluster_jobs, "send_message", lambda topic, message: None)
    return lambda run: monkeypatch.setattr(cluster_jobs, "run_module", run)


def start(workers: ClusterWorkers, folder: Path, events: list[dict]) -> Future:
    return workers.start(WorkerJob(str(folder), "rnn", 1, at_once=9), events.append, lambda: None)


def test_the_file_of_the_session_is_there_while_the_workers_train(texts, tmp_path: Path) -> None:
    with prepared(texts, tmp_path / "out"):
        assert (tmp_path / "out" / SESSION).is_file()
        assert check_out(str(tmp_path / "out"), overwrite=False, form=COMPARISON)
    assert not (tmp_path / "out" / SESSION).exists()


@pytest.mark.parametrize(("changed", "named"), [("folder", "out"), ("removed", "train.txt"), ("other", "train.txt")])
@pytest.mark.parametrize("form", ["{}/train.txt", "{}/tr*.txt", "{}"])
def test_workers_that_do_not_see_the_files_are_refused(
    texts, tmp_path: Path, changed: str, named: str, form: str
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    train = Path(shutil.copy(texts["train"], data / "train.txt"))
    changes = {
        "folder": (tmp_path / "out" / SESSION).unlink,
        "removed": train.unlink,
        "other": lambda: train.write_text(train.read_text() + "more\n"),
    }
    given = {**texts, "train": form.format(data)}
    with (
        refused("missing", "--cluster", str(tmp_path / named if changed == "folder" else data / named)),
        prepared(given, tmp_path / "out", changes[changed]),
    ):
        pass
    assert not (tmp_path / "out" / SESSION).exists()


def test_workers_without_the_package_are_refused(texts, tmp_path: Path) -> None:
    def fail() -> None:
        raise ModuleNotFoundError("No module named 'seriatim'")

    with refused("unavailable", "--cluster"), prepared(texts, tmp_path / "out", fail):
        pass


def test_a_job_computes_with_the_threads_of_its_worker(texts, tmp_path: Path, child: Callable) -> None:
    given: dict = {}

    def run(module: str, job: dict, listen: Callable, signalled: Callable, *, folder: str) -> dict:
        given.update(job, folder=folder)
        listen({"event": "warning", "text": "line 3 was repaired"})
        return {"event": "done", "value": 1.5}

    child(run)
    events: list[dict] = []
    with prepared(texts, tmp_path / "out") as (workers, _cluster):
        last = start(workers, tmp_path / "out", events).result(SECONDS)
    assert last == {"event": "done", "value": 1.5, "warnings": ["line 3 was repaired"]}
    assert (given["threads"], given["at_once"]) == (3, 2)
    assert given["folder"] == str(Path.cwd())
    assert events == []


def test_events_are_heard_while_a_training_runs(texts, tmp_path: Path, child: Callable) -> None:
    heard: list[dict] = []

    def run(module: str, job: dict, listen: Callable, signalled: Callable, *, folder: str) -> dict:
        deadline = time.monotonic() + SECONDS
        while not heard and time.monotonic() < deadline:
            time.sleep(0.001)
        return {"event": "done"}

    child(run)
    with prepared(texts, tmp_path / "out") as (workers, cluster):
        future = start(workers, tmp_path / "out", heard)
        cluster.receive({"run": str(tmp_path / "out" / "runs" / "gru-1"), "event": {"event": "step"}})
        assert not heard
        cluster.receive({"run": str(tmp_path / "out" / "runs" / "rnn-1"), "event": {"event": "measuring"}})
        future.result(SECONDS)
    assert heard == [{"event": "measuring"}]


def test_steps_are_told_now_and_then_however_often_a_training_validates(
    texts, tmp_path: Path, child: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def run(module: str, job: dict, listen: Callable, signalled: Callable, *, folder: str) -> dict:
        for event in ("begin", "step", "step", "validation", "step"):
            listen({"event": event})
        return {"event": "done"}

    child(run)
    monkeypatch.setattr(cluster_jobs, "send_message", lambda topic, message: told.append(message["event"]["event"]))
    with prepared(texts, tmp_path / "out") as (workers, _):
        start(workers, tmp_path / "out", []).result(SECONDS)
    assert told == ["begin", "step", "validation"]


def until_stopped(module: str, job: dict, listen: Callable, signalled: Callable, *, folder: str) -> dict:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        if signalled() is not None:
            raise Stopped
        time.sleep(0.001)
    raise AssertionError("was not stopped")


@pytest.mark.parametrize("how", ["signal", "removed", "replaced"])
def test_jobs_stop_where_the_comparison_has_been_stopped_or_started_again(
    texts, tmp_path: Path, child: Callable, how: str
) -> None:
    child(until_stopped)
    with prepared(texts, tmp_path / "out") as (workers, _):
        future = start(workers, tmp_path / "out", [])
        workers.forward(lambda: None)
        assert not future.done()
        if how == "signal":
            workers.forward(lambda: signal.SIGINT)
        elif how == "removed":
            (tmp_path / "out" / SESSION).unlink()
        else:
            (tmp_path / "out" / SESSION).write_text("of another comparison")
        with pytest.raises(Stopped):
            future.result(SECONDS)


def test_a_job_leaves_a_worker_that_trains_another_row(texts, tmp_path: Path, child: Callable, monkeypatch) -> None:
    """Of both threads, none waits for the other row, so that the cluster can choose another worker."""
    given_back: list[float] = []

    def give_back() -> NoReturn:
        given_back.append(time.monotonic())
        raise GivenBackError

    child(lambda *_, **__: {"event": "done", "value": 1.5})
    monkeypatch.setattr(cluster_jobs, "LOCK_SECONDS", 0.01)
    monkeypatch.setattr(cluster_jobs, "run_elsewhere", give_back)
    with prepared(texts, tmp_path / "out") as (workers, _):
        with cluster_jobs.WORKER_LOCK:
            futures = [
                workers.start(WorkerJob(str(tmp_path / "out"), name, 1), lambda event: None, lambda: None)
                for name in ("rnn", "gru", "lstm")
            ]
            deadline = time.monotonic() + SECONDS
            while len(given_back) < 9 and time.monotonic() < deadline:
                time.sleep(0.001)
            assert not any(future.done() for future in futures)
        assert [future.result(SECONDS)["value"] for future in futures] == [1.5, 1.5, 1.5]
        with cluster_jobs.WORKER_LOCK:
            waiting = start(workers, tmp_path / "out", [])
            workers.cancel_all()
            with pytest.raises(Stopped):
                waiting.result(SECONDS)


def test_what_happens_to_a_worker_is_one_line(texts, tmp_path: Path) -> None:
    class KilledWorker(Exception):  # noqa: N818
        pass

    with prepared(texts, tmp_path / "out") as (workers, _):
        errors = [TrainingError("it became NaN"), KilledWorker("key", "tcp://there"), RuntimeError("cannot\nbe read")]
        reasons = [str(workers.explain(error)) for error in errors]
    assert reasons == [
        "it became NaN",
        "a worker of the cluster ended before its job was done (KilledWorker); it may have run out of memory: start "
        "fewer workers on each machine",
        "the cluster ended the training (RuntimeError: cannot)",
    ]


def test_a_lost_connection_ends_all_trainings(texts, tmp_path: Path, child: Callable) -> None:
    child(until_stopped)
    with prepared(texts, tmp_path / "out") as (workers, _cluster):
        futures = [start(workers, tmp_path / "out", []) for _ in range(4)]
        error = workers.explain(CancelledError())
        assert str(error).startswith("the connection to the cluster at tcp://there:8786 was lost; start")
        assert workers.executor.lost is error
        assert workers.explain(ImportError()) is error
        assert [future.exception(SECONDS) for future in futures] == 4 * [error]


def test_a_run_that_another_process_still_writes_is_waited_for(tmp_path: Path, monkeypatch) -> None:
    """Half an hour of a clock that each look moves on by a minute; the process may measure for many minutes."""
    clock, session = [0.0], ClusterSession(str(tmp_path), "out", "key")

    def sleep(_: float) -> None:
        clock[0] += 60.0

    monkeypatch.setattr(cluster_jobs, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    (tmp_path / "out").mkdir()
    session.path.write_text("key")
    cluster_jobs._wait_for(tmp_path, session)
    with locked(tmp_path), refused("busy"):
        cluster_jobs._wait_for(tmp_path, session)
    assert clock[0] >= 15 * 60
    session.path.unlink()
    with locked(tmp_path), pytest.raises(Stopped):
        cluster_jobs._wait_for(tmp_path, session)


def test_dask_that_is_not_installed_is_said(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with refused("unavailable", "--cluster"), open_cluster("tcp://a:1"):
        pass
