"""Files that are written completely or not at all, and JSON that every program can read."""

import errno
import json
import math
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

LINE_ENDS = re.compile("[\x85\u2028\u2029]")  # those that JSON may hold as they are
PARTIAL = ".partial"  # the suffix of files that are not complete


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a temporary path; the file there replaces ``path``, or is removed after an error, which names ``path``."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}{PARTIAL}")  # unique among processes
    try:
        yield temporary
        flush(temporary)
        temporary.replace(path)
        flush(path.parent)
    except OSError as error:
        if error.filename is not None and not str(error.filename).startswith(str(temporary)):
            raise  # about another file
        number = errno.ENOSPC if error.errno is None else error.errno  # NumPy reports a full disk without a number
        raise OSError(number, os.strerror(number or 0), str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    if path.is_dir() and os.name != "posix":  # other systems cannot open folders
        return
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, text: str) -> None:
    """Write UTF-8 text, completely or not at all."""
    with whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_all(file: BinaryIO, content: bytes) -> None:
    """Write to a file without a buffer, into which one call may write a part only if the disk is nearly full."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) or 0 :]


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder with its contents; the target of a link is not removed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def json_line(value: object) -> str:
    """Return JSON on one line, also for readers that end lines as `str.splitlines` does; see `to_json`."""
    text = json.dumps(json_value(value), ensure_ascii=False, allow_nan=False)
    return LINE_ENDS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def to_json(value: object, *, indent: int | None = None) -> str:
    """Return JSON in which infinity and NaN, which JSON does not have, are null."""
    return json.dumps(json_value(value), indent=indent, allow_nan=False)


def json_value(value: object) -> object:
    """Return a value as JSON holds it: numbers that are infinite or NaN are None, also in lists and dictionaries."""
    if isinstance(value, dict):
        return {key: json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
