"""Surprisal of single tokens: how likely each one was, and which tokens were more likely.

The surprisal of a token is −log₂ P(token | the part of the text that the model sees), in bits (C. Shannon 1948; as a
measure of reading, J. Hale, "A probabilistic Earley parser as a psycholinguistic model", NAACL 2001).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from ..data.tokenizers import END, Tokenizer

# Losses of single tokens of a text, with the position of each in its line and its frequency in the training text.
# A model learns most about frequent tokens, and knows more of a line the later it is in it, so the mean loss of a text
# hides where two models differ.


UNKNOWN = -1  # frequency of the unknown token, which stands for many words


@dataclass(frozen=True)
class TokenLosses:
    """Losses of some tokens of a text, in the order of the text.

    Attributes:
        nats: −log P of each token ``(tokens,)``.
        ids: the tokens ``(tokens,)``.
        positions: the position of each token in its line, from 1 ``(tokens,)``.
        frequencies: how often each token occurs in the training text, or `UNKNOWN` ``(tokens,)``.
        piece_ends: the end of each piece that is shown together ``(pieces,)``, in tokens.
        piece_blocks: the number of the line or block, one observation of intervals, of each piece ``(pieces,)``.
        names: the text of each token in ``ids``.
        spelled: the words that the text has in place of unknown tokens, by their index in ``nats``; may lack some.
        measured: in words, which part of the text this is.
    """

    nats: np.ndarray
    ids: np.ndarray
    positions: np.ndarray
    frequencies: np.ndarray
    piece_ends: np.ndarray
    piece_blocks: np.ndarray
    names: Mapping[int, str]
    spelled: Mapping[int, str]
    measured: str

    @property
    def pieces(self) -> np.ndarray:
        """The piece of each token ``(tokens,)``."""
        return np.repeat(np.arange(len(self.piece_ends)), np.diff(self.piece_ends, prepend=0))

    def piece_losses(self) -> np.ndarray:
        """Return the summed loss of each piece ``(pieces,)``, in nats."""
        return np.bincount(self.pieces, self.nats, len(self.piece_ends))


def surprisals(nats: np.ndarray) -> list[float | None]:
    """Return losses ``(tokens,)`` in bits, rounded for a page; None for infinite ones."""
    return [round(value, 2) if math.isfinite(value) else None for value in (nats / math.log(2)).tolist()]


def positions_in_lines(ids: np.ndarray, ends_line: np.ndarray) -> np.ndarray:
    """Return the position of each token in its line, from 1 ``(tokens,)``.

    ``ends_line`` says for each token whether a line ends with it ``(tokens,)``; that token is the last of its line.
    """
    indices = np.arange(len(ids))
    begins = np.concatenate([[True], ends_line[:-1]]) if len(ids) else np.zeros(0, bool)
    return indices - np.maximum.accumulate(np.where(begins, indices, 0)) + 1


def cut_evenly(ends: np.ndarray, largest: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut blocks with these ends ``(blocks,)`` into pieces of at most ``largest`` tokens, of nearly equal sizes.

    Returns:
        The ends of the pieces ``(pieces,)``, and the block of each ``(pieces,)``.
    """
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    counts = np.maximum(1, -(-(ends - starts) // largest))
    blocks = np.repeat(np.arange(len(ends)), counts)
    number = np.arange(len(blocks)) - np.repeat(counts.cumsum() - counts, counts) + 1
    return starts[blocks] + (ends - starts)[blocks] * number // counts[blocks], blocks


ALTERNATIVES = 5  # number of most likely tokens listed for each position


class TokenScore(NamedTuple):
    """A token as it appears in the text, with the space or line end that belongs to it, and its surprisal in bits.

    The ``alternatives`` are the most likely tokens with their probabilities, in descending order.
    """

    text: str
    bits: float
    alternatives: list[tuple[str, float]]


@dataclass(frozen=True)
class TokenSurprisals:
    """Scores of the tokens of a text, in order, with a caption that says what the numbers are.

    Attributes:
        outcomes: number of possible outcomes for each token: the size of the vocabulary, or the number of tags.
        unit: plural name of the tokens, such as ``words``.
        scale: meaning of the smallest and of the largest value.
        answers: predictions that have gold answers in labelled data, one for each score; empty for texts.
    """

    scores: list[TokenScore]
    outcomes: int
    unit: str
    caption: str
    scale: tuple[str, str] = ("expected", "surprising")
    answers: tuple[str, ...] = ()


def score_tokens(
    tokenizer: Tokenizer,
    log_probabilities: Tensor,
    targets: Tensor,
    *,
    alternatives: int = ALTERNATIVES,
    end: str | None = None,
) -> Iterator[TokenScore]:
    """Yield the score of each token.

    ``log_probabilities`` are those of every token at each position, in nats ``(positions, vocabulary)``; ``targets``
    are the tokens at each position ``(positions,)``; ``alternatives`` is the number of most likely tokens to list;
    ``end`` is the name of the boundary symbol, None for a line end.
    """

    def named(token: int, name: Callable[[Tokenizer, int], str]) -> str:
        return end if end is not None and token == END else name(tokenizer, token)

    of_target = log_probabilities.gather(1, targets.unsqueeze(1))
    best = log_probabilities.topk(min(alternatives, log_probabilities.shape[1]), dim=1)
    columns = (targets.tolist(), of_target.squeeze(1).tolist(), best[0].tolist(), best[1].tolist())
    for target, nats, values, tokens in zip(*columns, strict=True):
        likely = [(named(token, token_name), math.exp(value)) for token, value in zip(tokens, values, strict=True)]
        yield TokenScore(named(target, token_text), max(0.0, -nats) / math.log(2), likely)


def token_name(tokenizer: Tokenizer, token: int) -> str:
    """Return the name of a token for a list; the boundary symbol is a line end if the tokenizer ends lines with it."""
    return "↵" if token == END and tokenizer.ends_lines else visible(tokenizer.describe(token))


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """Return a token as it appears in a text: a word with the space after it, the boundary symbol as a line end."""
    if token == END:
        return "\n"
    return f"{tokenizer.describe(token)} " if tokenizer.ends_lines else tokenizer.describe(token)


def spaced(names: Iterable[str], tokenizer: Tokenizer) -> list[str]:
    """Return names of tokens as they stand in a text: a space follows words and symbols, but not characters."""
    return [f"{name} " if tokenizer.ends_lines or is_symbol(name, tokenizer) else name for name in names]


def is_symbol(name: str, tokenizer: Tokenizer) -> bool:
    """Return whether a token is a boundary symbol, which is not part of a text."""
    return name in ("</s>", tokenizer.describe(END))


def counted(count: int, unit: str) -> str:
    """Return a number of something whose plural ends with s: ``1 token``, ``2,000 tokens``."""
    return f"{count:,} {unit if count != 1 else unit.removesuffix('s')}"


def visible(text: str) -> str:
    """Return a token for a list or a label, with spaces, tabs and line ends replaced by visible signs."""
    return text.replace(" ", "␣").replace("\n", "↵").replace("\t", "⇥") or "(nothing)"
