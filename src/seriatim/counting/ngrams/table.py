"""N-grams with their probabilities, looked up by binary search, and the distribution of the next token.

With back-off, p(w | h) differs from a multiple of the unigram distribution only for the words that followed h, or an
ending of h, in training. Both ways to continue a text spend their time on these few words:

- logarithms of all other words are those of the unigrams, which are stored, plus that of the multiple;
- a draw first decides between the words that followed the longest context, those of the next shorter one, and so on,
  down to all words; in each of these groups the words of the groups before are left out. One uniform number decides
  everything, by inverting the cumulative distribution of the groups one after another.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...compiler.cpp.toolchain import address, typed_library
from ...core.errors import DamagedError
from .windows import INTEGER_BITS

LARGE_TABLE, CHECKED, CHECKED_IN_LARGE = 1 << 20, 4096, 4
"""How many n-grams of an order are checked when a model is opened. Each check may read up to a megabyte from disk, so
only a few n-grams of a large table are checked."""
FULLY_CHECKED = 1 << 24
"""Up to this size all values of a table are checked; in a larger one only those of the checked n-grams."""
ROUNDING = 1e-6
"""Tolerance by which a probability may exceed 1."""
UNSORTED_SEARCHES = 4096
"""Up to this number searches run in the order given; more are sorted first, so that memory is read in order."""
NamedArray = tuple[str, np.ndarray]
"""The name of an array of a model and consecutive values of it; those of one array come in order. For n words the names
are ``keys.{n-2}``, ``probabilities.{n-1}`` and ``backoffs.{n-1}``; see `Order`."""


Continuations = tuple[float, list[tuple[np.ndarray, np.ndarray]]]
"""What follows a context: the words that followed it in training, sorted, with their probabilities; the same for each
shorter context, longest first; and before them the number by which the unigram probabilities of all other words are
multiplied. Of a word in several groups the first one counts."""


class Order(NamedTuple):
    """The n-grams of one order, sorted by their words.

    A key is the index of the first n−1 words among the (n−1)-grams, times the vocabulary size, plus the last word.
    """

    key: np.ndarray  # ascending (n-grams,)
    probability: np.ndarray  # p(w | h) (n-grams,), in float64
    backoff: np.ndarray  # γ of the whole n-gram as a context (n-grams,), 1 if nothing follows it; empty for the longest


def named_arrays(orders: Sequence[Order]) -> Iterator[NamedArray]:
    """Yield every array of every order; unigrams have no keys, and the longest n-grams no back-off weights."""
    for i, order in enumerate(orders):
        if i:
            yield f"keys.{i - 1}", order.key
        yield f"probabilities.{i}", order.probability
        if i < len(orders) - 1:
            yield f"backoffs.{i}", order.backoff


def orders_of(arrays: Iterable[NamedArray]) -> list[Order]:
    """Join successive arrays of one name, and return the orders that they hold, shortest first."""
    chunks: dict[str, list[np.ndarray]] = {}
    for name, values in arrays:
        chunks.setdefault(name, []).append(values)
    return orders_from({name: np.concatenate(values) for name, values in chunks.items()})


def orders_from(arrays: Mapping[str, np.ndarray]) -> list[Order]:
    """Return the orders that whole arrays hold, shortest first."""
    orders: list[Order] = []
    while (probability := arrays.get(f"probabilities.{len(orders)}")) is not None:
        i = len(orders)
        key = arrays[f"keys.{i - 1}"] if i else np.arange(len(probability))
        orders.append(Order(key, probability, arrays.get(f"backoffs.{i}", np.ones(0))))
    return orders


def check_order(orders: Sequence[Order], vocabulary_size: int, *, longest: bool) -> None:
    """Raise ValueError if the last of some orders, shortest first, is damaged; only a sample of a large one is read.

    ``longest`` says whether no order follows.
    """
    n, (key, probability, backoff) = len(orders), orders[-1]
    if len(key) != len(probability) or len(backoff) != (0 if longest else len(probability)):
        raise ValueError(f"the tables of {n}-grams differ in length")
    sample_size = CHECKED if len(key) < LARGE_TABLE else CHECKED_IN_LARGE
    sample = np.linspace(0, len(key) - 1, min(len(key), sample_size)).astype(np.int64)
    keys = key[sample]
    contexts = len(orders[-2].probability) if n > 1 else 1
    if len(keys) and (keys[0] < 0 or keys[-1] // vocabulary_size >= contexts or (keys[1:] <= keys[:-1]).any()):
        raise ValueError(f"the {n}-grams are not in order")
    if len(probability) > FULLY_CHECKED:
        probability, backoff = probability[sample], backoff[sample] if len(backoff) else backoff
    if not _within(probability, 1 + ROUNDING):
        raise ValueError(f"probabilities.{n - 1} holds values that are not probabilities")
    if not _within(backoff, np.finfo(np.float64).max):
        raise ValueError(f"backoffs.{n - 1} holds values that are not back-off weights")


def _within(values: np.ndarray, largest: float) -> bool:
    """Return whether all values, none of them NaN, are between 0 and ``largest``."""
    return not len(values) or bool(values.min() >= 0 and values.max() <= largest)


def checked(log_probabilities: np.ndarray) -> np.ndarray:
    """Return log probabilities; raise DamagedError if one of them is NaN or +∞."""
    if not (log_probabilities < np.inf).all():
        raise DamagedError("the n-gram tables hold NaN or infinity; restore model.safetensors")
    return log_probabilities


class NgramTable:
    """The tables of an n-gram model: its orders, shortest first. The unigrams are all tokens of the vocabulary."""

    def __init__(self, orders: Sequence[Order]) -> None:
        self.orders, self.vocabulary_size = list(orders), len(orders[0].probability)
        self._log_unigrams: dict[torch.dtype, Tensor] = {}

    def find(self, n: int, context: np.ndarray, word: np.ndarray) -> np.ndarray:
        """Return the indices of n-grams, −1 for those that are not in the table.

        ``context`` is the index of their first n−1 words, or −1, of any shape; ``word`` is their last word, or −1.
        """
        if n == 1:
            return word.astype(np.int64)
        keys, indices = self.orders[n - 1].key, np.full(context.shape, -1, dtype=np.int64)

        # Most lookups of a text are of n-grams whose context is unknown already, and need no search.
        searched = np.flatnonzero((context >= 0) & (word >= 0))
        targets = context.ravel()[searched] * self.vocabulary_size + word.ravel()[searched]
        if not len(keys) or not len(targets):
            return indices
        if len(targets) > UNSORTED_SEARCHES:
            targets, order = _sorted(targets)
            searched = searched[order]
        is_new = np.append(True, targets[1:] != targets[:-1])  # duplicates are searched once
        targets = targets[is_new]
        index = torch.searchsorted(torch.from_numpy(keys), torch.from_numpy(targets)).numpy()
        np.minimum(index, len(keys) - 1, out=index)
        index[np.take(keys, index) != targets] = -1
        indices.ravel()[searched] = index[np.cumsum(is_new) - 1]
        return indices

    def ending(self, tokens: np.ndarray, longest: int) -> list[np.ndarray]:
        """Return the indices of the n-grams that end at each token ``(batch, time)``, for n = 1 to ``longest``.

        ``tokens`` are ids ``(batch, time)``, −1 for no token.
        """
        indices = [tokens.astype(np.int64)]
        for n in range(2, longest + 1):
            before = np.full(tokens.shape, -1, dtype=np.int64)
            before[:, 1:] = indices[-1][:, :-1]
            indices.append(self.find(n, before, tokens))
        return indices

    def log_probabilities(self, tokens: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Return log p of each target ``(batch, time)``, in nats.

        ``tokens`` are ids ``(batch, more + time)``, −1 for no token; the last ``time`` of them precede the targets.
        """
        more = tokens.shape[1] - targets.shape[1]
        contexts = [indices[:, more:] for indices in self.ending(tokens, len(self.orders) - 1)]
        longer = zip(range(2, len(self.orders) + 1), contexts, strict=False)
        ngrams = [targets, *(self.find(n, context, targets) for n, context in longer)]
        return self.backed_off(contexts, ngrams)

    def backed_off(self, contexts: Sequence[np.ndarray], ngrams: Sequence[np.ndarray]) -> np.ndarray:
        """Return log p of words, each from the longest n-gram in the table that ends with it.

        For n = 1, … ``contexts`` are the indices of the n-grams before each word, ``ngrams`` of those that end with it.
        """
        total, remaining = np.zeros(ngrams[0].size), np.arange(ngrams[0].size)
        with np.errstate(divide="ignore"):
            for n in range(len(self.orders) - 1, 0, -1):
                index = ngrams[n].ravel()[remaining]
                is_known = index >= 0
                total[remaining[is_known]] += np.log(self.orders[n].probability[index[is_known]])
                remaining = remaining[~is_known]
                context = contexts[n - 1].ravel()[remaining]
                known_context = context >= 0
                total[remaining[known_context]] += np.log(self.orders[n - 1].backoff[context[known_context]])
            total[remaining] += np.log(self.orders[0].probability[ngrams[0].ravel()[remaining]])
        return checked(total).reshape(ngrams[0].shape)

    def look_up(self, text: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Look up every token of a text of ids ``(tokens,)``, −1 for no token; in compiled code if possible.

        Returns:
            The indices of the n-grams that end at each token ``(orders, tokens)``, −1 for those that are not in the
            tables, and log p of each token, in nats ``(tokens,)``. Ignore log p of the first token and of no token.
        """
        functions = typed_library('#include "ngrams.h"\n', look_up="pqqpqpp")
        if functions is None:
            indices = np.concatenate(self.ending(text[None], len(self.orders)))
            return indices, np.append(0.0, self.backed_off(list(indices[:, :-1]), list(indices[:, 1:])))
        text = np.ascontiguousarray(text, np.int64)
        assert text.max(initial=-1) < self.vocabulary_size
        orders = np.array([(address(key), len(key), *map(address, rest)) for key, *rest in self.orders])
        indices, total = np.empty((len(orders), len(text)), np.int64), np.empty(len(text))
        sizes = len(orders), self.vocabulary_size, address(text), len(text)
        functions.look_up(address(orders), *sizes, address(indices), address(total))
        return indices, checked(total)

    def impossible(
        self, contexts: Sequence[np.ndarray], ngrams: Sequence[np.ndarray], counts: np.ndarray
    ) -> np.ndarray:
        """Return which words have probability zero under maximum likelihood, whatever the smoothing of these tables.

        These are the words that never follow the longest context that any word follows. ``contexts`` and ``ngrams`` are
        those of `backed_off`, ``counts`` are the counts of all tokens in the training text ``(vocabulary,)``, and the
        result is as long as the flattened ``ngrams[0]``.
        """
        is_impossible, remaining = np.zeros(ngrams[0].size, dtype=bool), np.arange(ngrams[0].size)
        for n in range(len(self.orders), 1, -1):
            remaining = remaining[ngrams[n - 1].ravel()[remaining] < 0]
            followed = self._followed(n, contexts[n - 2].ravel()[remaining])
            is_impossible[remaining[followed]] = True
            remaining = remaining[~followed]
        word = ngrams[0].ravel()[remaining]
        is_impossible[remaining] = (word < 0) | (counts[np.maximum(word, 0)] == 0)
        return is_impossible

    def _followed(self, n: int, context: np.ndarray) -> np.ndarray:
        """Return whether any word follows contexts in the n-grams, for indices ``(contexts,)``, −1 for none."""
        keys, known = self.orders[n - 1].key, np.flatnonzero(context >= 0)
        is_followed = np.zeros(len(context), dtype=bool)
        if len(keys) and len(known):
            indices, inverse = np.unique(context[known], return_inverse=True)
            first = torch.searchsorted(torch.from_numpy(keys), torch.from_numpy(indices * self.vocabulary_size)).numpy()
            first_key = np.take(keys, np.minimum(first, len(keys) - 1))
            is_followed[known] = ((first < len(keys)) & (first_key // self.vocabulary_size == indices))[inverse]
        return is_followed

    def distributions(self, tokens: np.ndarray) -> np.ndarray:
        """Return the probability of every word ``(batch, vocabulary)`` after ids ``(batch, context)``, −1 for none."""
        probabilities = np.empty((len(tokens), self.vocabulary_size))
        for row, (weight, groups) in enumerate(self.continuations(tokens)):
            np.multiply(self.orders[0].probability, weight, out=probabilities[row])
            for words, values in reversed(groups):
                probabilities[row, words] = values
        return probabilities

    def continuations(self, tokens: np.ndarray) -> Iterator[Continuations]:
        """Yield what follows each row of ids ``(batch, context)``, −1 for none."""
        contexts = self.ending(tokens, len(self.orders) - 1)[: len(self.orders) - 1]
        for row in range(len(tokens)):
            weight, groups = 1.0, []  # the probability mass that all longer contexts leave
            for n in range(len(contexts), 0, -1):
                index = int(contexts[n - 1][row, -1])
                if index < 0:
                    continue
                key, probability, _ = self.orders[n]
                first_key = index * self.vocabulary_size
                first, last = np.searchsorted(key, [first_key, first_key + self.vocabulary_size])
                words = key[first:last] - first_key
                if len(words) and not (words.min() >= 0 and words.max() < self.vocabulary_size):
                    raise DamagedError(
                        f"the {n + 1}-grams of the model are not in order; restore its model.safetensors"
                    )
                if len(words):
                    groups.append((words, weight * probability[first:last]))
                weight *= float(self.orders[n - 1].backoff[index])
            yield weight, groups

    # The next token

    def next_log_probabilities(self, tokens: np.ndarray, dtype: torch.dtype) -> Tensor:
        """Return log p of every word ``(batch, vocabulary)`` after ids ``(batch, context)``, −1 for none."""
        if dtype not in self._log_unigrams:
            with np.errstate(divide="ignore"):
                self._log_unigrams[dtype] = torch.from_numpy(np.log(self.orders[0].probability)).to(dtype)
        result = torch.empty(len(tokens), self.vocabulary_size, dtype=dtype)
        with np.errstate(divide="ignore"):
            for row, (weight, groups) in enumerate(self.continuations(tokens)):
                torch.add(self._log_unigrams[dtype], float(np.log(weight)), out=result[row])
                for words, probabilities in reversed(groups):
                    result[row, torch.from_numpy(words)] = torch.from_numpy(np.log(probabilities)).to(dtype)
        return result

    def draw_next(self, tokens: np.ndarray, uniform: np.ndarray, banned: Sequence[int]) -> np.ndarray:
        """Draw the word after ids ``(batch, context)``, with a uniform number of each row, from those not banned.

        Returns:
            Words ``(batch,)``; `NO_DRAW` where every word has probability 0, or where rounding prevents a decision.
        """
        without = np.unique(np.array(banned, dtype=np.int64))
        rows = zip(self.continuations(tokens), uniform.tolist(), strict=True)
        return np.array([self._draw(found, number, without) for found, number in rows], dtype=np.int64)

    @cached_property
    def _cumulative(self) -> np.ndarray:
        """Cumulative probabilities of the unigrams ``(vocabulary,)``."""
        return self.orders[0].probability.cumsum()

    def _draw(self, continuations: Continuations, uniform: float, without: np.ndarray) -> int:
        weight, groups = continuations

        # Each group leaves out the words of the longer contexts, and what is banned; what is left competes by its mass.
        choices = []
        for words, probabilities in groups:
            left, without = _leave_out(words, probabilities, without)
            choices.append((words, left.cumsum()))
        left_out = self.orders[0].probability[without].cumsum()
        unigrams = self._cumulative[-1] - (left_out[-1] if len(left_out) else 0.0)
        rest = weight * unigrams if unigrams > NEGLIGIBLE else 0.0
        total = sum(float(cumulative[-1]) for _, cumulative in choices) + rest
        if not 0 < total < np.inf:
            return NO_DRAW

        # The same number decides the group and the word in it: what is left of it within the group is uniform, too.
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
        position = int(without.searchsorted(word))
        is_left_out = position < len(without) and without[position] == word
        return NO_DRAW if word >= self.vocabulary_size or is_left_out else word


def _sorted(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted values and the former index of each."""
    bits = (len(values) - 1).bit_length()
    if int(values.max()).bit_length() + bits > INTEGER_BITS:
        order = np.argsort(values)
        return values[order], order
    packed = values << bits  # sorting a value with its index is several times faster than `numpy.argsort`
    packed |= np.arange(len(values))
    packed.sort()
    return packed >> bits, packed & (1 << bits) - 1


NO_DRAW = -1
NEGLIGIBLE = 1e-12
"""A smaller fraction of the unigrams is due to rounding."""


def _leave_out(words: np.ndarray, probabilities: np.ndarray, without: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the probabilities of sorted words, 0 for those left out, and the union of both sets of words, sorted."""
    if not len(without):
        return probabilities, words
    position = words.searchsorted(without)
    is_word = words[np.minimum(position, len(words) - 1)] == without
    probabilities = probabilities.copy()
    probabilities[position[is_word]] = 0.0
    others = ~is_word
    return probabilities, np.insert(words, position[others], without[others]) if others.any() else words
