"""The windows of n words that begin at each token of a text, sorted word by word.

As many words as fit are packed into an integer, and behind them the window's place, so that sorting numbers sorts
places. What is still alike is numbered and sorted by the words that follow. So that number and place leave room for a
word, and the memory for a sort is bounded, a text is sorted in parts: by ranges of first words, and where a word has
more windows than a part holds, by ranges of the words after it.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from .parallel import in_order

BITS = 63
"""Of an integer, its sign left out."""
PART = 1 << 19
"""Windows sorted at once, at most."""


class Windows(NamedTuple):
    """Windows in the order of their words.

    Attributes:
        places: the token that each begins at ``(windows,)``.
        shared: how many words it shares with the one before it.
    """

    places: np.ndarray
    shared: np.ndarray


class Words:
    """The words of all windows.

    Args:
        text: words, from 0; a window begins at each but the last ``order``.
        order: words of a window.
        words: how many there are.
        part: windows sorted at once, at most.
    """

    def __init__(self, text: np.ndarray, order: int, words: int, *, part: int = PART) -> None:
        self.text, self.order, self.words = text, order, words
        self.bits = max(1, (words - 1).bit_length())
        self.part = min(part, 1 << (BITS - self.bits) // 2)

    def at(self, places: np.ndarray, number: int) -> np.ndarray:
        """Word ``number`` of each window, from 0."""
        found: np.ndarray = self.text[places + number]
        return found

    def sorted(self) -> Iterator[Windows]:
        """All windows, in parts one after another; what the first one of a part shares is with the part before."""
        return in_order(lambda part: self.sort(*part), self.cut(None, 0))

    def cut(self, places: np.ndarray | None, known: int, shared: int = 0) -> Iterator[tuple[np.ndarray, int, int]]:
        """Parts small enough to sort: their windows' places, words that these share, and those shared with the last.

        Args:
            places: windows that share their first words, in order; None for all.
            known: how many words they share.
            shared: how many the first one shares with the one before.
        """
        if known == self.order or (places is not None and len(places) <= self.part):
            assert places is not None
            yield places, known, shared
            return
        words = self.text[: -self.order] if places is None else self.at(places, known)
        lows = self.ranges(words)
        grouped = self.grouped(words, lows, places)
        for chosen, low, high in zip(grouped, lows, [*lows[1:], self.words], strict=True):
            if len(chosen):
                yield from self.cut(chosen, known + (high == low + 1), shared)
                shared = known

    def ranges(self, words: np.ndarray) -> list[int]:
        """Where ranges of words begin that have no more windows than a part, or are one word."""
        totals, lows = np.cumsum(tally(words, self.words)), [0]
        while True:
            before = totals[lows[-1] - 1] if lows[-1] else 0
            high = max(lows[-1] + 1, int(np.searchsorted(totals, before + self.part, side="right")))
            if high >= self.words:
                return lows
            lows.append(high)

    def grouped(self, words: np.ndarray, lows: list[int], places: np.ndarray | None) -> Iterator[np.ndarray]:
        """The windows of each range of words, in order; ``places`` as of `cut`."""
        kind = np.uint8 if len(lows) <= 256 else np.uint16 if len(lows) <= 1 << 16 else np.int32
        group = np.repeat(np.arange(len(lows), dtype=kind), np.diff([*lows, self.words]))
        found: list[list[np.ndarray]] = [[] for _ in lows]
        for start in range(0, len(words), PART):
            groups = group[words[start : start + PART]]
            order = np.argsort(groups, kind="stable").astype(np.int32)
            order = order + np.int32(start) if places is None else places[start : start + PART][order]
            for i, some in enumerate(np.split(order, np.cumsum(np.bincount(groups, minlength=len(lows)))[:-1])):
                found[i].append(some)
        for parts in found:
            yield np.concatenate(parts)
            parts.clear()

    def sort(self, places: np.ndarray, known: int, shared: int) -> Windows:
        """Sorts one part; arguments as `cut` gives them."""
        alike = np.zeros(len(places), dtype=np.int16)
        alike[1:] = known
        asked, key = np.arange(len(places), dtype=np.int32), np.zeros(len(places), dtype=np.int64)
        while known < self.order and len(asked) > 1:
            for_place, for_group = (len(asked) - 1).bit_length(), int(key[-1]).bit_length()
            taken = min(self.order - known, (BITS - for_place - for_group) // self.bits)
            mine = places[asked]
            for number in range(known, known + taken):
                key <<= self.bits
                key |= self.at(mine, number)
            key <<= for_place
            key |= np.arange(len(asked))
            key.sort()
            places[asked] = mine[key & (1 << for_place) - 1]
            key >>= for_place
            changed = key[1:] ^ key[:-1]
            together = changed < 1 << self.bits * taken
            more = np.zeros(len(changed), dtype=np.int8)
            for number in range(taken):  # a change below a step leaves all words before it alike
                more += changed < 1 << self.bits * number
            following = asked[1:][together]
            alike[following] += more[together]
            known += taken
            same = np.zeros(len(asked) + 1, dtype=bool)
            same[1:-1] = changed == 0
            still = same[1:] | same[:-1]  # alike with the one before or after
            asked = asked[still]
            key = np.cumsum(~same[:-1][still], dtype=np.int64)
        alike[:1] = shared
        return Windows(places, alike)


def tally(numbers: np.ndarray, size: int) -> np.ndarray:
    """How often each number from 0 is there ``(size,)``; `numpy.bincount` would copy them all."""
    found = np.zeros(size, dtype=np.int64)
    for start in range(0, len(numbers), PART):
        found += np.bincount(numbers[start : start + PART], minlength=size)
    return found
