"""Losses of single tokens of a text, with the place of each in its line and its frequency in the training text.

A model learns most about frequent tokens, and knows more of a line the later it is in it, so the mean loss of a text
hides where two models differ.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

UNKNOWN = -1  # frequency of the unknown token, which stands for many words


@dataclass(frozen=True)
class TokenLosses:
    """Losses of some tokens of a text, in the order of the text.

    Attributes:
        nats: −log P of each token ``(tokens,)``.
        ids: the tokens ``(tokens,)``.
        positions: the place of each token in its line, from 1 ``(tokens,)``.
        frequencies: how often each token occurs in the training text, or `UNKNOWN` ``(tokens,)``.
        piece_ends: the end of each piece that is shown together ``(pieces,)``, in tokens.
        piece_blocks: the number of the line or block, one observation of intervals, of each piece ``(pieces,)``.
        names: the text of each token in ``ids``.
        spelled: the words that the text has in place of unknown tokens, by their place in ``nats``; may lack some.
        measured: in words, which part of the text this is.
    """

    nats: np.ndarray
    ids: np.ndarray
    positions: np.ndarray
    frequencies: np.ndarray
    piece_ends: np.ndarray
    piece_blocks: np.ndarray
    names: Mapping[int, str]
    spelled: Mapping[int, str]
    measured: str

    @property
    def piece_of(self) -> np.ndarray:
        """The piece of each token ``(tokens,)``."""
        return np.repeat(np.arange(len(self.piece_ends)), np.diff(self.piece_ends, prepend=0))

    def of_pieces(self) -> np.ndarray:
        """Return the summed loss of each piece ``(pieces,)``, in nats."""
        return np.bincount(self.piece_of, self.nats, len(self.piece_ends))


def places_in_lines(ids: np.ndarray, ends_line: np.ndarray) -> np.ndarray:
    """Return the place of each token in its line, from 1 ``(tokens,)``.

    ``ends_line`` says for each token whether a line ends with it ``(tokens,)``; that token is the last of its line.
    """
    places = np.arange(len(ids))
    begins = np.concatenate([[True], ends_line[:-1]]) if len(ids) else np.zeros(0, bool)
    return places - np.maximum.accumulate(np.where(begins, places, 0)) + 1


def cut_evenly(ends: np.ndarray, largest: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut blocks with these ends ``(blocks,)`` into pieces of at most ``largest`` tokens, of nearly equal sizes.

    Returns:
        The ends of the pieces ``(pieces,)``, and the block of each ``(pieces,)``.
    """
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    counts = np.maximum(1, -(-(ends - starts) // largest))
    blocks = np.repeat(np.arange(len(ends)), counts)
    place = np.arange(len(blocks)) - np.repeat(counts.cumsum() - counts, counts) + 1
    return starts[blocks] + (ends - starts)[blocks] * place // counts[blocks], blocks
