"""Opening shards, of which some may be the parts of one divided merge: these follow each other and are read as one."""

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...core.errors import InputError
from .distinct_windows import Columns
from .shard_files import Shard


class ShardSequence:
    """Shards whose windows follow each other, as one shard. One shard alone is a sequence, too.

    Attributes:
        path: the file of the first one.
        first: the words of the first window of each block ``(blocks, order)``.
        tokens: the count of each token ``(vocabulary,)``.
        totals: the number of windows and of stored words at each position ``(1 + order,)``.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.shards, self.path = shards, shards[0].path
        self.order, self.vocabulary_size = shards[0].order, shards[0].vocabulary_size
        self.first = np.concatenate([shard.first for shard in shards])
        self.tokens: np.ndarray = np.sum([shard.tokens for shard in shards], axis=0)
        self.totals: np.ndarray = np.sum([shard.totals for shard in shards], axis=0)
        self._ends = np.cumsum([len(shard.first) for shard in shards]).tolist()  # of the blocks of each shard

    def read(self, index: int) -> Columns:
        """Read one block.

        Raises:
            InputError: it is damaged.
        """
        number = bisect_right(self._ends, index)
        return self.shards[number].read(index - (self._ends[number - 1] if number else 0))


def open_shards(paths: Sequence[str | Path]) -> list[ShardSequence]:
    """Open the files of shards that belong together.

    Raises:
        InputError: there is no shard, the same one twice, shards of other orders or vocabularies, or a damaged one.
    """
    if not paths:
        raise InputError("no shards to merge; give the files that count_shard wrote")
    if isinstance(paths, str | Path):
        raise InputError(f"{paths}: one path, not a list of paths; give [{str(paths)!r}]")
    files = [Path(path).resolve() for path in paths]
    if len(set(files)) < len(files):
        double = next(path for i, path in enumerate(paths) if files[i] in files[:i])
        raise InputError(f"{double}: given twice; its counts would be doubled")
    shards = [Shard(Path(path)) for path in paths]
    first = shards[0]
    for shard in shards[1:]:
        for name in ("order", "vocabulary_size"):
            if (found := getattr(shard, name)) != (expected := getattr(first, name)):
                raise InputError(
                    f"{shard.path}: {name} is {found:,}, but {expected:,} in {first.path}; count all shards with the "
                    "same settings"
                )
    return [ShardSequence(shards) for shards in in_sequences(shards)]


def in_sequences(shards: Sequence[Shard]) -> list[list[Shard]]:
    """Return shards as sequences: one continues another if it begins with the window at which the other ends."""
    sequences: list[list[Shard]] = []
    for shard in sorted(shards, key=lambda shard: shard.low or []):
        before = next((some for some in sequences if shard.low and some[-1].high == shard.low), None)
        if before is None:
            sequences.append([shard])
        else:
            before.append(shard)
    return sequences
