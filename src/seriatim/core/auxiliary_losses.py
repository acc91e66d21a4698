"""Losses that layers add to the loss of the task, such as the load balance of a mixture of experts.

A layer calls `contribute`. The training loop runs the forward pass inside `collect` and adds the collected losses.
Outside `collect` the losses are dropped, so that no module holds anything between calls.
"""

from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import cast

from torch import Tensor

from .context_values import temporarily

_collected: ContextVar[list[Tensor] | None] = ContextVar("collected", default=None)


def collect() -> AbstractContextManager[list[Tensor]]:
    """Collect, in order, the scalars that layers contribute inside the ``with`` block."""
    return cast("AbstractContextManager[list[Tensor]]", temporarily(_collected, []))


def contribute(loss: Tensor) -> None:
    """Add a scalar to the loss of the current training step; outside of training this does nothing."""
    losses = _collected.get()
    if losses is not None:
        losses.append(loss)
