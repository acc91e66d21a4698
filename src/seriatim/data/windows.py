"""A text cut into windows that know nothing of one another, for models that see a whole sequence at once."""

from typing import NamedTuple

import numpy as np

from .bucketing import padded
from .corpus import Corpus


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
