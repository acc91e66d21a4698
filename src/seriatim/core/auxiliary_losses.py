"""Losses that layers ask for beside the task's own, such as the load balance of a mixture of experts.

A layer calls `contribute`; whoever trains it opens `collect` around the forward pass and adds what was found. Outside
`collect` nothing is kept, so that no module holds anything between calls.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

_collected: ContextVar[list[Tensor] | None] = ContextVar("collected", default=None)


@contextmanager
def collect() -> Iterator[list[Tensor]]:
    """Gathers, in order, the scalars that layers contribute inside the ``with`` block."""
    found: list[Tensor] = []
    token = _collected.set(found)
    try:
        yield found
    finally:
        _collected.reset(token)


def contribute(loss: Tensor) -> None:
    """Adds a scalar to the objective of the training under way, if there is one."""
    found = _collected.get()
    if found is not None:
        found.append(loss)
