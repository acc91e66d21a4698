"""From counted n-grams to probabilities, order by order and block by block; see `smoothing` for the formulas."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from .levels import Block, Level, Unigrams, integer_type
from .resources import ArrayAllocator, map_in_order
from .smoothing import DEFAULT_DISCOUNTS, Discounts, Smoothing
from .table import Piece


def smoothed(
    levels: Iterable[Unigrams | Level],
    vocabulary_size: int,
    smoothing: Smoothing,
    *,
    unknown: int | None = None,
    arrays: ArrayAllocator | None = None,
) -> Iterator[Piece]:
    """Yield keys and probabilities of an order and the back-off weights of the one before, for each of `count_ngrams`.

    The probabilities of two orders and the back-off weights of one are held at a time. ``unknown`` is the id of the
    unknown word, if there is one; ``arrays`` allocates large arrays, None for memory.

    Warns:
        UserWarning: discounts cannot be estimated from the counts; `DEFAULT_DISCOUNTS` are used.
    """
    base = np.ones(vocabulary_size)
    if smoothing.closed and unknown is not None:
        base[unknown] = 0.0
    smoother = _Smoother(base / base.sum(), smoothing, arrays or ArrayAllocator())
    for level, longer in _with_next(levels):
        yield from smoother.pieces(level, longer)
        del level, longer  # free the memory before the next order is counted
    if orders := smoother.orders_without_estimate:
        values = ", ".join(map(str, DEFAULT_DISCOUNTS if smoothing.name == "kneser-ney" else DEFAULT_DISCOUNTS[:1]))
        listed = ", ".join(map(str, orders)) if len(orders) < 6 else f"{orders[0]} to {orders[-1]}"
        warnings.warn(
            f"too few n-grams of order {listed} to estimate discounts, or their counts are unlike those of texts; "
            f"{values} used instead",
            stacklevel=2,
        )


class _SmoothedBlock(NamedTuple):
    """The result of smoothing a block."""

    retained: np.ndarray | None  # which n-grams of the block are not pruned; None for all
    key: np.ndarray  # of each retained n-gram
    probability: np.ndarray  # of each retained n-gram
    contexts: slice  # indices of the lower order, from the context of the first n-gram to that of the last
    backoff: np.ndarray  # of each context


class _Smoother:
    """Turns counts of one order after another into probabilities, block by block."""

    def __init__(self, base: np.ndarray, smoothing: Smoothing, arrays: ArrayAllocator) -> None:
        self.base, self.smoothing, self.arrays = base, smoothing, arrays
        self.n, self.lower = 0, base  # the last order, and the probabilities of its n-grams
        self.indices: np.ndarray | None = None  # of its n-grams among those retained, −1 if pruned; None if all are
        self.orders_without_estimate: list[int] = []

    @property
    def threshold(self) -> int:
        """The count that the next n-grams must exceed; −1 for unigrams, which are never pruned."""
        return self.smoothing.threshold(self.n + 1) if self.n else -1

    def pieces(self, level: Unigrams | Level, longer: Level | None) -> Iterator[Piece]:
        """Smooth the next order."""
        n, counts = self.n + 1, self.smoothing.counts(level, longer, self.arrays)
        discounts, sizes = self.discounts(level, counts)
        if not discounts.estimated:
            self.orders_without_estimate.append(n)
        probability = self.arrays.empty(sum(sizes), np.float64)
        backoff = self.arrays.empty(len(self.lower) if self.n else 1, np.float64)
        backoff[:] = 1.0
        indices = self.arrays.empty(level.size, integer_type(level.size)) if self.smoothing.prunes else None

        def smooth(part: tuple[Block, int]) -> np.ndarray:
            block, start = part
            result = self.block(level, block, counts, discounts, longest=longer is None)
            probability[start : start + len(result.key)] = result.probability
            backoff[result.contexts] = result.backoff
            if indices is not None:
                assert result.retained is not None
                indices[block.grams] = np.where(result.retained, start - 1 + np.cumsum(result.retained), -1)
            return result.key

        starts = np.cumsum([0, *sizes[:-1]]).tolist()
        for key in map_in_order(smooth, zip(level.blocks, starts, strict=True)):
            if n > 1:
                yield f"keys.{n - 2}", key
        yield f"probabilities.{n - 1}", probability
        if n > 1:
            yield f"backoffs.{n - 2}", backoff
        self.n, self.lower, self.indices = n, probability, indices

    def discounts(self, level: Unigrams | Level, counts: np.ndarray) -> tuple[Discounts, Sequence[int]]:
        """Return the discounts of an order, and how many n-grams of each of its blocks are retained."""

        def tally(block: Block) -> tuple[np.ndarray, int]:
            block_counts, size = counts[block.grams], block.grams.stop - block.grams.start
            if self.smoothing.prunes:  # n-grams whose context is pruned do not count
                has_context = self.retained_indices(level.contexts(block)) >= 0
                block_counts = block_counts[has_context]
                size = int((has_context & (level.counts(block) > self.threshold)).sum())
            return np.bincount(np.minimum(block_counts, 5), minlength=6), size

        tallies, sizes = zip(*map_in_order(tally, level.blocks), strict=True)
        return self.smoothing.discounts(np.sum(tallies, axis=0)), sizes

    def block(
        self, level: Unigrams | Level, block: Block, counts: np.ndarray, discounts: Discounts, *, longest: bool
    ) -> _SmoothedBlock:
        """Return the keys and probabilities of a block's n-grams, and the back-off weights of their contexts."""
        smoothing, retained = self.smoothing, None
        context, word = self.retained_indices(level.contexts(block)), level.words(block)
        suffix, counts = level.suffix[block.grams], counts[block.grams]
        is_start = np.arange(block.grams.start, block.grams.stop) < level.starting
        discounted = counts - discounts.of(counts)
        if smoothing.prunes:
            has_context = context >= 0
            retained = has_context & (level.counts(block) > self.threshold)
            discounted[~retained] = 0.0
            context, counts, discounted = context[has_context], counts[has_context], discounted[has_context]
        if not len(context):
            return _SmoothedBlock(retained, np.zeros(0, np.int64), np.ones(0), slice(0, 0), np.ones(0))
        low, high = int(context[0]), int(context[-1]) + 1
        share, backoff = smoothing.shares(discounted, counts, context - low, high - low, len(self.base))
        if retained is not None:
            context, share = context[retained[has_context]], share[retained[has_context]]
            word, suffix, is_start = word[retained], suffix[retained], is_start[retained]
        lower = self.base[word] if self.n == 0 or smoothing.flat else self.lower[self.retained_indices(suffix)]
        probability = smoothing.interpolate(share, backoff[context - low], lower)
        if smoothing.flat and not longest:  # shorter n-grams are used at the beginning of a sequence only
            probability[~is_start] = lower[~is_start]
            backoff[context[~is_start] - low] = 1.0
        key = context.astype(np.int64) * len(self.base) + word
        return _SmoothedBlock(retained, key, probability, slice(low, high), backoff)

    def retained_indices(self, index: np.ndarray) -> np.ndarray:
        """Return the indices of n-grams of the last order among those retained."""
        return index if self.indices is None else self.indices[index]


def _with_next(levels: Iterable[Unigrams | Level]) -> Iterator[tuple[Unigrams | Level, Level | None]]:
    """Yield each order with the next one, None after the last."""
    remaining = iter(levels)
    current = next(remaining)
    for following in remaining:
        assert isinstance(following, Level)
        yield current, following
        current = following
    yield current, None
