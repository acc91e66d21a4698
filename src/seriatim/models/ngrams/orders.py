"""What is kept of the n-grams of each order: whole, or in pieces as they are made."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np

Part = Literal["key", "probability", "backoff"]
LARGE, SEEN, SEEN_OF_LARGE = 1 << 20, 4096, 4
"""N-grams of an order that are looked at when it is opened: each brings up to a megabyte with it, so few of many."""
WHOLE = 1 << 24
"""Values of a table that are all checked; of a larger one, only those of the n-grams that are looked at."""
ROUNDING = 1e-6
"""By which a probability may be above 1."""


class Order(NamedTuple):
    """The n-grams of one order, in the order of their words.

    Attributes:
        key: the place of the first n−1 words among the n-grams one shorter, times the vocabulary's size, plus the last
            word: ascending ``(n-grams,)``.
        probability: p(w | h) ``(n-grams,)``, in float64.
        backoff: γ of the whole n-gram as a context ``(n-grams,)``, 1 where nothing follows it; empty for the longest.
    """

    key: np.ndarray
    probability: np.ndarray
    backoff: np.ndarray


class Piece(NamedTuple):
    """Some neighbours of one part of an order; pieces of one part follow one another."""

    n: int
    part: Part
    values: np.ndarray


def pieces_of(orders: Sequence[Order]) -> Iterator[Piece]:
    """Every part of every order; unigrams need no keys, and the longest have no back-off weights."""
    for n, order in enumerate(orders, 1):
        if n > 1:
            yield Piece(n, "key", order.key)
        yield Piece(n, "probability", order.probability)
        if n < len(orders):
            yield Piece(n, "backoff", order.backoff)


def orders_of(pieces: Iterable[Piece]) -> list[Order]:
    """All pieces put together."""
    parts: dict[tuple[int, Part], list[np.ndarray]] = {}
    for n, part, values in pieces:
        parts.setdefault((n, part), []).append(values)
    found = []
    for n in range(1, 1 + max(n for n, _ in parts)):
        key, probability, backoff = (np.concatenate(parts.get((n, part), [np.ones(0)])) for part in get_args(Part))
        found.append(Order(np.arange(len(probability)) if n == 1 else key, probability, backoff))
    return found


def check_order(orders: Sequence[Order], vocabulary_size: int, *, longest: bool) -> None:
    """Raises ValueError where the last of some orders is none, as far as some of its n-grams show.

    Tables can be larger than memory, so that not all of one is read. ``longest`` says that no order follows.
    """
    n, (key, probability, backoff) = len(orders), orders[-1]
    if len(key) != len(probability) or len(backoff) != (0 if longest else len(probability)):
        raise ValueError(f"tables of {n}-grams that do not fit one another")
    most = SEEN if len(key) < LARGE else SEEN_OF_LARGE
    seen = np.linspace(0, len(key) - 1, min(len(key), most)).astype(np.int64)
    keys = key[seen]
    contexts = len(orders[-2].probability) if n > 1 else 1
    if len(keys) and (keys[0] < 0 or keys[-1] // vocabulary_size >= contexts or (keys[1:] <= keys[:-1]).any()):
        raise ValueError(f"{n}-grams that are not in order")
    if len(probability) > WHOLE:
        probability, backoff = probability[seen], backoff[seen] if len(backoff) else backoff
    if not _within(probability, 1 + ROUNDING):
        raise ValueError(f"probabilities.{n - 1} holds values that are not probabilities")
    if not _within(backoff, np.finfo(np.float64).max):
        raise ValueError(f"backoffs.{n - 1} holds values that are not back-off weights")


def _within(values: np.ndarray, largest: float) -> bool:
    """Whether no value is negative, too large or NaN."""
    return not len(values) or bool(values.min() >= 0 and values.max() <= largest)
