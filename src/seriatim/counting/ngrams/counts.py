"""The n-grams of each order, read block by block from sorted windows, and the windows of a whole text.

In sorted windows (see `windows`) all occurrences of an n-gram are neighbours, for every n, and the number of words that
a window shares with the window before it says which n-grams begin there. So the n-grams of each order are read from the
windows whenever they are needed. Only the index of each n-gram without its first word is stored.

The boundary symbol, token 0, separates sequences: as the first word of an n-gram it is the beginning of a sequence, as
the last word the end of one, and it is never between the two.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .resources import ArrayAllocator, run_for_all
from .windows import CHUNK_SIZE, WindowSorter, count_numbers

BOUNDARY = 0
BLOCK_SIZE = 1 << 18  # windows or n-grams that are processed together
SMALL = 1 << 31
"""Numbers below this are stored in 32 bits."""


class Block(NamedTuple):
    """Consecutive n-grams of one order: all n-grams with the same context are in the same block."""

    windows: slice  # their windows among the sorted windows
    grams: slice  # their indices among the n-grams of the order
    context: int  # the index of the first one's context among the (n−1)-grams, or less


class Unigrams:
    """All tokens of the vocabulary, with the count of each in the text ``(vocabulary,)``; their context is empty."""

    def __init__(self, token_counts: np.ndarray) -> None:
        self.size, self.starting = len(token_counts), 0
        self.count_type = integer_type(int(token_counts.sum()))
        self.suffix = np.zeros(self.size, dtype=np.int32)
        self.token_counts = token_counts.astype(self.count_type)
        self.blocks: Sequence[Block] = [Block(slice(0, 0), slice(0, self.size), 0)]

    def contexts(self, block: Block) -> np.ndarray:
        """Return 0 for each n-gram of a block."""
        return self.suffix[block.grams]

    def words(self, block: Block) -> np.ndarray:
        """Return the id of each."""
        return np.arange(block.grams.start, block.grams.stop, dtype=np.int32)

    def counts(self, block: Block) -> np.ndarray:
        """Return the count of each in the text."""
        return self.token_counts[block.grams]


class NgramWindows(ABC):
    """Sorted windows, those of the first words of sequences first, from which n-grams are read.

    ``sizes`` is the number of words of the longest n-gram that begins a window and crosses no boundary, ``shared`` the
    number of first words that a window shares with the window before it, ``sequences`` a number of first windows among
    which are all that begin a sequence, and ``tokens`` the sum of all counts.
    """

    arrays: ArrayAllocator
    sizes: np.ndarray
    shared: np.ndarray
    sequences: int
    tokens: int

    @abstractmethod
    def first_words(self, block: Block) -> np.ndarray:
        """Return the first word of each bigram of a block."""

    @abstractmethod
    def last_words(self, n: int, block: Block) -> np.ndarray:
        """Return the last word of each n-gram of a block."""

    @abstractmethod
    def counts(self, n: int, block: Block) -> np.ndarray:
        """Return the count of each n-gram of a block."""

    @abstractmethod
    def suffixes(self, level: "Level", block: Block) -> np.ndarray:
        """Return the index of each n-gram of a block, without its first word, among those given to `store` last."""

    @abstractmethod
    def store(self, level: "Level") -> None:
        """Store what the next order needs to find its suffixes."""

    @abstractmethod
    def free_stored(self) -> None:
        """Free what `store` stored."""

    def is_first(self, n: int, windows: slice) -> np.ndarray:
        """Return which windows are the first window of an n-gram."""
        is_first: np.ndarray = (self.sizes[windows] >= n) & (self.shared[windows] < n)
        return is_first

    def contexts(self, n: int, block: Block) -> np.ndarray:
        """Return the index of the context of each n-gram of a block among the (n−1)-grams that begin a window."""
        numbers = np.cumsum(self.is_first(n - 1, block.windows), dtype=integer_type(len(self.sizes)))
        contexts: np.ndarray = numbers[self.is_first(n, block.windows)]
        contexts += block.context - 1
        return contexts

    def split(self, n: int) -> Iterator[slice]:
        """Yield all windows in blocks; windows with the same n-gram are in the same block."""
        start, end, windows = 0, BLOCK_SIZE, len(self.sizes)
        while end < windows:
            changes = np.flatnonzero(self.shared[end : end + BLOCK_SIZE] < n)
            if len(changes):
                end += int(changes[0])
                yield slice(start, end)
                start = end
            end += BLOCK_SIZE
        yield slice(start, windows)

    def levels(self, order: int) -> Iterator["Level"]:
        """Yield the n-grams for n = 2, …, ``order``."""
        for n in range(2, order + 1):
            level = Level(self, n)
            if n < order:
                self.store(level)
            else:
                self.free_stored()
            yield level


class Level:
    """The n-grams of one order n > 1, sorted by their words.

    The n-grams that begin a sequence come first; ``starting`` is their number. ``suffix`` is the index of the last n−1
    words of each n-gram among the (n−1)-grams ``(n-grams,)``.
    """

    def __init__(self, windows: NgramWindows, n: int) -> None:
        self.windows, self.n = windows, n
        self.count_type = integer_type(windows.tokens)
        self.blocks: Sequence[Block] = list(self._blocks())
        self.size = self.blocks[-1].grams.stop
        self.starting = int(np.count_nonzero(windows.is_first(n, slice(0, windows.sequences))))
        self.suffix = windows.arrays.empty(self.size, integer_type(len(windows.sizes)))
        run_for_all(self._find_suffixes, self.blocks)

    def contexts(self, block: Block) -> np.ndarray:
        """Return the index of the first n−1 words of each n-gram of a block among the (n−1)-grams ``(n-grams,)``."""
        return self.windows.first_words(block) if self.n == 2 else self.windows.contexts(self.n, block)

    def words(self, block: Block) -> np.ndarray:
        """Return the last word of each n-gram of a block ``(n-grams,)``."""
        return self.windows.last_words(self.n, block)

    def counts(self, block: Block) -> np.ndarray:
        """Return the count of each n-gram of a block in the text ``(n-grams,)``."""
        return self.windows.counts(self.n, block).astype(self.count_type, copy=False)

    def _find_suffixes(self, block: Block) -> None:
        self.suffix[block.grams] = self.windows.suffixes(self, block)

    def _blocks(self) -> Iterator[Block]:
        grams = contexts = 0
        for windows in self.windows.split(self.n - 1):
            first, grams = grams, grams + int(np.count_nonzero(self.windows.is_first(self.n, windows)))
            yield Block(windows, slice(first, grams), contexts)
            contexts += int(np.count_nonzero(self.windows.is_first(self.n - 1, windows)))


def integer_type(largest: int) -> npt.DTypeLike:
    """Return the type of integers up to ``largest``."""
    return np.int32 if largest < SMALL else np.int64


def size_type(order: int) -> type[np.signedinteger]:
    """Return the type of the sizes of windows."""
    return np.int8 if order < 128 else np.int32


class SortedText(NgramWindows):
    """A text and its sorted windows; the arguments as in `count_ngrams`.

    The text begins with a boundary symbol and is filled at the end with a number that is no word. ``starts`` is the
    token at which each window begins, and ``indices`` the index of the n-gram that begins at each token, for the order
    that was counted last.
    """

    def __init__(
        self, ids: np.ndarray, order: int, vocabulary_size: int, arrays: ArrayAllocator, chunk_size: int
    ) -> None:
        tokens = self.tokens = len(ids) + 1
        self.arrays, self.ids = arrays, arrays.empty(tokens + order, np.int32)

        # A sequence begins with a boundary, also the first one; behind the text no number may look like a word of it.
        self.ids[0] = BOUNDARY
        self.ids[1:tokens] = ids
        self.ids[tokens:] = vocabulary_size
        self.sequences = int(np.count_nonzero(self.ids[:tokens] == BOUNDARY))
        sizes = window_sizes(self.ids, arrays.empty(tokens, size_type(order)), order, tokens)
        self.starts, self.shared = arrays.empty(tokens, np.int32), arrays.empty(tokens, sizes.dtype)
        self.sizes, end = arrays.empty(tokens, sizes.dtype), 0
        for chunk in WindowSorter(self.ids, order, vocabulary_size + 1, chunk_size=chunk_size).sorted():
            start, end = end, end + len(chunk.starts)
            self.starts[start:end], self.shared[start:end] = chunk

        # The sizes were found in the order of the text, and are needed in the order of the windows.
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
    chunk_size: int = CHUNK_SIZE,
) -> Iterator[Unigrams | Level]:
    """Yield the n-grams of a text for n = 1, …, ``order``; no n-gram crosses a boundary.

    Each sequence in ``ids`` ends with the boundary symbol, and one is added before the first sequence. ``arrays``
    allocates large arrays, None for memory; at most ``chunk_size`` windows are sorted at once. A text of 2³¹ tokens or
    more is counted in shards; see `shards`.
    """
    yield Unigrams(count_numbers(ids, vocabulary_size))
    if order > 1:
        yield from SortedText(ids, order, vocabulary_size, arrays or ArrayAllocator(), chunk_size).levels(order)


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
