"""Smoothing: from counts to probabilities, with interpolation between the orders.

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

from typing import NamedTuple

import numpy as np
import torch

from .levels import BLOCK_SIZE, Block, Level, Unigrams
from .resources import ArrayAllocator, run_for_all

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

    def shares(
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

    def interpolate(self, share: np.ndarray, backoff: np.ndarray, lower: np.ndarray) -> np.ndarray:
        """Return p of each n-gram from α, γ of its context and the probability of the lower order."""
        if self.name == "stupid-backoff":
            return np.where(share > 0, share, BACKOFF_FACTOR * lower)
        probability: np.ndarray = share + backoff * lower
        return probability
