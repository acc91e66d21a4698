"""Sparsity: how few of all possible n-grams a training text holds, and how many of another text it lacks.

A vocabulary of V tokens has V^n possible n-grams. Those that a text holds are its types. Many of them occur once,
which is why an unseen text holds many that the training text does not.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from .counts import BOUNDARY, Level, Unigrams
from .parallel import in_order

NAMES = ("seen_types", "seen_once", "seen_tokens")
"""The tensors of `Seen` in the file of a model."""
EXACT = 2**53
"""Numbers of n-grams up to which JSON keeps them exactly."""


class Seen(NamedTuple):
    """What was counted in a training text, pruning left aside.

    Attributes:
        types: different n-grams of each order ``(orders,)``.
        once: how many of them stand in the text once ``(orders,)``.
        tokens: how often each token stands in the text ``(vocabulary,)``.
    """

    types: np.ndarray
    once: np.ndarray
    tokens: np.ndarray

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, torch.Tensor], order: int, vocabulary_size: int) -> "Seen":
        """What a file holds of it.

        Raises:
            ValueError: numbers that are not counts of such a model.
        """
        found = cls(*(tensors[name].numpy() for name in NAMES))
        sizes = tuple(len(values) for values in found)
        whole = all(values.dtype == np.int64 and values.ndim == 1 for values in found)
        if not whole or sizes != (order, order, vocabulary_size) or any((values < 0).any() for values in found):
            raise ValueError("numbers of n-grams that do not fit the tables")
        if (found.once > found.types).any():
            raise ValueError("more n-grams that were seen once than n-grams")
        return found


class Lookups(NamedTuple):
    """What looking up every token of a text gives.

    Attributes:
        losses: −log P of each token, in nats ``(tokens,)``.
        predicted: n-grams of each order that end at a token, none of them across a boundary ``(orders,)``.
        unseen: how many of them are not in the tables; of order 1, not in the training text ``(orders,)``.
        impossible: tokens of probability zero under maximum likelihood; None where the training text is not known.
    """

    losses: np.ndarray
    predicted: np.ndarray
    unseen: np.ndarray
    impossible: int | None


def tallied(
    levels: Iterable[Unigrams | Level], record: list[tuple[int, int, np.ndarray]]
) -> Iterator[Unigrams | Level]:
    """The orders of a text as they come; ``record`` receives types, types seen once, and counts of tokens of each."""
    for level in levels:
        types, once = 0, 0
        for counts in in_order(level.counts, level.blocks):
            types += int(np.count_nonzero(counts))
            once += int(np.count_nonzero(counts == 1))
        record.append((types, once, level.seen.astype(np.int64) if isinstance(level, Unigrams) else np.zeros(0)))
        yield level


def seen_of(record: list[tuple[int, int, np.ndarray]]) -> Seen:
    """What `tallied` has recorded of all orders."""
    types, once, tokens = zip(*record, strict=True)
    return Seen(np.array(types), np.array(once), tokens[0])


def unseen(
    text: np.ndarray, places: list[np.ndarray], skipped: int, seen: Seen | None
) -> tuple[np.ndarray, np.ndarray]:
    """How many n-grams of each order end at the tokens of a text, and how many of them are not in the tables.

    Args:
        text: token ids ``(tokens,)``, −1 for none.
        places: where the n-grams that end at each token lie, −1 for those that are not there, for n = 1, 2, …
        skipped: tokens at the beginning that are only context.
        seen: which tokens the training text holds; None where that is not known, and all are taken as seen.
    """
    predicted, missing = np.zeros(len(places), np.int64), np.zeros(len(places), np.int64)
    valid = text >= 0
    for n, found in enumerate(places, 1):
        if n > 1:
            first = np.roll(text, n - 1)
            first[: n - 1] = -1
            valid &= first >= 0
        if n > 2:  # between the first word and the last one there is no boundary
            middle = np.roll(text, n - 2)
            valid &= middle != BOUNDARY
        lost = found < 0
        if n == 1:
            lost = np.zeros(len(text), bool) if seen is None else seen.tokens[np.maximum(text, 0)] == 0
        predicted[n - 1] = np.count_nonzero(valid[skipped:])
        missing[n - 1] = np.count_nonzero((valid & lost)[skipped:])
    return predicted, missing


def sparsity(lookups: Lookups, seen: Seen | None, vocabulary_size: int, impossible: int) -> dict[str, Any]:
    """The figures of a text, as `evaluate --json` has them.

    Args:
        lookups: of every token of the text.
        seen: what was counted in the training text; None where that is not known.
        vocabulary_size: V.
        impossible: tokens whose probability is zero.

    Returns:
        ``ngrams``, for each order ``order``, ``possible`` (V^n), ``types``, ``once``, ``predicted``, ``unseen`` and
        ``unseen_share``; ``impossible_tokens`` and ``impossible_share`` of this model, and with
        ``maximum_likelihood_`` before them those of the same counts without smoothing. What is not known is None.
    """
    rows = []
    for n, (predicted, missing) in enumerate(zip(lookups.predicted.tolist(), lookups.unseen.tolist(), strict=True), 1):
        known = seen is not None or n > 1
        rows.append(
            {
                "order": n,
                "possible": possible(vocabulary_size, n),
                "types": None if seen is None else int(seen.types[n - 1]),
                "once": None if seen is None else int(seen.once[n - 1]),
                "predicted": predicted,
                "unseen": missing if known else None,
                "unseen_share": missing / predicted if known and predicted else None,
            }
        )
    tokens, unsmoothed = len(lookups.losses), lookups.impossible
    return {
        "ngrams": rows,
        "impossible_tokens": impossible,
        "impossible_share": impossible / tokens if tokens else None,
        "maximum_likelihood_impossible_tokens": unsmoothed,
        "maximum_likelihood_impossible_share": None if unsmoothed is None or not tokens else unsmoothed / tokens,
    }


def possible(vocabulary_size: int, n: int) -> int | float:
    """V^n: exact as far as JSON keeps whole numbers, infinite where no number is so large."""
    power: int = vocabulary_size**n
    if power <= EXACT:
        return power
    return math.exp(exponent) if (exponent := n * math.log(vocabulary_size)) < 700 else math.inf
