"""Counting a text in shards, so that several processes or machines share the work.

**Counting.** A text may be cut anywhere into segments. A shard holds the count of each token of its segment and the
windows that begin one token before each of them: a window that crosses the end of the segment is read
from the tokens that follow. So the windows of all shards together are those of the whole text.

**Merging.** The sorted windows of shards are merged, and the counts of equal ones added. The windows are divided into
ranges between first windows of blocks, which the files list. All shards have about the same number of blocks in each
range, so that a range needs little memory, whatever the size of the files. Ranges are merged in parallel. If even the
ranges of that many shards need too much memory, some shards are merged to one first. Several machines can share a
merge: `divide_merge` gives each a range of the windows.

**Counts.** The merged windows are in arrays, which may lie in files. Where a whole text is counted, the text leads from
an n-gram to its suffix, one token later. Here the suffix is found from the context, whose own suffix is known: it is
the n-gram of one word less that continues this one with the same last word.
"""

import shutil
import tempfile
from bisect import bisect_left
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from ...core.errors import ExistsError, MismatchError, RangeError, SizeError
from .counts import SMALL, Level, NgramWindows, Unigrams, segment_windows
from .resources import ArrayAllocator, map_in_order
from .shard_files import BLOCK_WINDOWS, Bound, EncodedBlock, Shard, ShardSequence, encoded, open_shards, write_shard
from .windows import CHUNK_SIZE, DistinctWindows, SortedWindows, WindowSorter, count_numbers, distinct, no_windows

LONGEST = 100
"""The highest order."""


def count_shard(
    ids: np.ndarray,
    path: str | Path,
    *,
    order: int,
    vocabulary_size: int,
    start: int = 0,
    stop: int | None = None,
    chunk_size: int = CHUNK_SIZE,
    threads: int | None = None,
) -> None:
    """Count the n-grams up to ``order`` of a segment of a text, and write them to a file.

    Args:
        ids: the whole text ``(tokens,)``, in which each sequence ends with the boundary symbol 0. Sequences that no
            n-gram connects, such as the lines of another file, may also be given as a text of their own.
        path: the file to write.
        order: the length of the longest n-grams.
        vocabulary_size: the number of different ids.
        start: the first token of the segment.
        stop: the token after its last one; None for the end of the text.
        chunk_size: the number of windows that are sorted at once, at most; each takes about 64 bytes.
        threads: the number of threads; None for that of PyTorch.

    Raises:
        InputError: there is no such segment, it has 2³¹ tokens or more, an id is negative or not below the size of the
            vocabulary, or another argument is out of its range.
        OSError: the disk is full, or the file cannot be written.
    """
    if not isinstance(ids, np.ndarray) or ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise RangeError("ids: they are not in a NumPy array of integers with one dimension; give one")
    for name, value, most in (
        ("order", order, LONGEST),
        ("vocabulary_size", vocabulary_size, SMALL - 2),
        ("chunk_size", chunk_size, SMALL),
    ):
        if not 0 < value <= most:
            raise RangeError(f"{name}: {value:,} is out of range; give a number from 1 to {most:,}")
    stop = len(ids) if stop is None else stop
    if not 0 <= start <= stop <= len(ids):
        raise RangeError(
            f"start, stop: {start:,} to {stop:,} is not within the {len(ids):,} tokens; give a part of them"
        )
    if stop - start >= SMALL - order:
        raise SizeError(f"start, stop: {stop - start:,} tokens are too many for one shard; give less than 2³¹")
    if stop > start:
        segment = ids[max(0, start - 1) : stop + order]
        if (largest := int(segment.max())) >= vocabulary_size:
            raise RangeError(f"ids: {largest:,} is not below vocabulary_size, {vocabulary_size:,}; give a larger one")
        if (smallest := int(segment.min())) < 0:
            raise RangeError(f"ids: {smallest:,} is negative; give ids of 0 or more")

    def encode(windows: DistinctWindows) -> list[EncodedBlock]:
        return encoded(windows, order, vocabulary_size)

    found = segment_windows(ids, start, stop, order, vocabulary_size, chunk_size, threads) if order > 1 else ()
    blocks = map_in_order(encode, found, threads)
    write_shard(Path(path), blocks, count_numbers(ids[start:stop], vocabulary_size), order, vocabulary_size)


RANGE_BLOCKS = 32
"""Blocks that begin in a range, if there are fewer shards, so that a range is worth a call."""
MERGING = 160
"""Memory for merging a window, in bytes."""


class ShardMerge:
    """The windows of several shards as one, all of them or those within ``bounds``.

    `ranges` divides them, and `merged` merges a range. ``blocks`` is the number of blocks that begin in a range. The
    tokens belong to the windows without lower bound.
    """

    def __init__(
        self,
        shards: Sequence[ShardSequence],
        blocks: int = RANGE_BLOCKS,
        bounds: tuple[Bound, Bound] = (None, None),
    ) -> None:
        self.shards, self.blocks, self.bounds = shards, max(blocks, len(shards)), bounds
        self.order, self.vocabulary_size = shards[0].order, shards[0].vocabulary_size
        self.token_counts: np.ndarray = np.sum([shard.tokens for shard in shards], axis=0)
        if bounds[0] is not None:
            self.token_counts[:] = 0
        self.totals: np.ndarray = np.sum([shard.totals for shard in shards], axis=0)

    def ranges(self) -> list[tuple[Bound, Bound]]:
        """Return ranges of windows, which begin and end between windows that differ."""
        if not self.totals[0]:
            return []
        first, (low, high) = np.concatenate([shard.first for shard in self.shards]), self.bounds
        bounds = first[np.lexsort(first.T[::-1])][:: self.blocks].tolist()
        bounds = [bound for i, bound in enumerate(bounds) if i and bound != bounds[i - 1]]
        bounds = [bound for bound in bounds if (low is None or low < bound) and (high is None or bound < high)]
        return list(pairwise([low, *bounds, high]))

    def merged(self, low: Bound, high: Bound) -> DistinctWindows:
        """Return the distinct windows of a range; the first one shares no words with the window before it."""
        blocks = [block for shard in self.shards for block in self._read(shard, low, high)]
        if not sum(len(rows) for rows, *_ in blocks):
            return no_windows()
        rows, sizes, counts = (np.concatenate(arrays) for arrays in zip(*blocks, strict=True))
        text, starts = rows.ravel(), np.arange(0, rows.size, self.order, dtype=np.int32)
        sorter = WindowSorter(text, self.order, self.vocabulary_size + 1, in_runs=True)
        sorted_chunks = [sorter.sort(*chunk) for chunk in sorter.split(starts, 0)]
        windows = SortedWindows(*map(np.concatenate, zip(*sorted_chunks, strict=True)))
        numbers = windows.starts // self.order
        return distinct(text, windows, sizes[numbers], counts[numbers])

    def windows(self) -> Iterator[DistinctWindows]:
        """Yield the windows of all ranges; they are merged apart, so their first window is compared here."""
        last = np.full(self.order, -1)
        for windows in map_in_order(lambda bounds: self.merged(*bounds), self.ranges()):
            if len(windows.starts):
                windows.shared[0] = np.argmin(windows.row(0, self.order, self.vocabulary_size) == last)
                last = windows.row(-1, self.order, self.vocabulary_size)
                yield windows

    def _read(
        self, shard: ShardSequence, low: Bound, high: Bound
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield the words, sizes and counts of the windows of a range, block by block."""
        blocks = range(len(shard.first))
        begin = 0 if low is None else max(0, _index(shard.first, low) - 1)
        end = len(blocks) if high is None else _index(shard.first, high)
        for index in blocks[begin:end]:
            columns = shard.read(index)
            rows = columns.rows(self.order, self.vocabulary_size)
            some = slice(0 if low is None else _index(rows, low), len(rows) if high is None else _index(rows, high))
            yield rows[some], columns.sizes[some], columns.counts[some]


@contextmanager
def open_merge(
    paths: Sequence[str | Path],
    memory: int | None = None,
    folder: Path | None = None,
    bounds: tuple[Bound, Bound] = (None, None),
    threads: int | None = None,
) -> Iterator[ShardMerge]:
    """Open shards for merging the windows within ``bounds``, for the duration of a ``with`` block.

    If ``memory``, in bytes, is too little to merge so many at once, groups of them are merged to files in ``folder``
    first, None for the folder of temporary files.

    Raises:
        InputError: as for `open_shards`.
    """
    shards = open_shards(paths)
    if memory is None:
        yield ShardMerge(shards, bounds=bounds)
        return

    # How many shards can be merged at once depends on the memory of one range, since every shard has blocks in it.
    threads = threads or torch.get_num_threads()
    most = memory // (1 + threads) // (MERGING * BLOCK_WINDOWS)  # blocks in memory for each range
    together = max(2, most // 3)  # each shard has a block that begins in a range, and one on either side of it
    temporary = Path(tempfile.mkdtemp(prefix="merging-", dir=folder))
    try:
        while len(shards) > together:
            groups = [shards[start : start + together] for start in range(0, len(shards), together)]
            merged = [temporary / f"{len(shards)}-{number}.shard" for number in range(len(groups))]
            for group, path in zip(groups, merged, strict=True):
                blocks = max(1, min(RANGE_BLOCKS, most - 2 * len(group)))
                write_merged(ShardMerge(group, blocks, bounds), path, threads)
            shards = [ShardSequence([Shard(path)]) for path in merged]
        yield ShardMerge(shards, max(1, min(RANGE_BLOCKS, most - 2 * len(shards))), bounds)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def divide_merge(paths: Sequence[str | Path], parts: int) -> list[tuple[Bound, Bound]]:
    """Divide the windows of shards into ranges of about the same number, for `merge_shards` on several machines.

    Args:
        paths: the files of all shards.
        parts: the number of ranges, at least 1. There are fewer if the shards are small.

    Returns:
        The first window of each range and of the one after it, as ``bounds`` of `merge_shards`.

    Raises:
        InputError: a shard is damaged, or they do not fit together.
    """
    if parts < 1:
        raise RangeError(f"parts: {parts} is too small; give 1 or more")
    ranges = ShardMerge(open_shards(paths)).ranges()
    lows = [ranges[number][0] for number in sorted({len(ranges) * i // parts for i in range(parts)})] if ranges else []
    return list(pairwise([*(lows or [None]), None]))


def merge_shards(
    paths: Sequence[str | Path],
    path: str | Path,
    *,
    memory: float | None = None,
    bounds: tuple[Bound, Bound] = (None, None),
    threads: int | None = None,
) -> None:
    """Merge shards to one, and write it to a file; the shards are left as they are.

    Args:
        paths: the files of the shards.
        path: the file to write.
        memory: for merging, in GB; None for no limit.
        bounds: one of the ranges of `divide_merge`, of which only the windows are merged; by default all windows. The
            files of all ranges together are merged like one file, without further work.
        threads: the number of threads; None for that of PyTorch.

    Raises:
        InputError: a shard is damaged, they do not fit together, or an argument is out of its range.
        OSError: the disk is full, or the file cannot be written.
    """
    if memory is not None and not 0 < memory < 1e9:
        raise RangeError(f"memory: {memory} is not a number of GB above 0; give one")
    if Path(path).exists() and any(Path(path).samefile(shard) for shard in paths if Path(shard).exists()):
        raise ExistsError(f"{path}: is one of the shards; give another path for the result")
    limit = None if memory is None else int(memory * 1e9)
    with open_merge(paths, limit, Path(path).absolute().parent, bounds, threads) as merge:
        write_merged(merge, Path(path), threads)


def write_merged(merge: ShardMerge, path: Path, threads: int | None = None) -> None:
    """Merge all ranges and write them to a file."""

    def merge_range(bounds: tuple[Bound, Bound]) -> list[EncodedBlock]:
        return encoded(merge.merged(*bounds), merge.order, merge.vocabulary_size)

    blocks = map_in_order(merge_range, merge.ranges(), threads)
    write_shard(path, blocks, merge.token_counts, merge.order, merge.vocabulary_size, merge.bounds)


def _index(rows: np.ndarray, words: list[int]) -> int:
    """Return how many of sorted rows are before the row of some words."""
    return bisect_left(range(len(rows)), words, key=lambda index: rows[index].tolist())


def count_merged(
    paths: Sequence[str | Path],
    *,
    arrays: ArrayAllocator | None = None,
    memory: int | None = None,
    folder: Path | None = None,
) -> Generator[Unigrams | Level, None, None]:
    """Yield the n-grams of all shards for n = 1, …, in the order of the shards, as `counts.count_ngrams` does.

    Args:
        paths: the files that `count_shard` or `merge_shards` wrote, in any order.
        arrays: allocates large arrays; None for memory.
        memory: for merging, in bytes; None for no limit.
        folder: for temporary files that merging with little memory needs; None for the usual one.

    Raises:
        InputError: a shard is damaged or missing, or they do not fit together.
    """
    with open_merge(paths, memory, folder) as merge:
        yield Unigrams(merge.token_counts)
        if (order := merge.order) == 1:
            return
        tokens, most = int(merge.token_counts.sum()), merge.totals.tolist()
        found = merge.windows()
        windows = NgramWindows(found, order, merge.vocabulary_size, most, tokens, arrays or ArrayAllocator())
        if windows.window_counts.sum(dtype=np.int64) != tokens:
            raise MismatchError(
                f"{merge.shards[0].path}: the counts of the shards do not add up; give all shards, or count them again"
            )
        del merge, found
    yield from windows.levels(order)
