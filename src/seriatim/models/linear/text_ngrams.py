"""N-grams of words and of characters in texts, as keys of 64 bits, found with operations on whole arrays.

    key(c₁ … c_n) = mix(Σ_i code(c_i) · P^i)

code of a character: a random number of 64 bits · P an odd number, so that products modulo 2^64 lose nothing · mix
spreads the sum over all bits (the function of splitmix64: G. Steele, D. Lea and C. Flood, OOPSLA 2014).

Two of a million n-grams have the same key with a probability of about 3 in 100 million, so that keys stand for n-grams.

Texts are read in lower case. A word is a longest run of letters, digits and marks, with single other characters between
them (don't, well-made, 3.5). Any further character is a word of its own, and so is a character of a script that is
written without spaces. An n-gram of characters lies within a run
without white space, with one space before and after it, as ``char_wb`` of scikit-learn.
"""

import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

SPACE, IN_WORD, ALONE, JOINING = 0, 1, 2, 3
"""Classes of characters: white space, those that words are made of, those that are words of their own, and those that
belong to a word if they stand between two characters of it, and are words of their own elsewhere."""
P = np.uint64(0x9E3779B97F4A7C15)
FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)


class Occurrences(NamedTuple):
    """Where keys occur: a key and the index of its text for every occurrence ``(occurrences,)``."""

    keys: np.ndarray
    rows: np.ndarray


def mix(values: np.ndarray) -> np.ndarray:
    """Spread numbers of 64 bits over all their bits."""
    values = (values ^ (values >> SHIFTS[0])) * FACTORS[0]
    values = (values ^ (values >> SHIFTS[1])) * FACTORS[1]
    return np.asarray(values ^ (values >> SHIFTS[2]))


def find_ngrams(texts: Sequence[str], *, words: int, characters: Sequence[int]) -> tuple[Occurrences, Occurrences]:
    """Return the n-grams of 1 to ``words`` words of some texts, and those of ``characters`` characters."""
    spaced = [f" {' '.join(text.lower().split())} " for text in texts]
    joined = "".join(spaced)
    points = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    rows = np.repeat(np.arange(len(texts)), [len(text) for text in spaced])
    codes, classes = mix(points.astype(np.uint64) + P), _classes(joined, points)
    return _words(codes, classes, rows, words), _characters(codes, classes, rows, characters)


def _words(codes: np.ndarray, classes: np.ndarray, rows: np.ndarray, longest: int) -> Occurrences:
    """Return the n-grams of words; every text begins and ends with a space."""
    inside = classes != SPACE
    begins = inside & ((classes == ALONE) | (np.roll(classes, 1) != classes))
    starts = np.flatnonzero(begins)
    if not len(starts) or not longest:
        return _joined([])
    where = np.flatnonzero(inside)
    number = np.cumsum(begins[where]) - 1
    place = where - starts[number]
    powers = np.cumprod(np.full(int(place.max()) + 1, P))
    single = mix(np.add.reduceat(codes[where] * powers[place], np.flatnonzero(begins[where])))
    row = rows[starts]
    parts, keys = [Occurrences(single, row)], single
    for n in range(2, longest + 1):
        keys = mix(keys[:-1] * P + single[n - 1 :])
        same = row[: -n + 1] == row[n - 1 :]
        parts.append(Occurrences(keys[same], row[n - 1 :][same]))
    return _joined(parts)


def _characters(codes: np.ndarray, classes: np.ndarray, rows: np.ndarray, sizes: Sequence[int]) -> Occurrences:
    """Return the n-grams of characters without white space, but for their ends."""
    spaces = np.concatenate([[0], np.cumsum(classes == SPACE)])
    keys, parts = codes, []
    for n in range(2, max(sizes, default=0) + 1):
        keys = keys[:-1] * P + codes[n - 1 :]
        if not len(keys):
            break
        if n not in sizes:
            continue
        within = spaces[n - 1 : -1] == spaces[1 : len(keys) + 1]  # no space but at the ends
        if n == 2:
            within &= (classes[:-1] != SPACE) | (classes[1:] != SPACE)
        chosen = np.flatnonzero(within)
        parts.append(Occurrences(mix(keys[chosen] + np.uint64(n)), rows[chosen]))
    return _joined(parts)


def _joined(parts: Sequence[Occurrences]) -> Occurrences:
    keys = np.concatenate([np.zeros(0, np.uint64), *(part.keys for part in parts)])
    return Occurrences(keys, np.concatenate([np.zeros(0, np.int64), *(part.rows for part in parts)]))


def _classes(text: str, points: np.ndarray) -> np.ndarray:
    """Return the class of every character."""
    table = np.zeros(int(points.max(initial=0)) + 1, np.int8)
    for character in set(text):
        table[ord(character)] = _class_of(character)
    classes = table[points]
    between = np.zeros(len(classes), bool)
    between[1:-1] = (classes[:-2] == IN_WORD) & (classes[2:] == IN_WORD)
    return np.where(classes == JOINING, np.where(between, IN_WORD, ALONE), classes)


def _class_of(character: str) -> int:
    if character.isspace():
        return SPACE
    kind = unicodedata.category(character)
    if kind == "Lo" and unicodedata.east_asian_width(character) == "W":
        return ALONE
    return IN_WORD if kind[0] in "LNM" or character == "_" else JOINING
