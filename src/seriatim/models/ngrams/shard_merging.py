"""Merging shards, which were counted apart: their sorted windows are merged, and the counts of equal ones added.

The windows are divided into ranges between first windows of blocks, which the files list. All shards have about the
same number of blocks in each range, so that a range needs little memory, whatever the size of the files. Ranges are
merged in parallel. If even the ranges of that many shards need too much memory, some shards are merged to one first.

Several machines can share a merge: `divide_merge` gives each a part of the windows.
"""

import shutil
import tempfile
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from ...core.errors import InputError
from .distinct_windows import DistinctWindows, distinct, no_windows
from .resources import map_in_order
from .shard_files import BLOCK_WINDOWS, Bound, EncodedBlock, Shard, encoded, write_shard
from .shard_sequences import ShardSequence, open_shards
from .sorted_windows import SortedWindows, WindowSorter

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
        parts = [part for shard in self.shards for part in self._read(shard, low, high)]
        if not sum(len(rows) for rows, *_ in parts):
            return no_windows()
        rows, sizes, counts = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        text, starts = rows.ravel(), np.arange(0, rows.size, self.order, dtype=np.int32)
        sorter = WindowSorter(text, self.order, self.vocabulary_size + 1, in_runs=True)
        sorted_parts = [sorter.sort(*part) for part in sorter.split(starts, 0)]
        windows = SortedWindows(*map(np.concatenate, zip(*sorted_parts, strict=True)))
        numbers = windows.starts // self.order
        return distinct(text, windows, sizes[numbers], counts[numbers])

    def _read(
        self, shard: ShardSequence, low: Bound, high: Bound
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield the words, sizes and counts of the windows of a range, block by block."""
        blocks = range(len(shard.first))
        begin = 0 if low is None else max(0, _place(shard.first, low) - 1)
        end = len(blocks) if high is None else _place(shard.first, high)
        for index in blocks[begin:end]:
            columns = shard.read(index)
            rows = columns.rows(self.order, self.vocabulary_size)
            some = slice(0 if low is None else _place(rows, low), len(rows) if high is None else _place(rows, high))
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
        raise InputError(f"parts: must be at least 1, got {parts}")
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
        raise InputError(f"memory: must be a number of GB above 0, got {memory}")
    if Path(path).exists() and any(Path(path).samefile(shard) for shard in paths if Path(shard).exists()):
        raise InputError(f"{path}: is one of the shards; give another path for the result")
    limit = None if memory is None else int(memory * 1e9)
    with open_merge(paths, limit, Path(path).absolute().parent, bounds, threads) as merge:
        write_merged(merge, Path(path), threads)


def write_merged(merge: ShardMerge, path: Path, threads: int | None = None) -> None:
    """Merge all ranges and write them to a file."""

    def part(bounds: tuple[Bound, Bound]) -> list[EncodedBlock]:
        return encoded(merge.merged(*bounds), merge.order, merge.vocabulary_size)

    blocks = map_in_order(part, merge.ranges(), threads)
    write_shard(path, blocks, merge.token_counts, merge.order, merge.vocabulary_size, merge.bounds)


def _place(rows: np.ndarray, words: list[int]) -> int:
    """Return how many of sorted rows are before the row of some words."""
    return bisect_left(range(len(rows)), words, key=lambda index: rows[index].tolist())
