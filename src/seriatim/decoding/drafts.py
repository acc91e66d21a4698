"""Drafts: guesses of the next tokens of a text, which are cheap to make and which a language model then verifies.

A draft is a sequence of single tokens without probabilities; see `speculative` for their verification. Three sources:

    PromptLookup   the continuation of an earlier occurrence of the last tokens    A. Saxena 2023; N. Yang et al. 2023
    NgramDraft     the likeliest continuation in the tables of an n-gram model
    ModelDraft     the likeliest continuation according to any smaller model       Y. Leviathan et al. 2023
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from ..core.errors import InputError, RangeError, check_integer
from ..core.state import State
from ..counting.ngram import NGram
from ..counting.ngrams.table import Order
from ..models.base_models import TextModel
from .sampling import read

THRESHOLD = 0.4
"""A draft ends where the probability that all of its tokens are right falls below this value."""


class Draft(Protocol):
    """A source of drafts for one text."""

    def append(self, tokens: Sequence[int]) -> None:
        """Read tokens that were added to the text, whether they were proposed or not."""

    def propose(self, limit: int) -> list[int]:
        """Return at most ``limit`` tokens that are likely to come next; perhaps none."""


class PromptLookup:
    """Proposes what followed the most recent earlier occurrence of the last tokens of the text.

    The longest suffix of the text that occurred before decides, of ``max_ngram`` tokens at most and ``min_ngram`` at
    least. The index of positions takes ``max_ngram − min_ngram + 1`` entries and operations for each token.
    """

    def __init__(self, max_ngram: int = 8, min_ngram: int = 3) -> None:
        min_ngram = check_integer("min_ngram", min_ngram, minimum=1)
        max_ngram = check_integer("max_ngram", max_ngram, minimum=min_ngram)
        self.sizes = range(max_ngram, min_ngram - 1, -1)
        self.text: list[int] = []
        self._followers: dict[int, int] = {}  # from an n-gram's hash, of which a collision costs no more than a draft

    def append(self, tokens: Sequence[int]) -> None:
        """Add tokens to the text and to the index, which contains an n-gram as soon as it has a follower."""
        for token in tokens:
            for key in self._suffixes():
                self._followers[key] = len(self.text)
            self.text.append(token)

    def propose(self, limit: int) -> list[int]:
        """Return the tokens after the earlier occurrence; one that overlaps with the end of the text is repeated."""
        found = (self._followers[key] for key in self._suffixes() if key in self._followers)
        start = next(found, None)
        if start is None:
            return []
        proposal: list[int] = []
        for position in range(start, start + limit):
            inside = position < len(self.text)
            proposal.append(self.text[position] if inside else proposal[position - len(self.text)])
        return proposal

    def _suffixes(self) -> list[int]:
        """Return the hashes of the n-grams that end the text, longest first."""
        return [hash(tuple(self.text[-size:])) for size in self.sizes if size <= len(self.text)]


class NgramDraft:
    """Proposes the likeliest continuations in the tables of an n-gram model.

    The longest context with a known continuation decides, and words that it has never preceded are not considered, so
    that a proposal takes a few binary searches and not a distribution over the vocabulary.

    Args:
        orders: the tables, shortest first.
        threshold: see `THRESHOLD`.
    """

    def __init__(self, orders: Sequence[Order], threshold: float = THRESHOLD) -> None:
        _check_threshold(threshold)
        self.orders, self.threshold = orders, threshold
        self.vocabulary_size = len(orders[0].probability)
        self._contexts = [-1] * (len(orders) - 1)  # the indices of the n-grams that end the text, −1 if unknown

    def append(self, tokens: Sequence[int]) -> None:
        """Add tokens to the text, of which only the last few matter."""
        for token in tokens[max(0, len(tokens) - len(self.orders)) :]:
            self._contexts = self._extended(self._contexts, token)

    def propose(self, limit: int) -> list[int]:
        """Return the likeliest tokens, one after another, as long as they are probable."""
        proposal: list[int] = []
        contexts, confidence = self._contexts, 1.0
        while len(proposal) < limit:
            token, probability = self._likeliest(contexts)
            confidence *= probability
            if confidence < self.threshold:
                break
            proposal.append(token)
            contexts = self._extended(contexts, token)
        return proposal

    def _extended(self, contexts: list[int], token: int) -> list[int]:
        """Return the indices of the n-grams that end the text after one more token."""
        ngrams = [token]
        for order, context in zip(self.orders[1:-1], contexts, strict=False):
            key = context * self.vocabulary_size + token
            index = int(order.key.searchsorted(key)) if context >= 0 else len(order.key)
            ngrams.append(index if index < len(order.key) and order.key[index] == key else -1)
        return ngrams[: len(contexts)]

    def _likeliest(self, contexts: list[int]) -> tuple[int, float]:
        """Return the likeliest token after the longest context that has one, with its probability; else 0 and 0."""
        for order, context in zip(reversed(self.orders[1:]), reversed(contexts), strict=True):
            if context < 0:
                continue
            smallest = context * self.vocabulary_size
            first, end = order.key.searchsorted([smallest, smallest + self.vocabulary_size])
            if first < end:
                best = first + int(order.probability[first:end].argmax())
                return int(order.key[best]) - smallest, float(order.probability[best])
        return 0, 0.0


class ModelDraft:
    """Proposes the likeliest tokens according to any language model, which should be much faster than the other.

    The states after the proposed tokens are snapshots, so the tokens that are accepted are not read again, and a
    rejection needs no computation. The model must be in evaluation mode; ``threshold`` is as in `NgramDraft`. Where the
    model cannot read more, because it has no more learned positions, there are no more proposals.
    """

    def __init__(self, model: TextModel, threshold: float = THRESHOLD) -> None:
        _check_threshold(threshold)
        self.model, self.threshold = model, threshold
        self._logits: Tensor | None = None
        self._state = model.initial_state(1)
        self._ahead: list[tuple[int, Tensor, State]] = []  # the proposed tokens, each with what follows from it
        self._is_full = False

    @torch.inference_mode()
    def append(self, tokens: Sequence[int]) -> None:
        """Read the tokens, except for those that were proposed."""
        ahead, self._ahead, unread = self._ahead, [], list(tokens)
        while unread and ahead and ahead[0][0] == unread[0]:
            _, self._logits, self._state = ahead.pop(0)
            unread.pop(0)
        if not unread:
            self._ahead = ahead
        elif not self._is_full:
            try:
                self._logits, self._state = self._read(unread, self._state)
            except InputError:
                self._logits, self._is_full = None, True

    @torch.inference_mode()
    def propose(self, limit: int) -> list[int]:
        """Return the likeliest tokens, one after another, as long as they are probable."""
        self._ahead = []
        logits, state, confidence = self._logits, self._state, 1.0
        while logits is not None and len(self._ahead) < limit:
            probability, token = torch.softmax(logits[0].double(), 0).max(0)
            confidence *= float(probability)
            if not confidence >= self.threshold:  # NaN where every token has probability 0
                break
            try:
                logits, state = self._read([int(token)], state)
            except InputError:
                break
            self._ahead.append((int(token), logits, state))
        return [token for token, _, _ in self._ahead]

    def _read(self, tokens: list[int], state: State) -> tuple[Tensor, State]:
        inputs = torch.tensor([tokens], device=self.model.device)
        return self.model.step(inputs[:, 0], state) if len(tokens) == 1 else read(self.model, inputs, state)


def draft_with(model: TextModel) -> Draft:
    """Return a source of drafts for a text: the tables of an n-gram model, also in a mixture; else the model."""
    tables = (part.table.orders for part in model.modules() if isinstance(part, NGram) and part.order > 1)
    orders = next(tables, None)
    return ModelDraft(model) if orders is None else NgramDraft(orders)


def _check_threshold(threshold: float) -> None:
    if not 0 <= threshold <= 1:
        raise RangeError(f"threshold: {threshold} is not a probability; give a number from 0 to 1")
