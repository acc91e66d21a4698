"""The keys and values that attention keeps: a state that grows without being copied at every step.

What is kept is a view of a buffer with room behind it. A step writes into the room and gives a longer view; the state
given to it, the shorter view, does not change. Where the room is taken already, because two texts go on from one state
(in two threads, perhaps), or there is none, what is kept moves to a buffer twice its size. Gradients need the past as
it was: while they are recorded, what is kept is copied instead.
"""

from threading import Lock
from typing import NamedTuple

import torch
from torch import Tensor

LEAST_ROOM = 64
_claiming = Lock()


class KeptInputs(NamedTuple):
    """What attention keeps of each row.

    Attributes:
        kept: keys and values ``(batch, heads, kept, size)``, the newest last, shorter rows zero in front.
        seen: inputs read so far ``(batch,)``, those no longer kept included.
    """

    kept: Tensor
    seen: Tensor


class _Room:
    """A buffer of which the first ``filled`` places are taken."""

    def __init__(self, past: Tensor, needed: int) -> None:
        capacity = max(2 * needed, LEAST_ROOM)
        self.buffer = past.new_empty(*past.shape[:2], capacity, past.shape[3])
        self.filled = past.shape[2]
        self.buffer[:, :, : self.filled] = past

    def claim(self, start: int, size: int) -> bool:
        """Takes the places from ``start`` on, if these are the first that are free, and may be written."""
        if self.buffer.is_inference() and not torch.is_inference_mode_enabled():
            return False
        with _claiming:
            free = self.filled == start and start + size <= self.buffer.shape[2]
            self.filled += size if free else 0
        return free

    def view(self, start: int, end: int) -> Tensor:
        """What stands in these places; it knows the room behind it."""
        seen = self.buffer[:, :, start:end]
        seen.room, seen.room_end = self, end  # type: ignore[attr-defined]
        return seen


def append(past: Tensor, new: Tensor) -> Tensor:
    """``(batch, heads, kept, size)`` and ``(batch, heads, time, size)`` to ``(batch, heads, kept + time, size)``."""
    kept, time = past.shape[2], new.shape[2]
    if time == 0:
        return past
    if kept == 0:
        past = new[:, :, :0]
    if torch.is_grad_enabled() or past.dtype != new.dtype:
        return torch.cat([past, new], dim=2) if kept else new
    room: _Room | None = getattr(past, "room", None)
    start: int = getattr(past, "room_end", kept)
    if room is None or not room.claim(start, time):
        room, start = _Room(past, kept + time), kept
        room.claim(start, time)
    room.buffer[:, :, start : start + time] = new
    return room.view(start - kept, start + time)


def newest(kept: Tensor, size: int) -> Tensor:
    """The last ``size`` entries of ``(batch, heads, kept, size)``, with the room behind them.

    Where they are few among many they are copied, as a view would keep all the others in memory.
    """
    dropped = kept.shape[2] - size
    if dropped <= 0:
        return kept
    if dropped > size + LEAST_ROOM:
        return kept[:, :, dropped:].clone()
    room: _Room | None = getattr(kept, "room", None)
    if room is None:
        return kept[:, :, dropped:]
    end: int = kept.room_end  # type: ignore[attr-defined]
    return room.view(end - size, end)


def newest_of_each(kept: Tensor, valid: Tensor, end: Tensor, size: int) -> Tensor:
    """The newest entries of rows that end at different places, moved so that all end together.

    Args:
        kept: ``(batch, heads, time, size)``.
        valid: entries of each row, ``(batch,)``.
        end: where they end, ``(batch,)``.
        size: at most so many of each.
    """
    valid = valid.clamp(max=size)
    width = int(valid.max()) if len(valid) else 0
    index = end.unsqueeze(1) - width + torch.arange(width, device=kept.device)  # (B, width)
    taken = index >= (end - valid).unsqueeze(1)
    index = index.clamp(min=0).view(len(valid), 1, width, 1).expand(-1, kept.shape[1], -1, kept.shape[3])
    return kept.gather(2, index).masked_fill(~taken.view(len(valid), 1, width, 1), 0)
