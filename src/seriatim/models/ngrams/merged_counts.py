"""Counts of all n-grams of a text whose shards were counted apart; see `shard_counting`.

The merged windows are in arrays, which may lie in files. Where a whole text is counted, the text leads from an n-gram
to its suffix, one token later. Here the suffix is found from the context, whose own suffix is known: it is the n-gram
of one word less that continues this one with the same last word.
"""

from collections.abc import Generator, Sequence
from pathlib import Path

import numpy as np

from ...core.errors import InputError
from .levels import BOUNDARY, Block, Level, Unigrams, WindowReader, integer_type, size_type
from .resources import AppendedArray, ArrayAllocator, map_in_order, run_for_all
from .shard_merging import ShardMerge, open_merge


class MergedWindows(WindowReader):
    """The distinct windows of several shards, and for each position the words that windows do not share there."""

    def __init__(self, merge: ShardMerge, arrays: ArrayAllocator) -> None:
        self.arrays, self.vocabulary_size, order = arrays, merge.vocabulary_size, merge.order
        self.tokens, self.sequences = int(merge.token_counts.sum()), 0
        most, *most_words = merge.totals.tolist()
        sizes, shared = (AppendedArray(arrays, most, size_type(order)) for _ in range(2))
        counts = AppendedArray(arrays, most, integer_type(self.tokens))
        words = [AppendedArray(arrays, size, np.int32) for size in most_words]
        last = np.full(order, -1)
        for part in map_in_order(lambda bounds: merge.merged(*bounds), merge.ranges()):
            if not len(part.starts):
                continue
            part.shared[0] = np.argmin(part.row(0, order, self.vocabulary_size) == last)
            last = part.row(-1, order, self.vocabulary_size)
            columns = part.columns(order)
            self.sequences += int(np.count_nonzero(part.text[part.starts] == BOUNDARY))
            for array, new in zip((shared, sizes, counts, *words), (*columns[:3], *columns.words), strict=True):
                array.append(new)
        self.shared, self.sizes, self.window_counts, *self.words = (
            array.finish() for array in (shared, sizes, counts, *words)
        )
        self.suffix = self.first_longer = np.empty(0, dtype=np.int32)  # of the order that was given to `store` last
        self.contexts_stored = self.vocabulary_size  # the number of n-grams of the order below it
        if self.window_counts.sum(dtype=np.int64) != self.tokens:
            raise InputError(
                f"{merge.shards[0].path}: the counts of the shards do not add up; give all shards, or count them again"
            )

    def first_words(self, block: Block) -> np.ndarray:
        """Return the first word of each bigram of a block."""
        words: np.ndarray = self.words[0][self.contexts(2, block)]
        return words

    def last_words(self, n: int, block: Block) -> np.ndarray:
        """Return the last word of each n-gram of a block."""
        return self.words[n - 1][block.grams]

    def counts(self, n: int, block: Block) -> np.ndarray:
        """Return the count of each n-gram of a block."""
        has_word = self.sizes[block.windows] >= n
        first = np.flatnonzero(self.is_first(n, block.windows)[has_word])
        counts = self.window_counts[block.windows][has_word]
        return np.add.reduceat(counts, first) if len(first) else counts

    def suffixes(self, level: Level, block: Block) -> np.ndarray:
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
            raise InputError("the shards are not those of a whole text; give all of them")
        return found

    def store(self, level: Level) -> None:
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

    def free_stored(self) -> None:
        """Free what `store` stored."""
        self.suffix = self.first_longer = np.empty(0, dtype=np.int32)


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


def count_merged(
    paths: Sequence[str | Path],
    *,
    arrays: ArrayAllocator | None = None,
    memory: int | None = None,
    folder: Path | None = None,
) -> Generator[Unigrams | Level, None, None]:
    """Yield the n-grams of all shards for n = 1, …, in the order of the shards, as `counts.count_ngrams` does.

    Args:
        paths: the files that `shard_counting.count_shard` or `shard_merging.merge_shards` wrote, in any order.
        arrays: allocates large arrays; None for memory.
        memory: for merging, in bytes; None for no limit.
        folder: for temporary files that merging with little memory needs; None for the usual one.

    Raises:
        InputError: a shard is damaged or missing, or they do not fit together.
    """
    with open_merge(paths, memory, folder) as merge:
        yield Unigrams(merge.token_counts)
        order = merge.order
        windows = MergedWindows(merge, arrays or ArrayAllocator()) if order > 1 else None
        del merge
    if windows is not None:
        yield from windows.levels(order)
