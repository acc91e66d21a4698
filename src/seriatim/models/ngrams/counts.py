"""Counts of all n-grams of a text up to some order, by sorting; see `levels` for how they are read from the windows."""

from collections.abc import Iterator

import numpy as np

from .levels import BLOCK_SIZE, BOUNDARY, Block, Level, Unigrams, WindowReader, size_type
from .resources import ArrayAllocator, run_for_all
from .sorted_windows import PART_SIZE, WindowSorter, count_numbers


class SortedText(WindowReader):
    """A text and its sorted windows; the arguments as in `count_ngrams`.

    The text begins with a boundary symbol and is filled at the end with a number that is no word. ``starts`` is the
    token at which each window begins, and ``indices`` the index of the n-gram that begins at each token, for the order
    that was counted last.
    """

    def __init__(
        self, ids: np.ndarray, order: int, vocabulary_size: int, arrays: ArrayAllocator, part_size: int
    ) -> None:
        tokens = self.tokens = len(ids) + 1
        self.arrays, self.ids = arrays, arrays.empty(tokens + order, np.int32)
        self.ids[0] = BOUNDARY
        self.ids[1:tokens] = ids
        self.ids[tokens:] = vocabulary_size
        self.sequences = int(np.count_nonzero(self.ids[:tokens] == BOUNDARY))
        sizes = window_sizes(self.ids, arrays.empty(tokens, size_type(order)), order, tokens)
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

    def first_words(self, block: Block) -> np.ndarray:
        """Return the first word of each bigram of a block."""
        words: np.ndarray = self.ids[self._starts(2, block)]
        return words

    def last_words(self, n: int, block: Block) -> np.ndarray:
        """Return the last word of each n-gram of a block."""
        words: np.ndarray = self.ids[self._starts(n, block) + (n - 1)]
        return words

    def counts(self, n: int, block: Block) -> np.ndarray:
        """Return the count of each n-gram of a block."""
        is_first = self.is_first(n, block.windows)[self.sizes[block.windows] >= n]
        return np.diff(np.flatnonzero(is_first), append=len(is_first))

    def suffixes(self, level: Level, block: Block) -> np.ndarray:
        """Return the index that the n-gram one token later has."""
        indices: np.ndarray = self.indices[self._starts(level.n, block) + 1]
        return indices

    def store(self, level: Level) -> None:
        """Store the index of the n-gram that begins at each token in the text."""

        def write(block: Block) -> None:
            numbers = np.cumsum(self.is_first(level.n, block.windows), dtype=np.int32)
            numbers += block.grams.start - 1
            self.indices[self.starts[block.windows]] = numbers

        run_for_all(write, level.blocks)

    def free_stored(self) -> None:
        """Free the indices."""
        self.indices = np.empty(0, dtype=np.int32)

    def _starts(self, n: int, block: Block) -> np.ndarray:
        """Return the token at which each n-gram begins in the first of its windows."""
        starts: np.ndarray = self.starts[block.windows][self.is_first(n, block.windows)]
        return starts


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
    allocates large arrays, None for memory; at most ``part_size`` windows are sorted at once. A text of 2³¹ tokens or
    more is counted in shards; see `shard_counting`.
    """
    yield Unigrams(count_numbers(ids, vocabulary_size))
    if order > 1:
        yield from SortedText(ids, order, vocabulary_size, arrays or ArrayAllocator(), part_size).levels(order)


def window_sizes(text: np.ndarray, sizes: np.ndarray, order: int, tokens: int) -> np.ndarray:
    """Write the words of the longest n-gram that begins at each token, up to and including a boundary, to ``sizes``.

    ``text`` has at least ``order`` − 1 numbers more than ``sizes``; those after its first ``tokens`` are no words.
    """
    windows = len(sizes)
    sizes[:] = order
    for size in range(order - 1, 0, -1):
        sizes[text[size : size + windows] == BOUNDARY] = size + 1
    sizes[-order:] = np.minimum(sizes[-order:], tokens - np.arange(max(0, windows - order), windows))
    return sizes
