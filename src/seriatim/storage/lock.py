"""One process at a time writes into a folder."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from ..core.errors import InputError

LOCK = ".seriatim.lock"
"""A file that holds nothing and stays; what counts is who has it locked. The system unlocks what a dead process had."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps other processes from writing into a folder, which is made if it is not there.

    Raises:
        InputError: another one does, or the folder cannot be written.
    """
    held = FileLock(folder / LOCK, timeout=0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held.acquire()
    except Timeout:
        raise InputError(
            f"{folder}: another process is writing this run; wait until it has ended, or train elsewhere"
        ) from None
    except NotImplementedError:  # of versions of filelock that know nothing else to do
        warnings.warn(f"{folder}: a disk without locks; see that no other process writes there", stacklevel=3)
    except OSError as error:
        raise InputError(
            f"{folder}: cannot be written ({error.strerror}); check the folder, or train elsewhere"
        ) from None
    try:
        yield
    finally:
        held.release()


def refuse_locked(folder: Path) -> None:
    """Raises InputError where another process writes into a folder; leaves no trace where none has."""
    if (folder / LOCK).exists():
        with locked(folder):
            pass
