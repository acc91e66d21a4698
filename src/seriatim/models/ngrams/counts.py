"""Every n-gram of a text up to some order, counted by sorting.

In the sorted `windows` of a text all occurrences of an n-gram are neighbours, whatever n, and how many words a window
shares with the one before says which n-grams begin there. So that the n-grams of each order are read from the windows,
block by block and whenever they are needed; kept is only where the rest of each lies, without its first word.

Sequences are parted by the boundary symbol, token 0: as the first word of an n-gram it is the beginning of a sequence,
as its last word the end of one, and between the two it never stands.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from .parallel import for_all
from .room import Room
from .windows import PART, Words, tally

BOUNDARY = 0
BLOCK = 1 << 18
"""Windows or n-grams that are looked at together."""


class Block(NamedTuple):
    """N-grams of one order, neighbours, with all that follow a context or none.

    Attributes:
        windows: where they stand among the sorted windows.
        grams: which they are.
        context: the place of the first one's context among the n-grams one shorter, or less.
    """

    windows: slice
    grams: slice
    context: int


class Unigrams:
    """All tokens there are; their context is empty."""

    def __init__(self, ids: np.ndarray, vocabulary_size: int) -> None:
        self.size, self.starting = vocabulary_size, 0
        self.suffix = np.zeros(vocabulary_size, dtype=np.int32)
        self.seen = tally(ids, vocabulary_size).astype(np.int32)
        self.blocks: Sequence[Block] = [Block(slice(0, 0), slice(0, vocabulary_size), 0)]

    def contexts(self, block: Block) -> np.ndarray:
        """0 for each."""
        return self.suffix[block.grams]

    def words(self, block: Block) -> np.ndarray:
        """Their ids."""
        return np.arange(block.grams.start, block.grams.stop, dtype=np.int32)

    def counts(self, block: Block) -> np.ndarray:
        """How often each stands in the text."""
        return self.seen[block.grams]


class Level:
    """The n-grams of one order, n > 1, in the order of their words.

    Args:
        text: whose windows are sorted; it knows where the n-grams one shorter lie.
        n: their words.

    Attributes:
        size: how many there are.
        suffix: the place of each one's last n−1 words among the n-grams one shorter ``(n-grams,)``.
        starting: how many begin a sequence; they are the first.
        blocks: all of them.
    """

    def __init__(self, text: "SortedText", n: int) -> None:
        self.text, self.n = text, n
        self.blocks: Sequence[Block] = list(self._blocks())
        self.size = self.blocks[-1].grams.stop
        self.starting = int(np.count_nonzero(text.begins(n, slice(0, text.sequences))))
        self.suffix = text.room.empty(self.size, np.int32)
        for_all(self._find_suffixes, self.blocks)

    def contexts(self, block: Block) -> np.ndarray:
        """The place of the first n−1 words of each n-gram of a block among the n-grams one shorter ``(n-grams,)``."""
        if self.n == 2:
            found: np.ndarray = self.text.ids[self._begin(block)]
        else:
            numbers = np.cumsum(self.text.begins(self.n - 1, block.windows), dtype=np.int32)
            found = numbers[self.text.begins(self.n, block.windows)]
            found += block.context - 1
        return found

    def words(self, block: Block) -> np.ndarray:
        """The last word of each ``(n-grams,)``."""
        found: np.ndarray = self.text.ids[self._begin(block) + (self.n - 1)]
        return found

    def counts(self, block: Block) -> np.ndarray:
        """How often each stands in the text ``(n-grams,)``."""
        begins = self.text.begins(self.n, block.windows)[self.text.sizes[block.windows] >= self.n]
        return np.diff(np.flatnonzero(begins), append=len(begins)).astype(np.int32)

    def number(self) -> None:
        """Lets the text know where its n-grams lie."""

        def write(block: Block) -> None:
            numbers = np.cumsum(self.text.begins(self.n, block.windows), dtype=np.int32)
            numbers += block.grams.start - 1
            self.text.known[self.text.places[block.windows]] = numbers

        for_all(write, self.blocks)

    def _begin(self, block: Block) -> np.ndarray:
        """The token that each n-gram begins at, where it stands first among the windows."""
        found: np.ndarray = self.text.places[block.windows][self.text.begins(self.n, block.windows)]
        return found

    def _find_suffixes(self, block: Block) -> None:
        self.suffix[block.grams] = self.text.known[self._begin(block) + 1]

    def _blocks(self) -> Iterator[Block]:
        grams = contexts = 0
        for windows in self.text.cut(self.n - 1):
            first, grams = grams, grams + int(np.count_nonzero(self.text.begins(self.n, windows)))
            yield Block(windows, slice(first, grams), contexts)
            contexts += int(np.count_nonzero(self.text.begins(self.n - 1, windows)))


class SortedText:
    """The sorted windows of a text.

    Args:
        ids: token ids; each sequence ends with the boundary, and before the first one it is added.
        order: words of the longest window.
        vocabulary_size: number of token ids.
        room: where large arrays lie.
        part: windows sorted at once, at most.

    Attributes:
        ids: the tokens, a boundary before them, and no word behind them.
        places: the token that each window begins at ``(windows,)``.
        shared: how many words it shares with the one before it.
        sizes: words of the longest n-gram that it begins with: it goes on beyond the end of a sequence, no n-gram does.
        known: where the n-gram that begins at each token lies, of the order that was last counted.
        sequences: how many begin in the text; their windows are the first.
    """

    def __init__(self, ids: np.ndarray, order: int, vocabulary_size: int, room: Room, part: int) -> None:
        tokens = len(ids) + 1
        self.room, self.ids = room, room.empty(tokens + order, np.int32)
        self.ids[0] = BOUNDARY
        self.ids[1:tokens] = ids
        self.ids[tokens:] = vocabulary_size  # which no n-gram holds
        self.sequences = int(np.count_nonzero(self.ids[:tokens] == BOUNDARY))
        sizes = _window_sizes(self.ids, room.empty(tokens, np.int8 if order < 128 else np.int32), order)
        self.places, self.shared = room.empty(tokens, np.int32), room.empty(tokens, sizes.dtype)
        self.sizes, end = room.empty(tokens, sizes.dtype), 0
        for found in Words(self.ids, order, vocabulary_size + 1, part=part).sorted():
            start, end = end, end + len(found.places)
            self.places[start:end], self.shared[start:end] = found

        def measure(start: int) -> None:
            self.sizes[start : start + BLOCK] = sizes[self.places[start : start + BLOCK]]

        for_all(measure, range(0, tokens, BLOCK))
        self.known = room.empty(tokens + order, np.int32)
        self.known[:] = self.ids

    def begins(self, n: int, windows: slice) -> np.ndarray:
        """Which windows are the first of an n-gram."""
        found: np.ndarray = (self.sizes[windows] >= n) & (self.shared[windows] < n)
        return found

    def cut(self, n: int) -> Iterator[slice]:
        """All windows, in parts that begin with another n-gram than the part before."""
        start, end, windows = 0, BLOCK, len(self.places)
        while end < windows:
            other = np.flatnonzero(self.shared[end : end + BLOCK] < n)
            if len(other):
                end += int(other[0])
                yield slice(start, end)
                start = end
            end += BLOCK
        yield slice(start, windows)


def count_ngrams(
    ids: np.ndarray, order: int, vocabulary_size: int, *, room: Room | None = None, part: int = PART
) -> Iterator[Unigrams | Level]:
    """The n-grams of a text for n = 1, …, ``order``; nothing is counted across a boundary.

    Args:
        ids: token ids; each sequence ends with the boundary, and before the first one it is added.
        order: the longest.
        vocabulary_size: number of token ids.
        room: where large arrays lie; None for memory.
        part: windows sorted at once, at most.
    """
    yield Unigrams(ids, vocabulary_size)
    if order == 1:
        return
    text = SortedText(ids, order, vocabulary_size, room or Room(), part)
    for n in range(2, order + 1):
        level = Level(text, n)
        if n < order:
            level.number()
        else:
            text.known = np.empty(0, dtype=np.int32)  # it is large
        yield level


def _window_sizes(text: np.ndarray, sizes: np.ndarray, order: int) -> np.ndarray:
    """Words of the longest n-gram that begins at each token, written to ``sizes``: up to a boundary, that included."""
    tokens = len(sizes)
    sizes[:] = order
    for size in range(order - 1, 0, -1):
        sizes[text[size : size + tokens] == BOUNDARY] = size + 1
    sizes[-order:] = np.minimum(sizes[-order:], tokens - np.arange(max(0, tokens - order), tokens))
    return sizes
