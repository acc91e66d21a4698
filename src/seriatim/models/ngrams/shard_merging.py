"""Merging shards, which were counted apart: their sorted windows are merged, and the counts of equal ones added.

The windows are divided into ranges between first windows of blocks, which the files list. All shards have about the
same number of blocks in each range, so that a range needs little memory, whatever the size of the files. Ranges are
merged in parallel. If even the ranges of that many shards need too much memory, some shards are merged to one first.
"""

import shutil
import tempfile
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from ...core.errors import InputError
from .distinct_windows import DistinctWindows, distinct
from .resources import map_in_order
from .shard_files import BLOCK_WINDOWS, EncodedBlock, Shard, encoded, write_shard
from .sorted_windows import Windows, WindowSorter

RANGE_BLOCKS = 32
"""Blocks that begin in a range, if there are fewer shards, so that a range is worth a call."""
MERGING = 160
"""Memory for merging a window, in bytes."""
Bound = list[int] | None
"""The words of the window at which a range begins or ends; None for the first or the last window of all."""


class ShardMerge:
    """The windows of several shards as one; `ranges` divides them, and `merged` merges a range.

    ``blocks`` is the number of blocks that begin in a range.

    Raises:
        InputError: there is no shard, the same one twice, shards of other orders or vocabularies, or a damaged one.
    """

    def __init__(self, paths: Sequence[str | Path], blocks: int = RANGE_BLOCKS) -> None:
        if not paths:
            raise InputError("no shards to merge; give the files that count_shard wrote")
        if len(set(paths)) < len(paths):
            double = next(path for i, path in enumerate(paths) if path in paths[:i])
            raise InputError(f"{double}: given twice; its counts would be doubled")
        self.shards, self.blocks = [Shard(Path(path)) for path in paths], max(blocks, len(paths))
        first = self.shards[0]
        self.order, self.vocabulary_size = first.order, first.vocabulary_size
        for shard in self.shards[1:]:
            for name in ("order", "vocabulary_size"):
                if (found := getattr(shard, name)) != (expected := getattr(first, name)):
                    raise InputError(
                        f"{shard.path}: {name} is {found:,}, but {expected:,} in {first.path}; count all shards with "
                        "the same settings"
                    )
        self.token_counts: np.ndarray = np.sum([shard.tokens for shard in self.shards], axis=0)
        self.totals: np.ndarray = np.sum([shard.totals for shard in self.shards], axis=0)

    def ranges(self) -> list[tuple[Bound, Bound]]:
        """Return ranges of windows, which begin and end between windows that differ."""
        if not self.totals[0]:
            return []
        first = np.concatenate([shard.first for shard in self.shards])
        bounds = first[np.lexsort(first.T[::-1])][:: self.blocks].tolist()
        bounds = [bound for i, bound in enumerate(bounds) if i and bound != bounds[i - 1]]
        return list(zip([None, *bounds], [*bounds, None], strict=True))

    def merged(self, low: Bound, high: Bound) -> DistinctWindows:
        """Return the distinct windows of a range; the first one shares no words with the window before it."""
        parts = [part for shard in self.shards for part in self._read(shard, low, high)]
        rows, sizes, counts = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        text, starts = rows.ravel(), np.arange(0, rows.size, self.order, dtype=np.int32)
        sorter = WindowSorter(text, self.order, self.vocabulary_size + 1, in_runs=True)
        sorted_parts = [sorter.sort(*part) for part in sorter.split(starts, 0)]
        windows = Windows(*map(np.concatenate, zip(*sorted_parts, strict=True)))
        numbers = windows.starts // self.order
        return distinct(text, windows, sizes[numbers], counts[numbers])

    def _read(self, shard: Shard, low: Bound, high: Bound) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield the words, sizes and counts of the windows of a range, block by block."""
        blocks = range(len(shard.ends))
        begin = 0 if low is None else max(0, _place(shard.first, low) - 1)
        end = len(blocks) if high is None else _place(shard.first, high)
        for index in blocks[begin:end]:
            columns = shard.read(index)
            rows = columns.rows(self.order, self.vocabulary_size)
            some = slice(0 if low is None else _place(rows, low), len(rows) if high is None else _place(rows, high))
            yield rows[some], columns.sizes[some], columns.counts[some]


@contextmanager
def open_merge(
    paths: Sequence[str | Path], memory: int | None = None, folder: Path | None = None
) -> Iterator[ShardMerge]:
    """Open shards for merging within a ``with`` block.

    If ``memory``, in bytes, is too little to merge so many at once, groups of them are merged to files in ``folder``
    first, None for the folder of temporary files.
    """
    if memory is None:
        yield ShardMerge(paths)
        return
    most = memory // (1 + torch.get_num_threads()) // (MERGING * BLOCK_WINDOWS)  # blocks in memory for each range
    together = max(2, most // 3)  # each shard has a block that begins in a range, and one on either side of it
    temporary = Path(tempfile.mkdtemp(prefix="merging-", dir=folder))
    try:
        while len(paths) > together:
            groups = [paths[start : start + together] for start in range(0, len(paths), together)]
            merged = [temporary / f"{len(paths)}-{number}.shard" for number in range(len(groups))]
            for group, path in zip(groups, merged, strict=True):
                write_merged(ShardMerge(group, max(1, min(RANGE_BLOCKS, most - 2 * len(group)))), path)
            paths = merged
        yield ShardMerge(paths, max(1, min(RANGE_BLOCKS, most - 2 * len(paths))))
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def merge_shards(paths: Sequence[str | Path], path: str | Path, *, memory: float | None = None) -> None:
    """Merge shards to one, and write it to a file; the shards are left as they are.

    Args:
        paths: the files of the shards.
        path: the file to write.
        memory: for merging, in GB; None for no limit.

    Raises:
        InputError: a shard is damaged, or they do not fit together.
        OSError: the disk is full, or the file cannot be written.
    """
    limit = None if memory is None else int(memory * 1e9)
    with open_merge(paths, limit, Path(path).absolute().parent) as merge:
        write_merged(merge, Path(path))


def write_merged(merge: ShardMerge, path: Path) -> None:
    """Merge all ranges and write them to a file."""

    def part(bounds: tuple[Bound, Bound]) -> list[EncodedBlock]:
        return encoded(merge.merged(*bounds), merge.order, merge.vocabulary_size)

    write_shard(path, map_in_order(part, merge.ranges()), merge.token_counts, merge.order, merge.vocabulary_size)


def _place(rows: np.ndarray, words: list[int]) -> int:
    """Return how many of sorted rows are before the row of some words."""
    return bisect_left(range(len(rows)), words, key=lambda index: rows[index].tolist())
