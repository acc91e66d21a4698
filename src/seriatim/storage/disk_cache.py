"""A cache of derived data on disk. A folder is written completely or not at all, and is checked when it is opened."""

import json
import os
import shutil
import stat
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from ..core.errors import InputError, TrainingError, UnreadableError, UnwritableError
from .files import PARTIAL, flush, open_regular, read_json, remove, write_whole

DAY = 24 * 60 * 60
CHECKSUMS = "checksums.json"
"""The file with the CRC-32 of every other file of a cached folder, which detects damage at the speed of memory."""
SCRATCH = ".scratch"
"""The ending of files that serve to continue a folder, and are removed as soon as it is an entry of the cache."""
LOCKS = "locks"
POLL_SECONDS = 1.0
"""The time between two looks at a folder that another process is making."""
BLOCK = 1 << 20  # the number of bytes that are read at once
MAX_JSON_BYTES = 1 << 26  # the size of a JSON file of the cache
_told: set[str] = set()  # the reasons for a temporary folder that the user was told
Value = TypeVar("Value")


def named_folder() -> Path | None:
    """Return ``$SERIATIM_CACHE`` or the user's cache folder, which may be missing; None if the user has no home."""
    try:
        named = os.environ.get("SERIATIM_CACHE")
        return Path(named or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seriatim")
    except RuntimeError:
        return None


def cache_folder(*, is_large: bool = False) -> Path:
    """Return the folder for new entries: that of `named_folder`, or a temporary one with a warning.

    Raises:
        InputError: the user named what is no folder; or one that cannot be written, and the entries are large.
    """
    folder, reason = named_folder(), "the user has no home folder"
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError as error:
            reason = f"{folder} cannot be written: {error.strerror or error}"
            if os.environ.get("SERIATIM_CACHE") and isinstance(error, FileExistsError | NotADirectoryError):
                raise UnwritableError(f"SERIATIM_CACHE: {folder} is not a folder; name a folder") from None

    # A user who names a folder wants large files there and nowhere else; small ones may lie in a temporary folder.
    if is_large and os.environ.get("SERIATIM_CACHE"):
        raise UnwritableError(f"SERIATIM_CACHE: {reason}; name a folder with room for the encoded text")
    temporary = _temporary_folder()
    if reason not in _told:
        _told.add(reason)
        problem = f"the cache is in {temporary}, because {reason}"
        warnings.warn(f"{problem}; set $SERIATIM_CACHE to a folder that lasts", stacklevel=3)
    return temporary


def find(name: str) -> Path | None:
    """Return an intact entry of the cache, which may be in a folder that can be read only; None without one."""
    folder = named_folder()
    with suppress(OSError):  # the user may not look into the folder
        if folder is not None and intact(folder / name):
            return folder / name
    return None


def _temporary_folder() -> Path:
    """Return a temporary folder that only this user can write: its files are opened, and some are executed."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"seriatim-cache-{user}"
    with suppress(OSError):  # there may be something else of this name
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        private = (status.st_uid, stat.S_IMODE(status.st_mode)) == (user, 0o700) and stat.S_ISDIR(status.st_mode)
        if private or os.name != "posix":
            return folder
    return Path(tempfile.mkdtemp(prefix="seriatim-cache-"))


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """Return the folder ``name`` of the cache; ``make`` fills it if it is missing or damaged, which gives a warning.

    The folder is filled under another name, flushed and renamed, so that no reader sees an incomplete folder. Folders
    that a killed process left incomplete are removed after a day. What is made this way is small: if the cache cannot
    be written, a temporary folder is used.
    """
    if (existing := find(name)) is not None:
        return existing
    folder = cache_folder() / name
    if intact(folder):
        return folder
    remove_old(folder.parent)
    partial = Path(tempfile.mkdtemp(prefix=f"{name}.", suffix=PARTIAL, dir=folder.parent))
    try:
        complete(folder, partial, make)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def cached_resumable(name: str, make: Callable[[Path], None], waiting: Callable[[], None] = lambda: None) -> Path:
    """Return the folder ``name`` of the cache; as `cached`, but ``make`` may find what it wrote before it was killed.

    While `cached` fills a folder under a new name each time, such a folder is filled under one name, with a lock, by
    one process at a time.

    ``waiting`` is called again and again while another process makes the same folder. Where the file system has no
    locks, ``make`` always begins with an empty folder.

    Raises:
        InputError: the folder is missing, and ``$SERIATIM_CACHE`` cannot be written.
    """
    # A folder that is complete needs no lock, and may lie where nothing can be written.
    if (existing := find(name)) is not None:
        return existing
    folder = cache_folder(is_large=True) / name
    if intact(folder):
        return folder
    remove_old(folder.parent)

    # The lock is kept while the folder is filled, so that two processes do not append to the same files.
    try:
        lock = FileLock(lock_of(folder.parent / f"{name}{PARTIAL}"), timeout=POLL_SECONDS)
        while not lock.is_locked:
            try:
                lock.acquire()
            except Timeout:
                waiting()
    except (OSError, NotImplementedError):
        return cached(name, make)

    # What a killed process left is continued. After an error it is removed if another attempt would fail, too.
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


def read_entry(find_or_make: Callable[[], Path], read: Callable[[Path], Value]) -> Value:
    """Return what ``read`` makes of a folder of the cache; one that it cannot read is made again, with a warning.

    Args:
        find_or_make: returns the folder, as `cached` does.
        read: reads it; OSError, ValueError, TypeError and KeyError mean that it cannot.
    """
    folder = find_or_make()
    try:
        return read(folder)
    except (OSError, ValueError, TypeError, KeyError):
        _discard(folder, folder)
        return read(find_or_make())


def read_facts(path: Path) -> Any:
    """Return the value of a JSON file of the cache; raise InputError if it cannot be read."""
    return read_json(path, max_bytes=MAX_JSON_BYTES, remedy="remove this folder of the cache")


def intact(folder: Path) -> bool:
    """Return whether a folder of the cache exists. What is damaged, or no folder at all, is removed with a warning."""
    if folder.is_dir():
        damaged = damage(folder)
        if damaged is None:
            _remove_scratch(folder)  # of a process that was killed just before it did this
            return True
        _discard(folder, folder / damaged)
    elif os.path.lexists(folder):
        _discard(folder, folder)
    return False


def _discard(folder: Path, damaged: Path) -> None:
    """Remove an entry of the cache, and say which file is damaged."""
    warnings.warn(f"{damaged}: damaged; this entry of the cache is built again", stacklevel=5)
    with suppress(OSError):  # another process may be removing it
        remove(folder)


def make_folder(path: Path) -> None:
    """Create a folder of the cache if it is missing; a file, a link or a pipe of this name is removed."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
    path.mkdir(exist_ok=True)


def complete(folder: Path, partial: Path, make: Callable[[Path], None]) -> None:
    """Let ``make`` fill the folder ``partial``, flush it, and rename it to ``folder``, unless that was made meanwhile.

    Raises:
        OSError: the cache cannot be written; its file name is that of the cache.
        TrainingError: the cache was removed meanwhile.
    """
    try:
        make(partial)
        seal(partial)
        for path in (*(path for path in partial.iterdir() if path.suffix != SCRATCH), partial):
            flush(path)
        try:
            # From here on readers find the folder: all of it is on the disk already.
            partial.rename(folder)
            flush(folder.parent)
        except OSError:
            if not folder.is_dir():  # else another process has written the same content
                raise
        _remove_scratch(folder)  # only now: until here, a killed process is continued
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not partial.is_dir() and not folder.is_dir():
            raise TrainingError(f"{folder.parent}: the cache was removed while it was used; run again") from None
        if error.errno is not None and error.filename is None:
            error.filename = f"{folder.parent} (the cache; set $SERIATIM_CACHE to move it)"
        raise


def remove_old(cache: Path) -> None:
    """Remove the folders that killed processes left incomplete a day ago or earlier."""
    for old in cache.glob(f"*{PARTIAL}"):
        with suppress(OSError):  # another process may be renaming it
            inside = () if old.is_symlink() else old.rglob("*")
            latest = max(path.lstat().st_mtime for path in (old, *inside))
            if time.time() - latest > DAY:
                remove(old)


def lock_of(partial: Path) -> Path:
    """Return the lock of an incomplete folder of the cache; it is an empty file that is never removed."""
    folder = partial.parent / LOCKS
    make_folder(folder)
    return folder / partial.name


def seal(folder: Path) -> None:
    """Write the checksums of a folder, after its files were written or replaced."""
    write_whole(folder / CHECKSUMS, json.dumps({name: _checksum(folder / name) for name in _files(folder)}))


def damage(folder: Path) -> str | None:
    """Return the first file of a folder that is missing, unknown or changed; None if there is none.

    Only regular files below the folder are opened, whatever the list of checksums names.
    """
    try:
        expected, found = read_facts(folder / CHECKSUMS), set(_files(folder))
    except (InputError, OSError):
        return CHECKSUMS
    if not isinstance(expected, dict):
        return CHECKSUMS
    if any(Path(name).is_absolute() or ".." in Path(name).parts for name in expected):
        return CHECKSUMS
    for name in sorted(expected.keys() | found):
        try:
            if name not in found or _checksum(folder / name) != expected.get(name):
                return name
        except (OSError, ValueError):
            return name
    return None


def _remove_scratch(folder: Path) -> None:
    for path in folder.glob(f"*{SCRATCH}"):
        with suppress(OSError):  # the folder may be one that can only be read
            path.unlink()


def _files(folder: Path) -> list[str]:
    """Return what lasts in a folder, except folders and the checksums, by the paths within the folder."""
    files = (path for path in folder.rglob("*") if not stat.S_ISDIR(path.lstat().st_mode))
    lasting = (path for path in files if path.suffix != SCRATCH and path.name != CHECKSUMS)
    return sorted(path.relative_to(folder).as_posix() for path in lasting)


def _checksum(path: Path) -> int:
    checksum = 0
    with open(open_regular(path), "rb") as file:
        while block := file.read(BLOCK):
            checksum = zlib.crc32(block, checksum)
    return checksum
