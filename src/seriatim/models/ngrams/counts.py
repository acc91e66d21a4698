"""Counts of all n-grams of a text up to some order, by sorting.

In the sorted windows of a text (see `sorted_windows`) all occurrences of an n-gram are neighbours, for every n, and the
number of words that a window shares with the window before it says which n-grams begin there. So the n-grams of each
order are read from the windows, block by block, whenever they are needed. Only the index of each n-gram without its
first word is stored.

The boundary symbol, token 0, separates sequences: as the first word of an n-gram it is the beginning of a sequence, as
the last word the end of one, and it is never between the two.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from .resources import ArrayAllocator, run_for_all
from .sorted_windows import PART_SIZE, WindowSorter, count_numbers

BOUNDARY = 0
BLOCK_SIZE = 1 << 18  # windows or n-grams that are processed together


class Block(NamedTuple):
    """Consecutive n-grams of one order: all n-grams with the same context are in the same block."""

    windows: slice  # their windows among the sorted windows
    grams: slice  # their indices among the n-grams of the order
    context: int  # the index of the first one's context among the (n−1)-grams, or less


class Unigrams:
    """All tokens of the vocabulary; their context is empty."""

    def __init__(self, ids: np.ndarray, vocabulary_size: int) -> None:
        self.size, self.starting = vocabulary_size, 0
        self.suffix = np.zeros(vocabulary_size, dtype=np.int32)
        self.token_counts = count_numbers(ids, vocabulary_size).astype(np.int32)
        self.blocks: Sequence[Block] = [Block(slice(0, 0), slice(0, vocabulary_size), 0)]

    def contexts(self, block: Block) -> np.ndarray:
        """Return 0 for each n-gram of a block."""
        return self.suffix[block.grams]

    def words(self, block: Block) -> np.ndarray:
        """Return the id of each."""
        return np.arange(block.grams.start, block.grams.stop, dtype=np.int32)

    def counts(self, block: Block) -> np.ndarray:
        """Return the count of each in the text."""
        return self.token_counts[block.grams]


class Level:
    """The n-grams of one order n > 1 in a text that holds the indices of the (n−1)-grams, sorted by their words.

    The n-grams that begin a sequence come first; ``starting`` is their number. ``suffix`` is the index of the last n−1
    words of each n-gram among the (n−1)-grams ``(n-grams,)``.
    """

    def __init__(self, text: "SortedText", n: int) -> None:
        self.text, self.n = text, n
        self.blocks: Sequence[Block] = list(self._blocks())
        self.size = self.blocks[-1].grams.stop
        self.starting = int(np.count_nonzero(text.is_first(n, slice(0, text.sequences))))
        self.suffix = text.arrays.empty(self.size, np.int32)
        run_for_all(self._find_suffixes, self.blocks)

    def contexts(self, block: Block) -> np.ndarray:
        """Return the index of the first n−1 words of each n-gram of a block among the (n−1)-grams ``(n-grams,)``."""
        if self.n == 2:
            contexts: np.ndarray = self.text.ids[self._starts(block)]
        else:
            numbers = np.cumsum(self.text.is_first(self.n - 1, block.windows), dtype=np.int32)
            contexts = numbers[self.text.is_first(self.n, block.windows)]
            contexts += block.context - 1
        return contexts

    def words(self, block: Block) -> np.ndarray:
        """Return the last word of each n-gram of a block ``(n-grams,)``."""
        words: np.ndarray = self.text.ids[self._starts(block) + (self.n - 1)]
        return words

    def counts(self, block: Block) -> np.ndarray:
        """Return the count of each n-gram of a block in the text ``(n-grams,)``."""
        is_first = self.text.is_first(self.n, block.windows)[self.text.sizes[block.windows] >= self.n]
        return np.diff(np.flatnonzero(is_first), append=len(is_first)).astype(np.int32)

    def store_indices(self) -> None:
        """Store the index of the n-gram that begins at each token in the text, for the next order."""

        def write(block: Block) -> None:
            numbers = np.cumsum(self.text.is_first(self.n, block.windows), dtype=np.int32)
            numbers += block.grams.start - 1
            self.text.indices[self.text.starts[block.windows]] = numbers

        run_for_all(write, self.blocks)

    def _starts(self, block: Block) -> np.ndarray:
        """Return the token at which each n-gram begins in the first of its windows."""
        starts: np.ndarray = self.text.starts[block.windows][self.text.is_first(self.n, block.windows)]
        return starts

    def _find_suffixes(self, block: Block) -> None:
        self.suffix[block.grams] = self.text.indices[self._starts(block) + 1]

    def _blocks(self) -> Iterator[Block]:
        grams = contexts = 0
        for windows in self.text.split(self.n - 1):
            first, grams = grams, grams + int(np.count_nonzero(self.text.is_first(self.n, windows)))
            yield Block(windows, slice(first, grams), contexts)
            contexts += int(np.count_nonzero(self.text.is_first(self.n - 1, windows)))


class SortedText:
    """A text and its sorted windows, those of the first words of sequences first; the arguments as in `count_ngrams`.

    The text begins with a boundary symbol and is filled at the end with a number that is no word. ``sizes`` is the
    number of words of the longest n-gram that begins a window and crosses no boundary, ``indices`` the index of the
    n-gram that begins at each token, for the order that was counted last. See `Windows` for the other arrays.
    """

    def __init__(
        self, ids: np.ndarray, order: int, vocabulary_size: int, arrays: ArrayAllocator, part_size: int
    ) -> None:
        tokens = len(ids) + 1
        self.arrays, self.ids = arrays, arrays.empty(tokens + order, np.int32)
        self.ids[0] = BOUNDARY
        self.ids[1:tokens] = ids
        self.ids[tokens:] = vocabulary_size
        self.sequences = int(np.count_nonzero(self.ids[:tokens] == BOUNDARY))
        sizes = _window_sizes(self.ids, arrays.empty(tokens, np.int8 if order < 128 else np.int32), order)
        self.starts, self.shared = arrays.empty(tokens, np.int32), arrays.empty(tokens, sizes.dtype)
        self.sizes, end = arrays.empty(tokens, sizes.dtype), 0
        for part in WindowSorter(self.ids, order, vocabulary_size + 1, part_size=part_size).sorted():
            start, end = end, end + len(part.starts)
            self.starts[start:end], self.shared[start:end] = part

        def measure(start: int) -> None:
            self.sizes[start : start + BLOCK_SIZE] = sizes[self.starts[start : start + BLOCK_SIZE]]

        run_for_all(measure, range(0, tokens, BLOCK_SIZE))
        self.indices = arrays.empty(tokens + order, np.int32)
        self.indices[:] = self.ids

    def is_first(self, n: int, windows: slice) -> np.ndarray:
        """Return which windows are the first window of an n-gram."""
        is_first: np.ndarray = (self.sizes[windows] >= n) & (self.shared[windows] < n)
        return is_first

    def split(self, n: int) -> Iterator[slice]:
        """Yield all windows in parts; windows with the same n-gram are in the same part."""
        start, end, windows = 0, BLOCK_SIZE, len(self.starts)
        while end < windows:
            changes = np.flatnonzero(self.shared[end : end + BLOCK_SIZE] < n)
            if len(changes):
                end += int(changes[0])
                yield slice(start, end)
                start = end
            end += BLOCK_SIZE
        yield slice(start, windows)


def count_ngrams(
    ids: np.ndarray,
    order: int,
    vocabulary_size: int,
    *,
    arrays: ArrayAllocator | None = None,
    part_size: int = PART_SIZE,
) -> Iterator[Unigrams | Level]:
    """Yield the n-grams of a text for n = 1, …, ``order``; no n-gram crosses a boundary.

    Each sequence in ``ids`` ends with the boundary symbol, and one is added before the first sequence. ``arrays``
    allocates large arrays, None for memory; at most ``part_size`` windows are sorted at once.
    """
    yield Unigrams(ids, vocabulary_size)
    if order == 1:
        return
    text = SortedText(ids, order, vocabulary_size, arrays or ArrayAllocator(), part_size)
    for n in range(2, order + 1):
        level = Level(text, n)
        if n < order:
            level.store_indices()
        else:
            text.indices = np.empty(0, dtype=np.int32)  # frees a large array
        yield level


def _window_sizes(text: np.ndarray, sizes: np.ndarray, order: int) -> np.ndarray:
    """Write the words of the longest n-gram that begins at each token, up to and including a boundary, to ``sizes``."""
    tokens = len(sizes)
    sizes[:] = order
    for size in range(order - 1, 0, -1):
        sizes[text[size : size + tokens] == BOUNDARY] = size + 1
    sizes[-order:] = np.minimum(sizes[-order:], tokens - np.arange(max(0, tokens - order), tokens))
    return sizes
