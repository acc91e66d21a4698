"""Encoded pairs of texts, batches of them, and training pairs with invented stems.

Invented stems: the longest shared part of a pair is replaced by other tokens, on both sides alike.

A. Anastasopoulos and G. Neubig, "Pushing the limits of low-resource morphological inflection", EMNLP 2019.

If source and target share a long part, as l a u f in l a u f e n +V +PST and l a u f t e, most of it says nothing about
the rest, and the pair stays right with other tokens there. The first and the last token of the part stay, because what
follows or precedes may depend on them. The new tokens are drawn from the shared parts of the batch, again at every
step. In the paper, whole data sets are made once, from uniform letters, and the new stem can have another length.
"""

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .batching import padded
from .pairs import Pair
from .repairs import Repairs
from .spellings import canonical
from .tokenizers import END, Tokenizer
from .vocabulary import Vocabulary

SHORTEST = 3
"""Smallest number of tokens of a shared part in which something is replaced."""


class Side(NamedTuple):
    """Encoded texts in one array."""

    ids: np.ndarray  # the token ids of all texts (tokens,)
    starts: np.ndarray  # the position in ids at which each text begins (texts,)
    lengths: np.ndarray  # the number of tokens of each text (texts,)

    @classmethod
    def join(cls, parts: Sequence[np.ndarray]) -> "Side":
        """Return texts that are given as token ids ``(tokens,)``."""
        lengths = np.array([len(part) for part in parts], dtype=np.int64)
        return cls(np.concatenate([*parts, np.zeros(0, np.int32)]), lengths.cumsum() - lengths, lengths)

    def rows(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return the ids ``(rows, time)`` and lengths ``(rows,)`` of some texts."""
        ids = padded(self.ids, self.starts[rows], self.lengths[rows])
        return torch.from_numpy(ids), torch.from_numpy(self.lengths[rows])


class SharedParts(NamedTuple):
    """The longest part that each source shares with its target, and which target id a source id stands for."""

    starts: Tensor  # position of the part in the source (pairs,)
    target_starts: Tensor  # in the target (pairs,)
    sizes: Tensor  # number of tokens of the part (pairs,)
    table: Tensor  # target id of each source id, −1 if it has none (source_vocabulary,)

    def rows(self, rows: np.ndarray) -> "SharedParts":
        """Return those of some pairs."""
        index = torch.from_numpy(rows)
        return SharedParts(self.starts[index], self.target_starts[index], self.sizes[index], self.table)


def shared_parts(sources: Sequence[np.ndarray], targets: Sequence[np.ndarray], table: Tensor) -> SharedParts:
    """Find the longest shared part of each pair of token ids; ``table`` is that of `SharedParts`."""
    found = []
    for source, target in zip(sources, targets, strict=True):
        as_target = table.numpy()[source].tolist()
        match = SequenceMatcher(None, as_target, target.tolist(), autojunk=False).find_longest_match()
        found.append(tuple(match))
    starts, target_starts, sizes = torch.tensor(found, dtype=torch.long).reshape(-1, 3).unbind(1)
    return SharedParts(starts, target_starts, sizes, table)


def with_invented_stems(source: Tensor, targets: Tensor, parts: SharedParts, rate: float) -> tuple[Tensor, Tensor]:
    """Return ids ``(batch, source_time)`` and ``(batch, time)`` in which some pairs have another shared part.

    ``rate`` is the share of the pairs that are changed, of those with a part of `SHORTEST` tokens or more. The numbers
    are drawn from the generator of `torch`.
    """
    batch, time = source.shape
    chosen = (torch.rand(batch) < rate) & (parts.sizes >= SHORTEST)
    place = torch.arange(time) - parts.starts.unsqueeze(1)  # within the part (B, S)
    shared = (place >= 0) & (place < parts.sizes.unsqueeze(1))
    pool = source[shared]  # the tokens of all shared parts (N,)
    if not len(pool):
        return source, targets

    # The first and the last token of a part stay, because what follows or precedes may depend on them.
    drawn = pool[torch.randint(len(pool), (batch, time))]  # (B, S)
    inner = chosen.unsqueeze(1) & (place > 0) & (place < parts.sizes.unsqueeze(1) - 1)
    source = torch.where(inner, drawn, source)

    # The target has the same new tokens at the same distance from the beginning of the part.
    place = torch.arange(targets.shape[1]) - parts.target_starts.unsqueeze(1)  # within the part (B, T)
    inner = chosen.unsqueeze(1) & (place > 0) & (place < parts.sizes.unsqueeze(1) - 1)
    copied = parts.table[source].gather(1, (place + parts.starts.unsqueeze(1)).clamp(0, time - 1))  # (B, T)
    return source, torch.where(inner, copied, targets)


@dataclass
class PairBatch:
    """Some pairs."""

    source: Tensor  # ids (batch, source_time)
    source_lengths: Tensor  # (batch,)
    inputs: Tensor  # the token before each target (batch, time); the first is the boundary symbol
    targets: Tensor  # ids (batch, time); the last is the boundary symbol
    target_lengths: Tensor  # with the boundary symbol (batch,)
    rows: np.ndarray  # the indices of the pairs (batch,)
    fresh: bool = True  # always True: no state is carried from pair to pair
    parts: SharedParts | None = None  # what each source shares with its target, if stems are invented

    def with_invented_stems(self, rate: float) -> "PairBatch":
        """Return the batch with invented stems in a share of its pairs."""
        if self.parts is None or not rate:
            return self
        source, targets = with_invented_stems(self.source, self.targets, self.parts, rate)
        inputs = torch.cat([self.inputs[:, :1], targets[:, :-1]], dim=1)
        return replace(self, source=source, inputs=inputs, targets=targets)

    @property
    def tokens(self) -> int:
        """The number of target tokens, with the boundary symbols."""
        return int(self.target_lengths.sum())

    @property
    def terms(self) -> int:
        """The number of terms of the loss."""
        return self.tokens


@dataclass
class Pairs:
    """Encoded pairs, and their texts.

    Models learn pairs, and are measured on items: a source with its targets, which are alternatives.
    """

    source: Side
    target: Side
    sources: list[str]
    targets: list[str]
    vocabulary: Vocabulary
    key: str
    items: np.ndarray  # the index of the item of each pair, in the order of their first pairs (pairs,)
    repairs: Repairs = field(default_factory=Repairs)  # the repairs made while the pairs were read
    parts: SharedParts | None = None  # what each source shares with its target, if stems are invented

    def with_parts(self, table: Tensor) -> "Pairs":
        """Return the pairs with what their sides share; ``table`` is the target id of each source id, −1 for none."""
        sources, targets = (
            [side.ids[start : start + size] for start, size in zip(side.starts, side.lengths, strict=True)]
            for side in (self.source, self.target)
        )
        return replace(self, parts=shared_parts(sources, targets, table))

    @functools.cached_property
    def first_rows(self) -> np.ndarray:
        """The first pair of each item ``(items,)``."""
        rows: np.ndarray = np.unique(self.items, return_index=True)[1]
        return rows

    @property
    def inputs(self) -> list[str]:
        """The source of each item."""
        return [self.sources[row] for row in self.first_rows.tolist()]

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens of the source of each item ``(items,)``."""
        lengths: np.ndarray = self.source.lengths[self.first_rows]
        return lengths

    @functools.cached_property
    def references(self) -> list[list[str]]:
        """The different targets of each item."""
        targets: list[dict[str, None]] = [{} for _ in self.first_rows]
        for item, target in zip(self.items.tolist(), self.targets, strict=True):
            targets[item].setdefault(target)
        return [list(each) for each in targets]

    def summed(self, values: np.ndarray) -> np.ndarray:
        """Return the sums over the pairs of each item ``(items, k)``, of values of pairs ``(pairs, k)``."""
        sums = np.zeros((len(self.first_rows), values.shape[1]))
        np.add.at(sums, self.items, values)
        return sums

    def unknown(self) -> int:
        """Return the number of tokens that are not in the vocabulary, of both sides."""
        sides = ((self.source, self.vocabulary.tokenizer), (self.target, self.vocabulary.target))
        return sum(tokenizer.count_unknown(side.ids) for side, tokenizer in sides)

    def row_digests(self) -> np.ndarray:
        """Return a number for each pair ``(pairs,)``, equal for equal pairs of one process."""
        return np.array([hash(pair) for pair in zip(self.sources, self.targets, strict=True)], dtype=np.int64)

    def places_needed(self) -> np.ndarray:
        """Return the number of frames that CTC needs for each target: its tokens, and blanks between equal ones."""
        ids, starts = self.target.ids, self.target.starts
        repeats = np.zeros(len(ids) + 1, dtype=np.int64)
        repeats[2:] = np.cumsum(ids[1:] == ids[:-1]) if len(ids) > 1 else 0
        ends = starts + self.target.lengths
        frames: np.ndarray = self.target.lengths + repeats[ends] - repeats[np.minimum(starts + 1, ends)]
        return frames

    def batch(self, rows: np.ndarray) -> PairBatch:
        """Return some of the pairs."""
        source, source_lengths = self.source.rows(rows)
        words, lengths = self.target.rows(rows)
        targets = torch.cat([words, words.new_zeros(len(words), 1)], dim=1)  # 0 is the boundary symbol
        inputs = torch.cat([words.new_zeros(len(words), 1), words], dim=1)
        longest = int(lengths.max()) + 1
        parts = None if self.parts is None else self.parts.rows(rows)
        sides = source, source_lengths, inputs[:, :longest], targets[:, :longest], lengths + 1
        return PairBatch(*sides, rows, parts=parts)


def encode_pairs(pairs: Sequence[Pair], vocabulary: Vocabulary, *, alternatives: bool = True) -> Pairs:
    """Encode pairs; see `items_of` for ``alternatives``."""
    sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
    source, target = encode_side(sources, vocabulary.tokenizer), encode_side(targets, vocabulary.target)
    key = hashlib.blake2b(f"pairs {vocabulary.fingerprint()}".encode(), digest_size=16)
    for values in (*source, *target):
        key.update(values.tobytes())
    items = items_of(sources, alternatives=alternatives)
    return Pairs(source, target, sources, targets, vocabulary, key.hexdigest(), items)


def items_of(sources: Sequence[str], *, alternatives: bool) -> np.ndarray:
    """Return the index of the item of each pair ``(pairs,)``: its source, or the pair if targets are no alternatives.

    Sources are equal if they look the same; see `canonical`.
    """
    numbers: dict[str, int] = {}
    items = [numbers.setdefault(canonical(source), len(numbers)) for source in sources if alternatives]
    return np.array(items or range(len(sources)), np.int64)


def encode_side(texts: Sequence[str], tokenizer: Tokenizer) -> Side:
    """Encode texts, without line ends."""
    parts = [tokenizer.encode(text) for text in texts]
    return Side.join([part[part != END] for part in parts] if tokenizer.ends_lines else parts)
