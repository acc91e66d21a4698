"""The side of a Dask worker: it looks whether it sees the files of a comparison, and starts processes that train.

Both functions run in the process of the worker. This file imports little, because the worker does nothing else
meanwhile.
"""

import glob
import math
import os
import platform
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import InputError
from ..distributed.clusters import tell_cluster, threads_of_worker
from ..evaluation.intervals import Metrics
from ..runs.child_process import Stopped, run_module
from ..storage.lock import refuse_locked
from ..storage.safe_files import open_regular
from ..storage.written_folders import SESSION

LOCKED_SECONDS = 1800.0
"""Seconds to wait for the process of a worker that died, until it stops writing the same run."""
TELL_SECONDS = 1.0
"""Seconds between two steps that are told to the comparison."""
TURN = threading.Lock()
"""Held while this worker trains, so that a worker with several threads trains one row at a time."""
TURN_SECONDS = 2.0
"""Seconds to wait for the end of another row, before this one is given back for a worker that has nothing to do."""


@dataclass(frozen=True)
class ClusterSession:
    """A comparison that trains with a cluster now: its folder, what it reads, and a key that no other one has.

    Attributes:
        working_folder: against which relative paths are resolved.
        specs: files, folders and globs of data.
    """

    working_folder: str
    folder: str
    key: str
    specs: Sequence[str]

    @property
    def path(self) -> Path:
        """The file that holds the key, in the folder of the comparison."""
        return Path(self.working_folder) / self.folder / SESSION

    def is_open(self) -> bool:
        """Return whether the comparison still waits for its trainings: it has not been stopped, and not replaced.

        The file is opened each time, because network file systems check then, and not later, whether it still exists.
        """
        try:
            with open(open_regular(self.path), encoding="utf-8") as file:
                return file.read(len(self.key) + 1) == self.key
        except (FileNotFoundError, ValueError):  # ValueError: not a file, or not text
            return False
        except OSError:  # of the network, which may recover
            return True

    def sizes(self) -> dict[str, int]:
        """Return the sizes in bytes of all files of the data, by path; what is missing is left out."""
        found: dict[str, int] = {}
        for spec in self.specs:
            named = os.path.join(self.working_folder, spec)
            for path in [named] if os.path.exists(named) else glob.glob(named, recursive=True):
                inside = [os.path.join(place, name) for place, _, names in os.walk(path) for name in names]
                found |= {file: os.path.getsize(file) for file in inside or [path] if os.path.isfile(file)}
        return found


@dataclass(frozen=True)
class WorkerView:
    """What a worker sees: the name of its machine, the session, and the sizes of the data."""

    host: str
    in_session: bool
    sizes: dict[str, int]


def view_from_worker(session: ClusterSession) -> WorkerView:
    """Return what this worker sees of a session."""
    return WorkerView(platform.node(), session.is_open(), session.sizes())


def train_here(job: Metrics, run: str, hosts: dict[str, int], session: ClusterSession) -> list[Metrics] | None:
    """Do the job of a `WorkerJob` in a process of its own; return its warnings, and last its last event.

    If this worker still trains another row after `TURN_SECONDS`, nothing is done, and None is returned. Waiting for it
    would look like work to Dask, which leaves such a job where it is while other workers have nothing to do.

    The process computes with as many threads as the worker has. ``run`` is the folder of the run, and ``hosts`` is the
    number of workers by machine, of which at most ``job["at_once"]`` train. Errors are those of `run_module`; `Stopped`
    says that the session has ended.
    """
    warned: list[Metrics] = []
    last_step = -math.inf

    def listen(event: Metrics) -> None:
        nonlocal last_step
        is_step = event["event"] == "step"
        if event["event"] == "warning":
            warned.append(event)
        elif not is_step or time.monotonic() - last_step > TELL_SECONDS:
            last_step = time.monotonic() if is_step else last_step
            tell_cluster(session.key, {"run": run, "event": event})

    def stopping() -> int | None:
        return None if session.is_open() else signal.SIGTERM

    if not TURN.acquire(timeout=TURN_SECONDS):
        if session.is_open():
            return None
        raise Stopped
    try:
        _wait_for(Path(session.working_folder) / run, session)
        job["threads"] = threads_of_worker()
        job["at_once"] = min(job["at_once"], hosts.get(platform.node(), 1))
        job["began"] = time.time()
        last = run_module("seriatim.comparison.worker", job, listen, stopping, folder=session.working_folder)
    finally:
        TURN.release()
    return [*warned, last]


def _wait_for(run: Path, session: ClusterSession) -> None:
    """Wait until no other process writes a run, such as that of a worker that died.

    That process ends when it next reports: several times a second while it trains, but not while it counts n-grams,
    reads the data of a resumed run or measures on held-out data, which may take many minutes.
    """
    deadline = time.monotonic() + LOCKED_SECONDS
    while True:
        try:
            refuse_locked(run)
            return
        except InputError:
            if not session.is_open():
                raise Stopped from None
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
