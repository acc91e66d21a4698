"""Workers of a cluster, with a made-up connection: what is checked first, what ends a training, and how it is told."""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from seriatim.comparison import cluster_jobs, cluster_workers
from seriatim.comparison.cluster_jobs import ClusterSession, WorkerView
from seriatim.comparison.cluster_workers import ClusterWorkers
from seriatim.comparison.comparison_settings import ComparisonSettings, make_plan
from seriatim.comparison.worker import WorkerJob
from seriatim.core.errors import InputError, TrainingError
from seriatim.distributed import clusters
from seriatim.runs.child_process import Stopped
from seriatim.storage.lock import locked
from seriatim.storage.written_folders import COMPARISON, SESSION
from seriatim.training.run_files import check_out

SECONDS = 20.0  # until a test that hangs fails


class MadeUp:
    """A cluster of two threads, whose view of the files can be changed."""

    def __init__(self, executor: Executor, change: Callable[[WorkerView], WorkerView]) -> None:
        self.executor, self.change, self.count = executor, change, 2

    def count_workers(self) -> int:
        return self.count

    def on_every_worker(self, function: Callable, argument: object) -> list:
        return [self.change(function(argument)) for _ in range(self.count)]

    def subscribe(self, topic: str, hear: Callable[[object], None]) -> None:
        self.hear = hear


@contextmanager
def prepared(
    texts: dict[str, str], folder: Path, change: Callable[[WorkerView], WorkerView] = lambda view: view
) -> Iterator[tuple[ClusterWorkers, MadeUp]]:
    plan = make_plan({"data": {"train": texts["train"], "valid": texts["valid"]}}, ComparisonSettings(["rnn"]))
    folder.mkdir(exist_ok=True)
    with ThreadPoolExecutor(2) as pool:
        cluster = MadeUp(pool, change)
        workers = ClusterWorkers(cluster, "tcp://there:8786")  # type: ignore[arg-type]
        with workers.prepare(folder, plan):
            yield workers, cluster


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable], None]:
    """A function that replaces the process of a training; Dask is not needed."""
    monkeypatch.setattr(cluster_jobs, "threads_of_worker", lambda: 3)
    monkeypatch.setattr(cluster_jobs, "tell_cluster", lambda topic, message: None)
    return lambda run: monkeypatch.setattr(cluster_jobs, "run_module", run)


def start(workers: ClusterWorkers, folder: Path, events: list[dict]) -> Future:
    return workers.start(WorkerJob(str(folder), "rnn", 1, at_once=9), events.append, lambda: None)


def test_the_files_of_the_data_are_compared(texts, tmp_path: Path) -> None:
    seen: list[WorkerView] = []
    with prepared(texts, tmp_path / "out", lambda view: seen.append(view) or view):
        assert (tmp_path / "out" / SESSION).is_file()
        assert check_out(str(tmp_path / "out"), overwrite=False, form=COMPARISON)
    assert not (tmp_path / "out" / SESSION).exists()
    assert seen[0].sizes == {texts[part]: Path(texts[part]).stat().st_size for part in ("train", "valid")}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"in_session": False}, "does not see the folder .*out; give an --out on a file system that all workers share"),
        ({"sizes": {}}, r"train\.txt: the worker on .* does not see it; put the data on a file system"),
        ({"sizes": None}, r"train\.txt: the worker on .* sees another file there; put the data on a file system"),
    ],
)
def test_workers_that_do_not_see_the_files_are_refused(texts, tmp_path: Path, changed: dict, message: str) -> None:
    def change(view: WorkerView) -> WorkerView:
        other = {"sizes": {path: 1 + size for path, size in view.sizes.items()}}
        return replace(view, **(other if changed.get("sizes", 0) is None else changed))

    with pytest.raises(InputError, match=f"^--cluster: .*{message}"), prepared(texts, tmp_path / "out", change):
        pass
    assert not (tmp_path / "out" / SESSION).exists()


def test_workers_without_the_package_are_refused(texts, tmp_path: Path) -> None:
    def fail(view: WorkerView) -> WorkerView:
        raise ModuleNotFoundError("No module named 'seriatim'")

    message = "--cluster: a worker cannot run Seriatim .*No module named 'seriatim'.*; install version .* on every"
    with pytest.raises(InputError, match=message), prepared(texts, tmp_path / "out", fail):
        pass


def test_a_job_computes_with_the_threads_of_its_worker(texts, tmp_path: Path, child: Callable) -> None:
    given: dict = {}

    def run(module: str, job: dict, listen: Callable, signalled: Callable, *, folder: str) -> dict:
        given.update(job, folder=folder)
        listen({"event": "warning", "text": "line 3 was repaired"})
        return {"event": "done", "value": 1.5}

    child(run)
    events: list[dict] = []
    with prepared(texts, tmp_path / "out") as (workers, cluster):
        assert start(workers, tmp_path / "out", events).result(SECONDS) == {"event": "done", "value": 1.5}
        cluster.hear({"run": "out/runs/rnn-1", "event": {"event": "step"}})  # too late
    assert (given["threads"], given["at_once"]) == (3, 2)
    assert given["folder"] == str(Path.cwd())
    assert events == [{"event": "warning", "text": "line 3 was repaired"}]


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
        cluster.hear({"run": str(tmp_path / "out" / "runs" / "gru-1"), "event": {"event": "step"}})
        assert not heard
        cluster.hear({"run": str(tmp_path / "out" / "runs" / "rnn-1"), "event": {"event": "measuring"}})
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
    monkeypatch.setattr(cluster_jobs, "tell_cluster", lambda topic, message: told.append(message["event"]["event"]))
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
        workers.watch(lambda: None)
        assert not future.done()
        if how == "signal":
            workers.watch(lambda: signal.SIGINT)
        elif how == "removed":
            (tmp_path / "out" / SESSION).unlink()
        else:
            (tmp_path / "out" / SESSION).write_text("of another comparison")
        with pytest.raises(Stopped):
            future.result(SECONDS)


def test_a_job_leaves_a_worker_that_trains_another_row(texts, tmp_path: Path, child: Callable, monkeypatch) -> None:
    """Of both threads, none waits for the turn, so that the cluster can choose another worker."""
    child(lambda *_, **__: {"event": "done", "value": 1.5})
    monkeypatch.setattr(cluster_jobs, "TURN_SECONDS", 0.01)
    events: list[dict] = []
    with prepared(texts, tmp_path / "out") as (workers, cluster):
        with cluster_jobs.TURN:
            futures = [
                workers.start(WorkerJob(str(tmp_path / "out"), name, 1), events.append, lambda: None)
                for name in ("rnn", "gru", "lstm")
            ]
            for _ in range(9):
                assert cluster.executor.submit(abs, -1).result(SECONDS) == 1
            assert not any(future.done() for future in futures)
        assert [future.result(SECONDS)["value"] for future in futures] == [1.5, 1.5, 1.5]
        with cluster_jobs.TURN:
            waiting = start(workers, tmp_path / "out", events)
            workers.give_up()
            with pytest.raises(Stopped):
                waiting.result(SECONDS)


def test_what_happens_to_a_worker_is_one_line(texts, tmp_path: Path, child: Callable) -> None:
    class KilledWorker(Exception):  # noqa: N818
        pass

    errors = [TrainingError("it became NaN"), KilledWorker("key", "tcp://there"), RuntimeError("cannot\nbe read")]

    def run(module: str, job: dict, listen: Callable, signalled: Callable, *, folder: str) -> dict:
        raise errors.pop(0)

    child(run)
    with prepared(texts, tmp_path / "out") as (workers, _):
        reasons = [str(start(workers, tmp_path / "out", []).exception(SECONDS)) for _ in range(3)]
    assert reasons == [
        "it became NaN",
        "the workers that trained it died, several times; they may have run out of memory",
        "the cluster ended the training (RuntimeError: cannot)",
    ]


def test_a_lost_connection_is_one_line(texts, tmp_path: Path, child: Callable) -> None:
    child(until_stopped)
    with prepared(texts, tmp_path / "out") as (workers, _):
        for _ in range(2):
            start(workers, tmp_path / "out", [])
        waiting = start(workers, tmp_path / "out", [])
        next(future for future in workers._running if not future.running()).cancel()
        assert str(waiting.exception(SECONDS)) == "the connection to the cluster at tcp://there:8786 was lost"
        assert workers.lost is waiting.exception()


def test_a_cluster_without_workers_is_given_up_after_a_while(
    texts, tmp_path: Path, child: Callable, monkeypatch
) -> None:
    child(until_stopped)
    monkeypatch.setattr(cluster_workers, "COUNT_SECONDS", -1.0)
    with prepared(texts, tmp_path / "out") as (workers, cluster):
        running = [start(workers, tmp_path / "out", []) for _ in range(3)]
        assert workers.limit() == 2
        cluster.count = 0
        workers.watch(lambda: None)
        assert workers.lost is None
        monkeypatch.setattr(cluster_workers, "LOST_SECONDS", -1.0)
        workers.watch(lambda: None)
        error = running[-1].exception(SECONDS)  # waits for a worker; those that run here cannot be cancelled
        assert str(error) == "the cluster at tcp://there:8786 has no workers any more"
        assert workers.lost is error


def test_a_run_that_another_process_still_writes_is_waited_for(tmp_path: Path, monkeypatch) -> None:
    """Half an hour of a clock that each look moves on by a minute; the process may measure for many minutes."""
    clock, session = [0.0], ClusterSession(str(tmp_path), "out", "key", [])

    def sleep(_: float) -> None:
        clock[0] += 60.0

    monkeypatch.setattr(cluster_jobs, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    (tmp_path / "out").mkdir()
    session.path.write_text("key")
    cluster_jobs._wait_for(tmp_path, session)
    with locked(tmp_path), pytest.raises(InputError, match="another process is writing this run"):
        cluster_jobs._wait_for(tmp_path, session)
    assert clock[0] >= 15 * 60
    session.path.unlink()
    with locked(tmp_path), pytest.raises(Stopped):
        cluster_jobs._wait_for(tmp_path, session)


def test_dask_that_is_not_installed_is_said(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"pip install 'seriatim\[cluster\]'"), clusters.open_cluster("tcp://a:1"):
        pass
