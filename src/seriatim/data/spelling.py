"""What an unknown word costs.

A model with a closed vocabulary predicts ``<unk>`` in place of a word it does not know, which says nothing of which
word it was. To be compared per word or per byte with models that predict every letter, it must also pay for spelling
the word out. The code is a unigram over bytes: ``−log P(word) = −Σ log p(byte) − log p(end)``, with p estimated by
add-one smoothing from the word types of the training text.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

END = 256


class Spelling:
    """A unigram distribution over the 256 bytes and an end.

    Args:
        counts: how often each of the 257 symbols was seen.
    """

    def __init__(self, counts: list[int] | None = None) -> None:
        self.counts = counts or [0] * 257
        assert len(self.counts) == 257
        total = math.log(sum(self.counts) + 257)
        self.cost = [total - math.log(count + 1) for count in self.counts]

    @classmethod
    def of_json(cls, counts: Any) -> "Spelling":
        """That of a file.

        Raises:
            ValueError: its counts are none.
        """
        whole = isinstance(counts, list) and len(counts) == END + 1 and {int}.issuperset(map(type, counts))
        if not whole or not all(0 <= count < 2**53 for count in counts):
            raise ValueError("counts that are none")
        return cls(counts)

    @classmethod
    def fit(cls, words: Iterable[str]) -> "Spelling":
        """Counts the bytes of every word type once."""
        return cls(cls.letters(list(words)).tolist())

    @staticmethod
    def letters(words: Sequence[str], times: Sequence[int] | None = None) -> np.ndarray:
        """How often each symbol stands in words, of which each stands so many ``times``, or once ``(257,)``."""
        symbols, weights = np.frombuffer("".join(words).encode(), dtype=np.uint8), None
        if times is not None:
            weights = np.repeat(np.asarray(times, dtype=float), [len(word.encode()) for word in words])
        found = np.bincount(symbols, weights, minlength=END + 1).astype(np.int64)
        found[END] = len(words) if times is None else sum(times)
        return found

    def nats(self, letters: np.ndarray) -> float:
        """What letters cost, in nats; in whatever order they were counted."""
        return float(letters @ np.array(self.cost))
