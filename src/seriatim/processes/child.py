"""Work in a child process, which reports its progress as lines of JSON on its standard output.

`run_module` is the parent's side: it starts the process, passes on its events, and forwards signals, so that the child
can stop cleanly. `serve` is the child's side. The child stops as soon as the parent is gone.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from ..core.errors import InputError, TrainingError, first_line, input_error, known_reason, require_current_folder
from ..core.json_object import JsonObject
from ..storage.files import to_json

RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""The environment variables that ``torchrun`` sets; a child does not inherit them, because it is no rank."""
POLL_SECONDS = 0.2
"""Seconds between two looks at whether a signal has come."""
TAIL = 2000
"""Bytes at the end of standard error that are searched for the reason of a failure."""
OnEvent = Callable[[JsonObject], None]
"""Receives an event, whose key ``event`` says what has happened."""
StopSignal = Callable[[], int | None]
"""Returns the number of a signal that has come, or None."""


class Stopped(Exception):  # noqa: N818
    """A child process has saved its state and stopped after a signal."""


def python_command(*arguments: str) -> list[str]:
    """Return the command that starts Python, which adds no folder of its own to the path of modules (``-P``)."""
    return [sys.executable, "-P", *arguments]


def child_environment() -> dict[str, str]:
    """Return an environment in which Python imports the modules that this process can import, from the same places."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in RANK_VARIABLES and not name.startswith("TORCHELASTIC")
    }
    return {**inherited, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def start_python(
    *arguments: str, stdin: int, stderr: IO[bytes] | None = None, folder: str | None = None
) -> "subprocess.Popen[bytes]":
    """Start Python in a folder, by default the current one, with a pipe from its standard output.

    The process has a session of its own, so that signals of the terminal reach it once, through its parent.
    """
    command = python_command(*arguments)
    return subprocess.Popen(
        command,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=stderr,
        cwd=folder,
        env=child_environment(),
        start_new_session=True,
    )


def signal_name(exit_code: int) -> str:
    """Return the name of the signal that ended a process, whose exit code is negative."""
    return next((known.name for known in signal.Signals if known == -exit_code), f"signal {-exit_code}")


def run_module(
    module: str, arguments: JsonObject, on_event: OnEvent, stop_signal: StopSignal, *, folder: str | None = None
) -> JsonObject:
    """Run a module that calls `serve` in a process of its own, and return the last event.

    Several threads may run a module at the same time.

    Args:
        module: its name.
        arguments: passed to the module as JSON.
        on_event: receives the events of the process; an event ``warning`` has its ``text``.
        stop_signal: tells whether to stop; if it raises an exception, the process is killed.
        folder: the working folder of the process; by default that of this process.

    Raises:
        Stopped: a signal came, and the process has stopped.
        InputError, TrainingError: the work failed; the reason is one line.
    """
    if folder is None:
        require_current_folder()
    with tempfile.TemporaryDirectory(prefix="seriatim-") as workspace, tempfile.TemporaryFile() as errors:
        path = Path(workspace) / "work.json"
        path.write_text(json.dumps(arguments), encoding="utf-8")
        with start_python("-m", module, str(path), stdin=subprocess.PIPE, stderr=errors, folder=folder) as process:
            try:
                last = _forward(process, on_event, stop_signal)
            finally:
                process.kill()  # without effect if it has ended
        if last.get("event") == "done":
            return last
        if stop_signal() is not None:
            raise Stopped
        raise _failure(process.returncode, last, errors)


def _forward(process: "subprocess.Popen[bytes]", on_event: OnEvent, stop_signal: StopSignal) -> JsonObject:
    """Pass on events until the process ends, and the first signal to the process; return the last event."""
    events: queue.SimpleQueue[JsonObject | None] = queue.SimpleQueue()

    # A thread waits for lines, because a pipe cannot be waited for together with a signal on every system.
    def read() -> None:
        for line in process.stdout or ():
            with suppress(ValueError):  # a library has printed something, or the process was killed within a line
                if isinstance(event := json.loads(line), dict) and "event" in event:
                    events.put(event)
        events.put(None)

    threading.Thread(target=read, daemon=True).start()
    last, is_signalled = JsonObject(), False
    while True:
        if not is_signalled and (number := stop_signal()) is not None:
            is_signalled = True
            process.send_signal(number if os.name == "posix" else signal.SIGTERM)
        try:
            event = events.get(timeout=POLL_SECONDS)
        except queue.Empty:
            continue
        if event is None:
            process.wait()
            return last
        last = event
        on_event(event)


def _failure(code: int, last: JsonObject, errors: IO[bytes]) -> Exception:
    """Return an error with the reason in one line."""
    if last.get("event") == "error":
        return TrainingError(last["text"]) if last["kind"] is None else input_error(last["text"], last["kind"])
    if code < 0:
        # The system ends a process that needs too much memory with SIGKILL.
        hint = "; it may have run out of memory: lower training.batch_size or the sizes"
        name = signal_name(code)
        return TrainingError(f"the training process was stopped by {name}{hint if name == 'SIGKILL' else ''}")
    errors.seek(max(0, errors.seek(0, os.SEEK_END) - TAIL))
    tail = errors.read().decode("utf-8", "replace").strip().splitlines()
    return TrainingError(f"the training process ended with exit code {code}{': ' + tail[-1] if tail else ''}")


def serve(work: Callable[[JsonObject, OnEvent], None]) -> None:
    """Do the work of a child process with the arguments in the file that the command line names, and exit.

    The last event is ``done`` if the work succeeded, else ``error``.
    """
    # Standard output belongs to the events: what other code prints goes to standard error.
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    threading.Thread(target=_stop_without_parent, daemon=True).start()

    def emit(event: JsonObject) -> None:
        with suppress(BrokenPipeError):  # the parent is gone, so that this process is being stopped
            lines.write(to_json(event) + "\n")
            lines.flush()

    def warn(message: Warning | str, *_: object, **__: object) -> None:
        emit({"event": "warning", "text": str(message)})

    # Warnings are events, too, because the parent shows them to the user.
    warnings.showwarning = warn
    try:
        work(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), emit)
    except KeyboardInterrupt:
        emit({"event": "error", "text": "the training process was interrupted", "kind": None})
        sys.exit(130)
    except Exception as error:
        kind = error.kind if isinstance(error, InputError) else None
        emit({"event": "error", "text": one_line(error), "kind": kind})
        sys.exit(1)


def _stop_without_parent() -> None:
    """Wait until the parent is gone, which never writes to this process, and stop it: a training saves its state."""
    # Without this, it would go on beside the process that another parent starts for the same run.
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)


def one_line(error: Exception) -> str:
    """Return what went wrong, in one line."""
    return known_reason(error) or f"the training process failed ({type(error).__name__}: {first_line(error)})"
