"""The distribution of the next token of an n-gram model: its logarithms, and draws from it.

With back-off, p(w | h) differs from a multiple of the unigram distribution only for the words that followed h, or an
ending of h, in training. Both functions spend their time on these few words:

- logarithms of all other words are those of the unigrams, which are stored, plus that of the multiple;
- a draw first decides between the words that followed the longest context, those of the next shorter one, and so on,
  down to all words; in each of these groups the words of the groups before are left out. One uniform number decides
  everything, by inverting the cumulative distribution of the groups one after another.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from .table import Continuations, NgramTable

NO_DRAW = -1
NEGLIGIBLE = 1e-12
"""A smaller share of the unigrams is due to rounding."""


class NgramNextToken:
    """What an n-gram model computes of the next token, from its tables."""

    def __init__(self, table: NgramTable) -> None:
        self.table, self._log_unigrams = table, dict[torch.dtype, Tensor]()

    def log_probabilities(self, tokens: np.ndarray, dtype: torch.dtype) -> Tensor:
        """Return log p of every word ``(batch, vocabulary)`` after ids ``(batch, context)``, −1 for none."""
        if dtype not in self._log_unigrams:
            with np.errstate(divide="ignore"):
                self._log_unigrams[dtype] = torch.from_numpy(np.log(self.table.orders[0].probability)).to(dtype)
        result = torch.empty(len(tokens), self.table.vocabulary_size, dtype=dtype)
        with np.errstate(divide="ignore"):
            for row, (weight, groups) in enumerate(self.table.continuations(tokens)):
                torch.add(self._log_unigrams[dtype], float(np.log(weight)), out=result[row])
                for words, probabilities in reversed(groups):
                    result[row, torch.from_numpy(words)] = torch.from_numpy(np.log(probabilities)).to(dtype)
        return result

    def draw(self, tokens: np.ndarray, uniform: np.ndarray, banned: Sequence[int]) -> np.ndarray:
        """Draw the word after ids ``(batch, context)``, with a uniform number of each row, from those not banned.

        Returns:
            Words ``(batch,)``; `NO_DRAW` where every word has probability 0, or where rounding prevents a decision.
        """
        without = np.unique(np.array(banned, dtype=np.int64))
        rows = zip(self.table.continuations(tokens), uniform.tolist(), strict=True)
        return np.array([self._draw(part, number, without) for part, number in rows], dtype=np.int64)

    @cached_property
    def _cumulative(self) -> np.ndarray:
        """Cumulative probabilities of the unigrams ``(vocabulary,)``."""
        return self.table.orders[0].probability.cumsum()

    def _draw(self, continuations: Continuations, uniform: float, without: np.ndarray) -> int:
        weight, groups = continuations
        choices = []
        for words, probabilities in groups:
            left, without = _leave_out(words, probabilities, without)
            choices.append((words, left.cumsum()))
        left_out = self.table.orders[0].probability[without].cumsum()
        unigrams = self._cumulative[-1] - (left_out[-1] if len(left_out) else 0.0)
        rest = weight * unigrams if unigrams > NEGLIGIBLE else 0.0
        total = sum(float(cumulative[-1]) for _, cumulative in choices) + rest
        if not 0 < total < np.inf:
            return NO_DRAW
        point = uniform * total
        for words, cumulative in choices:
            if point < cumulative[-1]:
                return int(words[cumulative.searchsorted(point, side="right")])
            point -= float(cumulative[-1])
        return self._draw_unigram(point / weight, without, left_out) if rest else NO_DRAW

    def _draw_unigram(self, point: float, without: np.ndarray, left_out: np.ndarray) -> int:
        """Return the word at a point of the cumulative unigrams from which sorted words are left out.

        ``left_out`` are the cumulative probabilities of the latter.
        """
        before = int((self._cumulative[without] - left_out).searchsorted(point, side="right"))
        point += float(left_out[before - 1]) if before else 0.0
        word = int(self._cumulative.searchsorted(point, side="right"))
        place = int(without.searchsorted(word))
        is_left_out = place < len(without) and without[place] == word
        return NO_DRAW if word >= self.table.vocabulary_size or is_left_out else word


def _leave_out(words: np.ndarray, probabilities: np.ndarray, without: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the probabilities of sorted words, 0 for those left out, and the union of both sets of words, sorted."""
    if not len(without):
        return probabilities, words
    place = words.searchsorted(without)
    is_word = words[np.minimum(place, len(words) - 1)] == without
    probabilities = probabilities.copy()
    probabilities[place[is_word]] = 0.0
    others = ~is_word
    return probabilities, np.insert(words, place[others], without[others]) if others.any() else words
