"""Word vectors from the text files of word2vec, fastText and GloVe.

A file of word2vec or fastText begins with a line ``count size``. A file of GloVe does not, and some of its words
contain spaces. Every other line is a word and its numbers, separated by spaces.
"""

import itertools
import re
import unicodedata
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np

from ..core.errors import EmptyError, MalformedError, shown
from .repairs import Repairs
from .sources import find_sources
from .text import read_lines

HEADER = re.compile("([0-9]{1,12}) ([0-9]{1,6})")
DECIMAL = re.compile(r"[-+]?[0-9]*\.[0-9]+(e[-+]?[0-9]+)?", re.IGNORECASE)


def read_vectors(
    path: str | Path, vocabulary: Collection[str], repairs: Repairs | None = None
) -> tuple[list[str], np.ndarray]:
    """Read the vectors of some words, line by line, from a text file, plain or ``.gz``.

    A word that occurs twice has its first vector. A word that occurs in another Unicode normal form only has that
    vector. The numbers of other words are counted but not parsed. ``repairs`` records the repairs.

    Returns:
        The words of ``vocabulary`` in the file, in its order, and their vectors ``(words, size)``, float32.

    Raises:
        InputError: a row has another width or a value that is not a finite number, the number of rows is not that of
            the first line, or there are no rows.
    """
    name, repairs = str(path), repairs or Repairs()
    lines = read_lines(find_sources(name, file_format="text"), repairs)
    count, size, first, lines = _read_header(name, lines)

    # A file may hold millions of words: only the lines of words that are wanted, or that look irregular, are parsed.
    others = {unicodedata.normalize(form, word): word for form in ("NFC", "NFD") for word in vocabulary}
    beginnings = {word.partition(" ")[0] for word in (*vocabulary, *others)}
    vectors: dict[str, np.ndarray] = {}
    alike: dict[str, tuple[int, np.ndarray]] = {}  # vectors of words in another normal form, with their lines
    number = first - 1
    for number, line in enumerate(lines, first):
        row = line.rstrip(" ")
        extra_spaces = row.count(" ") - size
        if extra_spaces or row.partition(" ")[0] in beginnings:
            where = f"{name}:{number}"
            word, *values = row.rsplit(" ", size)
            _check_width(where, word, len(values), size, has_header=count is not None)
            if word in vocabulary and word not in vectors:
                vectors[word] = _vector(where, values)
            elif word not in vocabulary and word in others and others[word] not in alike:
                alike[others[word]] = number, _vector(where, values)

    # A file that was cut has fewer rows than its first line says.
    rows = number - first + 1
    if not rows:
        raise EmptyError(f"{name}:1: no vectors; give a text file with a word and its numbers on each line")
    if count is not None and rows != count:
        raise MalformedError(f"{name}:1: announces {count} rows, but {rows} follow; download the file again")
    for word, (where_alike, vector) in alike.items():
        if word not in vectors:
            vectors[word] = vector
            problem = f"the word {shown(word)} in another Unicode normal form than in the training data"
            reading, remedy = "read as this word", "write both in one form (NFC)"
            repairs.add("another normal form", name, where_alike, problem=problem, reading=reading, remedy=remedy)
    return list(vectors), np.array(list(vectors.values()), dtype=np.float32).reshape(-1, size)


def _read_header(name: str, lines: Iterator[str]) -> tuple[int | None, int, int, Iterator[str]]:
    """Return the number of rows if the file says it, the size, the line number of the first row, and the rows."""
    first = next(lines, "")
    header = HEADER.fullmatch(first.rstrip(" "))
    count, size = (int(header[1]), int(header[2])) if header else (None, first.rstrip(" ").count(" "))
    if not size:
        raise MalformedError(f"{name}:1: no vector; begin with a word and its numbers, or with `count size`")
    return count, size, 1 + bool(header), lines if header else itertools.chain([first], lines)


def _check_width(where: str, word: str, values: int, size: int, *, has_header: bool) -> None:
    """Check the number of values; without a header a word may contain spaces, but not end with a decimal number."""
    *before, last = word.split(" ")
    if values < size or (before and (has_header or DECIMAL.fullmatch(last))):
        problem = f"{values + len(before)} numbers, but {size} are expected"
        raise MalformedError(f"{where}: {problem}; correct the line, or download the file again")


def _vector(where: str, values: list[str]) -> np.ndarray:
    numbers = []
    for value in values:
        try:
            numbers.append(float("?" if "_" in value else value))  # Python allows an underscore between digits
        except ValueError:
            raise MalformedError(f"{where}: {shown(value)} is not a number; correct the line") from None
    with np.errstate(over="ignore"):  # a value that is too large for float32 becomes infinite
        vector = np.array(numbers).astype(np.float32)
    if not np.isfinite(vector).all():
        raise MalformedError(f"{where}: a number that is not finite; correct the line")
    return vector
