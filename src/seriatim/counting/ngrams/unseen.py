"""Sparsity: how few of all possible n-grams a training text holds, and how many n-grams of another text are unseen.

A vocabulary of V tokens has V^n possible n-grams. The different n-grams in a text are its types. Many of them occur
once, which explains why another text holds many that the training text does not.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch

from .counts import BOUNDARY, Level, Unigrams
from .resources import map_in_order
from .table import NamedArray

TENSOR_NAMES = ("seen_types", "seen_once", "seen_tokens")
"""The tensors of `Seen` in the file of a model."""
EXACT = 2**53
"""JSON stores integers up to this number exactly."""


class Seen(NamedTuple):
    """Counts of the n-grams in a training text, before pruning."""

    types: np.ndarray  # the number of different n-grams of each order (orders,)
    once: np.ndarray  # the number of them that occur once (orders,)
    tokens: np.ndarray  # the count of each token (vocabulary,)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, torch.Tensor], order: int, vocabulary_size: int) -> "Seen":
        """Read the counts from the tensors of a file; ValueError if they are not those of such a model."""
        seen = cls(*(tensors[name].numpy() for name in TENSOR_NAMES))
        sizes = tuple(len(values) for values in seen)
        are_integers = all(values.dtype == np.int64 and values.ndim == 1 for values in seen)
        if not are_integers or sizes != (order, order, vocabulary_size) or any((values < 0).any() for values in seen):
            raise ValueError("the numbers of n-grams do not fit the tables")
        if (seen.once > seen.types).any():
            raise ValueError("more n-grams that occur once than n-grams")
        return seen


class Lookups(NamedTuple):
    """The result of looking up every token of a text."""

    losses: np.ndarray  # −log P of each token, in nats (tokens,)
    predicted: np.ndarray  # the number of n-grams of each order that end at a token and cross no boundary (orders,)
    unseen: np.ndarray  # how many of them are not in the tables; for order 1, not in the training text (orders,)
    matched: np.ndarray  # tokens by the order of the longest n-gram that ends there and is in the tables (orders,)
    impossible: int | None  # tokens of probability zero with `maximum-likelihood`; None if the training text is unknown


Record = tuple[int, int, np.ndarray]
"""Types of one order, types that occur once, and for unigrams the count of each token."""


def tallied(levels: Iterable[Unigrams | Level], records: list[Record]) -> Iterator[Unigrams | Level]:
    """Yield the orders of a text unchanged and append a record of each to ``records``."""
    for level in levels:
        types, once = 0, 0
        for counts in map_in_order(level.counts, level.blocks):
            types += int(np.count_nonzero(counts))
            once += int(np.count_nonzero(counts == 1))
        tokens = level.token_counts.astype(np.int64) if isinstance(level, Unigrams) else np.zeros(0)
        records.append((types, once, tokens))
        yield level


def seen_of(records: list[Record]) -> Seen:
    """Join the records that `tallied` wrote."""
    types, once, tokens = zip(*records, strict=True)
    return Seen(np.array(types), np.array(once), tokens[0])


def seen_arrays(records: list[Record]) -> Iterator[NamedArray]:
    """Yield the arrays of `seen_of` for the file of a model, when `tallied` has written all records."""
    yield from zip(TENSOR_NAMES, seen_of(records), strict=True)


def count_unseen(text: np.ndarray, indices: np.ndarray, skipped: int, seen: Seen | None) -> np.ndarray:
    """Return how many n-grams of each order end at the tokens of a text, and how many of them are not in the tables.

    The third row has the number of tokens by the longest n-gram that is in the tables ``(3, orders)``: with the tokens
    that are unseen themselves, they are all tokens.

    ``text`` holds token ids, −1 for no token; the first ``skipped`` of them are only context. ``indices`` are those of
    the n-grams that end at each token ``(orders, tokens)``, −1 if not in the tables. Without ``seen`` all tokens are
    seen.
    """
    predicted, missing, matched = np.zeros((3, len(indices)), np.int64)
    longest = np.zeros(len(text), np.int64)
    valid = text >= 0
    for n, index in enumerate(indices, 1):
        if n > 1:
            first = np.roll(text, n - 1)
            first[: n - 1] = -1
            valid &= first >= 0
        if n > 2:  # no boundary between the first word and the last one
            valid &= np.roll(text, n - 2) != BOUNDARY
        is_missing = index < 0
        if n == 1:
            is_missing = np.zeros(len(text), bool) if seen is None else seen.tokens[np.maximum(text, 0)] == 0
        predicted[n - 1] = np.count_nonzero(valid[skipped:])
        missing[n - 1] = np.count_nonzero((valid & is_missing)[skipped:])
        longest[valid & ~is_missing] = n
    matched[:] = np.bincount(longest[skipped:], minlength=len(indices) + 1)[1:]
    return np.stack([predicted, missing, matched])


def sparsity(lookups: Lookups, seen: Seen | None, vocabulary_size: int, impossible: int) -> dict[str, object]:
    """Return the figures of a text that `evaluate --json` prints; see `docs/ngrams.md`. Unknown figures are None.

    ``seen`` are the counts of the training text, if known; ``impossible`` is the number of tokens of probability zero.
    """
    rows, tokens = list[dict[str, object]](), len(lookups.losses)
    columns = (lookups.predicted.tolist(), lookups.unseen.tolist(), lookups.matched.tolist())
    for n, (predicted, missing, matched) in enumerate(zip(*columns, strict=True), 1):
        is_known = seen is not None or n > 1
        rows.append(
            {
                "order": n,
                "possible": possible(vocabulary_size, n),
                "types": None if seen is None else int(seen.types[n - 1]),
                "once": None if seen is None else int(seen.once[n - 1]),
                "predicted": predicted,
                "unseen": missing if is_known else None,
                "unseen_share": missing / predicted if is_known and predicted else None,
                "matched": matched,
                "matched_share": matched / tokens if tokens else None,
            }
        )
    unsmoothed = lookups.impossible
    return {
        "ngrams": rows,
        "impossible_tokens": impossible,
        "impossible_share": impossible / tokens if tokens else None,
        "maximum_likelihood_impossible_tokens": unsmoothed,
        "maximum_likelihood_impossible_share": None if unsmoothed is None or not tokens else unsmoothed / tokens,
    }


def possible(vocabulary_size: int, n: int) -> int | float:
    """Return V^n: exact if JSON stores the integer exactly, infinite if no float is large enough."""
    power: int = vocabulary_size**n
    if power <= EXACT:
        return power
    return math.exp(exponent) if (exponent := n * math.log(vocabulary_size)) < 700 else math.inf
