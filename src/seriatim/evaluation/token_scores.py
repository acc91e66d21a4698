"""Surprisal of single tokens: how likely each one was, and which tokens were more likely.

The surprisal of a token is −log₂ P(token | the part of the text that the model sees), in bits (C. Shannon 1948; as a
measure of reading, J. Hale, "A probabilistic Earley parser as a psycholinguistic model", NAACL 2001).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from ..data.tokenizers import END, Tokenizer

ALTERNATIVES = 5  # number of most likely tokens listed for each place


class TokenScore(NamedTuple):
    """A token as it appears in the text, with the space or line end that belongs to it, and its surprisal in bits.

    Its rank is 1 + the number of tokens that were more likely; the ``alternatives`` are the most likely tokens with
    their probabilities, in descending order.
    """

    text: str
    bits: float
    rank: int
    alternatives: list[tuple[str, float]]


@dataclass(frozen=True)
class TokenScores:
    """Scores of the tokens of a text, in order, with a caption that says what the numbers are.

    Attributes:
        outcomes: number of possible outcomes for each token: the size of the vocabulary, or the number of tags.
        unit: plural name of the tokens, such as ``words``.
        scale: meaning of the smallest and of the largest value.
        counts_correct: whether rank 1 means that the top guess was correct.
        answers: predictions that have gold answers in labelled data, one for each score; empty for texts.
    """

    scores: list[TokenScore]
    outcomes: int
    unit: str
    caption: str
    scale: tuple[str, str] = ("expected", "surprising")
    counts_correct: bool = False
    answers: tuple[str, ...] = ()

    @property
    def total_bits(self) -> float:
        """Sum over all tokens."""
        return total_bits(self.scores)


def score_tokens(
    tokenizer: Tokenizer,
    log_probabilities: Tensor,
    targets: Tensor,
    *,
    alternatives: int = ALTERNATIVES,
    end: str | None = None,
) -> Iterator[TokenScore]:
    """Yield the score of each token.

    ``log_probabilities`` are those of every token at each place, in nats ``(places, vocabulary)``; ``targets`` are the
    tokens at each place ``(places,)``; ``alternatives`` is the number of most likely tokens to list; ``end`` is the
    name of the boundary symbol, None for a line end.
    """

    def named(token: int, name: Callable[[Tokenizer, int], str]) -> str:
        return end if end is not None and token == END else name(tokenizer, token)

    of_target = log_probabilities.gather(1, targets.unsqueeze(1))
    ranks = (log_probabilities > of_target).sum(1) + 1
    best = log_probabilities.topk(min(alternatives, log_probabilities.shape[1]), dim=1)
    columns = (targets.tolist(), of_target.squeeze(1).tolist(), ranks.tolist(), best[0].tolist(), best[1].tolist())
    for target, nats, rank, values, tokens in zip(*columns, strict=True):
        likely = [(named(token, token_name), math.exp(value)) for token, value in zip(tokens, values, strict=True)]
        yield TokenScore(named(target, token_text), max(0.0, -nats) / math.log(2), rank, likely)


def total_bits(scores: Sequence[TokenScore]) -> float:
    """Return the sum of the surprisals, in bits."""
    return math.fsum(score.bits for score in scores)


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


def visible(text: str) -> str:
    """Return a token for a list or a label, with spaces, tabs and line ends replaced by visible signs."""
    return text.replace(" ", "␣").replace("\n", "↵").replace("\t", "⇥") or "(nothing)"
