"""Sparse features of texts and words: their keys of 64 bits, and matrices by rows with fast products.

**N-grams** of words and of characters in texts are found with operations on whole arrays (`find_ngrams`):

    key(c₁ … c_n) = mix(Σ_i code(c_i) · P^i)

code of a character: a random number of 64 bits · P an odd number, so that products modulo 2^64 lose nothing · mix
spreads the sum over all bits (the function of splitmix64: G. Steele, D. Lea and C. Flood, OOPSLA 2014).

Two of a million n-grams have the same key with a probability of about 3 in 100 million, so that keys stand for n-grams.

Texts are read in lower case. A word is a longest run of letters, digits and marks, with single other characters between
them (don't, well-made, 3.5). Any further character is a word of its own, and so is a character of a script that is
written without spaces. An n-gram of characters lies within a run without white space, with one space before and after
it, as ``char_wb`` of scikit-learn.

**Attributes** of words are the word, prefixes, suffixes and shapes, with the same keys (`find_attributes`): A.
Ratnaparkhi, "A maximum entropy model for part-of-speech tagging", EMNLP 1996.
"""

import functools
import itertools
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F


class SparseRows(NamedTuple):
    """A matrix ``(rows, columns)`` by its values that are not zero, row after row.

    PyTorch sums weighted rows of a table (`embedding_bag`) faster than it multiplies sparse matrices, and on every
    platform.
    """

    columns: Tensor  # of each value (values,), int32
    offsets: Tensor  # the index of the first value of each row, and the number of values (rows + 1,), int32
    values: Tensor  # (values,), float32
    width: int  # number of columns

    @classmethod
    def build(cls, rows: np.ndarray, columns: np.ndarray, values: np.ndarray, shape: tuple[int, int]) -> "SparseRows":
        """Return a matrix from its values ``(values,)`` and where each stands; ``rows`` must ascend."""
        offsets = np.zeros(shape[0] + 1, np.int32)
        np.cumsum(np.bincount(rows, minlength=shape[0]), out=offsets[1:])
        return cls(
            torch.from_numpy(columns.astype(np.int32)),
            torch.from_numpy(offsets),
            torch.from_numpy(values.astype(np.float32)),
            shape[1],
        )

    def to(self, device: torch.device) -> "SparseRows":
        """Return the matrix on a device."""
        return SparseRows(self.columns.to(device), self.offsets.to(device), self.values.to(device), self.width)

    def times(self, dense: Tensor) -> Tensor:
        """Return the product with a matrix ``(columns, k)``: ``(rows, k)``."""
        if not len(self.columns):
            return dense.new_zeros(len(self.offsets) - 1, dense.shape[1])
        return F.embedding_bag(
            self.columns,
            dense,
            self.offsets,
            mode="sum",
            per_sample_weights=self.values.to(dense.dtype),
            include_last_offset=True,
        )

    def transposed(self) -> "SparseRows":
        """Return the matrix ``(columns, rows)``."""
        columns, offsets = self.columns.numpy(), self.offsets.numpy()
        order = np.argsort(columns, kind="stable")
        rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        shape = (self.width, len(offsets) - 1)
        return SparseRows.build(columns[order], rows[order], self.values.numpy()[order], shape)


SPACE, IN_WORD, ALONE, JOINING = 0, 1, 2, 3
"""Classes of characters: white space, those that words are made of, those that are words of their own, and those that
belong to a word if they stand between two characters of it, and are words of their own elsewhere."""
P = np.uint64(0x9E3779B97F4A7C15)
EDGES = np.array([0, 0x2545F4914F6CDD1D, 0x5851F42D4C957F2D], np.uint64)
"""What is added to the keys of n-grams anywhere in a text, at its beginning, and at its end."""
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


def find_keys(known: np.ndarray, keys: np.ndarray, first: int = 0, unknown: int = -1) -> np.ndarray:
    """Return ``first`` plus the index of each key among known ones, which are sorted; ``unknown`` for others."""
    if not len(known):
        return np.full(keys.shape, unknown)
    position = np.searchsorted(known, keys)
    position[position == len(known)] = 0
    return np.where(known[position] == keys, position + first, unknown)


def find_ngrams(texts: Sequence[str], *, words: int, characters: Sequence[int]) -> tuple[Occurrences, Occurrences]:
    """Return the n-grams of 1 to ``words`` words of some texts, and those of ``characters`` characters."""
    points, ends, table = read_characters(texts)
    rows = np.repeat(np.arange(len(texts)), np.diff(ends, prepend=0))
    codes, classes = mix(points.astype(np.uint64) + P), table[points]
    between = np.zeros(len(classes), bool)
    between[1:-1] = (classes[:-2] == IN_WORD) & (classes[2:] == IN_WORD)
    classes = np.where(classes == JOINING, np.where(between, IN_WORD, ALONE), classes)
    return _words(codes, classes, rows, words), _characters(codes, classes, rows, characters)


def read_characters(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the characters of some texts in lower case, where each text ends, and the class of every character.

    Texts begin and end with a space, and have no other white space than single spaces.
    """
    spaced = [f" {' '.join(text.lower().split())} " for text in texts]
    joined = "".join(spaced)
    points = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    table = np.zeros(int(points.max(initial=0)) + 1, np.int8)
    for character in set(joined):
        table[ord(character)] = _class_of(character)
    return points, np.cumsum([len(text) for text in spaced], dtype=np.int64), table


def _words(codes: np.ndarray, classes: np.ndarray, rows: np.ndarray, longest: int) -> Occurrences:
    """Return the n-grams of words; every text begins and ends with a space."""
    inside = classes != SPACE
    begins = inside & ((classes == ALONE) | (np.roll(classes, 1) != classes))
    starts = np.flatnonzero(begins)
    if not len(starts) or not longest:
        return _joined([])
    where = np.flatnonzero(inside)

    # The key of a word sums the codes of its characters, each times a power of P by its position in the word.
    number = np.cumsum(begins[where]) - 1
    position = where - starts[number]
    powers = np.cumprod(np.full(int(position.max()) + 1, P))
    single = mix(np.add.reduceat(codes[where] * powers[position], np.flatnonzero(begins[where])))

    # Longer n-grams extend the keys of the shorter ones by a word; those that cross the end of a text are left out. The
    # ones that begin or end a text count a second time as such.
    row = rows[starts]
    begin, end = np.ones((2, len(row)), bool)
    begin[1:] = end[:-1] = row[1:] != row[:-1]
    keys, occurrences = single, []
    for n in range(1, longest + 1):
        if n > 1:
            keys = mix(keys[:-1] * P + single[n - 1 :])
        same = row[: len(keys)] == row[n - 1 :]
        for edge, chosen in ((0, same), (1, same & begin[: len(keys)]), (2, same & end[n - 1 :])):
            marked = mix(keys[chosen] + EDGES[edge]) if edge else keys[chosen]
            occurrences.append(Occurrences(marked, row[: len(keys)][chosen]))
    return _joined(occurrences)


def _characters(codes: np.ndarray, classes: np.ndarray, rows: np.ndarray, sizes: Sequence[int]) -> Occurrences:
    """Return the n-grams of characters without white space, but for their ends."""
    spaces = np.concatenate([[0], np.cumsum(classes == SPACE)])
    keys, occurrences = codes, []
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
        occurrences.append(Occurrences(mix(keys[chosen] + np.uint64(n)), rows[chosen]))
    return _joined(occurrences)


def _joined(occurrences: Sequence[Occurrences]) -> Occurrences:
    keys = np.concatenate([np.zeros(0, np.uint64), *(found.keys for found in occurrences)])
    return Occurrences(keys, np.concatenate([np.zeros(0, np.int64), *(found.rows for found in occurrences)]))


@functools.lru_cache(maxsize=1 << 12)
def _class_of(character: str) -> int:
    if character.isspace():
        return SPACE
    kind = unicodedata.category(character)
    if kind == "Lo" and unicodedata.east_asian_width(character) == "W":
        return ALONE
    return IN_WORD if kind[0] in "LNM" or character == "_" else JOINING


LONGEST = 4
"""The longest prefixes and suffixes, in characters."""
NONE = 0
"""The key of an attribute that a word does not have, such as a suffix that is longer than the word."""


def find_attributes(forms: Sequence[Sequence[str]]) -> np.ndarray:
    """Return the keys of the attributes of each word ``(words, attributes)``, `NONE` where it has none.

    A form is a word, followed by its further columns. The attributes are the word as it is written and in lower case;
    its first and last 1 to `LONGEST` characters in lower case; its shape (classes of characters, with and without
    repetitions); whether it has a digit, a capital letter after the first character, and a hyphen; and the columns.
    """
    count = len(forms)
    if not count:
        return np.zeros((0, COLUMNS), np.uint64)
    points, lengths = read_forms(forms, with_changes=True)
    codes, starts = mix(points.astype(np.uint64) + P), lengths.cumsum() - lengths
    whole = _whole(codes, starts, lengths).reshape(-1, count)
    affixes = _affixes(codes, starts[count : 2 * count], lengths[count : 2 * count])
    flags = np.array([[_shape(word).find(mark, first) >= 0 for word, *_ in forms] for mark, first in FLAGS], np.uint64)
    columns = np.concatenate([whole[:2], affixes, whole[2:4], flags, whole[4:]])

    # Keys also tell kinds of attributes apart; `NONE` stays as it is.
    kinds = np.arange(1, len(columns) + 1, dtype=np.uint64)[:, None]
    return np.where(columns == NONE, np.uint64(NONE), mix(mix(columns) ^ kinds) | np.uint64(1)).T


FLAGS = (("0", 0), ("A", 1), ("-", 0))
"""Marks of a shape, and the first character that is looked at."""
LOWER, COLUMNS = 1, 4 + 2 * LONGEST + len(FLAGS)
"""The positions, among the attributes of a word, of its lower case and of its further columns."""


def read_forms(forms: Sequence[Sequence[str]], *, with_changes: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return the characters of the texts that attributes are hashes of, one text after another, and their lengths.

    They are all words as they are written, all in lower case, all shapes, with repetitions and, ``with_changes``,
    without them, and each further column.
    """
    written, *further = ([text or " " for text in column] for column in zip(*forms, strict=True))
    shapes = list(map(_shape, written))
    changes = map(_without_repetitions, shapes) if with_changes else []
    texts = [*written, *(word.lower() for word in written), *shapes, *changes, *itertools.chain(*further)]
    joined = "".join(texts).encode("utf-32-le", "surrogatepass")
    return np.frombuffer(joined, np.uint32), np.array(list(map(len, texts)), np.int64)


def _whole(codes: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the key of all characters of each word."""
    position = np.arange(len(codes)) - np.repeat(starts, lengths)
    powers = np.cumprod(np.full(int(lengths.max()), P))
    return np.asarray(mix(np.add.reduceat(codes * powers[position], starts)))


def _affixes(codes: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the keys of prefixes and of suffixes ``(2 · LONGEST, words)``, from the shortest to the longest."""
    before = np.arange(LONGEST)[:, None]
    keys = codes[np.stack([starts + before, starts + lengths - 1 - before]).clip(0, len(codes) - 1)]
    for size in range(1, LONGEST):
        keys[:, size] += keys[:, size - 1] * P
    keys = np.where(lengths > before, mix(keys) | np.uint64(1), np.uint64(NONE))
    return keys.reshape(2 * LONGEST, len(starts))


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
