"""Files that are whole or not there at all, and JSON that every program reads."""

import json
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Where to write a file, which takes the place of ``path`` once it is on the disk; after an error it is gone."""
    aside = path.with_name(path.name + ".partial")
    aside.unlink(missing_ok=True)  # a link there would have its target written over
    try:
        yield aside
        flush(aside)
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    flush(path.parent)


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
