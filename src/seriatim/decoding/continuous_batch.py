"""Generates many texts in one batch that texts leave as they end and others enter.

Each text has its own prompt, seed and settings. Its tokens are those that it would have alone: no step mixes rows.
Prompts are read window by window between the steps.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from ..core.key_value_cache import without_unused
from ..core.state import map_state, select_state, state_bytes
from ..layers.positions import learned_positions
from ..models.base_models import TextModel
from .prompt_reading import MAX_BYTES, PrefixCache, PromptReader, prompt_window
from .sampling import CandidateScore, TextBatch, TextRequest, TextRow, TextState, score_tokens

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
