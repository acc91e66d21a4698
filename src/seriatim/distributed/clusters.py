"""Connections to Dask clusters, whose workers run functions of modules with arguments that can be pickled."""

import logging
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar, cast

from ..core.errors import InputError
from ..version import __version__

if TYPE_CHECKING:
    from distributed import Client

CONNECT_SECONDS = 10
"""Seconds to wait for the scheduler of a cluster."""
ALONE_SECONDS = 30.0
"""Seconds that a cluster may have no workers, which may be starting again."""
ADDRESS = re.compile(r"(?:tcp://)?(?:\[[^\s/\]]+\]|[^\s/:\[\]]+):(\d{1,5})")
Given = TypeVar("Given")
Result = TypeVar("Result")


class Cluster:
    """A connection to a Dask cluster, with an ``executor`` that submits jobs to it."""

    def __init__(self, client: "Client", executor: Executor, address: str) -> None:
        self._client, self.executor, self.address = client, executor, address
        self._had_workers = time.monotonic()

    def count_workers(self) -> int:
        """Return the number of workers at this moment; 0 if the scheduler does not answer."""
        try:
            return len(self._client.scheduler_info()["workers"])
        except Exception:  # of whatever kind: the connection is lost
            return 0

    def problem(self) -> str | None:
        """Return why the cluster does not work any more, and what to do; None if it works."""
        if self._client.status != "running":
            return f"the connection to the cluster at {self.address} was lost; start its scheduler and workers"
        if self.count_workers():
            self._had_workers = time.monotonic()
        elif time.monotonic() - self._had_workers > ALONE_SECONDS:
            return f"the cluster at {self.address} has no workers any more; start some: dask worker {self.address}"
        return None

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


def is_address(text: str) -> bool:
    """Return whether a text can be the address of a scheduler."""
    found = ADDRESS.fullmatch(text)
    return found is not None and 0 < int(found[1]) < 1 << 16


@contextmanager
def open_cluster(address: str) -> Iterator[Cluster]:
    """Connect to the scheduler of a Dask cluster, such as ``tcp://host:8786``, for the duration of a ``with`` block.

    Raises:
        InputError: Dask is not installed, the address is not one, the scheduler does not answer, it has no workers, or
            a worker has another version of this package.
    """
    try:
        from distributed import Client
    except ImportError:
        raise InputError(
            "--cluster: needs the package distributed; install it: pip install 'seriatim[cluster]'"
        ) from None
    if not is_address(address):
        raise InputError(
            f"--cluster: {address!r} is not the address of a scheduler; write for instance tcp://host:8786"
        )
    with _silent_logs():
        try:
            client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False)  # type: ignore[no-untyped-call]
        except (OSError, ValueError) as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise InputError(
                f"--cluster: no Dask scheduler answers at {address} ({reason}); start one: dask scheduler"
            ) from None
        with client:
            _check_workers(client, address)
            executor = cast(Executor, client.get_executor(pure=False))  # type: ignore[no-untyped-call]
            try:
                yield Cluster(client, executor, address)
            except BaseException:
                if client.status == "running":
                    executor.shutdown(wait=False)  # cancels what has not been started
                raise
            executor.shutdown()


def _check_workers(client: "Client", address: str) -> None:
    """Raise InputError unless there are workers, and all that answer have this version of the package."""
    if not client.scheduler_info()["workers"]:
        raise InputError(f"--cluster: the scheduler at {address} has no workers; start some: dask worker {address}")

    def installed() -> str:  # it is sent as code, not by name, so that a worker without the package can run it
        try:
            from seriatim.version import __version__ as version
        except ImportError:
            return ""
        return version

    for worker, version in client.run(installed, on_error="return").items():
        if isinstance(version, str) and version != __version__:
            other = f"has version {version} of seriatim, not {__version__}" if version else "does not have seriatim"
            raise InputError(f"--cluster: the worker {worker} {other}; install the same version on all machines")


@contextmanager
def _silent_logs() -> Iterator[None]:
    """Keep Dask from writing to the console what is said in one line here."""
    names = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] == "distributed"]
    loggers = [logger for logger in map(logging.getLogger, names) if not logger.disabled]  # each has its own level
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger in loggers:
            logger.disabled = False
