"""Attributes of words as keys of 64 bits: the word, prefixes, suffixes and shapes.

A. Ratnaparkhi, "A maximum entropy model for part-of-speech tagging", EMNLP 1996. See `text_ngrams` for the keys.
"""

import functools
from collections.abc import Sequence

import numpy as np

from .text_ngrams import P, mix

LONGEST = 4
"""The longest prefixes and suffixes, in characters."""
NONE = 0
"""The key of an attribute that a word does not have, such as a suffix that is longer than the word."""


def find_attributes(words: Sequence[str]) -> np.ndarray:
    """Return the keys of the attributes of each word ``(words, attributes)``, `NONE` where it has none.

    These are the word as it is written and in lower case; its first and last 1 to `LONGEST` characters in lower case;
    its shape (classes of characters, with and without repetitions); and whether it has a digit, a capital letter after
    the first character, and a hyphen.
    """
    lower = [word.lower() or " " for word in words]
    written = [word or " " for word in words]
    codes, starts, lengths = _codes(lower)
    shapes = list(map(_shape, written))
    columns = [_whole(*_codes(written)), _whole(codes, starts, lengths), *_affixes(codes, starts, lengths)]
    columns += [_whole(*_codes(shapes)), _whole(*_codes(list(map(_without_repetitions, shapes))))]
    columns += [np.array([shape.find(mark, first) >= 0 for shape in shapes]) for mark, first in FLAGS]
    keys = [_keyed(column, kind) for kind, column in enumerate(columns)]
    return np.stack(keys, axis=1) if len(words) else np.zeros((0, len(keys)), np.uint64)


FLAGS = (("0", 0), ("A", 1), ("-", 0))
"""Marks of a shape, and the first character that is looked at."""


def _keyed(column: np.ndarray, kind: int) -> np.ndarray:
    """Return keys that also tell kinds of attributes apart; `NONE` stays as it is."""
    keys = mix(mix(column.astype(np.uint64)) ^ np.uint64(kind + 1)) | np.uint64(1)
    return np.where(column == NONE, np.uint64(NONE), keys)


def _codes(words: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the code of every character of some words, where each word begins, and its length."""
    joined = "".join(words).encode("utf-32-le", "surrogatepass")
    lengths = np.array([len(word) for word in words], np.int64)
    return mix(np.frombuffer(joined, np.uint32).astype(np.uint64) + P), lengths.cumsum() - lengths, lengths


def _whole(codes: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the key of all characters of each word."""
    if not len(starts):
        return np.zeros(0, np.uint64)
    place = np.arange(len(codes)) - np.repeat(starts, lengths)
    powers = np.cumprod(np.full(int(lengths.max()), P))
    return np.asarray(mix(np.add.reduceat(codes * powers[place], starts)))


def _affixes(codes: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    """Return the keys of prefixes and of suffixes, from the shortest to the longest."""
    columns = []
    for ends, step in ((starts, 1), (starts + lengths - 1, -1)):
        key = np.zeros(len(starts), np.uint64)
        for size in range(1, LONGEST + 1):
            place = (ends + step * (size - 1)).clip(0, max(0, len(codes) - 1))
            key = key * P + codes[place] if len(codes) else key
            columns.append(np.where(lengths >= size, mix(key) | np.uint64(1), np.uint64(NONE)))
    return columns


@functools.lru_cache(maxsize=1 << 16)
def _shape(word: str) -> str:
    """Return the class of each character of a word."""
    return "".join(map(_class, word))


@functools.lru_cache(maxsize=1 << 12)
def _class(character: str) -> str:
    if character.isupper():
        return "A"
    if character.islower():
        return "a"
    return "x" if character.isalpha() else "0" if character.isdigit() else character


@functools.lru_cache(maxsize=1 << 14)
def _without_repetitions(shape: str) -> str:
    return "".join(now for before, now in zip(["", *shape], shape, strict=False) if now != before)
