"""A lexicon learned from pairs: the most frequent translation of every source token, read off token by token.

P. Brown, S. Della Pietra, V. Della Pietra and R. Mercer, "The mathematics of statistical machine translation",
Computational Linguistics 19 (1993), model 1, without the empty word:

    P(link of f_j to e_i) = t(f_j | e_i) / Σ_k t(f_j | e_k),   t(f | e) = expected share of f in the links of e

e source tokens · f target tokens. After a few steps of expectation maximization from uniform t, every target token is
linked to the source token with the largest t, the nearest in relative position of equal ones. The translation of a
source token is the most frequent sequence of target tokens that are linked to it, which may be empty.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

Tokens: TypeAlias = tuple[str, ...]
STEPS = 8
"""Steps of expectation maximization."""
MAX_LINKS = 20_000_000
"""Largest number of possible links, of which each takes about 40 bytes; only the first pairs are used beyond it."""


class Lexicon:
    """Translations of source tokens, and how often each was seen; a token without a translation is repeated."""

    def __init__(self, translations: dict[str, Tokens], counts: Mapping[str, int] | None = None) -> None:
        self.translations, self.counts = translations, counts or {}

    @classmethod
    def fit(cls, pairs: Sequence[tuple[Tokens, Tokens]]) -> "Lexicon":
        """Learn the translations from sources and their targets."""
        counts: defaultdict[str, Counter[Tokens]] = defaultdict(Counter)
        pairs = _affordable(pairs)
        for (source, target), links in zip(pairs, link(pairs), strict=True):
            for i, token in enumerate(source):
                counts[token][tuple(target[j] for j in np.flatnonzero(links == i).tolist())] += 1
        best = {token: max(ways, key=lambda way: (ways[way], way)) for token, ways in counts.items()}
        return cls(best, {token: counts[token][way] for token, way in best.items()})

    def translate(self, source: Sequence[str]) -> Tokens:
        """Return the translations of some tokens, one after another."""
        return tuple(word for token in source for word in self.translations.get(token, (token,)))


def link(pairs: Sequence[tuple[Tokens, Tokens]]) -> list[np.ndarray]:
    """Return for each pair the index of the source token to which each target token is linked, −1 without a source."""
    sources, targets = (_numbered([pair[side] for pair in pairs]) for side in (0, 1))
    width = max((int(ids.max()) + 1 for ids in targets if len(ids)), default=1)
    keys = [(s[:, None] * width + t).ravel() for s, t in zip(sources, targets, strict=True)]  # one key for each link
    kinds, links = np.unique(np.concatenate([np.zeros(0, np.int64), *keys]), return_inverse=True)
    chances = _chances(kinds // width, links, _target_places(sources, targets))
    chosen, start = [], 0
    for s, t in zip(sources, targets, strict=True):
        block = chances[links[start : start + len(s) * len(t)]].reshape(len(s), len(t))
        start += len(s) * len(t)
        if not len(s):
            chosen.append(np.full(len(t), -1))
            continue
        distance = np.abs(np.arange(len(s))[:, None] / len(s) - np.arange(len(t)) / max(len(t), 1))
        is_best = block >= block.max(0) * (1 - 1e-9)
        chosen.append(np.where(is_best, distance, np.inf).argmin(0))
    return chosen


def _chances(source_of: np.ndarray, links: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return t of every kind of link ``(kinds,)``.

    ``source_of`` is the source token of each kind, ``links`` the kind of each possible link, and ``places`` the target
    token in the corpus that the link belongs to.
    """
    chances = np.ones(len(source_of))
    for _ in range(STEPS if len(links) else 0):
        weights = chances[links]
        weights /= np.bincount(places, weights)[places]
        expected = np.bincount(links, weights, minlength=len(source_of))
        chances = expected / np.bincount(source_of, expected)[source_of]
    return chances


def _target_places(sources: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> np.ndarray:
    """Return for each possible link the place of its target token in the corpus."""
    places, first = [np.zeros(0, np.int64)], 0
    for s, t in zip(sources, targets, strict=True):
        places.append(np.tile(np.arange(first, first + len(t)), len(s)))
        first += len(t)
    return np.concatenate(places)


def _numbered(texts: Sequence[Tokens]) -> list[np.ndarray]:
    """Return the tokens of each text as numbers."""
    numbers: defaultdict[str, int] = defaultdict(None)
    numbers.default_factory = numbers.__len__
    return [np.array([numbers[token] for token in text], dtype=np.int64) for text in texts]


def _affordable(pairs: Sequence[tuple[Tokens, Tokens]]) -> Sequence[tuple[Tokens, Tokens]]:
    """Return the first pairs, which have at most `MAX_LINKS` possible links."""
    sizes = np.cumsum([len(source) * len(target) for source, target in pairs])
    return pairs[: int(np.searchsorted(sizes, MAX_LINKS, side="right"))]
