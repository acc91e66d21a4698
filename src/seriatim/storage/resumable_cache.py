"""Folders of the cache that take long to make: they are made once, and continued after the process was killed.

While `cached` fills a folder under a new name each time, these are filled under one name, with a lock, by one process
at a time.
"""

import shutil
import stat
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

from ..core.errors import InputError, UnreadableError
from .atomic_files import PARTIAL
from .disk_cache import SCRATCH, cache_folder, cached, complete, find, intact, lock_of, make_folder, remove_old

POLL_SECONDS = 1.0
"""The time between two looks at a folder that another process is making."""


def cached_in_parts(name: str, make: Callable[[Path], None], waiting: Callable[[], None] = lambda: None) -> Path:
    """Return the folder ``name`` of the cache; as `cached`, but ``make`` may find what it wrote before it was killed.

    ``waiting`` is called again and again while another process makes the same folder. Where the file system has no
    locks, ``make`` always begins with an empty folder.

    Raises:
        InputError: the folder is missing, and ``$SERIATIM_CACHE`` cannot be written.
    """
    if (existing := find(name)) is not None:
        return existing
    folder = cache_folder(is_large=True) / name
    if intact(folder):
        return folder
    remove_old(folder.parent)
    try:
        lock = FileLock(lock_of(folder.parent / f"{name}{PARTIAL}"), timeout=POLL_SECONDS)
        while not lock.is_locked:
            try:
                lock.acquire()
            except Timeout:
                waiting()
    except (OSError, NotImplementedError):
        return cached(name, make)
    try:
        if intact(folder):  # another process has made it
            return folder
        partial = folder.with_name(f"{name}{PARTIAL}")
        _begin_or_continue(partial)
        try:
            complete(folder, partial, make)
        except InputError as error:
            if not isinstance(error, UnreadableError):  # another attempt would fail, too
                shutil.rmtree(partial, ignore_errors=True)
            raise
        except KeyboardInterrupt as error:
            if not error.args and any(path.suffix == SCRATCH for path in partial.rglob("*")):
                error.args = ("interrupted; what is done is kept, and the same command continues from there",)
            raise
        shutil.rmtree(partial, ignore_errors=True)  # only if another process has written the same content
    finally:
        lock.release()
    return folder


def _begin_or_continue(partial: Path) -> None:
    """Create a folder, or remove from it what this program did not write: links, pipes and devices."""
    make_folder(partial)
    for path in partial.rglob("*"):
        mode = path.lstat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            path.unlink()
