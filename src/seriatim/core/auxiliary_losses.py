"""Losses that layers add to the loss of the task, such as the load balance of a mixture of experts.

A layer calls `contribute`. The training loop runs the forward pass inside `collect` and adds the collected losses.
Outside `collect` the losses are dropped, so that no module holds anything between calls.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

_collected: ContextVar[list[Tensor] | None] = ContextVar("collected", default=None)


@contextmanager
def collect() -> Iterator[list[Tensor]]:
    """Collect, in order, the scalars that layers contribute inside the ``with`` block."""
    losses: list[Tensor] = []
    token = _collected.set(losses)
    try:
        yield losses
    finally:
        _collected.reset(token)


def contribute(loss: Tensor) -> None:
    """Add a scalar to the loss of the current training step; outside of training this does nothing."""
    losses = _collected.get()
    if losses is not None:
        losses.append(loss)
