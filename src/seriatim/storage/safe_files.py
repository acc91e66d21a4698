"""Small files that anybody may have written: regular ones, read up to a bound, and nothing but data."""

import json
import os
import stat
from pathlib import Path
from typing import Any

from ..core.errors import InputError


def open_regular(path: Path) -> int:
    """A descriptor for reading a regular file, or what a link to one leads to. A pipe is not waited for.

    Raises:
        OSError: it cannot be opened.
        ValueError: it is no regular file, or its name is none.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError("not a regular file")
    return descriptor


def read_text(path: Path, *, most: int, hint: str) -> str:
    """The text of a file in UTF-8.

    Args:
        path: of the file.
        most: bytes it may have.
        hint: what to do where it cannot be read.

    Raises:
        InputError: it is missing, no regular file, too large, or no text.
    """
    try:
        with open(open_regular(path), encoding="utf-8") as file:
            text = file.read(most + 1) if os.fstat(file.fileno()).st_size <= most else None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be read ({reason}); {hint}") from None
    if text is None or len(text) > most:
        raise InputError(f"{path}: larger than {most:,} bytes, which none of its kind is; {hint}")
    return text


def read_json(path: Path, *, most: int, hint: str) -> Any:
    """The value of a JSON file; arguments as of `read_text`.

    Raises:
        InputError: also where it is not JSON.
    """
    text = read_text(path, most=most, hint=hint)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"{path}: damaged, or not JSON; {hint}") from None


def is_text(text: str) -> bool:
    """Whether it can be written in UTF-8: JSON also spells halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
