"""Where derived data is cached. A folder appears there whole or not at all, and is checked whenever it is opened."""

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

from .atomic_files import PARTIAL, flush, write_whole

DAY = 24 * 60 * 60
CHECKSUMS = "checksums.json"
"""The file of a cached folder that holds the CRC-32 of every other one: it reveals damage, at the speed of memory."""
BLOCK = 1 << 20
"""Bytes of a file that are read at once."""


def cache_folder() -> Path:
    """``$SERIATIM_CACHE``, else the user's cache folder, else (if neither can be written) a temporary one of theirs."""
    named = os.environ.get("SERIATIM_CACHE")
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        folder = Path(named) if named else (Path(base) if base else Path.home() / ".cache") / "seriatim"
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except (OSError, RuntimeError):  # RuntimeError: the user has no home
        return _own_folder()


def _own_folder() -> Path:
    """A folder among the temporary ones, in which nobody else can put what is then opened or run."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"seriatim-cache-{user}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:  # something else stands there
        return Path(tempfile.mkdtemp(prefix="seriatim-cache-"))
    whose = (found.st_uid, stat.S_IMODE(found.st_mode)) == (user, 0o700) and stat.S_ISDIR(found.st_mode)
    return folder if whose or os.name != "posix" else Path(tempfile.mkdtemp(prefix="seriatim-cache-"))


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """The folder ``name`` of the cache; ``make`` fills it where it is missing or damaged.

    It is filled under another name, flushed and renamed, so that a reader never sees half of it. What a process that
    was killed left half filled goes after a day.

    Warns:
        UserWarning: a file has changed since it was written.
    """
    folder = cache_folder() / name
    if folder.is_dir():
        damaged = damage(folder)
        if damaged is None:
            return folder
        if damaged != CHECKSUMS:  # folders of earlier versions have none
            warnings.warn(f"{folder / damaged}: damaged; this entry of the cache is built again", stacklevel=2)
        shutil.rmtree(folder, ignore_errors=True)
    _clean(folder.parent)
    aside = Path(tempfile.mkdtemp(prefix=f"{name}.", suffix=PARTIAL, dir=folder.parent))
    try:
        make(aside)
        seal(aside)
        for path in (*aside.iterdir(), aside):
            flush(path)
        try:
            aside.rename(folder)
            flush(folder.parent)
        except OSError:
            if not folder.is_dir():  # else another process was quicker, with the same content
                raise
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = f"{folder.parent} (the cache; $SERIATIM_CACHE moves it)"
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return folder


def seal(folder: Path) -> None:
    """Writes the checksums of a folder, after its files were written or replaced."""
    write_whole(folder / CHECKSUMS, json.dumps({name: _checksum(folder / name) for name in _files(folder)}))


def damage(folder: Path) -> str | None:
    """The first file of a folder that is missing, unknown, or not as it was written; None where there is none."""
    try:
        expected: dict[str, int] = dict(json.loads((folder / CHECKSUMS).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return CHECKSUMS
    for name in sorted({*expected, *_files(folder)}):
        try:
            if _checksum(folder / name) != expected.get(name):
                return name
        except OSError:
            return name
    return None


def _files(folder: Path) -> list[str]:
    """The files of a folder but for the checksums, by their paths within it."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != CHECKSUMS)
    return sorted(path.relative_to(folder).as_posix() for path in files)


def _checksum(path: Path) -> int:
    """The CRC-32 of a file."""
    found = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            found = zlib.crc32(block, found)
    return found


def _clean(cache: Path) -> None:
    """Removes what processes left that were killed long ago."""
    for left in cache.glob(f"*{PARTIAL}"):
        with suppress(OSError):  # another process may be renaming it
            if time.time() - left.stat().st_mtime > DAY:
                shutil.rmtree(left)
