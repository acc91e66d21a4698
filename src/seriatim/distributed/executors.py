"""Executors of `concurrent.futures`: processes of this machine, or the workers of a Dask cluster.

Whatever is divided into jobs is written once, against ``Executor.submit``: a function of a module, and arguments that
can be pickled.
"""

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from typing import cast

from ..core.errors import InputError

CONNECT_SECONDS = 10
"""Seconds to wait for the scheduler of a cluster."""


@contextmanager
def open_executor(workers: int, cluster: str | None = None) -> Iterator[Executor]:
    """Open an executor for the duration of a ``with`` block.

    Args:
        workers: number of processes of this machine; at least 1. It is ignored if there is a cluster.
        cluster: address of a Dask scheduler such as ``tcp://host:8786``; its workers see the same files at the same
            paths.

    Raises:
        InputError: Dask is not installed, the scheduler does not answer, or it has no workers.
    """
    if cluster is None:
        with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
            yield pool
        return
    try:
        from distributed import Client
    except ImportError:
        raise InputError(
            "--cluster: needs the package distributed; install it: pip install 'seriatim[cluster]'"
        ) from None
    try:
        client = Client(cluster, timeout=CONNECT_SECONDS, set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(
            f"--cluster: no Dask scheduler answers at {cluster} ({reason}); start one: dask scheduler"
        ) from None
    with client:
        if not client.scheduler_info()["workers"]:
            raise InputError(f"--cluster: the scheduler at {cluster} has no workers; start some: dask worker {cluster}")
        with client.get_executor(pure=False) as executor:  # type: ignore[no-untyped-call]
            yield cast(Executor, executor)
