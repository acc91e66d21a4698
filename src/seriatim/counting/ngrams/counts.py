"""The n-grams of each order, read block by block from sorted windows, and the windows of a whole text.

In sorted windows (see `windows`) all occurrences of an n-gram are neighbours, for every n, and the number of words that
a window shares with the window before it says which n-grams begin there. So the n-grams of each order are read from the
windows whenever they are needed. Only the index of each n-gram without its first word is stored.

The boundary symbol, token 0, separates sequences: as the first word of an n-gram it is the beginning of a sequence, as
the last word the end of one, and it is never between the two.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...core.errors import MismatchError
from .resources import AppendedArray, ArrayAllocator, map_in_order, run_for_all
from .windows import CHUNK_SIZE, DistinctWindows, WindowSorter, count_numbers, distinct

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


class NgramWindows:
    """The distinct windows of a text, and for each position the words that windows do not share there.

    ``sizes`` is the number of words of each window, ``shared`` the number of first words that it shares with the window
    before it, ``window_counts`` how often it occurs, ``sequences`` the number of windows that begin a sequence, which
    come first, and ``tokens`` the sum of all counts.

    Args:
        found: the windows in order, in groups, of which the first window says what it shares with the group before.
        order: the number of words of a window, at most.
        vocabulary_size: the number of different ids.
        most: the largest number of windows, and of the words stored at each position ``(1 + order,)``.
        tokens: the number of tokens of the text.
        arrays: allocates large arrays.
    """

    def __init__(
        self,
        found: Iterable[DistinctWindows],
        order: int,
        vocabulary_size: int,
        most: Sequence[int],
        tokens: int,
        arrays: ArrayAllocator,
    ) -> None:
        self.arrays, self.vocabulary_size, self.tokens, self.sequences = arrays, vocabulary_size, tokens, 0
        sizes, shared = (AppendedArray(arrays, most[0], size_type(order)) for _ in range(2))
        counts = AppendedArray(arrays, most[0], integer_type(tokens))
        words = [AppendedArray(arrays, size, np.int32) for size in most[1:]]
        for windows in found:
            columns = windows.columns(order)
            self.sequences += int(np.count_nonzero(windows.text[windows.starts] == BOUNDARY))
            for array, new in zip((shared, sizes, counts, *words), (*columns[:3], *columns.words), strict=True):
                array.append(new)
        self.shared, self.sizes, self.window_counts, *self.words = (
            array.finish() for array in (shared, sizes, counts, *words)
        )
        self.suffix = self.first_longer = np.empty(0, dtype=np.int32)  # of the order that was given to `store` last
        self.contexts_stored = vocabulary_size  # the number of n-grams of the order below it

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
            else:  # nothing that `store` stored is needed any more
                self.suffix = self.first_longer = np.empty(0, dtype=np.int32)
            yield level

    def first_words(self, block: Block) -> np.ndarray:
        """Return the first word of each bigram of a block."""
        words: np.ndarray = self.words[0][self.contexts(2, block)]
        return words

    def counts(self, n: int, block: Block) -> np.ndarray:
        """Return the count of each n-gram of a block."""
        has_word = self.sizes[block.windows] >= n
        first = np.flatnonzero(self.is_first(n, block.windows)[has_word])
        counts = self.window_counts[block.windows][has_word]
        return np.add.reduceat(counts, first) if len(first) else counts

    def suffixes(self, level: "Level", block: Block) -> np.ndarray:
        """Return the index of each suffix.

        Raises:
            InputError: an n-gram has no suffix, because a shard is missing.
        """
        words = level.words(block)
        if level.n == 2:
            return words
        of_context = self.suffix[level.contexts(block)]
        low, high = self.first_longer[of_context], self.first_longer[of_context + 1]
        found = find_between(self.words[level.n - 2], low, high, words)
        if (found < 0).any():
            raise MismatchError("the shards are not those of a whole text; give all of them")
        return found

    def store(self, level: "Level") -> None:
        """Store the suffixes of an order, and the index of the first one of its n-grams that has each context."""
        first = self.arrays.empty(self.contexts_stored + 1, integer_type(level.size))
        first[:] = 0

        def count(block: Block) -> None:
            contexts = level.contexts(block)
            if len(contexts):
                low = int(contexts[0])
                numbers = np.bincount(contexts - low)
                first[low + 1 : low + 1 + len(numbers)] = numbers

        run_for_all(count, level.blocks)
        np.cumsum(first, out=first)
        self.suffix, self.first_longer, self.contexts_stored = level.suffix, first, level.size


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
        return self.windows.words[self.n - 1][block.grams]

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
        found = segment_windows(ids, 0, len(ids), order, vocabulary_size, chunk_size)
        most = [len(ids)] * (1 + order)
        yield from NgramWindows(found, order, vocabulary_size, most, len(ids), arrays or ArrayAllocator()).levels(order)


def segment_windows(
    ids: np.ndarray,
    start: int,
    stop: int,
    order: int,
    vocabulary_size: int,
    chunk_size: int = CHUNK_SIZE,
    threads: int | None = None,
) -> Iterator[DistinctWindows]:
    """Yield the windows that begin one token before each token of a segment of a text, in order; see `count_shard`.

    The last window of a group and the first one of the next may be equal, if they end with a boundary.
    """
    # The segment begins one token early, with the boundary at the start of the text, and goes on a little behind it.
    windows = stop - start
    text = np.full(windows + order, vocabulary_size, dtype=np.int32)
    text[0] = ids[start - 1] if start else BOUNDARY
    following = ids[start : stop + max(order - 2, 0)]
    text[1 : 1 + len(following)] = following
    sizes = window_sizes(text, np.empty(windows, size_type(order)), order, 1 + len(following))
    sorter = WindowSorter(text, order, vocabulary_size + 1, chunk_size=chunk_size)

    def count(chunk: tuple[np.ndarray, int, int]) -> DistinctWindows:
        found = sorter.sort(*chunk)
        return distinct(text, found, sizes[found.starts])

    return map_in_order(count, sorter.split(None, 0) if windows else (), threads)


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


def find_between(values: np.ndarray, low: np.ndarray, high: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return where each target is among ascending values from ``low`` up to ``high``, −1 if it is not there.

    All searches halve their intervals together: most intervals hold one or two values.
    """
    found, remaining = np.where(low < high, low, -1), np.flatnonzero(high - low > 1)
    low, high, wanted = low[remaining], high[remaining], targets[remaining]
    while len(remaining):
        middle = (low + high) >> 1
        is_above = values[middle] > wanted
        low, high = np.where(is_above, low, middle), np.where(is_above, middle, high)
        found[remaining] = low
        goes_on = high - low > 1
        remaining, low, high, wanted = remaining[goes_on], low[goes_on], high[goes_on], wanted[goes_on]
    if len(values):
        found[values[found] != targets] = -1
    return found
