"""A copy of the process of the tests: it starts at once, whereas a new process imports PyTorch for seconds."""

import logging
import os
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable


class Forked:
    """A process that runs a function and ends, in the way of `subprocess.Popen`; in it, warnings are errors."""

    def __init__(self, run: Callable[[], object]) -> None:
        pipes = [os.pipe() for _ in range(2)]
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _run(run, [write for _, write in pipes])
        self.stdout, self.stderr = (os.fdopen(read, encoding="utf-8") for read, _ in pipes)
        for _, write in pipes:
            os.close(write)

    def poll(self) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def wait(self, seconds: float) -> int:
        end = time.monotonic() + seconds
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("forked", seconds)
            time.sleep(0.005)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def __enter__(self) -> "Forked":
        return self

    def __exit__(self, *error: object) -> None:
        self.send_signal(signal.SIGKILL)
        self.wait(20)
        self.stdout.close()
        self.stderr.close()


def _run(run: Callable[[], object], outputs: list[int]) -> None:
    """Run the function with none of the files and signal handlers of the tests, and end without their clean-up."""
    code = 1
    try:
        for number, output in enumerate(outputs, 1):
            os.dup2(output, number)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
        logging.getLogger().handlers.clear()  # those of pytest, which show nothing
        signal.signal(signal.SIGINT, signal.default_int_handler)
        warnings.simplefilter("error")
        run()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
