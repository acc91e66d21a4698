"""N-grams with their probabilities, found by binary search: whole corpora at once, or all words after one context."""

from collections.abc import Sequence

import numpy as np
import torch

from ...core.errors import InputError
from .orders import Order
from .windows import BITS

FEW = 4096
"""Searches that are made as they come; more are sorted first, so that memory is read in order."""


class Table:
    """What a model of n-grams knows.

    Args:
        orders: shortest first; unigrams are all tokens there are.
    """

    def __init__(self, orders: Sequence[Order]) -> None:
        self.orders, self.vocabulary_size = list(orders), len(orders[0].probability)

    def find(self, n: int, context: np.ndarray, word: np.ndarray) -> np.ndarray:
        """Where n-grams lie, −1 for those that are not there.

        Args:
            n: their order.
            context: where their first n−1 words lie, or −1, of any shape.
            word: their last word, or −1, of the same shape.
        """
        if n == 1:
            return word.astype(np.int64)
        keys, found = self.orders[n - 1].key, np.full(context.shape, -1, dtype=np.int64)
        asked = np.flatnonzero((context >= 0) & (word >= 0))
        wanted = context.ravel()[asked] * self.vocabulary_size + word.ravel()[asked]
        if not len(keys) or not len(wanted):
            return found
        if len(wanted) > FEW:
            wanted, order = _sorted(wanted)
            asked = asked[order]
        other = np.append(True, wanted[1:] != wanted[:-1])  # what stands twice is searched for once
        wanted = wanted[other]
        place = torch.searchsorted(torch.from_numpy(keys), torch.from_numpy(wanted)).numpy()
        np.minimum(place, len(keys) - 1, out=place)
        place[np.take(keys, place) != wanted] = -1
        found.ravel()[asked] = place[np.cumsum(other) - 1]
        return found

    def ending(self, tokens: np.ndarray, longest: int) -> list[np.ndarray]:
        """Where the n-grams that end at each token lie, for n = 1 to ``longest``.

        Args:
            tokens: ids ``(batch, time)``, −1 for none.
            longest: at most the model's order.
        """
        found = [tokens.astype(np.int64)]
        for n in range(2, longest + 1):
            before = np.full(tokens.shape, -1, dtype=np.int64)
            before[:, 1:] = found[-1][:, :-1]
            found.append(self.find(n, before, tokens))
        return found

    def log_probabilities(self, tokens: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """The logarithm of p of each target ``(batch, time)``, in nats.

        Args:
            tokens: ids ``(batch, more + time)``, −1 for none: a target stands after the token of its place from the
                end, and everything before that.
            targets: ids ``(batch, time)``.
        """
        before = tokens.shape[1] - targets.shape[1]
        contexts = [places[:, before:] for places in self.ending(tokens, len(self.orders) - 1)]
        longer = zip(range(2, len(self.orders) + 1), contexts, strict=False)
        whole = [targets, *(self.find(n, context, targets) for n, context in longer)]
        return self.backed_off(contexts, whole)

    def backed_off(self, contexts: Sequence[np.ndarray], whole: Sequence[np.ndarray]) -> np.ndarray:
        """Logarithms of p, from the longest n-gram there is.

        Args:
            contexts: where the n-grams before each word lie, for n = 1, …
            whole: where those lie that end with the word itself, from n = 1 to the longest.
        """
        total, left = np.zeros(whole[0].size), np.arange(whole[0].size)
        with np.errstate(divide="ignore"):
            for n in range(len(self.orders) - 1, 0, -1):
                place = whole[n].ravel()[left]
                there = place >= 0
                total[left[there]] += np.log(self.orders[n].probability[place[there]])
                left = left[~there]
                context = contexts[n - 1].ravel()[left]
                known = context >= 0
                total[left[known]] += np.log(self.orders[n - 1].backoff[context[known]])
            total[left] += np.log(self.orders[0].probability[whole[0].ravel()[left]])
        if not (total < np.inf).all():
            raise InputError("the n-gram tables hold NaN or infinity; restore model.safetensors")
        return total.reshape(whole[0].shape)

    def impossible(self, contexts: Sequence[np.ndarray], whole: Sequence[np.ndarray], counts: np.ndarray) -> np.ndarray:
        """Which words have probability zero under maximum likelihood, whatever the smoothing of these tables.

        A word has if it never follows the longest context that anything follows.

        Args:
            contexts: as of `backed_off`.
            whole: likewise.
            counts: how often each token stands in the training text ``(vocabulary,)``.

        Returns:
            Truth values, as long as the flattened ``whole[0]``.
        """
        found, left = np.zeros(whole[0].size, dtype=bool), np.arange(whole[0].size)
        for n in range(len(self.orders), 1, -1):
            left = left[whole[n - 1].ravel()[left] < 0]
            followed = self._followed(n, contexts[n - 2].ravel()[left])
            found[left[followed]] = True
            left = left[~followed]
        word = whole[0].ravel()[left]
        found[left] = (word < 0) | (counts[np.maximum(word, 0)] == 0)
        return found

    def _followed(self, n: int, context: np.ndarray) -> np.ndarray:
        """Whether any word follows contexts in the n-grams; their places ``(contexts,)``, −1 for none."""
        keys, known = self.orders[n - 1].key, np.flatnonzero(context >= 0)
        found = np.zeros(len(context), dtype=bool)
        if len(keys) and len(known):
            places, back = np.unique(context[known], return_inverse=True)
            first = torch.searchsorted(torch.from_numpy(keys), torch.from_numpy(places * self.vocabulary_size)).numpy()
            first_key = np.take(keys, np.minimum(first, len(keys) - 1))
            found[known] = ((first < len(keys)) & (first_key // self.vocabulary_size == places))[back]
        return found

    def distributions(self, tokens: np.ndarray) -> np.ndarray:
        """The probability of every word after the tokens ``(batch, context)``: ``(batch, vocabulary)``; −1 is none."""
        contexts = self.ending(tokens, len(self.orders) - 1)[: len(self.orders) - 1]
        found = np.empty((len(tokens), self.vocabulary_size))
        for row in range(len(tokens)):
            left, known = 1.0, []  # what all longer contexts leave
            for n in range(len(contexts), 0, -1):
                place = int(contexts[n - 1][row, -1])
                if place >= 0:
                    known.append((n, place, left))
                    left *= float(self.orders[n - 1].backoff[place])
            np.multiply(self.orders[0].probability, left, out=found[row])
            for n, place, left in reversed(known):
                key, probability, _ = self.orders[n]
                begin = place * self.vocabulary_size
                first, last = np.searchsorted(key, [begin, begin + self.vocabulary_size])
                words = key[first:last] - begin
                if len(words) and not (words.min() >= 0 and words.max() < self.vocabulary_size):
                    raise InputError(f"the {n + 1}-grams of the model are not in order; restore its model.safetensors")
                found[row, words] = left * probability[first:last]
        return found


def _sorted(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values in order, and where each one stood; integers with their places behind them sort several times faster."""
    bits = (len(values) - 1).bit_length()
    if int(values.max()).bit_length() + bits > BITS:
        order = np.argsort(values)
        return values[order], order
    packed = values << bits
    packed |= np.arange(len(values))
    packed.sort()
    return packed >> bits, packed & (1 << bits) - 1
