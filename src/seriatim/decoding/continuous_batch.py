"""Generate many texts in one batch that texts leave as they end and others enter.

Each text has its own prompt, seed and settings. Its tokens are those that it would have alone: no step mixes rows.
Prompts are read window by window between the steps, so that texts in progress continue, and a shared prefix is read
once.
"""

import hashlib
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..core.key_value_cache import KeyValueCache, without_unused
from ..core.state import State, map_state, select_state, state_bytes, state_leaves, with_children
from ..layers.positions import learned_positions
from ..models.base_models import TextModel
from .sampling import CandidateScore, TextBatch, TextRequest, TextRow, TextState, score_tokens

# Reading prompts. A state says all that a model knows of what it has read. For recurrent models it has the same size
# after any number of tokens. The states of attention after several prefixes of one text are views of the same keys and
# values, whose memory counts once.

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
            block = ids[start : start + self.window]
            digest.update(block.tobytes())
            yield start + len(block), digest.digest()


def _without_large_memory(state: State) -> State:
    """Copy the tensors that keep much more memory alive than they need; keys and values stay in their buffer."""
    if isinstance(state, KeyValueCache):
        return state
    if not isinstance(state, Tensor):
        return with_children(state, map(_without_large_memory, state))
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
    same prompt is always read in the same blocks, with the same rounding.
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


# The batch.

MEMORY = 1 << 28
"""Largest size of a batch in bytes, as estimated by `row_bytes`."""
MAX_ROWS = 256
COPIES = 8
"""Arrays of a row's logits, in float64, that are in memory while a token is sampled."""
EXPECTED_TOKENS = 2048
"""The length of a text for which memory is planned, if it may be longer: most texts end before."""
MAX_ENDED_FRACTION = 0.5
"""If this fraction of the rows has ended, they are removed even if no text waits for a row."""


class PromptRead(NamedTuple):
    """The prompt of a text has been read."""

    request: TextRequest
    scores: Sequence[CandidateScore]  # of its tokens, if they were wanted
    num_cached: int  # tokens whose state was known


class TokenDrawn(NamedTuple):
    """A text has one more token."""

    request: TextRequest
    token: int
    score: CandidateScore | None


class TextEnded(NamedTuple):
    """A text has ended by itself. Its state is that after the text, if the request ``keeps_state``.

    ``score`` is that of the token that ended it, if it was wanted and there was one.
    """

    request: TextRequest
    state: TextState | None
    score: CandidateScore | None = None


TextEvent: TypeAlias = PromptRead | TokenDrawn | TextEnded


class ContinuousBatch:
    """A batch of texts in progress, and the texts that wait for a row of it.

    Args:
        model: a language model in evaluation mode.
        stop: the token that ends a text and is not returned; None for texts without end.
        banned: tokens that are never drawn.
        max_rows: the largest number of texts at once; there are fewer if they would need more than ``memory`` bytes.
        memory: see there.
        cache_bytes: largest size of the states of prompts that are kept for texts with the same beginning.

    Attributes:
        texts: the texts in progress, with the loop that draws their tokens.
        cache: the states of prompts.
        waiting: the texts whose prompts have not been looked at yet.
    """

    def __init__(
        self,
        model: TextModel,
        *,
        stop: int | None = None,
        banned: Sequence[int] = (),
        max_rows: int | None = None,
        memory: int | None = None,
        cache_bytes: int = MAX_BYTES,
    ) -> None:
        self.model, self.texts = model, TextBatch(model, model.device, stop=stop, banned=banned)
        self.max_rows = MAX_ROWS if max_rows is None else max_rows
        self.memory = MEMORY if memory is None else memory
        self.cache = PrefixCache(prompt_window(model), cache_bytes)
        self.waiting: deque[TextRequest] = deque()
        self._has_limit = learned_positions(model) is not None  # a text that has ended must not be read on
        self._reading: tuple[TextRequest, PromptReader] | None = None

    def add(self, request: TextRequest) -> None:
        """Let a text wait for a row."""
        self.waiting.append(request)

    @property
    def is_empty(self) -> bool:
        """Whether no text is in progress or waits."""
        return not self.waiting and self._reading is None and not self.num_running

    @property
    def num_running(self) -> int:
        """The number of texts in the batch that have not ended."""
        return sum(not row.has_ended for row in self.texts.rows)

    def end(self, request: TextRequest) -> TextState | None:
        """End a text early, for instance because a stop string is complete. There is no event for it any more.

        Returns:
            The text so far, if its prompt has been read and the request ``keeps_state``.
        """
        if request in self.waiting:
            self.waiting.remove(request)
        if self._reading is not None and self._reading[0] is request:
            self._reading = None
        for i, row in enumerate(self.texts.rows):
            if row.request is request and not row.has_ended:
                row.has_ended = True
                return self._text_state(i, () if self.texts.unread is None else (int(self.texts.unread[i]),))
        return None

    @torch.inference_mode()
    def advance(self) -> list[TextEvent]:
        """Read the last tokens and a window of a prompt, let texts enter, and draw one token of every text.

        Returns:
            What happened, in order. A text with its last token has two events.

        Warns:
            UserWarning: a text ended because every token that may follow has probability 0.
        """
        self._remove_ended()
        self.texts.read()
        events = self._enter()
        if not self.texts.rows:
            return events

        # The model has not read the tokens yet, so that its logits are still those with which they are scored.
        drawn = self.texts.draw()
        scores = self._score(drawn.tokens)
        for i, (row, token) in enumerate(zip(self.texts.rows, drawn.tokens, strict=True)):
            if row.has_ended:
                continue
            row.tokens_left -= 1
            row.has_ended = drawn.has_ended[i]
            if row.has_ended:
                score = None if drawn.was_cut_off[i] else scores.get(i)
                events.append(TextEnded(row.request, self._text_state(i, ()), score))
                continue
            events.append(TokenDrawn(row.request, token, scores.get(i)))
            row.has_ended = row.tokens_left <= 0
            if row.has_ended:
                events.append(TextEnded(row.request, self._text_state(i, (token,))))
        return events

    @torch.inference_mode()
    def _text_state(self, index: int, unread: tuple[int, ...]) -> TextState | None:
        """Return the text of a row, given its last tokens that the model has not read yet."""
        if not self.texts.rows[index].request.keeps_state:
            return None
        state = select_state(self.texts.state, torch.tensor([index], device=self.model.device))
        return TextState(without_unused(state), None if unread else self.texts.logits_of([index]), unread)

    def _score(self, tokens: Sequence[int]) -> dict[int, CandidateScore]:
        """Return the scores of the tokens of those rows whose requests want them, by row."""
        by_number: dict[int, list[int]] = defaultdict(list)
        for i, row in enumerate(self.texts.rows):
            if row.request.num_alternatives is not None and not row.has_ended:
                by_number[row.request.num_alternatives].append(i)
        scores: dict[int, CandidateScore] = {}
        for number, members in by_number.items():
            logits = self.texts.logits_of(members)
            scores |= zip(members, score_tokens(self.model, logits, [tokens[i] for i in members], number), strict=True)
        return scores

    def _remove_ended(self) -> None:
        """Remove rows that have ended, if others wait for a row or if they are many."""
        rows = self.texts.rows
        kept = [i for i, row in enumerate(rows) if not row.has_ended]
        ended, others = len(rows) - len(kept), bool(self.waiting) or self._reading is not None
        may_stay = kept and not others and not self._has_limit and ended < MAX_ENDED_FRACTION * len(rows)
        if ended and not may_stay:
            self.texts.keep(kept)

    def _enter(self) -> list[TextEvent]:
        """Read one window of prompts, and let texts enter whose prompts have been read, if there are free rows."""
        events, entering, budget = list[TextEvent](), list[tuple[TextRow, PromptReader]](), self.cache.window
        while len(self.texts.rows) + len(entering) < self.max_rows and (self._reading or self.waiting):
            if self._reading is None:
                request = self.waiting.popleft()
                scored = (request.num_alternatives or 0) if request.scores_prompt else None
                reader = PromptReader(self.model, request.prompt, self.cache, start=request.start, scored=scored)
                self._reading = request, reader
            request, reader = self._reading
            while not reader.is_complete and budget > 0:
                budget -= reader.read_window()
            if not reader.is_complete:
                break

            # Every row needs as much memory as the largest, because keys and values are padded to one length.
            row = TextRow(request, self.model.device, self._expected_bytes(request, reader))
            rows = [row, *self.texts.rows, *(other for other, _ in entering)]
            if len(rows) > 1 and len(rows) * max(each.max_bytes for each in rows) > self.memory:
                break
            self._reading = None
            events.append(PromptRead(request, reader.scores, reader.cached))
            if request.max_tokens:
                entering.append((row, reader))
            else:
                state = map_state(Tensor.clone, reader.state)  # without a buffer for more keys and values
                kept = TextState(state, reader.logits) if request.keeps_state else None
                events.append(TextEnded(request, kept))
        if entering:
            readers = [reader for _, reader in entering]
            states, logits = [reader.state for reader in readers], [reader.logits for reader in readers]
            self.texts.add([row for row, _ in entering], states, logits)
        return events

    def _expected_bytes(self, request: TextRequest, reader: PromptReader) -> float:
        """Return the bytes that a text is expected to need at its end."""
        expected = min(request.max_tokens, EXPECTED_TOKENS)
        size = state_bytes(reader.state) + reader.growth * expected
        return row_bytes(size, self.model.vocabulary_size, expected)


def row_bytes(state_size: float, vocabulary_size: int, max_tokens: int) -> float:
    """Return the bytes that a text needs in a batch, given those of its state at its end."""
    return 2 * state_size + COPIES * 8 * vocabulary_size + 64 * max_tokens  # 64: a piece of text
