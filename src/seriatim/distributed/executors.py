"""Executors of `concurrent.futures`: processes of this machine, or the workers of a Dask cluster.

Whatever is divided into jobs is written once, against ``Executor.submit``: a function of a module, and arguments that
can be pickled.
"""

import multiprocessing
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar, cast

from ..core.errors import InputError

if TYPE_CHECKING:
    from distributed import Client

CONNECT_SECONDS = 10
"""Seconds to wait for the scheduler of a cluster."""
ADDRESS = re.compile(r"([a-z]+://)?[^\s/]+:\d+")
Given = TypeVar("Given")
Result = TypeVar("Result")


class Cluster:
    """A connection to a Dask cluster, with an ``executor`` that submits jobs to it."""

    def __init__(self, client: "Client", executor: Executor) -> None:
        self._client, self.executor = client, executor

    def count_workers(self) -> int:
        """Return the number of workers at this moment; 0 if the scheduler does not answer."""
        try:
            return len(self._client.scheduler_info()["workers"])
        except Exception:  # of whatever kind: the connection is lost
            return 0

    def on_every_worker(self, function: Callable[[Given], Result], argument: Given) -> list[Result]:
        """Call a function once in the process of every worker, beside what it works on, and return the results."""
        return list(self._client.run(function, argument).values())

    def subscribe(self, topic: str, hear: Callable[[object], None]) -> None:
        """Hear what jobs tell with `tell_cluster` under a topic; ``hear`` is called by another thread."""
        self._client.subscribe_topic(topic, lambda event: hear(event[1]))  # type: ignore[no-untyped-call]


def tell_cluster(topic: str, message: object) -> None:
    """Send a message, of numbers, strings, lists and dicts, from a job on a worker to whoever subscribed to a topic."""
    from distributed import get_worker

    get_worker().log_event(topic, message)


def threads_of_worker() -> int:
    """Return the number of threads that Dask gives the worker on which this job runs."""
    from distributed import get_worker

    return int(get_worker().state.nthreads)


@contextmanager
def open_cluster(address: str) -> Iterator[Cluster]:
    """Connect to the scheduler of a Dask cluster, such as ``tcp://host:8786``, for the duration of a ``with`` block.

    Raises:
        InputError: Dask is not installed, the address is not one, the scheduler does not answer, or it has no workers.
    """
    try:
        from distributed import Client
    except ImportError:
        raise InputError(
            "--cluster: needs the package distributed; install it: pip install 'seriatim[cluster]'"
        ) from None
    if not ADDRESS.fullmatch(address):
        raise InputError(
            f"--cluster: {address!r} is not the address of a scheduler; write for instance tcp://host:8786"
        )
    try:
        client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(
            f"--cluster: no Dask scheduler answers at {address} ({reason}); start one: dask scheduler"
        ) from None
    with client:
        if not client.scheduler_info()["workers"]:
            raise InputError(f"--cluster: the scheduler at {address} has no workers; start some: dask worker {address}")
        executor = cast(Executor, client.get_executor(pure=False))  # type: ignore[no-untyped-call]
        try:
            yield Cluster(client, executor)
        except BaseException:
            if client.status == "running":
                executor.shutdown(wait=False)  # cancels what has not been started
            raise
        executor.shutdown()


@contextmanager
def open_executor(workers: int, cluster: str | None = None) -> Iterator[Executor]:
    """Open an executor for the duration of a ``with`` block.

    Args:
        workers: number of processes of this machine; at least 1. It is ignored if there is a cluster.
        cluster: address of a Dask scheduler such as ``tcp://host:8786``; its workers see the same files at the same
            paths.

    Raises:
        InputError: as for `open_cluster`.
    """
    if cluster is not None:
        with open_cluster(cluster) as connected:
            yield connected.executor
        return
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool
