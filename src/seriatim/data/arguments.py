"""Checks of arguments passed from Python, made before a model sees them."""

import os
from collections.abc import Iterable, Iterator, Mapping
from numbers import Integral
from typing import Any

from ..core.errors import InputError, shown
from ..storage.safe_files import is_text


def check_text(value: object, name: str) -> None:
    """Refuses what is not a text.

    Args:
        value: as the caller gave it.
        name: of the argument, for the message.

    Raises:
        InputError: another type, or a string that has no UTF-8 encoding.
    """
    if not isinstance(value, str):
        raise InputError(f"{name}: expected a string, got {shown(value)} of type {type(value).__name__}")
    if not is_text(value):
        raise InputError(f"{name}: {shown(value)} is not UTF-8 text; remove its surrogate characters")


def iterate_items(items: Any, name: str) -> Iterator[Any]:
    """An iterator over several inputs.

    Raises:
        InputError: a single string, whose characters would be read as inputs, a mapping, whose keys would be, or a
            value that is not iterable.
    """
    if isinstance(items, str | bytes):
        raise InputError(f"{name}: expected a list of texts, got the single text {shown(items)}; pass [text]")
    if not isinstance(items, Iterable) or isinstance(items, Mapping):
        raise InputError(f"{name}: expected a list of texts, got {shown(items)} of type {type(items).__name__}")
    return iter(items)


def check_integer(name: str, value: object, *, least: int | None = None) -> None:
    """Raises InputError unless ``value`` is an integer and, where ``least`` is given, at least that."""
    fits = isinstance(value, Integral) and not isinstance(value, bool) and (least is None or int(value) >= least)
    if not fits:
        limits = "" if least is None else f" of at least {least}"
        raise InputError(f"{name}: must be an integer{limits}, got {shown(value)}")


def data_name(data: object) -> str:
    """The name of some data, which may also be given as a path.

    Raises:
        InputError: neither.
    """
    if not isinstance(data, str | os.PathLike):
        raise InputError(f"data: expected the name of a file or a corpus, got {shown(data)}")
    return str(os.fspath(data))
