"""From counted n-grams to probabilities, order by order and block by block; `smoothing` says by which rule."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from .counts import Block, Level, Unigrams
from .orders import Piece
from .parallel import in_order
from .room import Room
from .smoothing import USUAL, Discounts, Smoothing


def smoothed(
    levels: Iterable[Unigrams | Level],
    vocabulary_size: int,
    how: Smoothing,
    *,
    unknown: int | None = None,
    room: Room | None = None,
) -> Iterator[Piece]:
    """Probabilities of all n-grams, shortest first; between them they give every word after every context its own.

    Args:
        levels: from `count_ngrams`.
        vocabulary_size: number of token ids.
        how: to smooth.
        unknown: the id of the unknown word, where there is one.
        room: where large arrays lie; None for memory.

    Yields:
        What `orders.orders_of` puts together: the keys of an order, its probabilities, the back-off weights of the one
        before. Of these no more is held than the probabilities of two orders and the weights of one.

    Warns:
        UserWarning: counts that give no discounts; `USUAL` ones are taken.
    """
    base = np.ones(vocabulary_size)
    if how.closed and unknown is not None:
        base[unknown] = 0.0
    smoother = _Smoother(base / base.sum(), how, room or Room())
    for level, longer in _with_next(levels):
        yield from smoother.pieces(level, longer)
        del level, longer  # before the next one is made
    if guessed := smoother.guessed:
        used = ", ".join(map(str, USUAL if how.name == "kneser-ney" else USUAL[:1]))
        few = ", ".join(map(str, guessed)) if len(guessed) < 6 else f"{guessed[0]} to {guessed[-1]}"
        warnings.warn(
            f"too few n-grams of {few} words, or their counts unlike those of texts, to estimate discounts; {used} "
            "taken instead",
            stacklevel=2,
        )


class _Smoothed(NamedTuple):
    """What becomes of a block: keys and probabilities of the n-grams that are kept, and back-off weights.

    Attributes:
        kept: which n-grams of the block are kept; None for all.
        key: of each one kept.
        probability: of each one kept.
        contexts: the order before, from the context of the first n-gram to that of the last.
        backoff: of each context.
    """

    kept: np.ndarray | None
    key: np.ndarray
    probability: np.ndarray
    contexts: slice
    backoff: np.ndarray


class _Smoother:
    """Orders of counts to orders of probabilities, block by block.

    Attributes:
        n: words of the last order.
        lower: its probabilities.
        places: where its n-grams lie among those kept, −1 for others; None where all are kept.
        guessed: orders whose counts give no discounts.
    """

    def __init__(self, base: np.ndarray, how: Smoothing, room: Room) -> None:
        self.base, self.how, self.room = base, how, room
        self.n, self.lower = 0, base
        self.places: np.ndarray | None = None
        self.guessed: list[int] = []

    @property
    def threshold(self) -> int:
        """What the next n-grams must be counted more often than to be kept; tokens all are."""
        return self.how.threshold(self.n + 1) if self.n else -1

    def pieces(self, level: Unigrams | Level, longer: Level | None) -> Iterator[Piece]:
        """Smooths the next order."""
        n, counts = self.n + 1, self.how.counts(level, longer, self.room)
        discounts, sizes = self.discounts(level, counts)
        self.guessed += [] if discounts.estimated else [n]
        probability = self.room.empty(sum(sizes), np.float64)
        backoff = self.room.empty(len(self.lower) if self.n else 1, np.float64)
        backoff[:] = 1.0
        places = self.room.empty(level.size, np.int32) if self.how.pruning else None

        def smooth(part: tuple[Block, int]) -> np.ndarray:
            block, start = part
            found = self.block(level, block, counts, discounts, longest=longer is None)
            probability[start : start + len(found.key)] = found.probability
            backoff[found.contexts] = found.backoff
            if places is not None:
                assert found.kept is not None
                places[block.grams] = np.where(found.kept, start - 1 + np.cumsum(found.kept), -1)
            return found.key

        starts = np.cumsum([0, *sizes[:-1]]).tolist()
        for key in in_order(smooth, zip(level.blocks, starts, strict=True)):
            if n > 1:
                yield Piece(n, "key", key)
        yield Piece(n, "probability", probability)
        if n > 1:
            yield Piece(n - 1, "backoff", backoff)
        self.n, self.lower, self.places = n, probability, places

    def discounts(self, level: Unigrams | Level, counts: np.ndarray) -> tuple[Discounts, Sequence[int]]:
        """The discounts of an order, and how many n-grams of each of its blocks are kept."""

        def look(block: Block) -> tuple[np.ndarray, int]:
            mine, size = counts[block.grams], block.grams.stop - block.grams.start
            if self.how.pruning:  # what follows a pruned context is not there at all
                present = self.at(level.contexts(block)) >= 0
                mine, size = mine[present], int((present & (level.counts(block) > self.threshold)).sum())
            return np.bincount(np.minimum(mine, 5), minlength=6), size

        tallies, sizes = zip(*in_order(look, level.blocks), strict=True)
        return self.how.discounts(np.sum(tallies, axis=0)), sizes

    def block(
        self,
        level: Unigrams | Level,
        block: Block,
        counts: np.ndarray,
        discounts: Discounts,
        *,
        longest: bool,
    ) -> _Smoothed:
        """Keys and probabilities of the n-grams of a block, and what their contexts leave to the order before."""
        how, kept = self.how, None
        context, word, suffix = self.at(level.contexts(block)), level.words(block), level.suffix[block.grams]
        starts, counts = np.arange(block.grams.start, block.grams.stop) < level.starting, counts[block.grams]
        own = counts - discounts.of(counts)
        if how.pruning:
            present = context >= 0
            kept = present & (level.counts(block) > self.threshold)
            own[~kept] = 0.0
            context, counts, own = context[present], counts[present], own[present]
        if not len(context):
            return _Smoothed(kept, np.zeros(0, np.int64), np.ones(0), slice(0, 0), np.ones(0))
        low, high = int(context[0]), int(context[-1]) + 1
        share, left = how.shared(own, counts, context - low, high - low, len(self.base))
        if kept is not None:
            context, share = context[kept[present]], share[kept[present]]
            word, suffix, starts = word[kept], suffix[kept], starts[kept]
        lower = self.base[word] if self.n == 0 or how.flat else self.lower[self.at(suffix)]
        probability = how.joined(share, left[context - low], lower)
        if how.flat and not longest:  # which has no use for shorter n-grams but to begin a sequence
            probability[~starts] = lower[~starts]
            left[context[~starts] - low] = 1.0
        return _Smoothed(kept, context.astype(np.int64) * len(self.base) + word, probability, slice(low, high), left)

    def at(self, index: np.ndarray) -> np.ndarray:
        """Where n-grams of the last order lie among those kept."""
        return index if self.places is None else self.places[index]


def _with_next(levels: Iterable[Unigrams | Level]) -> Iterator[tuple[Unigrams | Level, Level | None]]:
    """Each order with the one after it."""
    remaining = iter(levels)
    this = next(remaining)
    for following in remaining:
        assert isinstance(following, Level)
        yield this, following
        this = following
    yield this, None
