"""Reads a prompt window by window, so that texts in progress can continue in between."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.state import State, state_bytes
from ..models.base_models import TextModel
from .next_token_scores import CandidateScore, score_tokens
from .prefix_cache import Beginning, PrefixCache

FEW_PARAMETERS = 20_000_000
SCORED_LOGITS = 1 << 24
"""Logits that are held at once while a prompt is scored."""


class TextState(NamedTuple):
    """A text in progress, which can be continued.

    Attributes:
        state: of the model.
        logits: of the next token ``(1, vocabulary)``; None if they are not known.
        unread: tokens that belong to the text, but that the model has not read yet.
    """

    state: State
    logits: Tensor | None
    unread: tuple[int, ...] = ()


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
        cache: known beginnings of texts, and where new ones are kept.
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
            self.cache.add(self.ids[:end], Beginning(self.state, self.logits))
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
