"""From counts to probabilities: each order's own share, and what is left to the order below.

    p(w | h) = α(h w) + γ(h) p(w | h')          h' is h without its first word; below one word, p is 1 / V

S. F. Chen and J. Goodman, "An empirical study of smoothing techniques for language modeling", Computer Speech and
Language 13, 1999, whose interpolated forms these are; T. Brants, A. Popat, P. Xu, F. Och and J. Dean, "Large language
models in machine translation", EMNLP 2007, for `stupid-backoff`.

    name                   α(h w)                           γ(h)
    kneser-ney             (a − D_a) / Σ_w a                Σ_i D_i N_i(h) / Σ_w a
    absolute               (c − D) / Σ_w c                  D N(h) / Σ_w c
    witten-bell            c / (Σ_w c + N(h))               N(h) / (Σ_w c + N(h))
    add-k                  c / (Σ_w c + k V)                k V / (Σ_w c + k V), and p(w | h') is 1 / V
    maximum-likelihood     c / Σ_w c                        0
    stupid-backoff         c / Σ_w c                        0.4, and p(w | h') counts only where h w never stood;
                                                            no probability, and an h that never stood costs nothing

c count of h w · a the same for the longest n-grams and those that begin a sequence, elsewhere the number of different
words before h w · D_i discounts of n-grams counted once, twice, and more often (`Discounts`) · N_i(h) how many of those
follow h · N(h) how many in all.
"""

from typing import NamedTuple

import numpy as np
import torch

from .counts import BLOCK, Block, Level, Unigrams
from .parallel import for_all
from .room import Room

BACKOFF = 0.4
"""What `stupid-backoff` gives the order below."""
USUAL = (0.5, 1.0, 1.5)
"""Discounts where counts give none: half of what the count is, as in the middle of what texts give."""


class Discounts(NamedTuple):
    """What is taken of a count of 1, of 2, and of any larger one.

    D_i = i − (i + 1) Y t_{i+1} / t_i with Y = t_1 / (t_1 + 2 t_2), t_i how many n-grams were counted i times.
    """

    values: tuple[float, float, float]
    estimated: bool = True

    def of(self, counts: np.ndarray) -> np.ndarray:
        """The discount of each count."""
        table = np.array([0.0, *self.values])
        found: np.ndarray = table[np.minimum(counts, 3)]
        return found


def three_discounts(tally: np.ndarray) -> Discounts:
    """The discounts that counts give; the `USUAL` ones where these are too few or not like those of words.

    Args:
        tally: how many counts are 0, 1, … and at least 5 ``(6,)``.
    """
    t = tally.astype(float)
    if 0 in t[1:5]:
        return Discounts(USUAL, estimated=False)
    y = t[1] / (t[1] + 2 * t[2])
    found = tuple(float(i - (i + 1) * y * t[i + 1] / t[i]) for i in (1, 2, 3))
    if not all(0 <= value <= i for i, value in enumerate(found, 1)):
        return Discounts(USUAL, estimated=False)
    return Discounts((found[0], found[1], found[2]))


def one_discount(tally: np.ndarray) -> Discounts:
    """t_1 / (t_1 + 2 t_2) of every count; the first of the `USUAL` ones where there is none."""
    once, twice = (int(number) for number in tally[1:3])
    found = once / (once + 2 * twice) if once and twice else USUAL[0]
    return Discounts((found, found, found), estimated=bool(once and twice))


class Smoothing(NamedTuple):
    """How counts become probabilities.

    Attributes:
        name: one of `NAMES`.
        k: of `add-k`.
        prune: n-grams of each order counted so often or less are left out; the last number holds for longer ones.
        closed: the unknown word has a probability only where it stands in the text.
    """

    name: str = "kneser-ney"
    k: float = 1.0
    prune: tuple[int, ...] = (0,)
    closed: bool = False

    def threshold(self, n: int) -> int:
        """What n-grams of order ``n`` must be counted more often than."""
        return self.prune[min(n, len(self.prune)) - 1]

    def counts(self, grams: Unigrams | Level, longer: Level | None, room: Room) -> np.ndarray:
        """How often each n-gram counts; ``longer`` are those of the next order, None for the longest."""
        found = room.empty(grams.size, np.int32)

        def count(block: Block) -> None:
            found[block.grams] = grams.counts(block)

        if self.name != "kneser-ney" or longer is None:
            for_all(count, grams.blocks)
            return found
        found[:] = 0
        total, one = torch.from_numpy(found), torch.ones(BLOCK, dtype=torch.int32)
        for start in range(0, longer.size, BLOCK):
            places = torch.from_numpy(longer.suffix[start : start + BLOCK])
            total.index_add_(0, places, one[: len(places)])
        for block in grams.blocks:  # what begins a sequence has nothing before it
            begins = slice(block.grams.start, min(block.grams.stop, grams.starting))
            if begins.start < begins.stop:
                found[begins] = grams.counts(block)[: begins.stop - begins.start]
        return found

    def discounts(self, tally: np.ndarray) -> Discounts:
        """What is taken of counts, of which ``tally`` ``(6,)`` has how many are 0, 1, … and at least 5."""
        if self.name == "kneser-ney":
            return three_discounts(tally)
        if self.name == "absolute":
            return one_discount(tally)
        return Discounts((0.0, 0.0, 0.0))

    @property
    def pruning(self) -> bool:
        """Whether anything can be left out."""
        return any(self.prune)

    @property
    def flat(self) -> bool:
        """Whether the order below is one probability for all words."""
        return self.name == "add-k"

    def shared(
        self, own: np.ndarray, counts: np.ndarray, context: np.ndarray, contexts: int, vocabulary_size: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """α of each n-gram, and γ of each context, 1 where nothing follows it.

        Args:
            own: what each n-gram keeps of its count ``(n-grams,)``.
            counts: of each ``(n-grams,)``.
            context: the place of each one's context ``(n-grams,)``.
            contexts: how many there are.
            vocabulary_size: number of token ids.
        """
        left = _sums(context, counts - own, contexts)
        if self.name == "witten-bell":
            left += _sums(context, counts > 0, contexts)
        elif self.name == "add-k":
            left += self.k * vocabulary_size
        whole = left + _sums(context, own, contexts)
        known = whole > 0
        left[~known], whole[~known] = 1.0, 1.0
        backoff = np.where(known, BACKOFF, 1.0) if self.name == "stupid-backoff" else left / whole
        return own / whole[context], backoff

    def joined(self, share: np.ndarray, backoff: np.ndarray, lower: np.ndarray) -> np.ndarray:
        """P of each n-gram from its own share, and what it gets of the order below."""
        if self.name == "stupid-backoff":
            return np.where(share > 0, share, BACKOFF * lower)
        found: np.ndarray = share + backoff * lower
        return found


def _sums(context: np.ndarray, values: np.ndarray, contexts: int) -> np.ndarray:
    """Sums ``(contexts,)`` of values ``(n-grams,)``, in float64 even of nothing."""
    found: np.ndarray = np.bincount(context, values, minlength=contexts).astype(float, copy=False)
    return found
