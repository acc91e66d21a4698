"""A function that is applied to many items in processes of this machine, in order and in bounded memory.

The processes are started with ``python -c`` and talk over pipes. Unlike those of `concurrent.futures`, they do not
import the script that the user runs, which may lack a guard ``if __name__ == "__main__"``, and they end when the
process that started them is killed, because their pipe ends.
"""

import os
import pickle
import queue
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar, cast

from ..core.errors import TrainingError, require_current_folder

START = "from seriatim.data.worker_processes import serve; serve()"
WAITING = 2
"""Items that wait for a process, besides those that are being processed."""
MAX_WORKERS = 16
"""More processes do not help: one process reads the text and cuts it for them, and each needs memory."""
CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")
Item = TypeVar("Item")
Result = TypeVar("Result")


def worker_count() -> int:
    """Return how many processes encode a text: one for each processor that may be used, at most `MAX_WORKERS`."""
    try:
        processors = len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        processors = os.cpu_count() or 1
    return max(1, min(processors, _quota(), MAX_WORKERS))


def _quota() -> int:
    """Return how many processors the limit of a container amounts to (Linux, cgroup version 2)."""
    try:
        time_allowed, period = CPU_LIMIT.read_text(encoding="ascii").split()
        return MAX_WORKERS if time_allowed == "max" else int(time_allowed) // int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return MAX_WORKERS


def map_in_processes(function: Callable[[Item], Result], items: Iterable[Item], workers: int) -> Iterator[Result]:
    """Iterate over the results of a function for each item, in order.

    Args:
        function: of a module, or a `functools.partial` of one; it and its arguments can be pickled.
        items: they are read while the processes work, at most ``workers`` and `WAITING` ahead.
        workers: the number of processes; 1 applies the function in this process.

    Raises:
        TrainingError: a process was killed.
        Exception: whatever the function raises.
    """
    if workers == 1:
        yield from map(function, items)
        return
    require_current_folder()
    started: list[_Process] = []
    idle: queue.SimpleQueue[_Process] = queue.SimpleQueue()

    def apply(item: Item) -> Result:
        process = idle.get()
        try:
            return cast(Result, process.call(item))
        finally:
            idle.put(process)

    pending: deque[Future[Result]] = deque()
    threads = ThreadPoolExecutor(workers)
    try:
        for _ in range(workers):
            started.append(_Process(function))
            idle.put(started[-1])
        for item in items:
            pending.append(threads.submit(apply, item))
            if len(pending) >= workers + WAITING:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for process in started:
            process.stop()
        threads.shutdown(cancel_futures=True)


def serve() -> None:
    """Apply a function that is read from standard input to the items that follow it, until the input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # so that nothing else is written between the answers
    try:
        function = pickle.load(sys.stdin.buffer)
        while True:
            item = pickle.load(sys.stdin.buffer)
            try:
                answer = (True, function(item))
            except Exception as error:
                answer = (False, error)
            pickle.dump(answer, answers, protocol=pickle.HIGHEST_PROTOCOL)
            answers.flush()
    except (EOFError, pickle.UnpicklingError, BrokenPipeError):  # the other process ended, perhaps within an item
        os._exit(0)


def ended_early(code: int) -> str:
    """Return the message for a process that ended, with an exit code as `subprocess.Popen.wait` returns it."""
    how = f"ended early (exit code {code})"
    if code < 0:
        known = {number.value: number.name for number in signal.Signals}
        how = f"was ended by {known.get(-code, f'signal {-code}')}"
    # The system ends a process that needs too much memory with this signal.
    advice = ", with more memory free" if code == -getattr(signal, "SIGKILL", 9) else ""
    return f"a process that encodes the text {how}; run again to continue{advice}"


class _Process:
    """A process that applies a function."""

    def __init__(self, function: Callable[..., object]) -> None:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", "TOKENIZERS_PARALLELISM": "false"}
        command = [sys.executable, "-c", START]
        # A session of its own: an interrupt from the keyboard reaches this process only, which ends the others.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
        )
        self._function: Callable[..., object] | None = function

    def call(self, item: object) -> object:
        """Return the result for an item."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            if self._function is not None:
                pickle.dump(self._function, self._process.stdin)
                self._function = None
            pickle.dump(item, self._process.stdin, protocol=pickle.HIGHEST_PROTOCOL)
            self._process.stdin.flush()
            done, result = pickle.load(self._process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError):
            raise TrainingError(ended_early(self._process.wait())) from None
        if not done:
            raise result
        return result

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):  # what was still to be written
                pipe.close()
