"""Trainings of a comparison that run at the same time: on this machine, or on the workers of a cluster.

The thread that compares starts trainings, and receives their events and their ends through one queue (`run_jobs`). Each
training is a process of its own (`comparison.worker`), which a thread of this process starts, or a worker of a Dask
cluster (`comparison.cluster_jobs`).
"""

import glob
import os
import secrets
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue

import torch

from ..core.errors import ConflictError, InputError, RangeError, TrainingError, UnavailableError, first_line
from ..core.json_object import JsonObject
from ..processes.child import POLL_SECONDS, OnEvent, Stopped, StopSignal, run_module
from ..processes.cluster import ClusterExecutor, open_cluster
from ..processes.executors import ThreadExecutor, WorkersLostError, WorkExecutor
from ..storage.files import write_whole
from ..training.run_files import files_read
from ..version import __version__
from .cluster_jobs import ClusterSession, check_worker, train_on_worker
from .plan import Plan
from .worker import WorkerJob


class TrainingWorkers(ABC):
    """Workers that train, one row at a time each.

    Args:
        executor: starts trainings, and knows how many workers there are.
        options: the options of the command that ask for these workers.
    """

    def __init__(self, executor: WorkExecutor, options: Sequence[str]) -> None:
        self.executor, self.options = executor, options

    @abstractmethod
    def start(self, job: WorkerJob, on_event: OnEvent, stop_signal: StopSignal) -> Future[JsonObject]:
        """Start a training, and return the future of its last event; other threads call ``on_event``."""

    @abstractmethod
    def cancel_all(self) -> None:
        """End all trainings without waiting for them."""

    @contextmanager
    def session(self, folder: Path, plan: Plan) -> Iterator[None]:
        """Let the workers train for a comparison; raise InputError if one does not see its folder and its data."""
        yield

    def set_parallelism(self, trainings: int) -> None:  # noqa: B027
        """Adapt to the number of trainings that can run at the same time at most, before the first one starts."""

    def forward(self, stop_signal: StopSignal) -> None:  # noqa: B027
        """Forward a signal that has come to the trainings, unless they look for it themselves."""

    def explain(self, error: BaseException) -> BaseException:
        """Return the error of a training, or in one line what happened to its worker."""
        return self.executor.explain(error)


class LocalWorkers(TrainingWorkers):
    """Workers on this machine: threads, each of which waits for the process of one training."""

    def __init__(self, executor: WorkExecutor) -> None:
        count = executor.worker_count
        super().__init__(executor, [] if count == 1 else ["--workers", str(count)])
        self._threads, self._is_cancelled = 1, threading.Event()

    def set_parallelism(self, trainings: int) -> None:
        """Use as many workers as there are trainings, and divide the threads among them."""
        self.executor.worker_count = max(1, min(self.executor.worker_count, trainings))
        self._threads = max(1, torch.get_num_threads() // self.executor.worker_count)

    def start(self, job: WorkerJob, on_event: OnEvent, stop_signal: StopSignal) -> Future[JsonObject]:
        """Start a training in a process of its own, with its fraction of the threads."""

        def signal_or_end() -> int | None:
            if self._is_cancelled.is_set():
                raise Stopped  # kills the process
            return stop_signal()

        job.threads = self._threads
        return self.executor.submit(run_worker, job, on_event, signal_or_end)

    def cancel_all(self) -> None:
        """Kill the processes of all trainings."""
        self._is_cancelled.set()


def run_worker(job: WorkerJob, on_event: OnEvent, stop_signal: StopSignal) -> JsonObject:
    """Train in a process of its own; see `run_module`."""
    arguments = {**asdict(job), "began": time.time()}
    return run_module("seriatim.comparison.worker", arguments, on_event, stop_signal)


class ClusterWorkers(TrainingWorkers):
    """The workers of a cluster; each trains one row at a time, with as many threads as Dask gives it."""

    def __init__(self, cluster: ClusterExecutor) -> None:
        super().__init__(cluster, ["--cluster", cluster.address])
        self._cluster = cluster
        self._session: ClusterSession | None = None
        self._hosts: dict[str, int] = {}  # the number of workers by machine
        self._listeners: dict[str, OnEvent] = {}  # by the folders of the runs

    @contextmanager
    def session(self, folder: Path, plan: Plan) -> Iterator[None]:
        """Check that every worker sees the folder and the same data, and runs this version; let them train meanwhile.

        Raises:
            InputError: a worker does not.
        """
        self._session = ClusterSession(os.getcwd(), str(folder), secrets.token_hex(8))
        self._cluster.subscribe(self._session.key, self._on_message)
        write_whole(self._session.path, self._session.key)
        try:
            self._hosts = self._count_hosts(_file_sizes(plan))
            yield
        finally:
            self.cancel_all()

    def _count_hosts(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the number of workers by machine, of which every one sees the folder and files of these sizes."""
        try:
            return dict(Counter(self._cluster.run_on_every_worker(check_worker, self._session, sizes)))
        except InputError:
            raise
        except Exception as error:  # of the worker: it cannot import this package, or not read the files
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise UnavailableError(
                f"--cluster: a worker cannot run Seriatim ({reason}); install version {__version__} on every worker"
            ) from None

    def start(self, job: WorkerJob, on_event: OnEvent, stop_signal: StopSignal) -> Future[JsonObject]:
        """Start a training on any worker."""
        self._listeners[str(job.run)] = on_event
        return self._cluster.submit(train_on_worker, asdict(job), str(job.run), self._hosts, self._session)

    def _on_message(self, message: object) -> None:
        if isinstance(message, dict) and (on_event := self._listeners.get(message["run"])) is not None:
            on_event(message["event"])

    def explain(self, error: BaseException) -> BaseException:
        """Return the error of a training, or in one line what happened to its worker."""
        error = super().explain(error)
        if isinstance(error, InputError | TrainingError | Stopped):
            return error
        return WorkersLostError(f"the cluster ended the training ({type(error).__name__}: {first_line(error)})")

    def forward(self, stop_signal: StopSignal) -> None:
        """Let the trainings save and stop after a signal."""
        if stop_signal() is not None:
            self.cancel_all()

    def cancel_all(self) -> None:
        """Tell the workers to save and stop: they train as long as the file of the session holds its key."""
        if self._session is not None:
            with suppress(OSError):
                self._session.path.unlink(missing_ok=True)


def _file_sizes(plan: Plan) -> dict[str, int]:
    """Return the sizes in bytes of all files of the data, by absolute path."""
    sources = files_read(plan.base)
    names = dict.fromkeys(name for source in sources for name in (source, *source.split(",")) if ":" not in name)
    sizes: dict[str, int] = {}
    for name in (os.path.join(os.getcwd(), name) for name in names):
        for path in [name] if os.path.exists(name) else glob.glob(name, recursive=True):
            inside = [os.path.join(folder, file) for folder, _, files in os.walk(path) for file in files]
            sizes |= {file: os.path.getsize(file) for file in inside or [path] if os.path.isfile(file)}
    return sizes


@contextmanager
def open_workers(workers: int | None, cluster: str | None) -> Iterator[TrainingWorkers]:
    """Open the workers that a comparison asks for: a number of processes, 1 by default, or the address of a cluster.

    Raises:
        InputError: both are given, the number is not above 0, or the cluster cannot be used.
    """
    if cluster is not None:
        if workers is not None:
            raise ConflictError("--workers: cannot be used with --cluster, whose workers train; leave one of them out")
        with open_cluster(cluster) as remote:
            yield ClusterWorkers(remote)
        return
    count = 1 if workers is None else workers
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise RangeError(f"--workers: {workers!r} is not a whole number above 0; give one")
    with ThreadExecutor(count) as threads:
        yield LocalWorkers(threads)


def run_jobs(
    workers: TrainingWorkers,
    stop_signal: StopSignal,
    *,
    next_job: Callable[[int], WorkerJob | None],
    on_event: Callable[[WorkerJob, JsonObject], None],
    on_end: Callable[[WorkerJob, JsonObject | Exception], None],
) -> None:
    """Train until nothing is left to start and nothing runs; after a signal, until all trainings have stopped.

    Args:
        workers: train.
        stop_signal: returns the number of a signal that has come, or None.
        next_job: returns the next training that can start while so many run; None if there is none now.
        on_event: receives the events of a training; warnings are given here.
        on_end: receives the last event of a training, or why it failed; `Stopped` if a signal ended it.
    """
    news: SimpleQueue[tuple[WorkerJob, JsonObject | Future[JsonObject]]] = SimpleQueue()
    running, executor = 0, workers.executor

    def put(job: WorkerJob, item: JsonObject | Future[JsonObject]) -> None:
        news.put((job, item))

    try:
        while True:
            # A worker that is free gets a training. Once none can be started, those that run are waited for; the end
            # of one may make others possible, and a cluster may have no workers for a while.
            is_over = stop_signal() is not None or executor.lost is not None
            if not is_over and running < executor.worker_count:
                if (job := next_job(running)) is not None:
                    running += 1
                    workers.start(job, partial(put, job), stop_signal).add_done_callback(partial(put, job))
                    continue
                is_over = True
            if is_over and not running:
                return

            # The wait is short, so that a signal is seen soon.
            workers.forward(stop_signal)
            try:
                job, item = news.get(timeout=POLL_SECONDS)
            except Empty:
                continue
            if isinstance(item, Future):
                running -= 1
                on_end(job, _outcome(workers, item))
            elif item["event"] == "warning":
                warnings.warn(item["text"], stacklevel=2)
            else:
                on_event(job, item)
    except BaseException:
        workers.cancel_all()
        raise


def _outcome(workers: TrainingWorkers, future: Future[JsonObject]) -> JsonObject | Exception:
    """Return what a training gave, or why it failed; errors of this program are raised."""
    try:
        outcome = future.result()
    except Exception as failure:
        error = workers.explain(failure)
        if isinstance(error, InputError | TrainingError | Stopped):
            return error
        raise
    for text in outcome.get("warnings", ()):
        warnings.warn(text, stacklevel=2)
    return outcome
