"""Sequences into batches of windows.

Every corpus is a set of spans of token ids: the lines of a text, or a stream cut into as many rows as a batch has. A
group of spans is read side by side in windows of ``sequence_length``; the state is carried from window to window of a
group, and a fresh group starts from the initial state. The order is a function of seed, epoch and index alone.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .bucketing import shuffled_groups, sorted_groups
from .corpus import Corpus
from .tokenizers import END


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
