"""Readers of small files that anybody may have written: only regular files of a bounded size, and only data."""

import json
import os
import stat
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

from ..core.errors import InputError, shown

HEAD_BYTES, GZIP = 4096, b"\x1f\x8b"
"""Number of bytes at the beginning of a file that tell its kind, and how compressed files begin."""


def open_regular(path: Path) -> int:
    """Return a descriptor for reading a regular file or a link to one, without waiting for a pipe.

    Raises:
        OSError, ValueError: the file cannot be opened, it is not a regular file, or the path is not valid.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError("not a regular file")
    return descriptor


def read_head(path: Path) -> bytes | None:
    """Return the first bytes of a regular file, decompressed (gzip) where it is compressed; None if it has none."""
    try:
        with open(open_regular(path), "rb") as file:
            head = file.read(HEAD_BYTES)
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, HEAD_BYTES) if head[:2] == GZIP else head
    except (OSError, ValueError, zlib.error):  # unreadable, or a pipe or a device
        return None


def read_text(path: Path, *, max_bytes: int, remedy: str) -> str:
    """Read a UTF-8 text file of at most ``max_bytes``; ``remedy`` ends the message if that is not possible.

    Raises:
        InputError: the file is missing, not a regular file, too large, or not text.
    """
    try:
        with open(open_regular(path), encoding="utf-8") as file:
            text = file.read(max_bytes + 1) if os.fstat(file.fileno()).st_size <= max_bytes else None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be read ({reason}); {remedy}") from None
    if text is None or len(text) > max_bytes:
        raise InputError(f"{path}: larger than {max_bytes:,} bytes, the limit for such a file; {remedy}")
    return text


def read_json(path: Path, *, max_bytes: int, remedy: str) -> Any:
    """Return the value of a JSON file; as `read_text`, and raise InputError if it is not JSON."""
    text = read_text(path, max_bytes=max_bytes, remedy=remedy)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"{path}: damaged, or not JSON; {remedy}") from None


class DuplicateFieldError(ValueError):
    """A JSON object has a field twice; a JSON reader would silently drop one of the values."""


def unique_fields(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return the fields of a JSON object; raise DuplicateFieldError if two have the same name."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise DuplicateFieldError(f"duplicate field {shown(counts.most_common(1)[0][0])}")
    return fields


def is_text(text: str) -> bool:
    """Return whether a string can be written in UTF-8; JSON can also spell half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
