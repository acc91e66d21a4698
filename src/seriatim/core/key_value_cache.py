"""The keys and values of past inputs, a state that grows without a copy at every step; and those of a memory.

The state is a view of a larger buffer. A step writes new entries behind this view and returns a state that shows one
more entry; the state it was given still shows the same entries. Where the next slot is already taken, because two
texts continue from one state (perhaps in two threads), or the buffer is full, the entries move to a new buffer of twice
the size. Gradients need the past entries unchanged: while they are recorded, the entries are copied instead.
"""

import itertools
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import NamedTuple, Self

import torch
from torch import Tensor

from .exporting import exporting
from .state import S, State, with_children

MIN_CAPACITY = 64
_claiming = Lock()


class EntryBuffer:
    """Memory for entries ``(batch, heads, capacity, size)``, of which the first ``filled`` slots are taken."""

    def __init__(self, entries: Tensor, needed: int) -> None:
        capacity = max(2 * needed, MIN_CAPACITY)
        self.memory = entries.new_empty(*entries.shape[:2], capacity, entries.shape[3])
        self.filled = entries.shape[2]
        self.memory[:, :, : self.filled] = entries

    def claim(self, start: int, size: int) -> bool:
        """Take the slots from ``start`` on if they are the first free ones and can be written; tell whether."""
        if self.memory.is_inference() and not torch.is_inference_mode_enabled():
            return False
        with _claiming:
            free = self.filled == start and start + size <= self.memory.shape[2]
            self.filled += size if free else 0
        return free


class _Leaves(NamedTuple):
    kept: Tensor  # keys and values (batch, heads, entries, size), the newest last
    seen: Tensor  # the number of inputs read so far (batch,), including those whose entries were dropped


class KeyValueCache(_Leaves):
    """The state of attention, of which each layer has a type of its own; shorter rows are zero in front."""

    buffer: EntryBuffer | None = None  # that `kept` is a view of
    end: int = 0  # of `kept` in the buffer

    @classmethod
    def of(cls, kept: Tensor, seen: Tensor, buffer: EntryBuffer | None, end: int) -> Self:
        """Return the state whose entries are a view of a buffer."""
        state = cls(kept, seen)
        state.buffer, state.end = buffer, end
        return state


class KeyValueMemory(NamedTuple):
    """Heads of keys, then of values ``kept (batch, 2 · heads, time, size)``, and their ``lengths (batch,)``."""

    kept: Tensor
    lengths: Tensor


class MemoryRows(NamedTuple):
    """Entries of a memory ``(batch, time, size)``, or weights of it ``(batch, time)``.

    A state names such leaves, whose size differs from source to source, in ``memory_fields``.
    """

    entries: Tensor


def memories_of(state: State) -> frozenset[int]:
    """Return which leaves of a state are memories, weights of them or their lengths."""
    return frozenset(i for i, is_memory in enumerate(_is_memory((state,), ())) if is_memory)


def _is_memory(state: tuple[State, ...], fields: Sequence[str]) -> Iterator[bool]:
    """Say of each leaf whether it is one that ``fields`` names, or their lengths."""
    for name, child in zip(getattr(state, "_fields", itertools.repeat("")), state, strict=False):
        if isinstance(child, Tensor):
            yield bool(fields) and (name in fields or not child.is_floating_point())
        else:
            yield from _is_memory(child, getattr(child, "memory_fields", ()))


def append(past: KeyValueCache, new: Tensor, seen: Tensor) -> KeyValueCache:
    """Append entries ``(batch, heads, time, size)``, after which each row has read ``seen (batch,)`` inputs."""
    values, time = past.kept, new.shape[2]
    count = values.shape[2]
    if count == 0:
        values = new[:, :, :0]
    if torch.is_grad_enabled() or values.dtype != new.dtype or exporting():
        return type(past)(torch.cat([values, new], dim=2) if count else new, seen)
    buffer, end = reserve(past, values, time)
    buffer.memory[:, :, end : end + time] = new
    return extended(past, seen, buffer, end, time)


def reserve(past: KeyValueCache, values: Tensor, time: int) -> tuple[EntryBuffer, int]:
    """Return a buffer that holds the past entries ``values``, and where ``time`` new ones belong in it."""
    buffer, end = past.buffer, past.end
    if buffer is None or not buffer.claim(end, time):
        end = values.shape[2]
        buffer = EntryBuffer(values, end + time)
        buffer.claim(end, time)
    return buffer, end


def extended(past: KeyValueCache, seen: Tensor, buffer: EntryBuffer, end: int, time: int) -> KeyValueCache:
    """Return the cache with ``time`` new entries, which have been written to a buffer from ``end`` on."""
    first = end - past.kept.shape[2]
    return past.of(buffer.memory[:, :, first : end + time], seen, buffer, end + time)


def newest(cache: KeyValueCache, size: int) -> KeyValueCache:
    """Return the cache with its last ``size`` entries."""
    dropped = cache.kept.shape[2] - size
    if dropped <= 0:
        return cache
    kept = cache.kept[:, :, dropped:]
    if dropped > size + MIN_CAPACITY:  # a view of the buffer would hold all the others in memory
        return type(cache)(kept.clone(), cache.seen)
    return cache.of(kept, cache.seen, cache.buffer, cache.end)


def without_unused(state: S) -> S:
    """Return a state whose caches have no more entries than the row that has read most of the inputs needs."""
    if isinstance(state, KeyValueCache):
        return newest(state, int(state.seen.max()) if len(state.seen) else 0)  # type: ignore[return-value]
    if isinstance(state, Tensor):
        return state
    return with_children(state, map(without_unused, state))


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
