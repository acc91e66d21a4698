"""Smoothing: from counts to probabilities, order by order, with interpolation between the orders.

    p(w | h) = α(h w) + γ(h) p(w | h')          h' is h without its first word; below one word, p is 1 / V

S. F. Chen and J. Goodman, "An empirical study of smoothing techniques for language modeling", Computer Speech and
Language 13, 1999, for the interpolated forms; T. Brants, A. Popat, P. Xu, F. Och and J. Dean, "Large language models in
machine translation", EMNLP 2007, for `stupid-backoff`.

    name                   α(h w)                           γ(h)
    kneser-ney             (a − D_a) / Σ_w a                Σ_i D_i N_i(h) / Σ_w a
    absolute               (c − D) / Σ_w c                  D N(h) / Σ_w c
    witten-bell            c / (Σ_w c + N(h))               N(h) / (Σ_w c + N(h))
    add-k                  c / (Σ_w c + k V)                k V / (Σ_w c + k V), and p(w | h') is 1 / V
    maximum-likelihood     c / Σ_w c                        0
    stupid-backoff         c / Σ_w c                        0.4, and p(w | h') is used only if h w is not in the text;
                                                            not a probability; an unseen h costs nothing

c count of h w · a for the longest n-grams and those that begin a sequence the count, for others the number of different
words before h w · D_i discounts of n-grams counted once, twice, and three times or more (`Discounts`) · N_i(h) number
of such n-grams that begin with h · N(h) number of all n-grams that begin with h.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from .counts import BLOCK_SIZE, Block, Level, Unigrams, integer_type
from .resources import ArrayAllocator, map_in_order, run_for_all
from .table import NamedArray

BACKOFF_FACTOR = 0.4  # the weight that `stupid-backoff` gives the lower order
DEFAULT_DISCOUNTS = (0.5, 1.0, 1.5)
"""Discounts if they cannot be estimated: half of each count, a typical value for texts."""


class Discounts(NamedTuple):
    """What is subtracted from a count of 1, of 2, and of 3 or more."""

    values: tuple[float, ...]
    estimated: bool = True

    def of(self, counts: np.ndarray) -> np.ndarray:
        """Return the discount of each count."""
        table = np.array([0.0, *self.values])
        discounts: np.ndarray = table[np.minimum(counts, 3)]
        return discounts


def three_discounts(tally: np.ndarray) -> Discounts:
    """Estimate the three discounts, or return `DEFAULT_DISCOUNTS` if the counts are too few or unlike those of texts.

    D_i = i − (i + 1) Y t_{i+1} / t_i with Y = t_1 / (t_1 + 2 t_2), where t_i n-grams are counted i times; ``tally``
    ``(6,)`` is t_0 to t_4 and the number of counts of at least 5.
    """
    t = tally.astype(float)
    if 0 not in t[1:5]:
        y = t[1] / (t[1] + 2 * t[2])
        values = tuple(float(i - (i + 1) * y * t[i + 1] / t[i]) for i in (1, 2, 3))
        if all(0 <= value <= i for i, value in enumerate(values, 1)):
            return Discounts(values)
    return Discounts(DEFAULT_DISCOUNTS, estimated=False)


def one_discount(tally: np.ndarray) -> Discounts:
    """Estimate one discount for all counts, t_1 / (t_1 + 2 t_2), or return the first of `DEFAULT_DISCOUNTS`."""
    once, twice = (int(number) for number in tally[1:3])
    value = once / (once + 2 * twice) if once and twice else DEFAULT_DISCOUNTS[0]
    return Discounts((value, value, value), estimated=bool(once and twice))


class Smoothing(NamedTuple):
    """A smoothing method, by its name in the table above, with its options."""

    name: str = "kneser-ney"
    k: float = 1.0  # of `add-k`
    prune: tuple[int, ...] = (0,)  # for each order, the largest count to leave out; the last is for longer n-grams, too
    closed: bool = False  # give the unknown word a probability only if it occurs in the text

    def threshold(self, n: int) -> int:
        """Return the count that n-grams of order ``n`` must exceed."""
        return self.prune[min(n, len(self.prune)) - 1]

    def counts(self, grams: Unigrams | Level, longer: Level | None, arrays: ArrayAllocator) -> np.ndarray:
        """Return the count of each n-gram that enters the formula; ``longer`` is the next order, None if none."""
        counts = arrays.empty(grams.size, grams.count_type)

        def count(block: Block) -> None:
            counts[block.grams] = grams.counts(block)

        if self.name != "kneser-ney" or longer is None:
            run_for_all(count, grams.blocks)
            return counts

        # Kneser-Ney counts the different words before an n-gram: the longer n-grams that have it as a suffix, one each.
        counts[:] = 0
        total = torch.from_numpy(counts)
        ones = torch.ones(BLOCK_SIZE, dtype=total.dtype)
        for start in range(0, longer.size, BLOCK_SIZE):
            indices = torch.from_numpy(longer.suffix[start : start + BLOCK_SIZE])
            total.index_add_(0, indices, ones[: len(indices)])
        for block in grams.blocks:  # n-grams that begin a sequence have no word before them
            starting = slice(block.grams.start, min(block.grams.stop, grams.starting))
            if starting.start < starting.stop:
                counts[starting] = grams.counts(block)[: starting.stop - starting.start]
        return counts

    def discounts(self, tally: np.ndarray) -> Discounts:
        """Return the discounts; see `three_discounts`."""
        if self.name == "kneser-ney":
            return three_discounts(tally)
        if self.name == "absolute":
            return one_discount(tally)
        return Discounts((0.0, 0.0, 0.0))

    @property
    def prunes(self) -> bool:
        """Whether any n-gram can be left out."""
        return any(self.prune)

    @property
    def flat(self) -> bool:
        """Whether the lower order is the same probability for all words."""
        return self.name == "add-k"

    def alpha_and_backoff(
        self, discounted: np.ndarray, counts: np.ndarray, context: np.ndarray, contexts: int, vocabulary_size: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return α of each n-gram, at least one, and γ of each context, 1 if nothing follows it.

        ``discounted`` is the count of each n-gram minus its discount, ``context`` the index of its context.
        """
        left: np.ndarray = np.bincount(context, counts - discounted, contexts)
        if self.name == "witten-bell":
            left += np.bincount(context, counts > 0, contexts)
        elif self.name == "add-k":
            left += self.k * vocabulary_size
        total = left + np.bincount(context, discounted, contexts)
        known = total > 0
        left[~known], total[~known] = 1.0, 1.0
        backoff = np.where(known, BACKOFF_FACTOR, 1.0) if self.name == "stupid-backoff" else left / total
        return discounted / total[context], backoff

    def interpolate(self, alpha: np.ndarray, backoff: np.ndarray, lower: np.ndarray) -> np.ndarray:
        """Return p of each n-gram from α, γ of its context and the probability of the lower order."""
        if self.name == "stupid-backoff":
            return np.where(alpha > 0, alpha, BACKOFF_FACTOR * lower)
        probability: np.ndarray = alpha + backoff * lower
        return probability


def smoothed(
    levels: Iterable[Unigrams | Level],
    vocabulary_size: int,
    smoothing: Smoothing,
    *,
    unknown: int | None = None,
    arrays: ArrayAllocator | None = None,
) -> Iterator[NamedArray]:
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
        yield from smoother.smooth_order(level, longer)
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

    def smooth_order(self, level: Unigrams | Level, longer: Level | None) -> Iterator[NamedArray]:
        """Smooth the next order."""
        n, counts = self.n + 1, self.smoothing.counts(level, longer, self.arrays)
        discounts, sizes = self.discounts(level, counts)
        if not discounts.estimated:
            self.orders_without_estimate.append(n)

        # Blocks are smoothed in parallel, each writes its own range of the arrays; only their keys come in order.
        probability = self.arrays.empty(sum(sizes), np.float64)
        backoff = self.arrays.empty(len(self.lower) if self.n else 1, np.float64)
        backoff[:] = 1.0
        indices = self.arrays.empty(level.size, integer_type(level.size)) if self.smoothing.prunes else None

        def smooth(item: tuple[Block, int]) -> np.ndarray:
            block, start = item
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

        # Contexts of a block are neighbours, so that sums over them need only their range.
        if not len(context):
            return _SmoothedBlock(retained, np.zeros(0, np.int64), np.ones(0), slice(0, 0), np.ones(0))
        low, high = int(context[0]), int(context[-1]) + 1
        alpha, backoff = smoothing.alpha_and_backoff(discounted, counts, context - low, high - low, len(self.base))
        if retained is not None:
            context, alpha = context[retained[has_context]], alpha[retained[has_context]]
            word, suffix, is_start = word[retained], suffix[retained], is_start[retained]
        lower = self.base[word] if self.n == 0 or smoothing.flat else self.lower[self.retained_indices(suffix)]
        probability = smoothing.interpolate(alpha, backoff[context - low], lower)
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
