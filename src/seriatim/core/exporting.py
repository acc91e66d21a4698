"""Whether a model is being written for another program.

Python code then runs once, with tensors whose sizes and values are not known, so that nothing may depend on them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_exporting = ContextVar("exporting", default=False)


def exporting() -> bool:
    """Return whether a model is being exported."""
    return _exporting.get()


@contextmanager
def as_export() -> Iterator[None]:
    """Run what is inside the context for an export."""
    token = _exporting.set(True)
    try:
        yield
    finally:
        _exporting.reset(token)
