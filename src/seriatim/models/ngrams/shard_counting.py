"""Counting a part of a text apart from the rest, so that several processes or machines share the work.

The parts of a text may be cut anywhere. A shard holds the count of each token of its part and the windows that begin
one token before each of them: a window that crosses the end of the part is read from the tokens that follow. So the
windows of all shards together are those of the whole text, and `merged_counts` makes the same model of them.
"""

from pathlib import Path

import numpy as np

from ...core.errors import InputError
from .counts import window_sizes
from .distinct_windows import distinct
from .levels import BOUNDARY, SMALL, size_type
from .resources import map_in_order
from .shard_files import EncodedBlock, encoded, write_shard
from .sorted_windows import PART_SIZE, WindowSorter, count_numbers

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
    part_size: int = PART_SIZE,
    threads: int | None = None,
) -> None:
    """Count the n-grams up to ``order`` of a part of a text, and write them to a file.

    Args:
        ids: the whole text ``(tokens,)``, in which each sequence ends with the boundary symbol 0. Sequences that no
            n-gram connects, such as the lines of another file, may also be given as a text of their own.
        path: the file to write.
        order: the length of the longest n-grams.
        vocabulary_size: the number of different ids.
        start: the first token of the part.
        stop: the token after its last one; None for the end of the text.
        part_size: the number of windows that are sorted at once, at most; each takes about 64 bytes.
        threads: the number of threads; None for that of PyTorch.

    Raises:
        InputError: there is no such part, it has 2³¹ tokens or more, an id is negative or not below the size of the
            vocabulary, or another argument is out of its range.
        OSError: the disk is full, or the file cannot be written.
    """
    if not isinstance(ids, np.ndarray) or ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise InputError("ids: must be a NumPy array of integers with one dimension")
    for name, value, most in (
        ("order", order, LONGEST),
        ("vocabulary_size", vocabulary_size, SMALL - 2),
        ("part_size", part_size, SMALL),
    ):
        if not 0 < value <= most:
            raise InputError(f"{name}: must be 1 to {most:,}, got {value:,}")
    stop = len(ids) if stop is None else stop
    if not 0 <= start <= stop <= len(ids):
        raise InputError(f"start, stop: {start:,} to {stop:,} is no part of a text of {len(ids):,} tokens")
    if stop - start >= SMALL - order:
        raise InputError(f"start, stop: {stop - start:,} tokens are too many for one shard; give less than 2³¹")
    if stop > start:
        part = ids[max(0, start - 1) : stop + order]
        if (largest := int(part.max())) >= vocabulary_size:
            raise InputError(f"ids: {largest:,} is not below vocabulary_size, {vocabulary_size:,}; give a larger one")
        if (smallest := int(part.min())) < 0:
            raise InputError(f"ids: {smallest:,} is negative; ids count from 0")
    windows = stop - start
    text = np.full(windows + order, vocabulary_size, dtype=np.int32)
    text[0] = ids[start - 1] if start else BOUNDARY
    following = ids[start : stop + max(order - 2, 0)]
    text[1 : 1 + len(following)] = following
    sizes = window_sizes(text, np.empty(windows, size_type(order)), order, 1 + len(following))
    sorter = WindowSorter(text, order, vocabulary_size + 1, part_size=part_size)

    def count(part: tuple[np.ndarray, int, int]) -> list[EncodedBlock]:
        found = sorter.sort(*part)
        return encoded(distinct(text, found, sizes[found.starts]), order, vocabulary_size)

    parts = map_in_order(count, sorter.split(None, 0) if order > 1 and windows else (), threads)
    write_shard(Path(path), parts, count_numbers(ids[start:stop], vocabulary_size), order, vocabulary_size)
