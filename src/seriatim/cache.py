"""Where derived data is kept, and how a folder appears there whole or not at all."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


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

    It is filled under another name and renamed, so that a reader never sees half of it.
    """
    folder = cache_folder() / name
    if folder.is_dir():
        return folder
    aside = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=folder.parent))
    try:
        make(aside)
        try:
            aside.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was quicker, with the same content
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return folder
