"""Values that hold within a ``with`` block, for the present thread or task: what a caller far above has decided."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def temporarily(variable: ContextVar[T], value: T) -> Iterator[T]:
    """Give a context variable another value inside the ``with`` block."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)
