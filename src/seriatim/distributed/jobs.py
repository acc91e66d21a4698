"""Jobs that processes of this machine or the workers of a cluster do, and what is said when these are lost."""

import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    FIRST_EXCEPTION,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from contextlib import contextmanager
from typing import TypeVar

from ..core.errors import InputError, TrainingError
from .clusters import Cluster, open_cluster

Given = TypeVar("Given")
Result = TypeVar("Result")
CHECK_SECONDS = 2.0
"""Seconds between two looks at the cluster."""
DASK_LOSSES = ("KilledWorker", "CommClosedError", "FutureCancelledError")
"""Exceptions of Dask, which need not be installed, for workers that are gone."""


class Jobs:
    """Does jobs with an executor: a function of a module, with an argument that can be pickled."""

    def __init__(self, executor: Executor, cluster: Cluster | None = None) -> None:
        self.executor, self.cluster = executor, cluster

    def run(self, function: Callable[[Given], Result], arguments: Sequence[Given]) -> list[Result]:
        """Do a job for each argument, and return the results in order.

        Raises:
            TrainingError: a worker ended, or the cluster is lost.
            InputError: the workers do not have this package.
            Exception: of a job that failed; those that have not begun are cancelled.
        """
        with _unheard_interrupts():
            futures = [self.executor.submit(function, argument) for argument in arguments]
        try:
            self._wait(futures)
            return [future.result() for future in futures]
        except ImportError as error:
            raise InputError(
                f"a worker cannot import {error.name}; install the same packages on all machines"
            ) from None
        except (BrokenExecutor, CancelledError) as error:
            raise self._lost(error) from None
        except Exception as error:
            if type(error).__name__ in DASK_LOSSES:
                raise self._lost(error) from None
            raise
        finally:
            for future in futures:
                future.cancel()

    def _wait(self, futures: Sequence[Future[Result]]) -> None:
        """Wait until all jobs are done or one has failed, and raise its error."""
        waiting = set(futures)
        while waiting:
            done, waiting = wait(waiting, CHECK_SECONDS, FIRST_EXCEPTION)
            for future in done:
                future.result()
            if waiting and self.cluster is not None and (problem := self.cluster.problem()):
                raise TrainingError(f"{problem}, and train again")

    def _lost(self, error: BaseException) -> TrainingError:
        if self.cluster is None:
            guard = "" if _is_command() else ', or the script lacks `if __name__ == "__main__":` before it trains'
            reason = f"it may have run out of memory (use fewer workers){guard}"
            return TrainingError(f"a worker process ended before its job was done; {reason}")
        if problem := self.cluster.problem():
            return TrainingError(f"{problem}, and train again")
        return TrainingError(
            f"a worker of the cluster ended before its job was done ({type(error).__name__}); it may have run out of "
            "memory: start fewer workers on each machine, or limit the memory of a job"
        )


@contextmanager
def open_jobs(workers: int, cluster: str | None = None) -> Iterator[Jobs]:
    """Open processes or a cluster for the duration of a ``with`` block.

    Args:
        workers: number of processes of this machine; at least 1. It is ignored if there is a cluster.
        cluster: address of a Dask scheduler such as ``tcp://host:8786``; its workers see the same files at the same
            paths.

    Raises:
        InputError: as for `open_cluster`.
    """
    if cluster is not None:
        with open_cluster(cluster) as connected:
            yield Jobs(connected.executor, connected)
        return
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            yield Jobs(pool)
        except BaseException:  # nobody waits for jobs that are being done
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
            raise


@contextmanager
def _unheard_interrupts() -> Iterator[None]:
    """Let processes that start within a ``with`` block not hear Ctrl-C, after which this process ends them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # new processes inherit it
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _is_command() -> bool:
    """Return whether the program is the command ``seriatim``, which new processes may import."""
    package = __package__.partition(".")[0]
    return f"{package}.__main__" in sys.modules or sys.modules["__main__"].__package__ == package
