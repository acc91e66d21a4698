"""From counted n-grams to probabilities, order by order and block by block; `smoothing` says by which rule."""

import warnings
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from .counts import BLOCK, Grams
from .room import Room
from .smoothing import USUAL, Discounts, Smoothing


class Order(NamedTuple):
    """What is kept of the n-grams of one order, in the order of their words.

    Attributes:
        key: the place of the first n−1 words among the n-grams one shorter, times the vocabulary's size, plus the last
            word: ascending ``(n-grams,)``.
        probability: p(w | h) ``(n-grams,)``, in float64.
        backoff: γ of the whole n-gram as a context ``(n-grams,)``, 1 where nothing follows it; empty for the longest.
    """

    key: np.ndarray
    probability: np.ndarray
    backoff: np.ndarray


def smoothed(
    orders: Iterable[Grams],
    vocabulary_size: int,
    how: Smoothing,
    *,
    unknown: int | None = None,
    room: Room | None = None,
) -> Iterator[Order]:
    """Probabilities of all n-grams, shortest first; between them they give every word after every context its own.

    Two orders of counts are held at once, and two of probabilities.

    Args:
        orders: from `count_ngrams`.
        vocabulary_size: number of token ids.
        how: to smooth.
        unknown: the id of the unknown word, where there is one.
        room: where large arrays lie; None for memory.

    Warns:
        UserWarning: counts that give no discounts; `USUAL` ones are taken.
    """
    base = np.ones(vocabulary_size)
    if how.closed and unknown is not None:
        base[unknown] = 0.0
    smoother, guessed = _Smoother(base / base.sum(), how, room or Room()), []
    for n, (grams, longer) in enumerate(_with_next(orders), 1):
        before = smoother.done
        found, backoff = smoother.order(n, grams, longer)
        guessed += [] if found.estimated else [n]
        if before is not None:
            yield before._replace(backoff=backoff)
            del before
    if guessed:
        used = ", ".join(map(str, USUAL if how.name == "kneser-ney" else USUAL[:1]))
        few = ", ".join(map(str, guessed)) if len(guessed) < 6 else f"{guessed[0]} to {guessed[-1]}"
        warnings.warn(
            f"too few n-grams of {few} words, or their counts unlike those of texts, to estimate discounts; {used} "
            "taken instead",
            stacklevel=2,
        )
    assert smoother.done is not None
    yield smoother.done


class _Smoother:
    """Orders of counts to orders of probabilities, block by block.

    Attributes:
        done: what the last order became, its back-off weights yet to come; None before the first.
        places: where the n-grams of the last order lie among those kept, −1 for others; None where all are kept.
    """

    def __init__(self, base: np.ndarray, how: Smoothing, room: Room) -> None:
        self.base, self.how, self.room = base, how, room
        self.done: Order | None = None
        self.places: np.ndarray | None = None

    def order(self, n: int, grams: Grams, longer: Grams | None) -> tuple[Discounts, np.ndarray]:
        """Smooths the next order; gives its discounts, and the back-off weights of the order before."""
        counts, threshold = self.how.counts(grams, longer, self.room), self.how.threshold(n) if n > 1 else -1
        tally, size = np.zeros(6, dtype=np.int64), 0
        for block in _blocks(grams.context):
            present = self.at(grams.context[block]) >= 0  # what follows a pruned context is not there at all
            tally += np.bincount(np.minimum(counts[block][present], 5), minlength=6)
            size += int((present & (grams.counts[block] > threshold)).sum())
        found = self.how.discounts(tally)
        made = Order(self.room.empty(size, np.int64), self.room.empty(size, np.float64), np.ones(0))
        backoff = self.room.empty(1 if self.done is None else len(self.done.key), np.float64)
        backoff[:] = 1.0
        places = self.room.empty(len(counts), np.int32) if self.how.pruning else None
        end = 0
        for block in _blocks(grams.context):
            these = Grams(*(values[block] for values in grams))
            present = self.at(these.context) >= 0
            kept = present & (these.counts > threshold)
            start, end = end, end + int(kept.sum())
            if places is not None:
                places[block] = np.where(kept, start - 1 + np.cumsum(kept), -1)
            if present.any():
                inside = Grams(*(values[present] for values in these))
                made.key[start:end], made.probability[start:end] = self.block(
                    inside, counts[block][present], kept[present], found, backoff, longest=longer is None
                )
        self.done, self.places = made, places
        return found, backoff

    def block(
        self,
        grams: Grams,
        counts: np.ndarray,
        kept: np.ndarray,
        discounts: Discounts,
        backoff: np.ndarray,
        *,
        longest: bool,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Keys and probabilities of those ``kept`` of all n-grams that follow some contexts; fills ``backoff``."""
        how, context = self.how, self.at(grams.context)
        own = np.where(kept, counts - discounts.of(counts), 0.0)
        low, high = int(context[0]), int(context[-1]) + 1
        share, left = how.shared(own, counts, context - low, high - low, len(self.base))
        context, word = context[kept], grams.word[kept]
        lower = self.base[word] if self.done is None or how.flat else self.done.probability[self.at(grams.suffix[kept])]
        probability = how.joined(share[kept], left[context - low], lower)
        if how.flat and not longest:  # which has no use for shorter n-grams but to begin a sequence
            inside = ~grams.starts[kept]
            probability[inside] = lower[inside]
            left[context[inside] - low] = 1.0
        backoff[low:high] = left
        return context.astype(np.int64) * len(self.base) + word, probability

    def at(self, index: np.ndarray) -> np.ndarray:
        """Where n-grams of the last order lie among those kept."""
        return index if self.places is None else self.places[index]


def _blocks(context: np.ndarray) -> Iterator[slice]:
    """Neighbours, in blocks that hold all or none of what follows a context."""
    start = 0
    while start < len(context):
        last = context[min(start + BLOCK, len(context)) - 1]
        start, before = int(np.searchsorted(context, last, side="right")), start
        yield slice(before, start)


def _with_next(orders: Iterable[Grams]) -> Iterator[tuple[Grams, Grams | None]]:
    """Each order with the one after it."""
    remaining = iter(orders)
    this = next(remaining)
    for following in remaining:
        yield this, following
        this = following
    yield this, None
