"""Files of shards: the distinct windows of a segment of a text, in blocks that are read one at a time.

A shard is a safetensors file. ``blocks`` holds the encoded blocks, each a whole number of 8-byte words, ``ends`` where
each of them ends, ``first`` the words of its first window, and ``checksums`` its CRC-32, at last that of ``tokens`` and
``totals``. ``tokens`` is the count of each token of the segment, and ``totals`` the number of windows and of stored
words at each position. An encoded block begins with the number of its windows and of those that occur `MANY` times or
more.

A shard may hold a range of the windows, from ``low`` up to ``high``. The range without ``low`` then has all tokens. The
ranges of one divided merge follow each other, and are read as one shard (`ShardSequence`).
"""

import json
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...core import errors
from ...storage.weights import load_tensors, read_metadata, stream_tensors
from .counts import size_type
from .table import NamedArray
from .windows import Columns, DistinctWindows

FORMAT = "seriatim n-gram shard 1"
BLOCK_WINDOWS = 1 << 13
"""Windows in a block, at most."""
MANY = 255
"""Smaller counts are stored in one byte, others in eight."""
WORD_BYTES = 8
Bound = list[int] | None
"""The words of the window at which a range begins, or before which it ends; None for the first or the last of all."""


class EncodedBlock(NamedTuple):
    """A block as it is written."""

    values: np.ndarray  # int64 (words of 8 bytes,)
    first: np.ndarray  # the words of the first window (order,)
    totals: np.ndarray  # the number of windows and of stored words at each position (1 + order,)


def encoded(windows: DistinctWindows, order: int, vocabulary_size: int) -> list[EncodedBlock]:
    """Encode distinct windows in blocks."""
    blocks = []
    for begin in range(0, len(windows.starts), BLOCK_WINDOWS):
        block = windows.block(begin, begin + BLOCK_WINDOWS)
        columns = block.columns(order)
        totals = np.array([len(columns.sizes), *map(len, columns.words)])
        first = block.row(0, order, vocabulary_size)
        blocks.append(EncodedBlock(_encode(columns, order, vocabulary_size), first, totals))
    return blocks


def write_shard(
    path: Path,
    blocks: Iterable[list[EncodedBlock]],
    tokens: np.ndarray,
    order: int,
    vocabulary_size: int,
    bounds: tuple[Bound, Bound] = (None, None),
) -> None:
    """Write a shard, completely or not at all. ``tokens`` are the counts of all tokens ``(vocabulary,)``.

    ``bounds`` says which range of the windows it holds.

    Raises:
        OSError: the disk is full, or the file cannot be written.
    """

    def arrays() -> Iterator[NamedArray]:
        # The blocks are written while they are made; the index of them, which is small, comes last.
        totals, ends, firsts, checksums = np.zeros(order + 1, np.int64), [0], [], []
        yield "blocks", np.zeros(0, np.int64)
        for block in chain.from_iterable(blocks):
            totals += block.totals
            ends.append(ends[-1] + len(block.values))
            firsts.append(block.first)
            checksums.append(_checksum(block.values))
            yield "blocks", block.values
        yield "ends", np.array(ends[1:], dtype=np.int64)
        yield "first", np.array(firsts, dtype=np.int64).reshape(-1, order)
        yield "checksums", np.array([*checksums, _checksum(tokens, totals)], dtype=np.int64)
        yield "tokens", tokens
        yield "totals", totals

    metadata = {"format": FORMAT, "order": str(order), "vocabulary_size": str(vocabulary_size)}
    metadata |= {name: json.dumps(bound) for name, bound in zip(("low", "high"), bounds, strict=True)}
    stream_tensors(arrays(), path, metadata)


class Shard:
    """A file that `write_shard` wrote; the blocks are read when they are needed.

    Raises:
        InputError: the file is missing, damaged, or no shard.
    """

    def __init__(self, path: Path) -> None:
        try:
            self.path, metadata, tensors = path, read_metadata(path), load_tensors(path)
        except errors.InputError as error:
            reason = str(error).removeprefix(f"{path}: ").partition(";")[0]
            raise errors.DamagedError(f"{path}: {reason}; count this shard again") from None
        if metadata.get("format") != FORMAT:
            raise errors.MalformedError(f"{path}: not a shard of n-gram counts; give the files that count_shard wrote")
        try:
            self.order, self.vocabulary_size = int(metadata["order"]), int(metadata["vocabulary_size"])
            self.low, self.high = (_bound(metadata[name], self.order) for name in ("low", "high"))
            arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
            self.blocks, self.ends, self.first = arrays["blocks"], arrays["ends"], arrays["first"]
            self.checksums, self.tokens, self.totals = arrays["checksums"], arrays["tokens"], arrays["totals"]
        except (KeyError, ValueError, TypeError, RecursionError) as error:
            raise self.damaged(f"{type(error).__name__}: {error}") from None

        # The index is checked now, and each block when it is read.
        sizes = (self.first.shape, len(self.checksums), len(self.tokens), len(self.totals))
        blocks = len(self.ends)
        if sizes != ((blocks, self.order), blocks + 1, self.vocabulary_size, self.order + 1):
            raise self.damaged("its parts differ in length")
        if _checksum(self.tokens, self.totals) != self.checksums[-1]:
            raise self.damaged("its counts have changed")

    def read(self, index: int) -> Columns:
        """Read one block.

        Raises:
            InputError: it is damaged.
        """
        values = self.blocks[self.ends[index - 1] if index else 0 : self.ends[index]]
        if _checksum(values) != self.checksums[index]:
            raise self.damaged(f"block {index:,} has changed")
        columns = _decode(values, self.order, self.vocabulary_size)
        first = [int(words[0]) for words in columns.words[: int(columns.sizes[0])]]
        if first != self.first[index, : len(first)].tolist():
            raise self.damaged(f"the index of block {index:,} has changed")
        return columns

    def damaged(self, problem: str) -> errors.InputError:
        """Return the error for a damaged file."""
        return errors.DamagedError(f"{self.path}: damaged ({problem}); count this shard again")


def _checksum(*arrays: np.ndarray) -> int:
    """Return the CRC-32 of arrays one after another."""
    checksum = 0
    for array in arrays:
        checksum = zlib.crc32(np.ascontiguousarray(array).data, checksum)
    return checksum


def _bound(text: str, order: int) -> Bound:
    bound: Bound = json.loads(text)
    if bound is not None and (len(bound) != order or not all(isinstance(word, int) for word in bound)):
        raise ValueError(f"{text[:100]!r} is no window")
    return bound


def _word_type(vocabulary_size: int) -> type[np.unsignedinteger]:
    return np.uint16 if vocabulary_size <= 1 << 16 else np.uint32


def _encode(columns: Columns, order: int, vocabulary_size: int) -> np.ndarray:
    """Return a block as words of 8 bytes."""
    is_many = columns.counts >= MANY
    many = columns.counts[is_many].astype(np.int64)
    kind = _word_type(vocabulary_size)
    arrays = [
        np.array([len(columns.sizes), len(many)], dtype=np.int64),
        many,
        columns.shared.astype(size_type(order)),
        columns.sizes.astype(size_type(order)),
        np.minimum(columns.counts, MANY).astype(np.uint8),
        *(words.astype(kind) for words in columns.words),
    ]
    data = np.concatenate([np.ascontiguousarray(array).view(np.uint8) for array in arrays])
    return np.pad(data, (0, -len(data) % WORD_BYTES)).view(np.int64)


def _decode(values: np.ndarray, order: int, vocabulary_size: int) -> Columns:
    """Return the windows of an encoded block."""
    data, at = values.view(np.uint8), 0

    def take(count: int, kind: type[np.integer]) -> np.ndarray:
        nonlocal at
        begin, at = at, at + count * np.dtype(kind).itemsize
        return data[begin:at].view(kind)

    windows, number_of_many = take(2, np.int64).tolist()
    many, kind = take(number_of_many, np.int64), size_type(order)
    shared, sizes = take(windows, kind), take(windows, kind)
    counts = take(windows, np.uint8).astype(np.int64)
    counts[counts == MANY] = many
    words = []
    for position in range(order):
        count = int(np.count_nonzero((shared <= position) & (position < sizes)))
        words.append(take(count, _word_type(vocabulary_size)))
    return Columns(shared, sizes, counts, words)


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
        raise errors.RequiredError("no shards to merge; give the files that count_shard wrote")
    if isinstance(paths, str | Path):
        raise errors.RangeError(f"{paths}: one path, not a list of paths; give [{str(paths)!r}]")
    files = [Path(path).resolve() for path in paths]
    if len(set(files)) < len(files):
        double = next(path for i, path in enumerate(paths) if files[i] in files[:i])
        raise errors.DuplicateError(f"{double}: given twice, so that its counts would be doubled; give it once")
    shards = [Shard(Path(path)) for path in paths]
    first = shards[0]
    for shard in shards[1:]:
        for name in ("order", "vocabulary_size"):
            if (found := getattr(shard, name)) != (expected := getattr(first, name)):
                raise errors.MismatchError(
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
