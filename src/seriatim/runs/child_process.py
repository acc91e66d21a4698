"""Work in a process of its own, which tells its parent what it does in lines of JSON on standard output.

`run_module` is the parent's side: it starts the process, passes on its events, and lets it stop when a signal comes.
`serve` is the child's side. If the parent is gone, the next line that cannot be written stops the child.
"""

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

from ..core.errors import InputError, TrainingError, first_line, known_reason, require_current_folder
from ..distributed.ranks import VARIABLES
from ..evaluation.intervals import Metrics
from ..storage.atomic_files import to_json

POLL_SECONDS = 0.2
"""Seconds between two looks at whether a signal has come."""
TAIL = 2000
"""Bytes at the end of standard error that are searched for the reason of a failure."""
Tell = Callable[[Metrics], None]
"""Sends an event to the parent: a dict with the key ``event``."""
Listen = Callable[[Metrics], None]
"""Receives the events of the child."""
Signalled = Callable[[], int | None]
"""Returns the number of a signal that has come, or None."""


class Stopped(Exception):  # noqa: N818
    """A child process has saved its state and stopped after a signal."""


def run_module(
    module: str, arguments: Metrics, listen: Listen, signalled: Signalled, *, folder: str | None = None
) -> Metrics:
    """Run a module that calls `serve` in a process of its own, and return the last event.

    Several threads may run a module at the same time.

    Args:
        module: its name.
        arguments: passed to the module as JSON.
        listen: receives the events of the process; an event ``warning`` has its ``text``.
        signalled: tells whether to stop; if it raises an exception, the process is killed.
        folder: the working folder of the process; by default that of this process.

    Raises:
        Stopped: a signal came, and the process has stopped.
        InputError, TrainingError: the work failed; the reason is one line.
    """
    if folder is None:
        require_current_folder()
    with tempfile.TemporaryDirectory(prefix="seriatim-") as own, tempfile.TemporaryFile() as errors:
        path = Path(own) / "work.json"
        path.write_text(json.dumps(arguments), encoding="utf-8")
        with subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=_environment(),
            cwd=folder,
            start_new_session=True,  # signals of the terminal reach it once, through the parent
        ) as process:
            try:
                last = _pass_on(process, listen, signalled)
            finally:
                if process.poll() is None:
                    process.kill()
        if last.get("event") == "done":
            return last
        if signalled() is not None:
            raise Stopped
        raise _failure(process, last, errors)


def _pass_on(process: "subprocess.Popen[bytes]", listen: Listen, signalled: Signalled) -> Metrics:
    """Pass on events until the process ends, and signals to the process; return the last event."""
    events: queue.Queue[Metrics | None] = queue.Queue()

    def read() -> None:
        for line in process.stdout or ():
            events.put(_parse(line))
        events.put(None)

    threading.Thread(target=read, daemon=True).start()
    last, forwarded = Metrics(), False
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
    own = {
        name: value
        for name, value in os.environ.items()
        if name not in VARIABLES and not name.startswith("TORCHELASTIC")
    }  # the child is no rank
    if root in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return own  # on the path as it is; in front, installed packages would hide the standard library
    return {**own, "PYTHONPATH": root if not path else f"{root}{os.pathsep}{path}"}


def serve(work: Callable[[Metrics, Tell], None]) -> None:
    """Do the work of a child process with the arguments in the file that the command line names, and exit.

    The last event is ``done`` if the work succeeded, else ``error`` or ``interrupted``.
    """
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # keeps what other code prints out of the lines of JSON

    is_alone = False

    def tell(event: Metrics) -> None:
        nonlocal is_alone
        if is_alone:
            return
        try:
            lines.write(to_json(event) + "\n")
            lines.flush()
        except BrokenPipeError:  # the parent is gone; an exception would end the reports of a training, not itself
            is_alone = True
            signal.raise_signal(signal.SIGTERM)  # a training saves its state and stops

    def warn(message: Warning | str, *_: object, **__: object) -> None:
        tell({"event": "warning", "text": str(message)})

    warnings.showwarning = warn
    try:
        work(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), tell)
    except KeyboardInterrupt as error:
        tell({"event": "interrupted", "text": str(error)})
        sys.exit(130)
    except Exception as error:
        tell({"event": "error", "text": one_line(error), "input": isinstance(error, InputError)})
        sys.exit(1)


def one_line(error: Exception) -> str:
    """Return what went wrong, in one line."""
    return known_reason(error) or f"the training process failed ({type(error).__name__}: {first_line(error)})"
