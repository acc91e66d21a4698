"""The keys and values of past inputs, a state that grows without a copy at every step.

The state shows a part of a larger buffer. A step writes new entries behind this part and returns a state that shows one
more entry; the state it was given still shows the same entries. Where the next place is already taken, because two
texts continue from one state (perhaps in two threads), or the buffer is full, the entries move to a new buffer of twice
the size. Gradients need the past entries unchanged: while they are recorded, the entries are copied instead.
"""

from threading import Lock
from typing import NamedTuple

import torch
from torch import Tensor

MIN_CAPACITY = 64
_claiming = Lock()


class Buffer:
    """Memory for entries ``(batch, heads, capacity, size)``, of which the first ``filled`` places are taken."""

    def __init__(self, entries: Tensor, needed: int) -> None:
        capacity = max(2 * needed, MIN_CAPACITY)
        self.memory = entries.new_empty(*entries.shape[:2], capacity, entries.shape[3])
        self.filled = entries.shape[2]
        self.memory[:, :, : self.filled] = entries

    def claim(self, start: int, size: int) -> bool:
        """Take the places from ``start`` on if they are the first free ones and can be written; tell whether."""
        if self.memory.is_inference() and not torch.is_inference_mode_enabled():
            return False
        with _claiming:
            free = self.filled == start and start + size <= self.memory.shape[2]
            self.filled += size if free else 0
        return free


class Entries(NamedTuple):
    """Keys and values ``(batch, heads, entries, size)``, the newest last, and where they end in a buffer, if in one."""

    values: Tensor
    buffer: Buffer | None = None
    end: int = 0


class _Leaves(NamedTuple):
    kept: Tensor  # keys and values (batch, heads, entries, size), the newest last
    seen: Tensor  # the number of inputs read so far (batch,), including those whose entries were dropped


class KeyValueCache(_Leaves):
    """The state of attention; shorter rows are zero in front."""

    buffer: Buffer | None = None  # that `kept` is a part of
    end: int = 0  # of `kept` in the buffer

    @classmethod
    def of(cls, entries: Entries, seen: Tensor) -> "KeyValueCache":
        """Return the state with these entries."""
        state = cls(entries.values, seen)
        state.buffer, state.end = entries.buffer, entries.end
        return state


def append(past: Entries, new: Tensor) -> Entries:
    """Append ``(batch, heads, time, size)`` to the past entries."""
    values, buffer, end = past
    count, time = values.shape[2], new.shape[2]
    if time == 0:
        return past
    if count == 0:
        values = new[:, :, :0]
    if torch.is_grad_enabled() or values.dtype != new.dtype:
        return Entries(torch.cat([values, new], dim=2) if count else new)
    if buffer is None or not buffer.claim(end, time):
        buffer, end = Buffer(values, count + time), count
        buffer.claim(end, time)
    buffer.memory[:, :, end : end + time] = new
    return Entries(buffer.memory[:, :, end - count : end + time], buffer, end + time)


def newest(entries: Entries, size: int) -> Entries:
    """Return the last ``size`` entries."""
    dropped = entries.values.shape[2] - size
    if dropped <= 0:
        return entries
    if dropped > size + MIN_CAPACITY:  # a part of the buffer would hold all the others in memory
        return Entries(entries.values[:, :, dropped:].clone())
    return entries._replace(values=entries.values[:, :, dropped:])


def newest_of_each(values: Tensor, valid: Tensor, end: Tensor, size: int) -> Tensor:
    """Return at most ``size`` of the newest entries of every row, moved so that all rows end together.

    Rows of ``values (batch, heads, time, size)`` have ``valid (batch,)`` entries, which end at ``end (batch,)``.
    """
    valid = valid.clamp(max=size)
    width = int(valid.max()) if len(valid) else 0
    index = end.unsqueeze(1) - width + torch.arange(width, device=values.device)  # (B, width)
    taken = index >= (end - valid).unsqueeze(1)
    index = index.clamp(min=0).view(len(valid), 1, width, 1).expand(-1, values.shape[1], -1, values.shape[3])
    return values.gather(2, index).masked_fill(~taken.view(len(valid), 1, width, 1), 0)
