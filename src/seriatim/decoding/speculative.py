"""Speculative decoding: a model verifies several drafted tokens in one pass and keeps those it would have drawn.

Y. Leviathan, M. Kalman and Y. Matias, "Fast inference from transformers via speculative decoding", ICML 2023; C. Chen
et al., "Accelerating large language model decoding with speculative sampling", 2023. A drafted token x has no
probability here, so their rule is: accept x with probability p(x), otherwise draw from p without x. To draw y from p
and to accept x if y = x is the same rule. This file does the latter, with one uniform number for each token of the
text, as `sample` does. The distribution of the text is therefore exactly that of `sample`, whatever the draft; and a
seed gives the same text as `sample` as long as the logits are equal.

Guarantee: the text follows the distributions that the model's `forward` gives, in the order of `sample`. `forward` over
several tokens and `step` may differ in the last bits of the logits. Where two tokens are equal up to these bits
(temperature 0), or a uniform number lies within them of the border between two tokens, the text can differ from that of
`sample`; in float64 this practically does not happen.

States are snapshots. After a rejection the text continues from the state before the pass, and the accepted tokens are
read again at the beginning of the next pass. Two alternatives are slower: a second pass over the accepted tokens costs
as much as the first, because a pass over a few tokens takes hardly longer than over one, and a batch with a row for
each number of accepted tokens repeats all of the work and copies the state. `benchmarks/speculation.py` measures this.
"""

import itertools
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ..core.errors import InputError, RangeError, check_integer
from ..core.state import State
from ..counting.ngram import NGram
from ..counting.ngrams.table import Order
from ..models.base_models import TextModel
from .sampling import CUT_OFF, SEEDS, draw_from_logits, read, uniform_numbers
from .token_draws import Sampling

THRESHOLD = 0.4
"""A draft ends where the probability that all of its tokens are right falls below this value."""


class Draft(Protocol):
    """A source of drafts for one text: guesses of its next tokens, without probabilities, which are cheap to make.

    Three sources::

        PromptLookup   the continuation of an earlier occurrence of the last tokens (A. Saxena; N. Yang et al. 2023)
        NgramDraft     the likeliest continuation in the tables of an n-gram model
        ModelDraft     the likeliest continuation according to any smaller model (Y. Leviathan et al. 2023)
    """

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
    tables = (module.table.orders for module in model.modules() if isinstance(module, NGram) and module.order > 1)
    orders = next(tables, None)
    return ModelDraft(model) if orders is None else NgramDraft(orders)


def _check_threshold(threshold: float) -> None:
    if not 0 <= threshold <= 1:
        raise RangeError(f"threshold: {threshold} is not a probability; give a number from 0 to 1")


# The verification of drafts.

MAX_DRAFT = 8
"""The largest number of drafted tokens of a pass."""
MAX_PAUSE = 64
"""The largest number of passes without a draft after drafts that were mostly wrong."""
MAX_UNREAD = 8
"""The number of accepted tokens that are read again with the next draft; if there are more, there is no draft."""


class Generated(NamedTuple):
    """One more token of a text. Its state is ``state`` after ``unread`` tokens more, the last of which is ``token``."""

    token: int
    logits: Tensor | None  # for the token after it (1, vocabulary); None where the model computes them when needed
    state: State
    unread: list[int]  # empty if the state has read everything


class DraftLength:
    """The number of tokens to draft: doubles after a draft is accepted completely, falls to what was accepted else.

    After drafts of which less than half was accepted there are passes without a draft, four times as many each time.
    """

    def __init__(self) -> None:
        self.length, self.pause, self.wait = 2, 0, 0

    def next(self) -> int:
        """Return the number of tokens for the next pass, possibly 0."""
        if self.wait:
            self.wait -= 1
            return 0
        return self.length

    def record(self, drafted: int, accepted: int) -> None:
        """Learn how many of the drafted tokens were accepted."""
        if not drafted:
            return
        self.pause = min(MAX_PAUSE, 4 * self.pause or 1) if 2 * accepted < drafted else 0
        self.wait = self.pause
        grown = max(self.length, min(MAX_DRAFT, 2 * drafted))
        self.length = grown if accepted == drafted else max(1, accepted)


@torch.inference_mode()
def speculate(
    model: TextModel,
    logits: Tensor,
    state: State,
    sampling: Sampling,
    draft: Draft,
    *,
    max_tokens: int,
    seed: int,
    stop: int | None = None,
    banned: Sequence[int] = (),
) -> Iterator[Generated]:
    """Draw the tokens of one text as `sample` does, with fewer calls of the model; see the guarantee above.

    A batch of several texts is not supported, because its rows would accept different numbers of tokens.

    Args:
        model: in evaluation mode.
        logits: of the first token to draw ``(1, vocabulary)``.
        state: that goes with them.
        sampling: how to draw.
        draft: has read the text so far; reads the tokens that are drawn.
        max_tokens: largest number of tokens.
        seed: of the random choices.
        stop: the token that ends the text and is not returned; None for a text without end.
        banned: tokens that are never drawn.

    Raises:
        ValueError: logits of more than one text.

    Warns:
        UserWarning: the text ended because every token that may follow has probability 0.
    """
    if logits.dim() != 2 or len(logits) != 1:
        raise ValueError(f"speculative decoding takes one text: logits (1, vocabulary); got {tuple(logits.shape)}")
    choices, lengths = _Choices(model, sampling, seed, banned), DraftLength()
    excluded = {*banned, stop}
    unread: list[int] = []
    _, token = choices.compare(logits, []) if max_tokens else (0, None)
    while token is not None and token != stop:
        # A draft ends before a token that cannot be accepted: the stop token, a banned one, or one of another model.
        draft.append([token])
        limit = min(lengths.next(), max_tokens - 1) if len(unread) < MAX_UNREAD else 0
        drafted = _before(excluded, draft.propose(limit)[:limit], model.vocabulary_size) if limit > 0 else []
        try:
            logits, after = _read(model, [*unread, token, *drafted], state)
        except InputError:  # the model cannot read as many, for instance because it has no more learned positions
            if not drafted:
                raise
            drafted = []
            logits, after = _read(model, [*unread, token], state)

        # Row i of the logits predicts what follows token i of this pass, as long as the tokens before it were right.
        logits = logits[len(unread) :]
        accepted, following = choices.compare(logits[: max_tokens - 1], drafted)
        lengths.record(len(drafted), accepted)

        # The state after the pass holds only if all of the draft was accepted; else the tokens are read again.
        tokens = [token, *drafted[:accepted]]
        for i, emitted in enumerate(tokens):
            if i:
                draft.append([emitted])
            unread = [*unread, emitted]
            if i == len(drafted):
                state, unread = after, []
            yield Generated(emitted, logits[i : i + 1], state, unread)
        max_tokens -= len(tokens)
        token = following


class _Choices:
    """The random choices of a text."""

    def __init__(self, model: TextModel, sampling: Sampling, seed: int, banned: Sequence[int]) -> None:
        self.model, self.sampling = model, sampling
        self.excluded = torch.tensor(banned, dtype=torch.long, device=model.device)
        self.generator = torch.Generator().manual_seed(seed % SEEDS)
        self.uniforms: deque[Tensor] = deque()  # drawn for tokens that were not reached; those drawn later follow

    def compare(self, logits: Tensor, drafted: Sequence[int]) -> tuple[int, int | None]:
        """Draw a token from each row of ``logits (rows, vocabulary)`` up to the first that was not drafted.

        Returns:
            The number of drafted tokens that were drawn, and the token after them, None if there is none.
        """
        if not len(logits):
            return 0, None
        while len(self.uniforms) < len(logits):
            self.uniforms.append(uniform_numbers([self.generator]))
        uniform = torch.cat(list(itertools.islice(self.uniforms, len(logits))))
        tokens, impossible = draw_from_logits(self.model, self.sampling, logits, self.excluded, uniform)

        # The numbers of rows after the first token that was not drafted are used again for the tokens that follow it.
        for row, (token, is_impossible) in enumerate(zip(tokens.tolist(), impossible.tolist(), strict=True)):
            self.uniforms.popleft()
            if is_impossible:
                warnings.warn(CUT_OFF, stacklevel=3)
                return row, None
            if row == len(drafted) or token != drafted[row]:
                return row, token
        return len(tokens), None


def _read(model: TextModel, tokens: list[int], state: State) -> tuple[Tensor, State]:
    """Return the logits after each token ``(time, vocabulary)`` and the state after the last."""
    inputs = torch.tensor([tokens], device=model.device)
    if len(tokens) == 1:
        return model.step(inputs[:, 0], state)
    logits, state = model(inputs, state)
    return logits[0], state


def _before(excluded: set[int | None], tokens: list[int], vocabulary_size: int) -> list[int]:
    """Return the tokens up to the first that cannot be accepted."""
    for i, token in enumerate(tokens):
        if token in excluded or not 0 <= token < vocabulary_size:
            return tokens[:i]
    return tokens
