"""An executor for the workers of a Dask cluster, which see the same files at the same paths."""

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Executor, Future, InvalidStateError
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn, TypeVar, cast

from ..core.errors import MalformedError, MismatchError, UnavailableError, first_line
from ..version import __version__
from .executors import WorkersLostError, WorkExecutor

if TYPE_CHECKING:
    from distributed import Client

CONNECT_SECONDS = 10
"""Seconds to wait for the scheduler of a cluster."""
CHECK_SECONDS = 2.0
"""Seconds between two looks at the cluster."""
LOST_SECONDS = 60.0
"""Seconds that a cluster may have no workers, which may be starting again."""
ADDRESS = re.compile(r"(?:tcp://)?(?:\[[^\s/\]]+\]|[^\s/:\[\]]+):([0-9]{1,5})")
Result = TypeVar("Result")


class ClusterExecutor(WorkExecutor):
    """Runs functions on the workers of a cluster.

    A thread looks after the cluster. When the cluster is lost, what has been submitted fails.

    Attributes:
        address: of the scheduler.
    """

    def __init__(self, client: "Client", address: str) -> None:
        self.address, self.worker_count = address, _count_workers(client)
        self._client, self._pool = client, cast(Executor, client.get_executor(pure=False))  # type: ignore[no-untyped-call]
        self._fail: list[Callable[[BaseException], None]] = []  # for each future that was submitted
        self._closed = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def submit(self, function: Callable[..., Result], /, *args: object, **kwargs: object) -> Future[Result]:
        """Run a function on any worker; `explain` says in words why the future of a lost worker fails."""
        future = self._pool.submit(function, *args, **kwargs)
        self._fail.append(future.set_exception)
        if self.lost is not None:  # perhaps since a moment ago
            self._lose(self.lost)
        return future

    def explain(self, error: BaseException) -> BaseException:
        """Return the error of a function, or in one line what happened to its worker or the cluster."""
        name = type(error).__name__
        if isinstance(error, CancelledError):  # by Dask, because the scheduler is gone
            self._lose(self._connection_lost())
        if self.lost is not None:
            return self.lost
        if isinstance(error, ImportError):
            return UnavailableError(f"a worker cannot import {error.name}; install the same packages on all machines")
        if name in ("KilledWorker", "CommClosedError"):
            remedy = "it may have run out of memory: start fewer workers on each machine"
            return WorkersLostError(f"a worker of the cluster ended before its job was done ({name}); {remedy}")
        return error

    def _watch(self) -> None:
        seen = time.monotonic()
        while self.lost is None and not self._closed.wait(CHECK_SECONDS):
            try:
                self.worker_count = _count_workers(self._client)
            except Exception:  # of whatever kind: the scheduler does not answer
                self.worker_count = 0
            if self.worker_count:
                seen = time.monotonic()
            if self._client.status != "running":
                self._lose(self._connection_lost())
            elif time.monotonic() - seen > LOST_SECONDS:
                remedy = f"start some: dask worker {self.address}"
                self._lose(WorkersLostError(f"the cluster at {self.address} has no workers any more; {remedy}"))

    def _connection_lost(self) -> WorkersLostError:
        remedy = "start its scheduler and workers"
        return WorkersLostError(f"the connection to the cluster at {self.address} was lost; {remedy}")

    def _lose(self, reason: WorkersLostError) -> None:
        self.lost = self.lost or reason
        for fail in self._fail:
            with suppress(InvalidStateError):  # it has ended
                fail(self.lost)

    def run_on_every_worker(self, function: Callable[..., Result], *args: object) -> list[Result]:
        """Call a function once in the process of every worker, beside what it works on, and return the results."""
        return list(self._client.run(function, *args).values())

    def subscribe(self, topic: str, on_message: Callable[[object], None]) -> None:
        """Receive what functions send with `send_message` under a topic, in another thread."""
        self._client.subscribe_topic(topic, lambda event: on_message(event[1]))  # type: ignore[no-untyped-call]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancel what has not begun, and wait for the rest unless the cluster is lost."""
        self._closed.set()
        if self._client.status == "running":
            self._pool.shutdown(wait=wait)


def send_message(topic: str, message: object) -> None:
    """Send numbers, strings, lists and dicts from a function on a worker to whoever subscribed to a topic."""
    from distributed import get_worker

    get_worker().log_event(topic, message)


def threads_of_worker() -> int:
    """Return the number of threads that Dask gives the worker on which this function runs."""
    from distributed import get_worker

    return int(get_worker().state.nthreads)


def run_elsewhere() -> NoReturn:
    """End a function on a worker, so that Dask runs it again, perhaps on a worker that has nothing to do."""
    from distributed import Reschedule

    raise Reschedule


def is_address(text: str) -> bool:
    """Return whether a text can be the address of a scheduler."""
    found = ADDRESS.fullmatch(text)
    return found is not None and 0 < int(found[1]) < 1 << 16


@contextmanager
def open_cluster(address: str) -> Iterator[ClusterExecutor]:
    """Connect to the scheduler of a Dask cluster, such as ``tcp://host:8786``, for the duration of a ``with`` block.

    Raises:
        InputError: Dask is not installed, the address is not one, the scheduler does not answer, it has no workers, or
            a worker has another version of this package.
    """
    try:
        from distributed import Client
    except ImportError:
        raise UnavailableError(
            "--cluster: needs the package distributed; install it: pip install 'seriatim[cluster]'"
        ) from None
    if not is_address(address):
        raise MalformedError(
            f"--cluster: {address!r} is not the address of a scheduler; write for instance tcp://host:8786"
        )

    # Dask logs and retries what is said here in one line.
    with _silent_logs():
        try:
            client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False)  # type: ignore[no-untyped-call]
        except (OSError, ValueError) as error:
            reason = first_line(error) or type(error).__name__
            raise UnavailableError(
                f"--cluster: no Dask scheduler answers at {address} ({reason}); start one: dask scheduler"
            ) from None

        # After an error nobody waits for what is being done; otherwise all of it is finished.
        with client:
            _check_workers(client, address)
            executor = ClusterExecutor(client, address)
            try:
                yield executor
            except BaseException:
                executor.shutdown(wait=False)
                raise
            executor.shutdown()


def _count_workers(client: "Client") -> int:
    threads = cast(Callable[[], Mapping[str, int]], client.nthreads)  # which has no types
    return len(threads())


def _check_workers(client: "Client", address: str) -> None:
    """Raise InputError unless there are workers, and all that answer have this version of the package."""
    if not _count_workers(client):
        raise UnavailableError(
            f"--cluster: the scheduler at {address} has no workers; start some: dask worker {address}"
        )

    def installed() -> str:  # it is sent as code, not by name, so that a worker without the package can run it
        try:
            from seriatim.version import __version__ as version
        except ImportError:
            return ""
        return version

    for worker, version in client.run(installed, on_error="return").items():
        if isinstance(version, str) and version != __version__:
            other = f"has version {version} of seriatim, not {__version__}" if version else "does not have seriatim"
            raise MismatchError(f"--cluster: the worker {worker} {other}; install the same version on all machines")


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
