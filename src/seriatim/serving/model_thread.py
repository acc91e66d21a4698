"""A thread that alone uses one model. Others hand it calls, which it runs between two units of its work."""

import contextvars
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import torch

from ..compiler.module_cache import assume_unchanging
from .http_errors import LOGGER, HttpError

Result = TypeVar("Result")
REPEATS = 3
STALLED_SECONDS = 120.0
"""A thread whose present unit of work takes longer counts as dead."""


def use_fastest_threads(work: Callable[[], object], most: int) -> None:
    """Let PyTorch use one processor or ``most`` of them in this thread, whichever does some work faster.

    Several are slower where they must wait for each other after each little product, as in a recurrence.
    """
    seconds = {}
    best = most
    try:
        for threads in sorted({1, most}):
            torch.set_num_threads(threads)
            work()
            times = []
            for _ in range(REPEATS):
                began = time.perf_counter()
                work()
                times.append(time.perf_counter() - began)
            seconds[threads] = min(times)
        best = min(seconds, key=lambda threads: seconds[threads])
    finally:
        torch.set_num_threads(best)


class ModelDeadError(HttpError):
    """The thread of a model has ended, or does not answer any more."""

    def __init__(self) -> None:
        super().__init__(503, "the model does not answer any more; restart the server", code="model_dead")


class ModelThread:
    """A thread with work of its own. Subclasses define `prepare`, `has_work`, `work` and `fail`.

    Args:
        name: of the model, for messages.

    Attributes:
        max_threads: the number of processors that PyTorch may use.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.max_threads = torch.get_num_threads()  # before the thread of another model sets the number for new threads
        self._calls: queue.SimpleQueue[Callable[[BaseException | None], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # so that no call is put into the queue after the thread has emptied it
        self._has_ended = False
        self._since: float | None = None  # the beginning of the present unit of work
        run = contextvars.copy_context().run  # settings such as `uncompiled` hold in the thread, too
        self._thread = threading.Thread(target=run, args=(self._run,), name=f"seriatim-{name}", daemon=True)

    def start(self) -> "Future[None]":
        """Start the thread, and return the future end of `prepare`."""
        self._thread.start()
        return self.call(self.prepare)

    def end(self) -> None:
        """Let the thread end after its present unit of work."""
        self._calls.put(None)

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the thread, and return whether it has ended."""
        if self._thread.ident is not None:
            self._thread.join(max(0.0, seconds))
        return not self._thread.is_alive()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs, and its present unit of work has not taken too long."""
        since = self._since
        stalled = since is not None and time.monotonic() - since > STALLED_SECONDS
        return self._thread.is_alive() and not self._has_ended and not stalled

    def call(self, function: Callable[[], Result]) -> "Future[Result]":
        """Let the thread run a function, and return its future result.

        Raises:
            ModelDeadError: the thread has ended.
        """
        # A future that is running cannot be cancelled, so that its result can always be set.
        future: Future[Result] = Future()
        future.set_running_or_notify_cancel()

        def run(refusal: BaseException | None) -> None:
            try:
                if refusal is not None:
                    raise refusal
                result = function()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        # Without the lock, a call could enter the queue after the thread has emptied it, and wait for ever.
        with self._lock:
            if self._has_ended:
                raise ModelDeadError
            self._calls.put(run)
        return future

    def prepare(self) -> None:
        """Do what takes time at the first use of a model, such as compiling its step."""
        raise NotImplementedError

    @property
    def has_work(self) -> bool:
        """Whether `work` has something to do."""
        raise NotImplementedError

    def work(self) -> None:
        """Do one unit of work."""
        raise NotImplementedError

    def fail(self, error: Exception) -> None:
        """End everything that is in progress with an error."""
        raise NotImplementedError

    def _run(self) -> None:
        assume_unchanging()
        try:
            while self._run_calls():
                if self.has_work:
                    self._work()
        except BaseException:
            LOGGER.exception("%s: the thread of the model has ended", self.name)
        finally:
            with self._lock:
                self._has_ended = True
            self.fail(ModelDeadError())
            while not self._calls.empty():
                if (call := self._calls.get()) is not None:
                    call(ModelDeadError())

    def _work(self) -> None:
        self._since = time.monotonic()
        try:
            self.work()
        except Exception as error:
            LOGGER.exception("%s: the work in progress failed", self.name)
            self.fail(error)
        self._since = None

    def _run_calls(self) -> bool:
        """Run the calls that wait; without other work, wait for one. Return False if the thread is to end."""
        block = not self.has_work
        while True:
            try:
                call = self._calls.get(block)
            except queue.Empty:
                return True
            if call is None:
                return False
            self._since = time.monotonic()
            call(None)
            self._since, block = None, False
