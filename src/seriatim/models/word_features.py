"""Vectors of words from hashed features: prefixes, suffixes, the shape, and the word in lower case.

    v = Σ_k E[1 + hash(k, f_k) mod (rows − 1)]

f_k feature k of the word, such as its last three characters · E one embedding for all features, zero at first, so that
a feature that never occurred in training adds nothing, up to collisions of hashes.

Prefixes, suffixes and shapes: A. Ratnaparkhi, "A maximum entropy model for part-of-speech tagging", EMNLP 1996.
Hashing: K. Weinberger et al., "Feature hashing for large scale multitask learning", ICML 2009. The sum of embeddings:
P. Bojanowski et al., "Enriching word vectors with subword information", TACL 2017.

Features are computed from ids of characters, so that a batch need not hold text. Characters that did not occur in
training are all alike.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..core.errors import InputError, nearest
from .characters import CharacterModel

FEATURES = ("prefix", "suffix", "shape", "lowercase")
"""The kinds of features; affixes have one to `LONGEST` characters."""
LONGEST = 4
ROWS = 1 << 15
PRIME, START, SPREAD = 1_000_003, 0x9E3779B97F4A7C15 - (1 << 64), 0xBF58476D1CE4E5B9 - (1 << 64)
"""Factor and start of the polynomial hash, and a factor that spreads it over all bits (the constants of splitmix64: G.
Steele, D. Lea and C. Flood, OOPSLA 2014). Products of 64-bit integers wrap around."""


class WordFeatures(CharacterModel):
    """Ids of characters ``(words, max_length)`` and lengths ``(words,)`` to vectors ``(words, output_size)``.

    Args:
        alphabet: the character of every id; texts of special ids have several characters.
        kinds: some of `FEATURES`, at least one.
        size: width of v.
        rows: rows of E, of which row 0 is zero: that of affixes that are longer than their word.
    """

    def __init__(self, alphabet: Sequence[str], kinds: Sequence[str], *, size: int, rows: int = ROWS) -> None:
        super().__init__()
        if unknown := next((kind for kind in kinds if kind not in FEATURES), None):
            raise InputError(f"unknown feature {unknown!r}; {nearest(unknown, list(FEATURES))}")
        self.kinds, self.output_size, self.rows = frozenset(kinds), size, rows
        ids = {character: i for i, character in enumerate(alphabet)}
        lower = [ids.get(character.lower(), i) for i, character in enumerate(alphabet)]
        self.lower: Tensor
        self.register_buffer("lower", torch.tensor(lower), persistent=False)
        self.class_of: Tensor
        self.register_buffer("class_of", torch.tensor(list(map(_class_of, alphabet))), persistent=False)
        self.embedding = nn.EmbeddingBag(rows, size, mode="sum", padding_idx=0)
        nn.init.zeros_(self.embedding.weight)

    def forward(self, characters: Tensor, lengths: Tensor) -> Tensor:
        """Return vectors ``(words, output_size)``."""
        vectors: Tensor = self.embedding(self.rows_of(characters, lengths))
        return vectors

    def rows_of(self, characters: Tensor, lengths: Tensor) -> Tensor:
        """Return the row of E of each feature ``(words, features)``; 0 for an affix that is longer than the word."""
        lower = self.lower[characters]
        keys: list[Tensor] = []
        if "prefix" in self.kinds:
            keys += self._affixes(lower, lengths, from_end=False)
        if "suffix" in self.kinds:
            keys += self._affixes(lower, lengths, from_end=True)
        if "shape" in self.kinds:
            classes = self.class_of[characters]
            changes = torch.ones_like(classes, dtype=torch.bool)
            changes[:, 1:] = classes[:, 1:] != classes[:, :-1]
            keys.append(_hash(classes, changes & _before(lengths, classes), 2 * LONGEST))
        if "lowercase" in self.kinds:
            keys.append(_hash(lower, _before(lengths, lower), 2 * LONGEST + 1))
        stacked = torch.stack(keys, dim=1)
        return torch.where(stacked == 0, 0, 1 + stacked % (self.rows - 1))

    def _affixes(self, characters: Tensor, lengths: Tensor, *, from_end: bool) -> list[Tensor]:
        """Return the hash of the first or last 1 … `LONGEST` characters of each word, 0 for words that are shorter."""
        key = torch.full_like(lengths, START + from_end)
        keys = []
        for n in range(min(LONGEST, characters.shape[1])):
            place = (lengths - 1 - n).clamp_min(0) if from_end else torch.full_like(lengths, n)
            key = key * PRIME + characters.gather(1, place.unsqueeze(1)).squeeze(1)
            keys.append(torch.where(lengths > n, _mixed(key + n), 0))
        return keys


def _before(lengths: Tensor, like: Tensor) -> Tensor:
    """Return whether a position is within its word ``(words, max_length)``."""
    return torch.arange(like.shape[1], device=like.device) < lengths.unsqueeze(1)


def _hash(symbols: Tensor, chosen: Tensor, kind: int) -> Tensor:
    """Return the hash of the chosen symbols of each word ``(words,)``, in their order."""
    key = torch.full_like(symbols[:, 0], START + kind)
    for t in range(symbols.shape[1]):
        key = torch.where(chosen[:, t], key * PRIME + symbols[:, t], key)
    return _mixed(key)


def _mixed(key: Tensor) -> Tensor:
    """Spread a hash over all its bits, and make it positive."""
    key = (key ^ (key >> 29)) * SPREAD
    return (key ^ (key >> 32)) & ((1 << 62) - 1)


def _class_of(character: str) -> int:
    """Return the class of a character in a shape: upper case, lower case, another letter, digit, or anything else."""
    if len(character) != 1:
        return 5
    if character.isupper():
        return 1
    if character.islower():
        return 2
    return 3 if character.isalpha() else 4 if character.isdigit() else 6 + ord(character)
