"""Surprisal per word, token or character of a line of text, from the surprisals of its tokens.

A word is a run of characters without white space. Its probability is that of its tokens *and* of its end after them:

    bits(w) = Σ bits(tokens of w) + log₂ P(boundary | before w) − log₂ P(boundary | after w)

P(boundary) is the probability of all tokens that begin with white space, and of the end of the text. Where tokens hold
the space before a word, the sum of the first term alone charges a word for the space that ended the word before it, and
not for its own end. The correction is that of T. Pimentel and C. Meister, "How to compute the probability of a word",
EMNLP 2024, and B.-D. Oh and W. Schuler, "Leading whitespaces of language models' subword vocabulary pose a confound for
calculating word probabilities", EMNLP 2024; over a whole line the two terms cancel but for the last one. The first word
of a text needs no boundary before it, and the tokens of a word vocabulary are words already: there the terms are 0.
"""

import math
import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.errors import NotSupportedError, shown
from ..core.state import State
from ..data.tokenizers import END, Tokenizer, name_of_bytes
from ..models.base_models import TextModel
from ..models.probabilities import token_log_probabilities

# The surprisal of every token of some texts, and what the model expected before it.
# The surprisal of a token is −log₂ P(token | everything before it in its text), in bits; see `token_scores` for
# sources. A state is carried from window to window, so that the context is never cut.


MAX_LOGITS = 1 << 21
"""Probabilities that are held at once; limits the memory to about 50 MB."""
MAX_WINDOW = 256
SMALLEST = -600.0
"""The logarithm of a sum of probabilities is computed from their logarithms below it, before the sum becomes 0."""


class Surprisals(NamedTuple):
    """One text: for each of its tokens, and for the end symbol after the last one, ``(tokens + 1,)``, float64."""

    bits: np.ndarray  # surprisal
    entropy: np.ndarray  # of the distribution of the token, in bits, given what comes before it; NaN if there is none
    rank: np.ndarray  # 1 + the number of tokens that were more likely; NaN if every token is impossible
    boundary: np.ndarray  # log₂ of the probability that a new word or the end of the text follows here


class SurprisalReader:
    """Computes the surprisal of texts.

    Args:
        model: a language model in evaluation mode.
        begins_word: which tokens begin a new word or end the text ``(vocabulary,)``, bool.
        begin: the token that begins a text as an input.
        carries: whether the texts are parts of one text, whose context goes on from part to part; else each of them is
            a text of its own.
    """

    def __init__(self, model: TextModel, begins_word: np.ndarray, *, begin: int = END, carries: bool = False) -> None:
        self.model, self.begin, self.carries = model, begin, carries
        self.begins_word = None if begins_word.all() else torch.from_numpy(begins_word).to(model.device)
        self.last, self.state = begin, model.initial_state(1)

    @torch.inference_mode()
    def read(self, texts: Sequence[np.ndarray]) -> list[Surprisals]:
        """Return the surprisals of some texts, given their token ids ``(tokens,)``, without the end symbol."""
        if self.carries:
            return [self._read_next(ids) for ids in texts]
        sizes = np.array([len(ids) + 1 for ids in texts])
        results: list[Surprisals | None] = [None] * len(texts)
        order = np.argsort(-sizes, kind="stable")
        most = max(1, MAX_LOGITS // self.model.vocabulary_size)
        for start in range(0, len(order), 64):
            rows = order[start : start + 64]
            for group in np.array_split(rows, -(-len(rows) // most)):
                for row, result in zip(group, self._read_batch([texts[row] for row in group]), strict=True):
                    results[row] = result
        return [result for result in results if result is not None]

    def _read_batch(self, texts: list[np.ndarray]) -> list[Surprisals]:
        """Read texts of their own, side by side."""
        lengths = torch.tensor([len(ids) + 1 for ids in texts])
        ids = torch.full((len(texts), int(lengths.max()) + 1), END)
        ids[:, 0] = self.begin
        for row, text in zip(ids, texts, strict=True):
            row[1 : len(text) + 1] = torch.from_numpy(text.astype(np.int64))
        columns, _ = self._columns(ids, self.model.initial_state(len(texts)), lengths)
        return [Surprisals(*row[:, :length].numpy()) for row, length in zip(columns.unbind(1), lengths, strict=True)]

    def _read_next(self, text: np.ndarray) -> Surprisals:
        """Read the next segment of a text; the state after it does not include the end symbol."""
        ids = torch.tensor([[self.last, *text.tolist(), END]])
        read = []
        if len(text):
            columns, self.state = self._columns(ids[:, :-1], self.state)
            read.append(columns[:, 0])
            self.last = int(text[-1])
        read.append(self._columns(ids[:, -2:], self.state)[0][:, 0])
        return Surprisals(*torch.cat(read, dim=1).numpy())

    def _columns(self, ids: Tensor, state: State, lengths: Tensor | None = None) -> tuple[Tensor, State]:
        """Return the fields of `Surprisals` for every token after the first ``(4, batch, time)``, and the state."""
        window = max(1, min(MAX_WINDOW, MAX_LOGITS // (self.model.vocabulary_size * len(ids))))
        measured = []
        for start in range(0, ids.shape[1] - 1, window):
            chunk = ids[:, start : start + window + 1].to(self.model.device)
            valid = None if lengths is None else (lengths - start).clamp(0, chunk.shape[1] - 1)
            logits, state = self.model(chunk[:, :-1], state, lengths=valid)
            measured.append(self._measure(logits, chunk[:, 1:]).cpu())
        return torch.cat(measured, dim=2), state

    def _measure(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the fields of `Surprisals` for logits ``(batch, time, vocabulary)``: ``(4, batch, time)``."""
        nats = token_log_probabilities(self.model, logits)
        probabilities = nats.exp()
        columns = torch.stack([*measures_of(nats, targets), self._boundary(nats, probabilities) / math.log(2)])
        columns[1:3].masked_fill_(probabilities.sum(2) == 0, math.nan)
        return columns

    def _boundary(self, nats: Tensor, probabilities: Tensor) -> Tensor:
        """Return log P of a new word or the end of the text ``(batch, time)``, given log P and P of all tokens."""
        if self.begins_word is None:  # also where every token is impossible
            return torch.zeros_like(nats[:, :, 0])
        logarithms = (probabilities @ self.begins_word.to(probabilities)).clamp(max=1.0).log()
        if bool((logarithms < SMALLEST).any()):
            exact = nats.masked_fill(~self.begins_word, -math.inf).logsumexp(2)
            logarithms = torch.where(logarithms < SMALLEST, exact, logarithms)
        return logarithms


def measures_of(nats: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return bits, entropy and rank of targets ``(...)``, given log P of every token in nats ``(..., vocabulary)``."""
    of_target = nats.gather(-1, targets.unsqueeze(-1))
    probabilities = nats.exp()  # which need not sum to 1 in a table of another program
    entropy = torch.special.entr(probabilities / probabilities.sum(-1, keepdim=True)).sum(-1)
    ranks = (nats > of_target).sum(-1) + 1
    return of_target.squeeze(-1).neg() / math.log(2), entropy / math.log(2), ranks.double()


By = Literal["word", "token", "character"]
UNITS: tuple[By, ...] = ("word", "token", "character")
WORD, CHARACTER = re.compile(r"\S+"), re.compile(r"(?s).")


class UnitSurprisal(NamedTuple):
    """A word, token or character of a line.

    The bits of an impossible unit are infinite. Entropy and rank are those of the first of its tokens that is not white
    space alone: how uncertain the model was before this token, and how many tokens were more likely, plus 1. They are
    None where the model finds every token impossible, as an n-gram model without smoothing does in an unseen context.
    """

    text: str
    bits: float
    entropy: float | None
    rank: int | None
    tokens: int
    unknown: int  # how many of the tokens are the unknown token


def word_starts(tokenizer: Tokenizer) -> np.ndarray:
    """Return which tokens begin a new word, or end the text ``(vocabulary,)``, bool."""
    if tokenizer.ends_lines:
        return np.ones(tokenizer.vocabulary_size, dtype=bool)
    others = (_begins_with_space(tokenizer, token) for token in range(1, tokenizer.vocabulary_size))
    return np.array([True, *others])  # the first token is the boundary symbol


def _begins_with_space(tokenizer: Tokenizer, token: int) -> bool:
    text = tokenizer.token_bytes(token).decode("utf-8", "ignore")
    return token != tokenizer.unknown_id and text[:1].isspace()


class TextSpan(NamedTuple):
    """A word, token or character: its text, its tokens from ``first`` up to ``last``, of which ``lead`` begins it."""

    text: str
    first: int
    lead: int
    last: int


class ReadLine(NamedTuple):
    """A line of text, its tokens and their surprisals."""

    text: str
    ids: np.ndarray  # (tokens,)
    scores: Surprisals
    is_first: bool  # whether nothing comes before it

    def units(self, by: By, tokenizer: Tokenizer) -> Iterator[UnitSurprisal]:
        """Yield the words, tokens or characters in order; see `spans_of` for errors."""
        for span in spans_of(self.text, self.ids, by, tokenizer):
            yield self._unit(span, tokenizer.unknown_id, is_word=by == "word")

    def _unit(self, span: TextSpan, unknown: int | None, *, is_word: bool) -> UnitSurprisal:
        name, first, lead, last = span
        bits, entropy, rank, boundary = self.scores
        terms = [float(bits[first:last].sum())]
        if is_word:
            terms += [0.0 if self.is_first and first == 0 else float(boundary[first]), -float(boundary[last])]
        # A word is impossible if one of its tokens is, or if it can begin or end nowhere here; ∞ − ∞ would be NaN.
        total = max(0.0, sum(terms)) if np.isfinite(terms).all() else math.inf
        count = 0 if unknown is None else int(np.count_nonzero(self.ids[first:last] == unknown))
        known = not np.isnan(entropy[lead])
        uncertainty, guess = float(entropy[lead]) if known else None, int(rank[lead]) if known else None
        return UnitSurprisal(name, total, uncertainty, guess, last - first, count)


def spans_of(text: str, ids: np.ndarray, by: By, tokenizer: Tokenizer) -> Iterator[TextSpan]:
    """Yield the words, tokens or characters of a line of text with token ids ``(tokens,)``, in order.

    Tokens that are white space between words belong to the word after them; those after the last word belong to none.

    Raises:
        InputError: a token is a part of two words, or of two characters.
    """
    read = tokenizer.prepare(text)
    ends = tokenizer.token_ends(read, ids)
    if by == "token":
        raw, starts = read.encode(), [0, *ends[:-1].tolist()]
        for i, (start, end) in enumerate(zip(starts, ends.tolist(), strict=False)):
            name = name_of_bytes(raw[start:end])
            name = (name.strip() or name) if tokenizer.ends_lines else name
            yield TextSpan(name, i, i, i + 1)
        return

    # Bytes are counted, because a token may end within a character.
    pattern = WORD if by == "word" else CHARACTER
    spans = _byte_spans(read, pattern)
    names = pattern.findall(text)
    names = names if len(names) == len(spans) else pattern.findall(read)
    last = 0
    for number, (name, (start, end)) in enumerate(zip(names, spans, strict=True)):
        first, last = last, int(np.searchsorted(ends, end)) + 1
        lead = int(np.searchsorted(ends, start, side="right"))
        if max(first, lead) >= len(ids):
            raise NotSupportedError(
                f"--by {by}: {shown(name)} has no token at the end of {shown(text)}; use --by token"
            )
        if number + 1 < len(spans) and ends[last - 1] > spans[number + 1][0]:
            token = tokenizer.describe(int(ids[last - 1]))
            raise NotSupportedError(
                f"--by {by}: {shown(token)} is one token of two {by}s in {shown(text)}; use --by token"
            )
        yield TextSpan(name, first, lead, last)


def _byte_spans(text: str, pattern: re.Pattern[str]) -> list[tuple[int, int]]:
    """Return the first byte, and the byte after the last one, of every match."""
    spans, end, size = [], 0, 0
    for match in pattern.finditer(text):
        start = size + len(text[end : match.start()].encode())
        size = start + len(match[0].encode())
        end = match.end()
        spans.append((start, size))
    return spans
