"""Checks of arguments that are passed from Python."""

import os
from collections.abc import Iterable, Iterator, Mapping
from numbers import Integral
from typing import Any

from ..core.errors import InputError, shown
from ..storage.safe_files import is_text


def check_text(value: object, name: str) -> None:
    """Raise InputError if ``value`` is not a string, or has no UTF-8 encoding; the message begins with ``name``."""
    if not isinstance(value, str):
        raise InputError(f"{name}: expected a string, got {shown(value)} of type {type(value).__name__}")
    if not is_text(value):
        raise InputError(f"{name}: {shown(value)} is not UTF-8 text; remove its surrogate characters")


def iterate_items(items: object, name: str) -> Iterator[Any]:
    """Iterate over several inputs; raise InputError for a single text, a mapping, or what is not iterable."""
    if isinstance(items, str | bytes):
        raise InputError(f"{name}: expected a list of texts, got the single text {shown(items)}; pass [text]")
    if not isinstance(items, Iterable) or isinstance(items, Mapping):
        raise InputError(f"{name}: expected a list of texts, got {shown(items)} of type {type(items).__name__}")
    return iter(items)


def check_integer(name: str, value: object, *, minimum: int | None = None) -> None:
    """Raise InputError if ``value`` is not an integer, or is less than ``minimum``."""
    fits = isinstance(value, Integral) and not isinstance(value, bool) and (minimum is None or int(value) >= minimum)
    if not fits:
        limits = "" if minimum is None else f" of at least {minimum}"
        raise InputError(f"{name}: must be an integer{limits}, got {shown(value)}")


def data_name(data: object) -> str:
    """Return the name of some data; raise InputError if it is neither a string nor a path."""
    if not isinstance(data, str | os.PathLike):
        raise InputError(f"data: expected the name of a file or a corpus, got {shown(data)}")
    return str(os.fspath(data))
