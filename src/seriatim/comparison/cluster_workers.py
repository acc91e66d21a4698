"""Workers of a Dask cluster, which train the rows of a comparison in a folder that all of them see."""

import os
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

from ..core.errors import InputError, TrainingError, first_line
from ..distributed.clusters import Cluster, open_cluster
from ..evaluation.intervals import Metrics
from ..runs.child_process import Listen, Signalled, Stopped
from ..storage.atomic_files import write_whole
from ..training.run_files import files_read
from ..version import __version__
from .cluster_jobs import ClusterSession, WorkerView, train_here, view_from_worker
from .dispatch import WorkersLostError
from .plan import Plan
from .worker import WorkerJob

COUNT_SECONDS = 2.0
"""Seconds between two counts of the workers."""
LOST_SECONDS = 60.0
"""Seconds without a worker after which the trainings are given up."""


class ClusterWorkers:
    """The workers of a cluster; each trains one row at a time, with as many threads as Dask gives it."""

    def __init__(self, cluster: Cluster, address: str) -> None:
        self._cluster, self._address = cluster, address
        self.options: Sequence[str] = ["--cluster", address]
        self.lost: WorkersLostError | None = None
        self._session: ClusterSession | None = None
        self._hosts: dict[str, int] = {}
        self._listeners: dict[str, Listen] = {}  # of the trainings that run, by the folders of their runs
        self._running: set[Future[list[Metrics] | None]] = set()
        self._count, self._counted, self._seen = 0, 0.0, time.monotonic()

    @contextmanager
    def prepare(self, folder: Path, plan: Plan) -> Iterator[None]:
        """Check that every worker sees the folder and the same data, and runs this version; let them train meanwhile.

        Raises:
            InputError: a worker does not.
        """
        self._session = _session(folder, plan)
        self._cluster.subscribe(self._session.key, self._hear)
        write_whole(self._session.path, self._session.key)
        try:
            self._hosts = _check(self._cluster, self._session)
            yield
        finally:
            self.give_up()

    def share_among(self, trainings: int) -> None:
        """Do nothing: each worker has threads of its own."""

    def limit(self) -> int:
        """Return the number of workers, which is counted every `COUNT_SECONDS`."""
        now = time.monotonic()
        if now - self._counted > COUNT_SECONDS:
            self._count, self._counted = self._cluster.count_workers(), now
        if self._count:
            self._seen = now
        return self._count

    def start(self, job: WorkerJob, listen: Listen, signalled: Signalled) -> Future[Metrics]:
        """Start a training on any worker; its warnings are heard when it has ended, other events now and then."""
        given: Future[Metrics] = Future()
        self._listeners[str(job.run)] = listen
        self._submit(job, given)
        return given

    def _submit(self, job: WorkerJob, given: Future[Metrics]) -> None:
        """Let the cluster choose a worker for a job; what becomes of it is the result of ``given``."""
        assert self._session is not None
        try:
            if self.lost is not None:
                raise self.lost
            arguments = asdict(job), str(job.run), self._hosts, self._session
            future = self._cluster.executor.submit(train_here, *arguments)
        except Exception as error:  # the connection is closed
            del self._listeners[str(job.run)]
            given.set_exception(self._explained(error))
            return
        self._running.add(future)
        future.add_done_callback(partial(self._ended, job, given))

    def _ended(self, job: WorkerJob, given: Future[Metrics], future: Future[list[Metrics] | None]) -> None:
        self._running.discard(future)
        try:
            told = future.result()
        except BaseException as error:
            del self._listeners[str(job.run)]
            given.set_exception(self._explained(error))
            return
        if told is None:  # its worker trains another row
            self._submit(job, given)
            return
        listen = self._listeners.pop(str(job.run))
        *warned, last = told
        for event in warned:
            listen(event)
        given.set_result(last)

    def _hear(self, message: object) -> None:
        """Pass on an event of a training, unless it arrives after the end of the training."""
        if isinstance(message, dict) and (listen := self._listeners.get(message["run"])) is not None:
            listen(message["event"])

    def _explained(self, error: BaseException) -> Exception:
        """Return the error of a training, or in one line what happened to its worker."""
        if isinstance(error, InputError | TrainingError | Stopped):
            return error
        if self.lost is not None:
            return self.lost
        if isinstance(error, CancelledError):  # by Dask, when the scheduler is gone
            self.lost = WorkersLostError(f"the connection to the cluster at {self._address} was lost")
            return self.lost
        if type(error).__name__ == "KilledWorker":
            return WorkersLostError("the workers that trained it died, several times; they may have run out of memory")
        return WorkersLostError(f"the cluster ended the training ({type(error).__name__}: {first_line(error)})")

    def watch(self, signalled: Signalled) -> None:
        """Let the trainings stop after a signal, and give them up if the cluster has had no worker for a minute."""
        if signalled() is not None:
            self.give_up()
        if not self.limit() and time.monotonic() - self._seen > LOST_SECONDS and self.lost is None:
            self.lost = WorkersLostError(f"the cluster at {self._address} has no workers any more")
            for future in list(self._running):
                future.cancel()

    def give_up(self) -> None:
        """Tell the workers to save and stop: they train as long as the file of the session holds its key."""
        if self._session is not None:
            with suppress(OSError):
                self._session.path.unlink(missing_ok=True)


@contextmanager
def open_cluster_workers(address: str) -> Iterator[ClusterWorkers]:
    """Connect to a cluster for the duration of a ``with`` block; errors are those of `open_cluster`."""
    with open_cluster(address) as cluster:
        yield ClusterWorkers(cluster, address)


def _session(folder: Path, plan: Plan) -> ClusterSession:
    specs = files_read(plan.base)
    names = dict.fromkeys(name for spec in specs for name in (spec, *spec.split(",")) if ":" not in name)
    return ClusterSession(os.getcwd(), str(folder), secrets.token_hex(8), list(names))


def _check(cluster: Cluster, session: ClusterSession) -> dict[str, int]:
    """Return the number of workers by machine; refuse a cluster of which a worker does not see what it needs."""
    try:
        seen: list[WorkerView] = cluster.on_every_worker(view_from_worker, session)
    except Exception as error:  # of the worker: it cannot import this package, or not read the files
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise InputError(
            f"--cluster: a worker cannot run Seriatim ({reason}); install version {__version__} on every worker"
        ) from None
    sizes = session.sizes()
    for view in seen:
        if not view.in_session:
            place = session.path.parent
            raise InputError(
                f"--cluster: the worker on {view.host} does not see the folder {place}; give an --out on a file "
                "system that all workers share, at the same path"
            )
        for path, size in sizes.items():
            if view.sizes.get(path) != size:
                differs = "sees another file there" if path in view.sizes else "does not see it"
                raise InputError(
                    f"--cluster: {path}: the worker on {view.host} {differs}; put the data on a file system that all "
                    "workers share, at the same path"
                )
    return dict(Counter(view.host for view in seen))
