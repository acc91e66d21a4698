"""The distinct windows of a text in sorted order, with their counts; see `sorted_windows` for windows.

A window ends after a boundary symbol, or with the text. The words beyond its end are no words, but a number above them.
Only the words that a window does not share with the window before it are stored. These are the last words of the
n-grams that begin there.
"""

from typing import NamedTuple

import numpy as np

from .sorted_windows import SortedWindows


class Columns(NamedTuple):
    """Consecutive distinct windows, without the words that each shares with the window before it."""

    shared: np.ndarray  # the number of these words (windows,)
    sizes: np.ndarray  # the number of all words of each window (windows,)
    counts: np.ndarray  # how often each occurs (windows,)
    words: list[np.ndarray]  # for each position, the words there of the windows that do not share them

    def rows(self, order: int, beyond: int) -> np.ndarray:
        """Return all words of the windows ``(windows, order)``; the first window shares none.

        ``beyond`` stands beyond the end of a window.
        """
        rows = np.full((len(self.sizes), order), beyond, dtype=np.int32)
        for position, words in enumerate(self.words):
            if len(words):
                has_word = position < self.sizes
                number = np.cumsum(has_word & (self.shared <= position))
                rows[:, position] = np.where(has_word, words[np.maximum(number - 1, 0)], beyond)
        return rows


class DistinctWindows(NamedTuple):
    """Distinct windows: the words of each are those of a text from the token where it begins."""

    text: np.ndarray  # words (tokens,)
    starts: np.ndarray  # where each window begins (windows,)
    shared: np.ndarray  # the number of first words that each shares with the window before it (windows,)
    sizes: np.ndarray  # the number of words of each (windows,)
    counts: np.ndarray  # how often each occurs (windows,)

    def part(self, begin: int, end: int) -> "DistinctWindows":
        """Return consecutive windows, of which the first shares no words with the window before it."""
        shared = self.shared[begin:end].copy()
        shared[:1] = 0
        return DistinctWindows(self.text, self.starts[begin:end], shared, self.sizes[begin:end], self.counts[begin:end])

    def row(self, index: int, order: int, beyond: int) -> np.ndarray:
        """Return the words of one window ``(order,)``."""
        row = np.full(order, beyond, dtype=np.int32)
        size, start = int(self.sizes[index]), int(self.starts[index])
        row[:size] = self.text[start : start + size]
        return row

    def columns(self, order: int) -> Columns:
        """Return the windows without the words that each shares with the window before it."""
        words = []
        for position in range(order):
            is_new = (self.shared <= position) & (position < self.sizes)
            words.append(self.text[self.starts[is_new] + position])
        return Columns(self.shared, self.sizes, self.counts, words)


def no_windows() -> DistinctWindows:
    """Return none."""
    nothing = np.empty(0, dtype=np.int32)
    return DistinctWindows(*[nothing] * len(DistinctWindows._fields))


def distinct(
    text: np.ndarray, windows: SortedWindows, sizes: np.ndarray, counts: np.ndarray | None = None
) -> DistinctWindows:
    """Return the different windows among sorted ones, with the sums of their counts.

    ``sizes`` is the number of words of each window, and ``counts`` how often it occurs, None for once.
    """
    is_new = windows.shared < sizes
    is_new[1:] |= sizes[1:] != sizes[:-1]  # a window that ends with the text shares all its words with a longer one
    is_new[:1] = True
    first = np.flatnonzero(is_new)
    sums = np.diff(first, append=len(sizes)) if counts is None else np.add.reduceat(counts, first)
    return DistinctWindows(text, windows.starts[first], windows.shared[first], sizes[first], sums)
