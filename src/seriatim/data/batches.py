"""Encoded texts in batches; the order is a function of seed, epoch and index only.

`Batches` read a corpus window by window and carry the state; its sequences are its lines, or a stream cut into rows.
`Windows` are independent, for models that see a whole sequence. `Buckets` group whole sequences of similar length.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar, overload

import numpy as np
import torch
from torch import Tensor

from ..processes.ranks import ALL_ROWS, RankShard
from .corpus import Corpus

MAX_BATCH_TOKENS = 1 << 16
"""The largest number of tokens of a batch, with padding, so that a few long documents do not fill the memory."""
POOL = 8  # the number of groups whose shuffled rows are sorted by length together: more pads less but mixes worse
POOLS_TOGETHER = 1 << 12  # the number of pools whose longest rows are computed together
AnyBatch = TypeVar("AnyBatch")


class Batch(NamedTuple):
    """One window of some sequences."""

    inputs: Tensor  # the token before each target (batch, time); the first is the boundary symbol
    targets: Tensor  # the tokens to predict (batch, time)
    lengths: Tensor | None  # the number of valid positions of each row (batch,), or None if all are valid
    fresh: bool  # whether the sequences begin here
    rows: np.ndarray  # the index of each line of the corpus, or of each row of the stream (batch,)
    start: int  # the position in the sequences at which the window begins
    rare: Tensor | None = None  # whether the first input and each target occur once (batch, 1 + time)

    @property
    def tokens(self) -> int:
        """The number of targets without padding."""
        return self.targets.numel() if self.lengths is None else int(self.lengths.sum())

    @property
    def terms(self) -> int:
        """The number of terms of the loss."""
        return self.tokens


class Rows(Protocol):
    """What an idle batch must know of the batch that it computes."""

    @property
    def rows(self) -> np.ndarray:
        """Indices of the sequences."""

    @property
    def fresh(self) -> bool:
        """Whether the sequences begin in this batch."""


AnyRows = TypeVar("AnyRows", bound=Rows, covariant=True)


@dataclass(frozen=True)
class IdleBatch(Generic[AnyRows]):
    """A batch of a rank that has no sequence, or no token, of its own in a window: it is computed without effect.

    Every rank takes part in every step, because gradients are added up by all. An idle rank computes a sequence, and
    its loss does not count.

    ``has_rows`` says whether its sequences are the rank's own; otherwise their state is not carried on.
    """

    batch: AnyRows
    has_rows: bool
    tokens: int = 0
    terms: int = 0

    @property
    def rows(self) -> np.ndarray:
        """Indices of the sequences; see `Rows`."""
        return self.batch.rows

    @property
    def fresh(self) -> bool:
        """Whether the sequences begin in this batch; see `Rows`."""
        return self.batch.fresh


class Batches:
    """The windows of a corpus: ``batch_size`` sequences side by side, ``sequence_length`` tokens long.

    ``rare`` says which tokens occur once in the training text ``(vocabulary,)``; None if no token is replaced.
    """

    def __init__(
        self, corpus: Corpus, batch_size: int, sequence_length: int, *, rare: np.ndarray | None = None
    ) -> None:
        self.corpus, self.batch_size, self.sequence_length, self.rare = corpus, batch_size, sequence_length, rare
        self.lengths, self.ends = corpus.lengths(batch_size), corpus.ends
        if self.ends is None:
            self.ends = corpus.spans(batch_size)[1]

    def starts_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the position in the ids at which each of some sequences begins ``(rows,)``, int64."""
        assert self.ends is not None
        return np.asarray(self.ends[rows] - self.lengths[rows])

    def shuffled(self, seed: int, epoch: int) -> Sequence[np.ndarray]:
        """Return groups of rows for training: a stream in order; lines shuffled and then grouped by length.

        Groups of lines have about as many tokens, so that every token counts as much in the mean loss of its step.
        """
        if self.corpus.ends is None:
            return [np.arange(self.batch_size)]
        return ShuffledGroups(self.lengths, self.batch_size, seed, epoch, by_tokens=True)

    def in_order(self) -> list[np.ndarray]:
        """Return groups of rows for evaluation: a stream in order; lines sorted by length."""
        return sorted_groups(self.lengths, np.arange(len(self.lengths)), self.batch_size)

    def windows(self, groups: Sequence[np.ndarray]) -> int:
        """Return the number of windows of some groups."""
        if isinstance(groups, ShuffledGroups):
            return sum(int((-(-longest // self.sequence_length)).sum()) for longest in groups.longest())
        return sum(self._window_count(group) for group in groups)

    def read(self, groups: Sequence[np.ndarray], *, skip: int = 0) -> Iterator[Batch]:
        """Read the groups window by window, without the first ``skip`` windows (which cost nothing)."""
        for batch in self.read_shard(groups, ALL_ROWS, skip=skip):
            assert isinstance(batch, Batch)
            yield batch

    def read_shard(
        self, groups: Sequence[np.ndarray], shard: RankShard, *, skip: int = 0
    ) -> Iterator[Batch | IdleBatch[Batch]]:
        """Read the shard of the rows of each window; see `TaskBatches.read_shard`."""
        for group in groups:
            count, rows = self._window_count(group), shard.of(group)
            for i in range(min(skip, count), count):
                batch = self._window(rows, i * self.sequence_length)
                if batch.tokens == 0:  # all rows of the shard have ended
                    yield IdleBatch(batch._replace(lengths=(torch.arange(len(rows)) == 0).long()), has_rows=True)
                else:
                    yield IdleBatch(batch, has_rows=False) if shard.is_idle(group) else batch
            skip = max(0, skip - count)

    def _window_count(self, group: np.ndarray) -> int:
        return -(-int(self.lengths[group].max()) // self.sequence_length)

    def _window(self, group: np.ndarray, start: int) -> Batch:
        lengths = (self.lengths[group].astype(np.int64) - start).clip(0, self.sequence_length)
        time, starts = max(1, int(lengths.max())), self.starts_of(group)  # a shard of a window can have no tokens

        # Rows that have ended read any tokens within the text; their lengths say that these do not count.
        position = (starts + start)[:, None] + np.arange(time)  # (B, T)
        position = position.clip(max=len(self.corpus.ids) - 1)
        targets = self.corpus.ids[position].astype(np.int64)  # (B, T)
        inputs = self.corpus.ids[position - 1].astype(np.int64)  # (B, T)

        # The token before a sequence is not its own, but that of the sequence before it in the ids.
        if start == 0:
            begins = (starts == 0) | (self.corpus.ends is not None)
            inputs[begins, 0] = self.corpus.begin
        rare = None
        if self.rare is not None:
            rare = torch.from_numpy(self.rare[np.concatenate([inputs[:, :1], targets], axis=1)])  # (B, 1 + T)
        return Batch(
            torch.from_numpy(inputs),
            torch.from_numpy(targets),
            None if lengths.min() == time else torch.from_numpy(lengths),
            fresh=start == 0,
            rows=group,
            start=start,
            rare=rare,
        )


class Windows(NamedTuple):
    """A corpus in independent windows: a stream in windows of one length; each line whole, or cut if it is longer."""

    corpus: Corpus  # the encoded text
    starts: np.ndarray  # the position in the ids at which each window begins (windows,)
    lengths: np.ndarray  # the number of tokens of each window (windows,), at least 1
    lines: np.ndarray | None  # the index of the line of each window (windows,); None for a stream
    key: str  # equal exactly for the same text cut in the same way

    def ids(self, rows: np.ndarray) -> np.ndarray:
        """Return the tokens of some windows ``(rows, time)``, int64, 0 on padding."""
        return padded(self.corpus.ids, self.starts[rows], self.lengths[rows])


def cut(corpus: Corpus, length: int) -> Windows:
    """Cut a corpus into windows of at most ``length`` tokens."""
    begins, ends = corpus.spans(1)
    counts = -(-(ends - begins) // length)  # of windows (lines,)
    lines = np.repeat(np.arange(len(begins)), counts)  # of each window (windows,)
    number = np.arange(len(lines)) - np.repeat(counts.cumsum() - counts, counts)
    starts = begins[lines] + number * length
    lengths = np.minimum(ends[lines] - starts, length)
    return Windows(corpus, starts, lengths, None if corpus.ends is None else lines, f"{corpus.key} by {length}")


class Buckets(Generic[AnyBatch]):
    """Whole sequences in batches.

    Args:
        lengths: the number of tokens of each sequence ``(items,)``.
        batch_size: the number of sequences side by side; fewer if they are long.
        make: makes a batch of some rows.
        max_tokens: the largest number of tokens of a batch, with padding.
        by_tokens: give batches of training about as many tokens instead of as many sequences.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        batch_size: int,
        make: Callable[[np.ndarray], AnyBatch],
        *,
        max_tokens: int = MAX_BATCH_TOKENS,
        by_tokens: bool = False,
    ) -> None:
        self.lengths, self.batch_size, self.make, self.max_tokens = lengths, batch_size, make, max_tokens
        self.by_tokens = by_tokens

    def shuffled(self, seed: int, epoch: int) -> list[np.ndarray]:
        """Return groups of rows for training."""
        return self._bounded(ShuffledGroups(self.lengths, self.batch_size, seed, epoch, by_tokens=self.by_tokens))

    def in_order(self) -> list[np.ndarray]:
        """Return groups of rows for evaluation, from the shortest to the longest."""
        return self._bounded(sorted_groups(self.lengths, np.arange(len(self.lengths)), self.batch_size))

    def windows(self, groups: Sequence[np.ndarray]) -> int:
        """Return the number of batches of some groups."""
        return len(groups)

    def read(self, groups: Sequence[np.ndarray], *, skip: int = 0) -> Iterator[AnyBatch]:
        """Make one batch after another, without the first ``skip``."""
        return (self.make(rows) for rows in groups[skip:])

    def read_shard(
        self, groups: Sequence[np.ndarray], shard: RankShard, *, skip: int = 0
    ) -> Iterator[AnyBatch | IdleBatch[AnyBatch]]:  # type: ignore[type-var]
        """Make the shard of each batch; see `TaskBatches.read_shard`."""
        for rows in groups[skip:]:
            batch = self.make(shard.of(rows))
            yield IdleBatch(batch, has_rows=False) if shard.is_idle(rows) else batch  # type: ignore[type-var]

    def _bounded(self, groups: Iterable[np.ndarray]) -> list[np.ndarray]:
        """Split the groups that hold more than ``max_tokens``."""
        bounded = []
        for rows in groups:
            max_rows = max(1, self.max_tokens // max(1, int(self.lengths[rows].max())))
            bounded += [rows[i : i + max_rows] for i in range(0, len(rows), max_rows)]
        return bounded


class ShuffledGroups(Sequence[np.ndarray]):
    """Rows in shuffled groups of similar length, which are computed when they are read: there may be many millions.

    They are a function of the arguments only.

    Args:
        lengths: the length of each row ``(rows,)``.
        size: the number of rows of a group, on average if ``by_tokens``.
        seed: with ``epoch``, decides the order.
        epoch: see ``seed``.
        by_tokens: give the groups that are sorted together the same sum of lengths instead of the same number of rows.
    """

    def __init__(self, lengths: np.ndarray, size: int, seed: int, epoch: int, *, by_tokens: bool = False) -> None:
        self.lengths, self.size, self.by_tokens = lengths, size, by_tokens
        generator = np.random.default_rng([seed, epoch])
        self.order = _shuffled(generator, len(lengths))
        self.slots = _shuffled(generator, -(-len(lengths) // size))

    def __len__(self) -> int:
        return len(self.slots)

    @overload
    def __getitem__(self, index: int) -> np.ndarray: ...

    @overload
    def __getitem__(self, index: slice) -> list[np.ndarray]: ...

    def __getitem__(self, index: int | slice) -> np.ndarray | list[np.ndarray]:
        """Return the rows of a group ``(rows,)``, int64, from the shortest to the longest."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        pool, slot = divmod(int(self.slots[index]), POOL)
        rows = self.order[pool * POOL * self.size : (pool + 1) * POOL * self.size]
        rows = rows[np.argsort(self.lengths[rows], kind="stable")]
        ends = self._ends(self.lengths[rows][None])[0]
        return rows[ends[slot - 1] if slot else 0 : ends[slot]].astype(np.int64)

    def longest(self) -> Iterator[np.ndarray]:
        """Iterate over the lengths of the longest rows of the groups ``(groups,)``, many at a time, in any order."""
        step = POOL * self.size
        full_pools = len(self.order) // step
        for start in range(0, full_pools, POOLS_TOGETHER):
            rows = self.order[start * step : min(full_pools, start + POOLS_TOGETHER) * step]
            yield self._longest(self.lengths[rows].reshape(-1, step))
        if len(self.order) % step:
            yield self._longest(self.lengths[self.order[full_pools * step :]][None])

    def _longest(self, lengths: np.ndarray) -> np.ndarray:
        """Return the length of the longest row of each group, given those of the rows of some pools (pools, rows)."""
        lengths = np.sort(lengths, axis=1)
        return np.take_along_axis(lengths, self._ends(lengths) - 1, axis=1).ravel()

    def _ends(self, lengths: np.ndarray) -> np.ndarray:
        """Return where the groups of some pools end ``(pools, groups)``, given the sorted lengths ``(pools, rows)``."""
        pools, rows = lengths.shape
        groups = -(-rows // self.size)
        if not self.by_tokens:
            return np.broadcast_to(np.minimum(np.arange(1, groups + 1) * self.size, rows), (pools, groups))

        # Group g ends where g / groups of all tokens are reached. Each group has at least one row.
        sums = np.cumsum(lengths, axis=1, dtype=np.int64)
        ends = np.stack([(sums * groups <= sums[:, -1:] * group).sum(1) for group in range(1, groups + 1)], axis=1)
        least = np.arange(1, groups + 1)
        ends = np.maximum.accumulate(np.maximum(ends, least) - least, axis=1) + least
        bounded: np.ndarray = np.minimum(ends, rows - groups + least)
        return bounded


def _shuffled(generator: np.random.Generator, count: int) -> np.ndarray:
    """Return ``generator.permutation(count)`` in less memory."""
    order = np.arange(count, dtype=np.int32 if count < 1 << 31 else np.int64)
    generator.shuffle(order)
    return order


def sorted_groups(lengths: np.ndarray, rows: np.ndarray, batch_size: int) -> list[np.ndarray]:
    """Sort rows by length and cut them into batches."""
    ordered = rows[np.argsort(lengths[rows], kind="stable")]
    return [ordered[i : i + batch_size] for i in range(0, len(ordered), batch_size)]


def padded(ids: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return sequences of a flat array as rows ``(rows, time)``, int64, 0 on padding."""
    position = np.arange(max(1, int(lengths.max(initial=0))))  # (T,)
    index = (starts[:, None] + position).clip(max=max(0, len(ids) - 1))  # (rows, T)
    rows = ids[index].astype(np.int64) if len(ids) else np.zeros(index.shape, np.int64)
    rows[position >= lengths[:, None]] = 0
    return rows
