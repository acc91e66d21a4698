"""Word vectors made elsewhere, from the text files of word2vec (and fastText) and of GloVe.

word2vec opens with a line ``count size``; GloVe does not, and some of its words hold spaces. After that, a word and
its numbers a line, between spaces.
"""

import itertools
import re
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np

from ..core.errors import InputError, shown
from .readers import find_sources, read_lines

HEADER = re.compile("([0-9]{1,12}) ([0-9]{1,6})")
NUMBER = re.compile(r"[-+]?[0-9]*\.[0-9]+(e[-+]?[0-9]+)?", re.IGNORECASE)


def read_vectors(path: str | Path, wanted: Collection[str]) -> tuple[list[str], np.ndarray]:
    """Reads the vectors of some words, line by line.

    A word that comes twice has its first vector. The numbers of words that are not wanted are counted, not read.

    Args:
        path: a text file, plain or ``.gz``.
        wanted: the words to keep; best a set or a dictionary.

    Returns:
        The words found, in the order of the file, and their vectors ``(words, size)``, float32.

    Raises:
        InputError: a row of another width or with something that is no finite number, fewer or more rows than the
            first line says, or no rows at all.
    """
    name = str(path)
    lines = read_lines(find_sources(name, file_format="text"))
    count, size, start, lines = _begin(name, lines)
    beginnings = {word.partition(" ")[0] for word in wanted}
    found: dict[str, np.ndarray] = {}
    number = start - 1
    for number, line in enumerate(lines, start):
        row = line.rstrip(" ")
        spaces = row.count(" ") - size
        if spaces or row.partition(" ")[0] in beginnings:
            where = f"{name}:{number}"
            word, *values = row.rsplit(" ", size)
            _check_width(where, word, len(values), size, strict=count is not None)
            if word in wanted and word not in found:
                found[word] = _vector(where, values)
    rows = number - start + 1
    if not rows:
        raise InputError(f"{name}: no vectors; give a text file with a word and its numbers a line")
    if count is not None and rows != count:
        raise InputError(f"{name}:1: promises {count} rows, and {rows} follow; fetch the file again, it is not whole")
    return list(found), np.array(list(found.values()), dtype=np.float32).reshape(-1, size)


def _begin(name: str, lines: Iterator[str]) -> tuple[int | None, int, int, Iterator[str]]:
    """The number of rows if the file says it, the size, the line of the first row, and the rows."""
    first = next(lines, "")
    header = HEADER.fullmatch(first.rstrip(" "))
    count, size = (int(header[1]), int(header[2])) if header else (None, first.rstrip(" ").count(" "))
    if not size:
        raise InputError(f"{name}:1: no vector; begin with a word and its numbers, or with `count size`")
    return count, size, 1 + bool(header), lines if header else itertools.chain([first], lines)


def _check_width(where: str, word: str, values: int, size: int, *, strict: bool) -> None:
    """A word may hold spaces where there is no header, but does not end with a number that has a point."""
    *before, last = word.split(" ")
    if values < size or (before and (strict or NUMBER.fullmatch(last))):
        raise InputError(
            f"{where}: {values + len(before)} numbers, where {size} are due; mend the line, or fetch the file again"
        )


def _vector(where: str, values: list[str]) -> np.ndarray:
    try:
        wide = [float(value) for value in values]
    except ValueError:
        wide = []
    if not wide or "_" in "".join(values):  # which Python takes between digits
        wrong = next(value for value in values if "_" in value or not _is_number(value))
        raise InputError(f"{where}: {shown(wrong)} is no number; mend the line")
    with np.errstate(over="ignore"):  # what is too large for float32 is not finite
        vector = np.array(wide).astype(np.float32)
    if not np.isfinite(vector).all():
        raise InputError(f"{where}: a number that is not finite; mend the line")
    return vector


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True
