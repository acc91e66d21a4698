"""The side of a Dask worker: it looks whether it sees the files of a comparison, and starts processes that train.

Both functions run in the process of the worker. This file imports little, because the worker does nothing else
meanwhile.
"""

import math
import os
import platform
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import InputError, MissingError
from ..core.json_object import JsonObject
from ..processes.child import Stopped, run_module
from ..processes.cluster import run_elsewhere, send_message, threads_of_worker
from ..storage.files import open_regular, refuse_locked
from ..storage.written_folders import SESSION

LOCKED_SECONDS = 1800.0
"""Seconds to wait for the process of a worker that died, until it stops writing the same run."""
STEP_SECONDS = 1.0
"""Seconds between two steps that are reported to the comparison."""
WORKER_LOCK = threading.Lock()
"""Held while this worker trains, so that a worker with several threads trains one row at a time."""
LOCK_SECONDS = 2.0
"""Seconds to wait for the end of another row, before this one is given back for a worker that has nothing to do."""


@dataclass(frozen=True)
class ClusterSession:
    """A comparison that trains with a cluster now: its folder, and a key that no other one has.

    Attributes:
        working_folder: against which relative paths are resolved.
    """

    working_folder: str
    folder: str
    key: str

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


def check_worker(session: ClusterSession, sizes: Mapping[str, int]) -> str:
    """Return the name of this worker's machine.

    Raises:
        InputError: the worker does not see the folder of a comparison, or its data: files of these sizes, by path.
    """
    host = platform.node()
    if not session.is_open():
        raise MissingError(
            f"--cluster: the worker on {host} does not see the folder {session.path.parent}; give an --out on a file "
            "system that all workers share, at the same path"
        )
    for path, size in sizes.items():
        is_there = os.path.isfile(path)
        if not is_there or os.path.getsize(path) != size:
            differs = "sees another file there" if is_there else "does not see it"
            raise MissingError(
                f"--cluster: {path}: the worker on {host} {differs}; put the data on a file system that all workers "
                "share, at the same path"
            )
    return host


def train_on_worker(job: JsonObject, run: str, hosts: Mapping[str, int], session: ClusterSession) -> JsonObject:
    """Do the job of a `WorkerJob` in a process of its own; return its last event, with the texts of its ``warnings``.

    If this worker still trains another row after `LOCK_SECONDS`, the job is given back to Dask. Waiting for the other
    row would look like work to Dask, which leaves such a job where it is while other workers have nothing to do.

    Args:
        job: the fields of the job; the process computes with as many threads as the worker has.
        run: the folder of the run.
        hosts: the number of workers by machine, of which at most ``job["at_once"]`` train.
        session: of the comparison.

    Raises:
        Stopped: the session has ended.
        InputError, TrainingError: as for `run_module`.
    """
    # Warnings are returned with the result, because the last messages may come too late. Of the steps, few are sent.
    warned: list[str] = []
    last_step = -math.inf

    def on_event(event: JsonObject) -> None:
        nonlocal last_step
        is_step = event["event"] == "step"
        if event["event"] == "warning":
            warned.append(event["text"])
        elif not is_step or time.monotonic() - last_step > STEP_SECONDS:
            last_step = time.monotonic() if is_step else last_step
            send_message(session.key, {"run": run, "event": event})

    def stop_signal() -> int | None:
        return None if session.is_open() else signal.SIGTERM

    # A worker trains one row at a time, so that rows with equal budgets have equal threads and memory.
    if not WORKER_LOCK.acquire(timeout=LOCK_SECONDS):
        if session.is_open():
            run_elsewhere()
        raise Stopped

    # The process of a worker that died may still write this run.
    try:
        _wait_for(Path(session.working_folder) / run, session)
        at_once = min(job["at_once"], hosts.get(platform.node(), 1))
        here = {**job, "threads": threads_of_worker(), "at_once": at_once, "began": time.time()}
        last = run_module("seriatim.comparison.worker", here, on_event, stop_signal, folder=session.working_folder)
    finally:
        WORKER_LOCK.release()
    return {**last, "warnings": warned}


def _wait_for(run: Path, session: ClusterSession) -> None:
    """Wait until no other process writes a run, such as that of a worker that died.

    That process saves its state before it stops.
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
