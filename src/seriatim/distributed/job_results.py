"""The results of jobs that an executor runs, and what is said when a worker is lost."""

from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, BrokenExecutor, CancelledError, Future, wait
from typing import TypeVar

from ..core.errors import InputError, TrainingError

Result = TypeVar("Result")
DASK_LOSSES = ("KilledWorker", "CommClosedError", "FutureCancelledError")
"""Exceptions of Dask, which need not be installed, for workers that are gone."""


def results_of(futures: Sequence[Future[Result]]) -> list[Result]:
    """Wait for jobs and return their results, in order. After a failure, jobs that have not begun are cancelled.

    Raises:
        TrainingError: a worker ended, or the cluster was closed.
        InputError: the workers do not have this package.
    """
    try:
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        for future in (future for future in futures if future in done):
            future.result()
        return [future.result() for future in futures]
    except ImportError as error:
        raise InputError(f"a worker cannot import {error.name}; install the same packages on all machines") from None
    except (BrokenExecutor, CancelledError) as error:
        raise _lost_worker(error) from None
    except Exception as error:
        if type(error).__name__ in DASK_LOSSES:
            raise _lost_worker(error) from None
        raise
    finally:
        for future in futures:
            future.cancel()


def _lost_worker(error: BaseException) -> TrainingError:
    return TrainingError(
        f"a worker ended before its job was done ({type(error).__name__}); it may have run out of memory: use fewer "
        "workers on each machine, or smaller jobs"
    )
