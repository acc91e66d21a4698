"""Locks of folders: only one process at a time writes into a folder."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from ..core.errors import InputError

LOCK = ".seriatim.lock"
"""An empty file that is never removed. The system releases the lock of a process that ends."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes from writing into a folder, which is created; raise InputError if that is impossible."""
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        problem = "another process is writing this run; wait until it ends, or use another folder"
        raise InputError(f"{folder}: {problem}") from None
    except NotImplementedError:  # raised by some versions of filelock
        warnings.warn(
            f"{folder}: this file system does not support file locks; make sure that no other process writes there",
            stacklevel=3,
        )
    except OSError as error:
        problem = f"cannot be written ({error.strerror}); check the folder, or use another one"
        raise InputError(f"{folder}: {problem}") from None
    try:
        yield
    finally:
        lock.release()


def refuse_locked(folder: Path) -> None:
    """Raise InputError if another process is writing into a folder; otherwise change nothing."""
    if (folder / LOCK).exists():
        with locked(folder):
            pass
