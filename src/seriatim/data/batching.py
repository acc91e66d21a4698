"""Sequences into batches of windows.

Every corpus is a set of spans of token ids: the lines of a text, or a stream cut into as many rows as a batch has. A
group of spans is read side by side in windows of ``sequence_length``; the state is carried from window to window of a
group, and a fresh group starts from the initial state. The order is a function of seed, epoch and index alone.
"""

from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from .corpus import Corpus
from .tokenizers import END

POOL = 8
"""Batches' worth of shuffled sequences that are sorted by length together: larger pads less and mixes worse."""
MOST_TOKENS = 1 << 16
"""Tokens of a batch at most, padding included, so that a few long documents do not fill the memory."""

AnyBatch = TypeVar("AnyBatch")


class Batch(NamedTuple):
    """One window of some sequences.

    Attributes:
        inputs: the tokens before each target ``(batch, time)``, beginning with the boundary symbol.
        targets: the tokens to predict ``(batch, time)``.
        lengths: valid positions of each row ``(batch,)``, or None where all are.
        fresh: whether the sequences begin here.
        rows: which lines of the corpus (or rows of the stream) these are ``(batch,)``.
        start: how far into its sequences the window begins.
    """

    inputs: Tensor
    targets: Tensor
    lengths: Tensor | None
    fresh: bool
    rows: np.ndarray
    start: int

    @property
    def tokens(self) -> int:
        """Targets, without padding."""
        return self.targets.numel() if self.lengths is None else int(self.lengths.sum())

    @property
    def terms(self) -> int:
        """What the loss is a sum over."""
        return self.tokens


class Batches:
    """The windows of a corpus.

    Args:
        corpus: encoded text.
        batch_size: sequences side by side.
        sequence_length: tokens in a window.
    """

    def __init__(self, corpus: Corpus, batch_size: int, sequence_length: int) -> None:
        self.corpus, self.batch_size, self.sequence_length = corpus, batch_size, sequence_length
        self.starts, self.ends = corpus.spans(batch_size)
        self.spans = self.ends - self.starts

    def shuffled(self, seed: int, epoch: int) -> list[np.ndarray]:
        """Groups of rows for training: a stream in order; lines shuffled, then bucketed by length."""
        if self.corpus.ends is None:
            return [np.arange(self.batch_size)]
        return shuffled_groups(self.spans, self.batch_size, seed, epoch)

    def in_order(self) -> list[np.ndarray]:
        """Groups of rows for evaluation: a stream in order; lines sorted by length."""
        return sorted_groups(self.spans, np.arange(len(self.spans)), self.batch_size)

    def windows(self, groups: list[np.ndarray]) -> int:
        """How many windows the groups make."""
        return sum(self._windows_of(group) for group in groups)

    def read(self, groups: list[np.ndarray], *, skip: int = 0) -> Iterator[Batch]:
        """Reads the groups window by window, the first ``skip`` windows left out (at no cost)."""
        for group in groups:
            count = self._windows_of(group)
            for i in range(min(skip, count), count):
                yield self._window(group, i * self.sequence_length)
            skip = max(0, skip - count)

    def _windows_of(self, group: np.ndarray) -> int:
        return -(-int(self.spans[group].max()) // self.sequence_length)

    def _window(self, group: np.ndarray, start: int) -> Batch:
        lengths = (self.spans[group] - start).clip(0, self.sequence_length)
        time = int(lengths.max())
        position = (self.starts[group] + start)[:, None] + np.arange(time)
        position = position.clip(max=len(self.corpus.ids) - 1)
        targets = self.corpus.ids[position].astype(np.int64)
        inputs = self.corpus.ids[position - 1].astype(np.int64)
        if start == 0:
            begins = (self.starts[group] == 0) | (self.corpus.ends is not None)
            inputs[begins, 0] = END
        return Batch(
            torch.from_numpy(inputs),
            torch.from_numpy(targets),
            None if lengths.min() == time else torch.from_numpy(lengths),
            fresh=start == 0,
            rows=group,
            start=start,
        )


class Windows(NamedTuple):
    """A corpus in windows: a stream in stretches of one length, a line whole or, where it is longer, likewise.

    Attributes:
        corpus: the encoded text.
        starts: where each window begins in its ids ``(windows,)``.
        lengths: tokens of each ``(windows,)``, at least 1.
        lines: which line of the corpus each is of ``(windows,)``; None for a stream.
        key: the same for the same text cut the same way, and only for it.
    """

    corpus: Corpus
    starts: np.ndarray
    lengths: np.ndarray
    lines: np.ndarray | None
    key: str

    def ids(self, rows: np.ndarray) -> np.ndarray:
        """Tokens of some windows ``(rows, time)``, int64, zero on padding."""
        return padded(self.corpus.ids, self.starts[rows], self.lengths[rows])


def cut(corpus: Corpus, length: int) -> Windows:
    """Windows of at most ``length`` tokens."""
    begins, ends = corpus.spans(1)
    pieces = -(-(ends - begins) // length)
    lines = np.repeat(np.arange(len(begins)), pieces)
    place = np.arange(len(lines)) - np.repeat(pieces.cumsum() - pieces, pieces)
    starts = begins[lines] + place * length
    lengths = np.minimum(ends[lines] - starts, length)
    return Windows(corpus, starts, lengths, None if corpus.ends is None else lines, f"{corpus.key} by {length}")


def sorted_groups(lengths: np.ndarray, rows: np.ndarray, batch_size: int) -> list[np.ndarray]:
    """Rows sorted by length and cut into batches."""
    ordered = rows[np.argsort(lengths[rows], kind="stable")]
    return [ordered[i : i + batch_size] for i in range(0, len(ordered), batch_size)]


def shuffled_groups(lengths: np.ndarray, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Rows shuffled, then put beside others of about their length; the batches are shuffled too."""
    generator = np.random.default_rng([seed, epoch])
    order = generator.permutation(len(lengths))
    pool = batch_size * POOL
    pools = (order[i : i + pool] for i in range(0, len(order), pool))
    groups = [group for rows in pools for group in sorted_groups(lengths, rows, batch_size)]
    return [groups[i] for i in generator.permutation(len(groups))]


class Buckets(Generic[AnyBatch]):
    """Whole sequences in batches.

    Args:
        lengths: tokens of each sequence ``(items,)``.
        batch_size: sequences side by side, fewer where they are long.
        make: a batch of these rows.
        most_tokens: of a batch, padding included.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        batch_size: int,
        make: Callable[[np.ndarray], AnyBatch],
        *,
        most_tokens: int = MOST_TOKENS,
    ) -> None:
        self.lengths, self.batch_size, self.make, self.most_tokens = lengths, batch_size, make, most_tokens

    def shuffled(self, seed: int, epoch: int) -> list[np.ndarray]:
        """Groups of rows for training."""
        return self._bounded(shuffled_groups(self.lengths, self.batch_size, seed, epoch))

    def in_order(self) -> list[np.ndarray]:
        """Groups of rows for evaluation, from the shortest to the longest."""
        return self._bounded(sorted_groups(self.lengths, np.arange(len(self.lengths)), self.batch_size))

    def windows(self, groups: list[np.ndarray]) -> int:
        """How many batches the groups make."""
        return len(groups)

    def read(self, groups: list[np.ndarray], *, skip: int = 0) -> Iterator[AnyBatch]:
        """Makes one batch after another, the first ``skip`` left out."""
        return (self.make(rows) for rows in groups[skip:])

    def _bounded(self, groups: list[np.ndarray]) -> list[np.ndarray]:
        """Cuts groups that hold more than ``most_tokens``."""
        found = []
        for rows in groups:
            most = max(1, self.most_tokens // max(1, int(self.lengths[rows].max())))
            found += [rows[i : i + most] for i in range(0, len(rows), most)]
        return found


def padded(ids: np.ndarray, starts: np.ndarray, lengths: np.ndarray, *, time: int | None = None) -> np.ndarray:
    """Sequences of one flat array as rows ``(rows, time)``, int64, zero behind their ends."""
    time = max(1, int(lengths.max(initial=0))) if time is None else time
    position = np.arange(time)
    index = (starts[:, None] + position).clip(max=max(0, len(ids) - 1))
    found = ids[index].astype(np.int64) if len(ids) else np.zeros((len(starts), time), np.int64)
    found[position >= lengths[:, None]] = 0
    return found
