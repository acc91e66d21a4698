"""Trainings of a comparison that run at the same time.

The thread that compares starts trainings, and hears of their events and their ends through one queue. What the workers
are, processes of this machine or a cluster, is left to `Workers`.
"""

import warnings
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Protocol

from ..core.errors import InputError, TrainingError
from ..evaluation.intervals import Metrics
from ..runs.child_process import POLL_SECONDS, Listen, Signalled, Stopped
from .plan import Plan
from .worker import WorkerJob


class WorkersLostError(TrainingError):
    """A training ended because its worker, or the whole cluster, is gone; it says nothing about the layer."""


class Workers(Protocol):
    """Workers that train, one row at a time each."""

    lost: WorkersLostError | None
    """Why no worker will come back; None while there are workers."""
    options: Sequence[str]
    """The options of the command that ask for these workers."""

    def limit(self) -> int:
        """Return the number of workers, which may change."""

    def prepare(self, folder: Path, plan: Plan) -> AbstractContextManager[None]:
        """Check that all workers see the folder of the comparison and its data, or raise InputError."""

    def share_among(self, trainings: int) -> None:
        """Hear how many trainings can run at the same time at most, before the first one starts."""

    def start(self, job: WorkerJob, listen: Listen, signalled: Signalled) -> Future[Metrics]:
        """Start a training; ``listen`` is called by other threads."""

    def watch(self, signalled: Signalled) -> None:
        """Look after the workers now and then, and pass on a signal that has come."""

    def give_up(self) -> None:
        """End all trainings without waiting for them."""


class Schedule(Protocol):
    """What is to be trained, in which order."""

    def next_job(self, running: int) -> WorkerJob | None:
        """Return the next training that can start while some are running; None if there is none now."""

    def hear(self, job: WorkerJob, event: Metrics) -> None:
        """Receive an event of a training."""

    def ended(self, job: WorkerJob, outcome: Metrics | Exception) -> None:
        """Receive the last event of a training, or why it failed; `Stopped` if a signal ended it."""


def run_jobs(workers: Workers, schedule: Schedule, signalled: Signalled) -> None:
    """Train until nothing is left to start and nothing runs; after a signal, until all trainings have stopped."""
    news: SimpleQueue[tuple[WorkerJob, Metrics | Future[Metrics]]] = SimpleQueue()
    running = 0

    def tell(job: WorkerJob, what: Metrics | Future[Metrics]) -> None:
        news.put((job, what))

    try:
        while True:
            waiting = True
            while signalled() is None and workers.lost is None and running < workers.limit():
                if (job := schedule.next_job(running)) is None:
                    waiting = False
                    break
                running += 1
                workers.start(job, partial(tell, job), signalled).add_done_callback(partial(tell, job))
            if not running and (not waiting or signalled() is not None or workers.lost is not None):
                return
            workers.watch(signalled)
            try:
                job, what = news.get(timeout=POLL_SECONDS)
            except Empty:
                continue
            if isinstance(what, Future):
                running -= 1
                schedule.ended(job, _outcome(what))
            elif what["event"] == "warning":
                warnings.warn(what["text"], stacklevel=2)
            else:
                schedule.hear(job, what)
    except BaseException:
        workers.give_up()
        raise


def _outcome(future: Future[Metrics]) -> Metrics | Exception:
    """Return what a training gave, or why it failed; errors of this program are raised."""
    try:
        return future.result()
    except (InputError, TrainingError, Stopped) as error:
        return error
