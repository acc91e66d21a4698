"""Where derived data is kept, and how a folder appears there whole or not at all."""

import glob
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from .files import flush

DAY = 24 * 60 * 60


def cache_folder() -> Path:
    """``$SERIATIM_CACHE``, else the user's cache folder, else (if neither can be written) a temporary one."""
    named = os.environ.get("SERIATIM_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(named) if named else Path(base) / "seriatim"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        folder = Path(tempfile.gettempdir()) / "seriatim-cache"
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """The folder ``name`` of the cache; ``make`` fills it where it is missing.

    It is filled under another name, flushed and renamed, so that a reader never sees half of it. What a process that
    was killed left half filled goes after a day.
    """
    folder = cache_folder() / name
    if folder.is_dir():
        return folder
    for left in folder.parent.glob(f"{glob.escape(name)}.*"):
        if time.time() - left.stat().st_mtime > DAY:
            shutil.rmtree(left, ignore_errors=True)
    aside = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=folder.parent))
    try:
        make(aside)
        for path in (*aside.iterdir(), aside):
            flush(path)
        try:
            aside.rename(folder)
            flush(folder.parent)
        except OSError:
            if not folder.is_dir():  # else another process was quicker, with the same content
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return folder
