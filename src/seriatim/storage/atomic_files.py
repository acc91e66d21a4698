"""Files that are whole or not there at all, and JSON that every program reads."""

import errno
import json
import math
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PARTIAL = ".partial"
"""How the names of what is not yet whole end."""


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Where to write a file, which takes the place of ``path`` once it is on the disk; after an error it is gone.

    Raises:
        OSError: with the name of the file, whatever could not be written.
    """
    aside = path.with_name(f"{path.name}.{secrets.token_hex(4)}{PARTIAL}")  # a name that no other process has
    try:
        yield aside
        flush(aside)
        aside.replace(path)
        flush(path.parent)
    except OSError as error:
        full = error.errno is None  # what NumPy says of it
        number = errno.ENOSPC if full else error.errno
        raise OSError(number, os.strerror(number or 0), str(path)) from error
    finally:
        aside.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    if path.is_dir() and os.name != "posix":  # where folders cannot be opened
        return
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, text: str) -> None:
    """Writes UTF-8 text, whole or not at all."""
    with whole(path) as aside:
        aside.write_text(text, encoding="utf-8")


def remove(path: Path) -> None:
    """Removes a file, a folder with all it holds, or a link; what a link leads to stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def to_json(value: Any, *, indent: int | None = None) -> str:
    """JSON without the numbers it does not have: infinity and NaN become null."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
