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
from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from ..core.errors import InputError, shown
from ..data.tokenizers import Tokenizer, name_of_bytes
from .surprisal_reader import Surprisals

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
        parts = [float(bits[first:last].sum())]
        if is_word:
            parts += [0.0 if self.is_first and first == 0 else float(boundary[first]), -float(boundary[last])]
        # A word is impossible if one of its tokens is, or if it can begin or end nowhere here; ∞ − ∞ would be NaN.
        total = max(0.0, sum(parts)) if np.isfinite(parts).all() else math.inf
        count = 0 if unknown is None else int(np.count_nonzero(self.ids[first:last] == unknown))
        known = not np.isnan(entropy[lead])
        uncertainty, place = float(entropy[lead]) if known else None, int(rank[lead]) if known else None
        return UnitSurprisal(name, total, uncertainty, place, last - first, count)


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
    pattern = WORD if by == "word" else CHARACTER
    spans = _byte_spans(read, pattern)
    names = pattern.findall(text)
    names = names if len(names) == len(spans) else pattern.findall(read)
    last = 0
    for number, (name, (start, end)) in enumerate(zip(names, spans, strict=True)):
        first, last = last, int(np.searchsorted(ends, end)) + 1
        lead = int(np.searchsorted(ends, start, side="right"))
        if max(first, lead) >= len(ids):
            raise InputError(f"--by {by}: the tokenizer leaves out {shown(name)} at the end of {shown(text)}")
        if number + 1 < len(spans) and ends[last - 1] > spans[number + 1][0]:
            token = tokenizer.describe(int(ids[last - 1]))
            raise InputError(
                f"--by {by}: the token {shown(token)} is a part of two {by}s of {shown(text)}; use --by token"
            )
        yield TextSpan(name, first, lead, last)


def _byte_spans(text: str, pattern: re.Pattern[str]) -> list[tuple[int, int]]:
    """Return the first byte, and the byte after the last one, of every match."""
    spans, place, size = [], 0, 0
    for match in pattern.finditer(text):
        start = size + len(text[place : match.start()].encode())
        size = start + len(match[0].encode())
        place = match.end()
        spans.append((start, size))
    return spans
