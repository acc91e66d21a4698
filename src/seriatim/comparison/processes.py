"""The parent's side of a `worker`: starts it, passes on what it tells, and lets it stop when a signal comes."""

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
from typing import IO, Any

from ..core.errors import InputError, TrainingError
from .worker import Work

WAIT = 0.2
"""Seconds between two looks at whether a signal has come."""
SAID = 2000
"""Characters of what a process said last."""
Event = dict[str, Any]


class Stopped(Exception):  # noqa: N818
    """A process has saved what it had and stopped, because it was asked to."""


def run_worker(job: Work, listen: Callable[[Event], None], signalled: Callable[[], int | None]) -> Event:
    """Does a piece of work in a process of its own.

    Args:
        job: what to do.
        listen: gets what the process tells, as it comes.
        signalled: the number of a signal that came, or None.

    Returns:
        What it told last, when it was done.

    Raises:
        Stopped: a signal came, and the process has stopped.
        InputError, TrainingError: what the process says is wrong, in one line.
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
            start_new_session=True,  # signals of the terminal come by way of the parent, once
        )
        assert process.stdout is not None
        try:
            last = _listen(process, process.stdout, listen, signalled)
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


def _listen(
    process: "subprocess.Popen[bytes]",
    lines: IO[bytes],
    listen: Callable[[Event], None],
    signalled: Callable[[], int | None],
) -> Event:
    """Passes events on until there are no more; the last of them."""
    told: queue.Queue[Event | None] = queue.Queue()

    def read() -> None:
        for line in lines:
            told.put(_event(line))
        told.put(None)

    threading.Thread(target=read, daemon=True).start()
    last: Event = {}
    forwarded = False
    while True:
        if not forwarded and (number := signalled()) is not None:
            forwarded = True
            process.send_signal(number if os.name == "posix" else signal.SIGTERM)
        try:
            event = told.get(timeout=WAIT)
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


def _event(line: bytes) -> Event:
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    return found if isinstance(found, dict) and "event" in found else {"event": "said"}


def _failure(process: "subprocess.Popen[bytes]", last: Event, errors: IO[bytes]) -> Exception:
    """What is wrong, in one line."""
    if last.get("event") == "error":
        return InputError(last["text"]) if last["input"] else TrainingError(last["text"])
    if last.get("event") == "interrupted":
        return TrainingError("the training process was interrupted")
    code = process.returncode
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
        hint = "; it may have run out of memory: lower training.batch_size or the sizes" if name == "SIGKILL" else ""
        return TrainingError(f"the training process was stopped by {name}{hint}")
    errors.seek(max(0, errors.seek(0, os.SEEK_END) - SAID))
    said = errors.read().decode("utf-8", "replace").strip().splitlines()
    return TrainingError(f"the training process ended with exit code {code}{': ' + said[-1] if said else ''}")


def _environment() -> dict[str, str]:
    """One in which a process finds this package, wherever this one has it from."""
    here, before = str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")
    if here in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return dict(os.environ)  # found as it is; named first, what is installed would hide the standard library
    return {**os.environ, "PYTHONPATH": here if not before else f"{here}{os.pathsep}{before}"}
