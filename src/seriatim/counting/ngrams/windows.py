"""The windows of n words that begin at each token of a text: sorted, and then only the distinct ones with their counts.

**Sorting.** As many words as fit are packed into one integer, followed by the index of the window, so that sorting
integers sorts windows. Windows that are still equal are numbered and sorted by the words that follow. A text is sorted
in chunks, which bounds the memory and leaves bits in the integer for at least one word: by ranges of first words, and
if a word has more windows than a chunk may hold, by ranges of the words after it.

**Distinct windows.** A window ends after a boundary symbol, or with the text. The words beyond its end are no words,
but a number above them. Only the words that a window does not share with the window before it are stored. These are the
last words of the n-grams that begin there.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

INTEGER_BITS = 63
"""Bits of an integer without its sign."""
CHUNK_SIZE = 1 << 19
"""Default number of windows that are sorted at once, at most."""


class SortedWindows(NamedTuple):
    """Windows in the order of their words."""

    starts: np.ndarray  # the token at which each window begins (windows,)
    shared: np.ndarray  # the number of first words that it shares with the window before it


class WindowSorter:
    """Sorts the windows of ``order`` words of a text, at most ``chunk_size`` at once.

    A window begins at each token but the last ``order``. ``num_words`` is the number of different words, from 0.
    ``in_runs`` says that the windows come in a few sorted sequences, which are merged.
    """

    def __init__(
        self, text: np.ndarray, order: int, num_words: int, *, chunk_size: int = CHUNK_SIZE, in_runs: bool = False
    ) -> None:
        self.text, self.order, self.num_words = text, order, num_words
        self.method: Literal["stable", "quicksort"] = "stable" if in_runs else "quicksort"  # NumPy's stable one merges
        self.bits = max(1, (num_words - 1).bit_length())
        self.chunk_size = min(chunk_size, 1 << (INTEGER_BITS - self.bits) // 2)

    def split(self, starts: np.ndarray | None, known: int, shared: int = 0) -> Iterator[tuple[np.ndarray, int, int]]:
        """Yield the arguments of `sort` for chunks that are small enough; ``starts`` None means all windows."""
        if known == self.order or (starts is not None and len(starts) <= self.chunk_size):
            assert starts is not None
            yield starts, known, shared
            return
        words = self.text[: -self.order] if starts is None else self.text[starts + known]
        lows = self.word_ranges(words)
        groups = self.group(words, lows, starts)
        for members, low, high in zip(groups, lows, [*lows[1:], self.num_words], strict=True):
            if len(members):
                yield from self.split(members, known + (high == low + 1), shared)
                shared = known

    def word_ranges(self, words: np.ndarray) -> list[int]:
        """Return where ranges of words begin that have no more windows than a chunk, or consist of one word."""
        totals, lows = np.cumsum(count_numbers(words, self.num_words)), [0]
        while True:
            before = totals[lows[-1] - 1] if lows[-1] else 0
            high = max(lows[-1] + 1, int(np.searchsorted(totals, before + self.chunk_size, side="right")))
            if high >= self.num_words:
                return lows
            lows.append(high)

    def group(self, words: np.ndarray, lows: list[int], starts: np.ndarray | None) -> Iterator[np.ndarray]:
        """Yield the windows of each range of words, in order."""
        dtype = np.uint8 if len(lows) <= 256 else np.uint16 if len(lows) <= 1 << 16 else np.int32
        group_of_word = np.repeat(np.arange(len(lows), dtype=dtype), np.diff([*lows, self.num_words]))
        members: list[list[np.ndarray]] = [[] for _ in lows]
        for start in range(0, len(words), CHUNK_SIZE):
            group = group_of_word[words[start : start + CHUNK_SIZE]]
            order = np.argsort(group, kind="stable").astype(np.int32)
            order = order + np.int32(start) if starts is None else starts[start : start + CHUNK_SIZE][order]
            ends = np.cumsum(np.bincount(group, minlength=len(lows)))[:-1]
            for i, windows in enumerate(np.split(order, ends)):
                members[i].append(windows)
        for arrays in members:
            yield np.concatenate(arrays)
            arrays.clear()

    def sort(self, starts: np.ndarray, known: int, shared: int) -> SortedWindows:
        """Sort windows that share their first ``known`` words, given in order, in place.

        ``shared`` is the number of words that the first window shares with the window before it.
        """
        all_shared = np.zeros(len(starts), dtype=np.int16)
        all_shared[1:] = known

        # Windows that are not told apart yet, with the number of the group of equal ones to which each belongs. Every
        # pass sorts all groups at once by as many words as fit beside the group and the index.
        unsorted, key = np.arange(len(starts), dtype=np.int32), np.zeros(len(starts), dtype=np.int64)
        while known < self.order and len(unsorted) > 1:
            # From the highest bits to the lowest: group, words, index. So one sort of integers orders windows within
            # their groups, and the index says afterwards where each window was.
            index_bits, group_bits = (len(unsorted) - 1).bit_length(), int(key[-1]).bit_length()
            taken = min(self.order - known, (INTEGER_BITS - index_bits - group_bits) // self.bits)
            windows = starts[unsorted]
            for number in range(known, known + taken):
                key <<= self.bits
                key |= self.text[windows + number]
            key <<= index_bits
            key |= np.arange(len(unsorted))
            key.sort(kind=self.method)
            starts[unsorted] = windows[key & (1 << index_bits) - 1]
            key >>= index_bits

            # The highest bit in which neighbours differ says how many words they share: a change in the lower bits
            # leaves all words in the higher bits equal. If the group itself changed, they were compared before.
            changed = key[1:] ^ key[:-1]
            same_group = changed < 1 << self.bits * taken
            more = np.zeros(len(changed), dtype=np.int8)
            for number in range(taken):
                more += changed < 1 << self.bits * number
            following = unsorted[1:][same_group]
            all_shared[following] += more[same_group]
            known += taken

            # Only windows that are still equal to a neighbour are sorted again, in smaller groups.
            equal = np.zeros(len(unsorted) + 1, dtype=bool)
            equal[1:-1] = changed == 0
            is_tied = equal[1:] | equal[:-1]  # equal to the window before or after
            unsorted = unsorted[is_tied]
            key = np.cumsum(~equal[:-1][is_tied], dtype=np.int64)
        all_shared[:1] = shared
        return SortedWindows(starts, all_shared)


def count_numbers(numbers: np.ndarray, size: int) -> np.ndarray:
    """Return how often each number from 0 occurs ``(size,)``; `numpy.bincount` alone would copy all numbers."""
    counts = np.zeros(size, dtype=np.int64)
    for start in range(0, len(numbers), CHUNK_SIZE):
        counts += np.bincount(numbers[start : start + CHUNK_SIZE], minlength=size)
    return counts


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

    def block(self, begin: int, end: int) -> "DistinctWindows":
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
