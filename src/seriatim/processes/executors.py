"""Functions that run in other processes of this machine, with the interface of `concurrent.futures.Executor`.

`LocalExecutor` and `InlineExecutor` are here, and `processes.cluster` has one for the workers of a Dask cluster. All of
them take functions of modules, or a `functools.partial` of one; these and their arguments can be pickled.
"""

import os
import pickle
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar, cast

from ..core.errors import TrainingError, require_current_folder
from .child import signal_name, start_python

SERVER = "from seriatim.processes.executors import apply_until_input_ends; apply_until_input_ends()"
MAX_PROCESSES = 16
"""More processes do not help where one process reads the input of all, and each needs memory."""
CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")
CONTROL_GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
"""Files with the memory that a container may use, and that it uses (versions 2 and 1)."""
Given = TypeVar("Given")
Result = TypeVar("Result")


class WorkersLostError(TrainingError):
    """Work ended because its worker, or a whole cluster, is gone; that says nothing about the work itself."""


class ProcessEndedError(WorkersLostError):
    """A process of this machine ended before its work was done.

    Attributes:
        how: in words.
        was_killed: whether the system may have ended it because there was too little memory.
    """

    def __init__(self, exit_code: int) -> None:
        self.how = f"was ended by {signal_name(exit_code)}" if exit_code < 0 else f"ended early (exit code {exit_code})"
        self.was_killed = exit_code < 0 and signal_name(exit_code) == "SIGKILL"
        remedy = "it may have run out of memory (use fewer workers)"
        super().__init__(f"a worker process ended before its job was done; {remedy}")


class WorkExecutor(Executor):
    """Runs functions elsewhere; see `concurrent.futures.Executor`.

    Attributes:
        worker_count: how many functions run at the same time, which may change.
        lost: why no worker will come back, and what to do; None while there are workers.
        ahead: the number of items that `map_in_order` reads while the result of an earlier one is waited for.
    """

    worker_count = 1
    lost: WorkersLostError | None = None
    ahead = 0

    def explain(self, error: BaseException) -> BaseException:
        """Return the error of a function, or in one line what happened to its worker."""
        return error

    def run_all(self, function: Callable[[Given], Result], arguments: Sequence[Given]) -> list[Result]:
        """Run a function for each argument, and return the results in order.

        The first error is raised at once, and what has not begun is cancelled.
        """
        futures = [self.submit(function, argument) for argument in arguments]
        try:
            for future in as_completed(futures):
                future.result()
            return [future.result() for future in futures]
        except Exception as error:
            raise self.explain(error) from None
        finally:
            for future in futures:
                future.cancel()

    def map_in_order(self, function: Callable[[Given], Result], items: Iterable[Given]) -> Iterator[Result]:
        """Iterate over the results of a function for each item, which are read `ahead` in bounded memory."""
        pending: deque[Future[Result]] = deque()
        for item in items:
            pending.append(self.submit(function, item))
            if len(pending) > self.ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


class InlineExecutor(WorkExecutor):
    """Runs each function at once, in the thread that submits it."""

    def submit(self, function: Callable[..., Result], /, *args: object, **kwargs: object) -> Future[Result]:
        """Run a function."""
        future: Future[Result] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class ThreadExecutor(WorkExecutor):
    """Runs functions in threads of this process, for functions that wait for something else."""

    def __init__(self, count: int) -> None:
        self.worker_count, self._threads = count, ThreadPoolExecutor(count)

    def submit(self, function: Callable[..., Result], /, *args: object, **kwargs: object) -> Future[Result]:
        """Run a function in a thread."""
        return self._threads.submit(function, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for the threads."""
        self._threads.shutdown(wait, cancel_futures=cancel_futures)


class LocalExecutor(ThreadExecutor):
    """Runs functions in processes of this machine, each of which is used again and again.

    The processes are started with ``python -c`` and talk over pipes. Unlike those of
    `concurrent.futures.ProcessPoolExecutor`, they do not import the script that the user runs, which may lack a guard
    ``if __name__ == "__main__"``. They end when the process that started them is killed, because their pipes end. After
    a ``with`` block, also one that an error ends, they are killed.
    """

    def __init__(self, processes: int) -> None:
        require_current_folder()
        super().__init__(processes)  # each thread waits for the answer of a process
        self.ahead = processes + 1  # one item waits, so that no process does
        self._processes = [_WorkerProcess() for _ in range(processes)]
        self._idle: SimpleQueue[_WorkerProcess] = SimpleQueue()
        for process in self._processes:
            self._idle.put(process)

    def submit(self, function: Callable[..., Result], /, *args: object, **kwargs: object) -> Future[Result]:
        """Run a function in one of the processes.

        The future raises ProcessEndedError if the process ended, and whatever the function raises.
        """

        def call() -> Result:
            process = self._idle.get()
            try:
                return cast(Result, process.call(function, args, kwargs))
            finally:
                self._idle.put(process)

        return super().submit(call)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Kill the processes; whoever still waits for a result gets an error."""
        for process in self._processes:
            process.kill()
        super().shutdown(wait, cancel_futures=True)


def worker_count() -> int:
    """Return how many processes can compute at the same time: one for each processor, at most `MAX_PROCESSES`."""
    try:
        usable = len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        usable = os.cpu_count() or 1
    return max(1, min(usable, _quota(), MAX_PROCESSES))


def _quota() -> int:
    """Return how many processors the limit of a container amounts to (Linux, cgroup version 2)."""
    try:
        time_allowed, period = CPU_LIMIT.read_text(encoding="ascii").split()
        return MAX_PROCESSES if time_allowed == "max" else int(time_allowed) // int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return MAX_PROCESSES


def machine_memory(*, free: bool = False) -> int:
    """Return the memory of the machine in bytes, or of the container if that has less; with ``free``, what is unused.

    Where the system does not tell, it is as much as no machine has, and nothing is free.
    """
    sizes = []
    with suppress(OSError, ValueError, AttributeError):
        sizes.append(os.sysconf("SC_AVPHYS_PAGES" if free else "SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for limit, used in CONTROL_GROUPS:
        with suppress(OSError, ValueError):
            sizes.append(int(Path(limit).read_text()) - (int(Path(used).read_text()) if free else 0))
    return min(sizes, default=0 if free else 1 << 60)


class _WorkerProcess:
    """A process that runs functions, one after another."""

    def __init__(self) -> None:
        self._process = start_python("-c", SERVER, stdin=subprocess.PIPE)
        self._function: Callable[..., object] | None = None

    def call(self, function: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Return the result of a function, or raise its error."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            # A function can hold a vocabulary: it is not sent again with the next arguments.
            sent = None if function is self._function else function
            pickle.dump((sent, args, kwargs), self._process.stdin, protocol=pickle.HIGHEST_PROTOCOL)
            self._process.stdin.flush()
            self._function = function
            succeeded, result = pickle.load(self._process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError):
            raise ProcessEndedError(self._process.wait()) from None
        if not succeeded:
            raise result
        return result

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):  # what was still to be written
                pipe.close()


def apply_until_input_ends() -> None:
    """Call the functions that are read from standard input, and write their results, in a process of an executor."""
    # Whatever else prints goes to standard error, so that nothing is written between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # threads of several processes would only wait for one another
    function: Callable[..., object] = abs  # the first message brings one

    # An error is an answer, too: it is raised where the function was submitted.
    try:
        while True:
            sent, args, kwargs = pickle.load(sys.stdin.buffer)
            function = sent or function
            try:
                answer = (True, function(*args, **kwargs))
            except Exception as error:
                answer = (False, error)
            pickle.dump(answer, answers, protocol=pickle.HIGHEST_PROTOCOL)
            answers.flush()
    except (EOFError, pickle.UnpicklingError, BrokenPipeError):  # the other process ended, perhaps within an item
        os._exit(0)
