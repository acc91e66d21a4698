"""What an unknown word costs.

A model with a closed vocabulary predicts ``<unk>`` in place of a word it does not know, which says nothing of which
word it was. To be compared per word or per byte with models that predict every letter, it must also pay for spelling
the word out. The code is a unigram over bytes: ``−log P(word) = −Σ log p(byte) − log p(end)``, with p estimated by
add-one smoothing from the word types of the training text.
"""

import math
from collections.abc import Iterable

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
    def fit(cls, words: Iterable[str]) -> "Spelling":
        """Counts the bytes of every word type once."""
        types = list(words)
        letters = np.frombuffer("".join(types).encode(), dtype=np.uint8)
        return cls([*np.bincount(letters, minlength=END).tolist(), len(types)])

    def nats(self, words: Iterable[str]) -> float:
        """What spelling these words costs, in nats."""
        return sum(sum(self.cost[byte] for byte in word.encode()) + self.cost[END] for word in words)
