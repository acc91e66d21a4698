"""What is kept of the n-grams of each order: whole, or in pieces as they are made."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np

Part = Literal["key", "probability", "backoff"]


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
