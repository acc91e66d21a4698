"""Checks of arguments that are passed from Python."""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from numbers import Integral, Real
from typing import Any

from ..core.errors import MalformedError, RangeError, shown
from ..storage.files import is_text

LARGEST = 2.0**126
"""The largest number of a setting, 8.5e37: float32 holds it and its inverse, 1.2e-38, without loss of digits."""


def check_text(value: object, name: str) -> None:
    """Raise InputError if ``value`` is not a string, or has no UTF-8 encoding; the message begins with ``name``."""
    if not isinstance(value, str):
        raise RangeError(f"{name}: {shown(value)} is of type {type(value).__name__}; give a string")
    if not is_text(value):
        raise MalformedError(f"{name}: {shown(value)} is not UTF-8 text; remove its surrogate characters")


def iterate_items(items: object, name: str) -> Iterator[Any]:
    """Iterate over several inputs; raise InputError for a single text, a mapping, or what is not iterable."""
    if isinstance(items, str | bytes):
        raise RangeError(f"{name}: {shown(items)} is a single text; give a list of texts, such as [text]")
    if not isinstance(items, Iterable) or isinstance(items, Mapping):
        raise RangeError(f"{name}: {shown(items)} is of type {type(items).__name__}; give a list of texts")
    return iter(items)


def check_integer(name: str, value: object, *, minimum: int | None = None) -> int:
    """Return an integer of any type as Python's; raise InputError for other values, and for less than ``minimum``."""
    if isinstance(value, Integral) and not isinstance(value, bool) and (minimum is None or int(value) >= minimum):
        return int(value)
    limits = "" if minimum is None else f" of at least {minimum}"
    raise RangeError(f"{name}: {shown(value)} is not an integer{limits}; give one")


def check_number(name: str, value: object, kind: str, fits: Callable[[float], bool] = lambda _: True) -> float:
    """Return a real number of any type as a float; ``kind`` says in the message what it must be.

    Raises:
        InputError: the value is no number, it is NaN, it does not fit, it exceeds `LARGEST`, or it is so small that the
            float is 0.
    """
    if isinstance(value, Real) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:  # an integer or a fraction may be larger than any float
            number = math.inf
        if abs(number) <= LARGEST and (number or not value) and fits(number):
            return number
    raise RangeError(f"{name}: {shown(value)} is not {kind}; give one")


def data_name(data: object) -> str:
    """Return the name of some data; raise InputError if it is neither a string nor a path."""
    if not isinstance(data, str | os.PathLike):
        raise RangeError(f"data: {shown(data)} is not a name; give that of a file or a corpus")
    return str(os.fspath(data))
