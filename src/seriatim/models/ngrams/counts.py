"""Every n-gram of a text up to some order, counted by sorting.

In the sorted `windows` of a text all occurrences of an n-gram are neighbours, whatever n, and how many words a window
shares with the one before says which n-grams begin there. Everything is read block by block, in order, but for two
arrays of a number a token.

Sequences are parted by the boundary symbol, token 0: as the first word of an n-gram it is the beginning of a sequence,
as its last word the end of one, and between the two it never stands.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from .room import Room
from .windows import PART, Words

BOUNDARY = 0
BLOCK = 1 << 20
"""Windows that are looked at together."""


class Grams(NamedTuple):
    """All n-grams of one order, in the order of their words.

    Attributes:
        context: the place of each one's first n−1 words among the n-grams one shorter ``(n-grams,)``; 0 for n = 1.
        word: the last word; for n = 1 every token there is, so that its place is its id.
        suffix: the place of the last n−1 words among the n-grams one shorter; 0 for n = 1.
        counts: how often each stands in the text.
        starts: whether the first word is the beginning of a sequence.
    """

    context: np.ndarray
    word: np.ndarray
    suffix: np.ndarray
    counts: np.ndarray
    starts: np.ndarray


def count_ngrams(
    ids: np.ndarray, order: int, vocabulary_size: int, *, room: Room | None = None, part: int = PART
) -> Iterator[Grams]:
    """The n-grams of a text for n = 1, …, ``order``; nothing is counted across a boundary.

    Args:
        ids: token ids; each sequence ends with the boundary, and before the first one it is added.
        order: the longest.
        vocabulary_size: number of token ids.
        room: where large arrays lie; None for memory.
        part: windows sorted at once, at most.
    """
    whole = np.zeros(vocabulary_size, dtype=np.int32)
    seen = np.bincount(ids, minlength=vocabulary_size).astype(np.int32)
    yield Grams(whole, np.arange(vocabulary_size, dtype=np.int32), whole, seen, whole > 0)
    if order == 1:
        return
    counter = _Counter(ids, order, vocabulary_size, room or Room(), part)
    for n in range(2, order):
        yield counter.grams(n)
        counter.go_on()
    last = counter.grams(order)
    del counter  # what it holds is large
    yield last


class _Counter:
    """Sorted windows, and where the n-grams of the last order lie: of each window, and of each token of the text."""

    def __init__(self, ids: np.ndarray, order: int, vocabulary_size: int, room: Room, part: int) -> None:
        tokens = len(ids) + 1
        self.room, self.text = room, room.empty(tokens + order, np.int32)
        self.text[0] = BOUNDARY
        self.text[1:tokens] = ids
        self.text[tokens:] = BOUNDARY
        sizes = _window_sizes(self.text, room.empty(tokens, np.int8 if order < 128 else np.int32), order)
        self.places, self.shared = room.empty(tokens, np.int32), room.empty(tokens, sizes.dtype)
        end = 0
        for found in Words(self.text, sizes, order, vocabulary_size, part=part).sorted():
            start, end = end, end + len(found.places)
            self.places[start:end], self.shared[start:end] = found
        self.sizes = room.empty(tokens, sizes.dtype)
        for block in _blocks(tokens):
            self.sizes[block] = sizes[self.places[block]]
        self.numbers, self.before = room.empty(tokens, np.int32), room.empty(tokens + order, np.int32)
        for block in _blocks(tokens):
            self.numbers[block] = self.text[self.places[block]]
        self.before[:] = self.text

    def grams(self, n: int) -> Grams:
        """The n-grams, whose places take those of the (n−1)-grams of each window."""
        total = sum(int(self.begins(block, n).sum()) for block in _blocks(len(self.places)))
        context, word, suffix, counts = (self.room.empty(total, np.int32) for _ in range(4))
        starts, end = self.room.empty(total, np.bool_), 0
        counts[:] = 0
        for block in _blocks(len(self.places)):
            first = self.begins(block, n)
            begin, end = end, end + int(first.sum())
            place = self.places[block][first]
            context[begin:end] = self.numbers[block][first]
            word[begin:end] = self.text[place + (n - 1)]
            suffix[begin:end] = self.before[place + 1]
            starts[begin:end] = self.text[place] == BOUNDARY
            numbers = np.cumsum(first, dtype=np.int32)
            numbers += begin - 1
            self.numbers[block] = numbers
            valid = numbers[self.sizes[block] >= n]
            if len(valid):
                counts[valid[0] : valid[-1] + 1] += np.bincount(valid - valid[0]).astype(np.int32)
        return Grams(context, word, suffix, counts, starts)

    def begins(self, block: slice, n: int) -> np.ndarray:
        """Which windows of a block are the first of an n-gram."""
        found: np.ndarray = (self.sizes[block] >= n) & (self.shared[block] < n)
        return found

    def go_on(self) -> None:
        """The places of each window become those of each token."""
        for block in _blocks(len(self.places)):
            self.before[self.places[block]] = self.numbers[block]


def _blocks(tokens: int) -> Iterator[slice]:
    return (slice(start, start + BLOCK) for start in range(0, tokens, BLOCK))


def _window_sizes(text: np.ndarray, sizes: np.ndarray, order: int) -> np.ndarray:
    """Words of the longest n-gram that begins at each token, written to ``sizes``: up to a boundary, that included."""
    tokens = len(sizes)
    sizes[:] = order
    for size in range(order - 1, 0, -1):
        sizes[text[size : size + tokens] == BOUNDARY] = size + 1
    sizes[-order:] = np.minimum(sizes[-order:], tokens - np.arange(max(0, tokens - order), tokens))
    return sizes
