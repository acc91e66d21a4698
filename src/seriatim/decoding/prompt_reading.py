"""Read prompts window by window, so that texts in progress continue in between, and read a shared prefix once.

A state says all that a model knows of what it has read. For recurrent models it has the same size after any number of
tokens. The states of attention after several prefixes of one text are views of the same keys and values, whose memory
counts once.
"""

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.key_value_cache import KeyValueCache
from ..core.state import State, map_state, state_bytes, state_leaves, with_parts
from ..models.base_models import TextModel
from .sampling import CandidateScore, TextState, score_tokens

FEW_PARAMETERS = 20_000_000
SCORED_LOGITS = 1 << 24
"""Logits that are held at once while a prompt is scored."""
MAX_BYTES = 1 << 26
VIEW = 2
"""A tensor that is a view of one more than this many times as large is copied."""


class CachedPrefix(NamedTuple):
    """The state after some tokens, and the logits of the next token ``(1, vocabulary)`` if they were computed."""

    state: State
    logits: Tensor | None = None


class PrefixCache:
    """The states after the prefixes of texts that were used last.

    Args:
        window: a prefix is a whole text, or its first k · ``window`` tokens.
        max_bytes: largest size of the states; the ones that were not used for the longest time are removed.
    """

    def __init__(self, window: int, max_bytes: int = MAX_BYTES) -> None:
        self.window, self.max_bytes, self.bytes = window, max_bytes, 0
        self._entries: OrderedDict[bytes, CachedPrefix] = OrderedDict()
        self._users: Counter[int] = Counter()  # entries that use a memory, by its address

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, ids: np.ndarray) -> tuple[int, CachedPrefix | None]:
        """Return the longest known prefix of some tokens with its length, or 0 and None.

        That of the whole text counts only if it has logits.
        """
        for length, key in reversed(list(self._keys(ids))):
            entry = self._entries.get(key)
            if entry is not None and (length < len(ids) or entry.logits is not None):
                self._entries.move_to_end(key)
                return length, entry
        return 0, None

    def add(self, ids: np.ndarray, prefix: CachedPrefix) -> None:
        """Remember the state after some tokens, and remove others if there is no room."""
        # An entry without logits is replaced by one that has them, since only the latter can begin a generation.
        *_, (_, key) = self._keys(ids)
        known = self._entries.get(key)
        if known is not None and (known.logits is not None or prefix.logits is None):
            self._entries.move_to_end(key)
            return
        if known is not None:
            self._remove(key)

        # What several entries share counts once, and an entry larger than the whole cache would only empty it.
        entry = CachedPrefix(_without_large_memory(prefix.state), prefix.logits)
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
        """Forget all prefixes."""
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
        """Yield the lengths of all prefixes of some tokens, shortest first, with their keys."""
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


def _memories(entry: CachedPrefix) -> dict[int, int]:
    """Return the sizes in bytes of the memories that an entry uses, by address."""
    tensors = [*state_leaves(entry.state), *([] if entry.logits is None else [entry.logits])]
    storages = [tensor.untyped_storage() for tensor in tensors]
    return {storage.data_ptr(): storage.nbytes() for storage in storages if storage.nbytes()}


def prompt_window(model: TextModel) -> int:
    """Return the number of tokens of a prompt that are read at once.

    More would be faster, but texts in progress wait in the meantime. The number depends on the model alone, so that the
    same prompt is always read in the same parts, with the same rounding.
    """
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return 256 if parameters <= FEW_PARAMETERS else 128


class PromptReader:
    """A prompt that is being read.

    Args:
        model: a language model in evaluation mode.
        tokens: those of the prompt, after what ``start`` has read.
        start: the text before the prompt; None for a new text.
        cache: the states after known prefixes, and where new ones are kept.
        scored: the number of alternatives to return with the score of each token; None for no scores.

    Attributes:
        state: of the model, after the tokens that have been read.
        logits: of the next token ``(1, vocabulary)``; None before all tokens have been read, or if the model has none.
        cached: the number of tokens that were not read because their state was known.
        scores: of the tokens that have been read, except for the first one if nothing predicts it.
    """

    def __init__(
        self,
        model: TextModel,
        tokens: Sequence[int],
        cache: PrefixCache,
        *,
        start: TextState | None = None,
        scored: int | None = None,
    ) -> None:
        self.model, self.cache, self.scored = model, cache, scored
        unread = () if start is None else start.unread
        self.ids = np.array([*unread, *tokens], dtype=np.int64)
        self.scores: list[CandidateScore] = []
        self.position = self.cached = 0
        self._uses_cache = start is None and scored is None
        self.logits: Tensor | None = None if start is None else start.logits
        self.state: State = model.initial_state(1) if start is None else start.state
        self._first_bytes = state_bytes(self.state)
        if self._uses_cache:
            length, known = cache.find(self.ids)
            if known is not None:
                self.state, self.position, self.cached = known.state, length, length
                self.logits = known.logits if length == len(self.ids) else None

    @property
    def is_complete(self) -> bool:
        """Whether all tokens have been read."""
        return self.position == len(self.ids)

    @property
    def growth(self) -> float:
        """The bytes that the state grew by with each token, on average."""
        return max(0, state_bytes(self.state) - self._first_bytes) / max(1, self.position)

    @torch.inference_mode()
    def read_window(self) -> int:
        """Read the next tokens, and return their number."""
        start, end = self.position, min(len(self.ids), self.position + self.cache.window)
        if self.scored is not None:
            self._score(start, end)
        elif end < len(self.ids):
            self.state = self.model.advance(self._tokens(start, end), self.state)
        else:
            self.logits, self.state = self.model.read(self._tokens(start, end), self.state)
        if self._uses_cache:
            self.cache.add(self.ids[:end], CachedPrefix(self.state, self.logits))
        self.position = end
        return end - start

    def _score(self, start: int, end: int) -> None:
        """Read tokens with the logits after each of them."""
        size = max(1, SCORED_LOGITS // self.model.vocabulary_size)
        for first in range(start, end, size):
            last = min(end, first + size)
            logits, self.state = self.model(self._tokens(first, last), self.state)
            logits = logits[0]  # (T, V)
            before = logits[:-1] if self.logits is None else torch.cat([self.logits, logits[:-1]])
            self.scores += score_tokens(
                self.model, before, self.ids[last - len(before) : last].tolist(), self.scored or 0
            )
            self.logits = logits[-1:].clone()  # a view would keep those of the whole window

    def _tokens(self, start: int, end: int) -> Tensor:
        return torch.from_numpy(self.ids[start:end]).unsqueeze(0).to(self.model.device)
