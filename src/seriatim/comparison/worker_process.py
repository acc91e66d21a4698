"""The parent's side of a `worker`: start the process, pass on its events, and let it stop when a signal comes."""

import json
import os
import queue
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import IO

from ..core.errors import InputError, TrainingError
from ..evaluation.intervals import Metrics
from .worker import WorkerJob

POLL_SECONDS = 0.2
"""Seconds between two looks at whether a signal has come."""
TAIL = 2000
"""Bytes at the end of standard error that are searched for the reason of a failure."""
Listen = Callable[[Metrics], None]
"""Receives the events of a worker."""
Signalled = Callable[[], int | None]
"""Returns the number of a signal that has come, or None."""


class Stopped(Exception):  # noqa: N818
    """A worker has saved its state and stopped after a signal."""


def run_worker(job: WorkerJob, listen: Listen, signalled: Signalled) -> Metrics:
    """Do a job in a process of its own.

    Args:
        job: the work.
        listen: receives the events of the process.
        signalled: tells whether to stop.

    Returns:
        The last event.

    Raises:
        Stopped: a signal came, and the process has stopped.
        InputError, TrainingError: the job failed; the reason is one line.
    """
    with tempfile.TemporaryDirectory(prefix="seriatim-") as folder, tempfile.TemporaryFile() as errors:
        path = Path(folder) / "work.json"
        job.write(path)
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "seriatim.comparison.worker", str(path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=_environment(),
            start_new_session=True,  # signals of the terminal reach it once, through the parent
        )
        assert process.stdout is not None
        try:
            last = _pass_on(process, process.stdout, listen, signalled)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            process.stdout.close()
        if last.get("event") == "done":
            return last
        if signalled() is not None:
            raise Stopped
        raise _failure(process, last, errors)


def _pass_on(process: "subprocess.Popen[bytes]", lines: IO[bytes], listen: Listen, signalled: Signalled) -> Metrics:
    """Pass on events until the process ends, and signals to the process; return the last event."""
    events: queue.Queue[Metrics | None] = queue.Queue()

    def read() -> None:
        for line in lines:
            events.put(_parse(line))
        events.put(None)

    threading.Thread(target=read, daemon=True).start()
    last: Metrics = {}
    forwarded = False
    while True:
        if not forwarded and (number := signalled()) is not None:
            forwarded = True
            process.send_signal(number if os.name == "posix" else signal.SIGTERM)
        try:
            event = events.get(timeout=POLL_SECONDS)
        except queue.Empty:
            continue
        if event is None:
            process.wait()
            return last
        last = event
        if event["event"] == "warning":
            warnings.warn(event["text"], stacklevel=4)
        else:
            listen(event)


def _parse(line: bytes) -> Metrics:
    try:
        event = json.loads(line)
    except ValueError:
        event = None
    return event if isinstance(event, dict) and "event" in event else {"event": "unknown"}


def _failure(process: "subprocess.Popen[bytes]", last: Metrics, errors: IO[bytes]) -> Exception:
    """Return an error with the reason in one line."""
    if last.get("event") == "error":
        return InputError(last["text"]) if last["input"] else TrainingError(last["text"])
    if last.get("event") == "interrupted":
        return TrainingError("the training process was interrupted")
    code = process.returncode
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
        hint = "; it may have run out of memory: lower training.batch_size or the sizes" if name == "SIGKILL" else ""
        return TrainingError(f"the training process was stopped by {name}{hint}")
    errors.seek(max(0, errors.seek(0, os.SEEK_END) - TAIL))
    tail = errors.read().decode("utf-8", "replace").strip().splitlines()
    return TrainingError(f"the training process ended with exit code {code}{': ' + tail[-1] if tail else ''}")


def _environment() -> dict[str, str]:
    """Return an environment in which a process imports this package from the same place."""
    root, path = str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")
    if root in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return dict(os.environ)  # on the path as it is; in front, installed packages would hide the standard library
    return {**os.environ, "PYTHONPATH": root if not path else f"{root}{os.pathsep}{path}"}
