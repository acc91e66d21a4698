"""Workers of a comparison on this machine: processes, each of which trains one row at a time."""

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import torch

from ..core.errors import InputError
from ..evaluation.intervals import Metrics
from ..runs.child_process import Listen, Signalled, Stopped, run_module
from .cluster_workers import open_cluster_workers
from .dispatch import Workers, WorkersLostError
from .plan import Plan
from .worker import WorkerJob


class LocalWorkers:
    """Workers on this machine: threads, each of which waits for the process of one training."""

    lost: WorkersLostError | None = None

    def __init__(self, count: int, pool: Executor) -> None:
        self._count, self._pool, self._given_up = count, pool, threading.Event()
        self._threads = 1
        self.options: Sequence[str] = [] if count == 1 else ["--workers", str(count)]

    def limit(self) -> int:
        """Return the number of trainings at the same time."""
        return self._count

    @contextmanager
    def prepare(self, folder: Path, plan: Plan) -> Iterator[None]:
        """Check nothing, because this process has read the data."""
        yield

    def share_among(self, trainings: int) -> None:
        """Use as many workers as there are trainings, and divide the threads among them."""
        self._count = max(1, min(self._count, trainings))
        self._threads = max(1, torch.get_num_threads() // self._count)

    def start(self, job: WorkerJob, listen: Listen, signalled: Signalled) -> Future[Metrics]:
        """Start a training in a process of its own, with its share of the threads."""

        def stopping() -> int | None:
            if self._given_up.is_set():
                raise Stopped  # ends the process at once
            return signalled()

        job.threads = self._threads
        return self._pool.submit(run_worker, job, listen, stopping)

    def watch(self, signalled: Signalled) -> None:
        """Do nothing: the threads look for signals themselves."""

    def give_up(self) -> None:
        """Kill the processes of all trainings."""
        self._given_up.set()


@contextmanager
def open_workers(workers: int | None, cluster: str | None) -> Iterator[Workers]:
    """Open the workers that a comparison asks for: a number of processes, 1 by default, or the address of a cluster.

    Raises:
        InputError: both are given, the number is not above 0, or the cluster cannot be used.
    """
    if cluster is not None:
        if workers is not None:
            raise InputError("--workers: cannot be used with --cluster, whose workers train; leave one of them out")
        with open_cluster_workers(cluster) as remote:
            yield remote
        return
    count = 1 if workers is None else workers
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InputError(f"--workers: must be a whole number above 0, got {workers!r}")
    with ThreadPoolExecutor(count) as pool:
        yield LocalWorkers(count, pool)


def run_worker(job: WorkerJob, listen: Listen, signalled: Signalled) -> Metrics:
    """Do a job in a process of its own; see `run_module`."""
    arguments = {**asdict(job), "began": time.time()}
    return run_module("seriatim.comparison.worker", arguments, listen, signalled)
