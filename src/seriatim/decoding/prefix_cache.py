"""States after the beginnings of texts, so that a beginning that texts share is read once.

A state says all that a model knows of what it has read. For recurrent models it has the same size after any number of
tokens. The states of attention after several beginnings of one text are views of the same keys and values, whose memory
counts once.
"""

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from torch import Tensor

from ..core.key_value_cache import KeyValueCache
from ..core.state import State, map_state, state_leaves, with_parts

MAX_BYTES = 1 << 26
VIEW = 2
"""A tensor that is a view of one more than this many times as large is copied."""


class Beginning(NamedTuple):
    """The state after some tokens, and the logits of the next token ``(1, vocabulary)`` if they were computed."""

    state: State
    logits: Tensor | None = None


class PrefixCache:
    """The states of the beginnings that were used last.

    Args:
        window: a beginning is a whole text, or its first k · ``window`` tokens.
        max_bytes: largest size of the states; the ones that were not used for the longest time are removed.
    """

    def __init__(self, window: int, max_bytes: int = MAX_BYTES) -> None:
        self.window, self.max_bytes, self.bytes = window, max_bytes, 0
        self._entries: OrderedDict[bytes, Beginning] = OrderedDict()
        self._users: Counter[int] = Counter()  # entries that use a memory, by its address

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, ids: np.ndarray) -> tuple[int, Beginning | None]:
        """Return the longest known beginning of some tokens with its length, or 0 and None.

        That of the whole text counts only if it has logits.
        """
        for length, key in reversed(list(self._keys(ids))):
            entry = self._entries.get(key)
            if entry is not None and (length < len(ids) or entry.logits is not None):
                self._entries.move_to_end(key)
                return length, entry
        return 0, None

    def add(self, ids: np.ndarray, beginning: Beginning) -> None:
        """Remember the state after some tokens, and remove others if there is no room."""
        *_, (_, key) = self._keys(ids)
        known = self._entries.get(key)
        if known is not None and (known.logits is not None or beginning.logits is None):
            self._entries.move_to_end(key)
            return
        if known is not None:
            self._remove(key)
        entry = Beginning(_without_large_memory(beginning.state), beginning.logits)
        memories = _memories(entry)
        if sum(memories.values()) > self.max_bytes:
            return
        self._entries[key] = entry
        for address, size in memories.items():
            self._users[address] += 1
            self.bytes += size if self._users[address] == 1 else 0
        while self.bytes > self.max_bytes:
            self._remove(next(iter(self._entries)))

    def clear(self) -> None:
        """Forget all beginnings."""
        self._entries.clear()
        self._users.clear()
        self.bytes = 0

    def _remove(self, key: bytes) -> None:
        for address, size in _memories(self._entries.pop(key)).items():
            self._users[address] -= 1
            if not self._users[address]:
                del self._users[address]
                self.bytes -= size

    def _keys(self, ids: np.ndarray) -> Iterator[tuple[int, bytes]]:
        """Yield the lengths of all beginnings of some tokens, shortest first, with their keys."""
        digest = hashlib.blake2b(digest_size=16)
        for start in range(0, len(ids), self.window):
            part = ids[start : start + self.window]
            digest.update(part.tobytes())
            yield start + len(part), digest.digest()


def _without_large_memory(state: State) -> State:
    """Copy the tensors that keep much more memory alive than they need; keys and values stay in their buffer."""
    if isinstance(state, KeyValueCache):
        return state
    if not isinstance(state, Tensor):
        return with_parts(state, map(_without_large_memory, state))
    is_view = state.untyped_storage().nbytes() > VIEW * state.numel() * state.element_size()
    return map_state(Tensor.clone, state) if is_view else state


def _memories(entry: Beginning) -> dict[int, int]:
    """Return the sizes in bytes of the memories that an entry uses, by address."""
    tensors = [*state_leaves(entry.state), *([] if entry.logits is None else [entry.logits])]
    storages = [tensor.untyped_storage() for tensor in tensors]
    return {storage.data_ptr(): storage.nbytes() for storage in storages if storage.nbytes()}
