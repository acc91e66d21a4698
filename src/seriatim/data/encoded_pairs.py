"""Pairs of texts as numbers, and batches of them."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .batching import padded
from .pairs import Pair
from .tokenizers import END, Tokenizer
from .vocabulary import Vocabulary


class Side(NamedTuple):
    """Encoded texts side by side in one array."""

    ids: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray

    def rows(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Some of the texts: ids ``(rows, time)`` and lengths ``(rows,)``."""
        found = padded(self.ids, self.starts[rows], self.lengths[rows])
        return torch.from_numpy(found), torch.from_numpy(self.lengths[rows])


@dataclass
class PairBatch:
    """Some pairs.

    Attributes:
        source: ids ``(batch, source_time)``.
        source_lengths: ``(batch,)``.
        inputs: the targets before each, beginning with the boundary symbol ``(batch, time)``.
        targets: ids, ending with the boundary symbol ``(batch, time)``.
        target_lengths: with the boundary symbol ``(batch,)``.
        rows: which pairs these are ``(batch,)``.
        fresh: always: nothing is carried from pair to pair.
    """

    source: Tensor
    source_lengths: Tensor
    inputs: Tensor
    targets: Tensor
    target_lengths: Tensor
    rows: np.ndarray
    fresh: bool = True

    @property
    def tokens(self) -> int:
        """Of the targets, their ends included."""
        return int(self.target_lengths.sum())

    @property
    def terms(self) -> int:
        """What the loss is a sum over."""
        return self.tokens


@dataclass
class Pairs:
    """Encoded pairs, and their texts as they were."""

    source: Side
    target: Side
    sources: list[str]
    targets: list[str]
    vocabulary: Vocabulary
    key: str

    def unknown(self) -> int:
        """Tokens of either side that are not in its vocabulary."""
        tokenizers = (self.vocabulary.tokenizer, self.vocabulary.target)
        sides = (self.source.ids, self.target.ids)
        return sum(
            int((ids == tokenizer.unknown_id).sum())
            for ids, tokenizer in zip(sides, tokenizers, strict=True)
            if tokenizer.unknown_id is not None
        )

    def places_needed(self) -> np.ndarray:
        """Places that each target takes where all of it is given at once: a blank between two equal tokens too."""
        ids, starts = self.target.ids, self.target.starts
        again = np.zeros(len(ids) + 1, dtype=np.int64)
        again[2:] = np.cumsum(ids[1:] == ids[:-1]) if len(ids) > 1 else 0
        ends = starts + self.target.lengths
        needed: np.ndarray = self.target.lengths + again[ends] - again[np.minimum(starts + 1, ends)]
        return needed

    def batch(self, rows: np.ndarray) -> PairBatch:
        """Some of the pairs."""
        source, source_lengths = self.source.rows(rows)
        words, lengths = self.target.rows(rows)
        targets = torch.cat([words, words.new_zeros(len(words), 1)], dim=1)  # zero is the boundary symbol
        inputs = torch.cat([words.new_zeros(len(words), 1), words], dim=1)
        longest = int(lengths.max()) + 1
        return PairBatch(source, source_lengths, inputs[:, :longest], targets[:, :longest], lengths + 1, rows)


def encode_pairs(pairs: Sequence[Pair], vocabulary: Vocabulary) -> Pairs:
    """Pairs as ids."""
    source = encode_side([pair.source for pair in pairs], vocabulary.tokenizer)
    target = encode_side([pair.target for pair in pairs], vocabulary.target)
    key = hashlib.blake2b(f"pairs {vocabulary.fingerprint()}".encode(), digest_size=16)
    for side in (source, target):
        for values in side:
            key.update(values.tobytes())
    texts = [pair.source for pair in pairs], [pair.target for pair in pairs]
    return Pairs(source, target, *texts, vocabulary, key.hexdigest())


def encode_side(texts: Sequence[str], tokenizer: Tokenizer) -> Side:
    """Texts as ids, without line ends."""
    parts = [tokenizer.encode(text) for text in texts]
    parts = [part[part != END] for part in parts] if tokenizer.ends_lines else parts
    lengths = np.array([len(part) for part in parts], dtype=np.int64)
    ids = np.concatenate([*parts, np.zeros(0, np.int32)])
    return Side(ids, lengths.cumsum() - lengths, lengths)
