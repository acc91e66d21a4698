"""How the probability of each token of a text follows from the tables, order by order, and from which counts.

With p_1 the probability of the token alone, each further order has p_n = p(w | h) if its n-gram is in the tables, and
otherwise p_n = γ(h) p_{n−1}, where γ is 1 if the context h is not there either. p_N is the probability of the model:
the value of the longest n-gram that is known, times the back-off weights of all longer contexts.
"""

from typing import NamedTuple

import numpy as np

from .counts import BOUNDARY
from .table import NgramTable


class OrdersUsed(NamedTuple):
    """What each order says of each token of a text, for n = 1 to N, in arrays ``(N, tokens)``."""

    is_known: np.ndarray  # whether the n-gram that ends with the token is in the tables
    backoffs: np.ndarray  # γ of its context; 1 where the context is not in the tables, and for n = 1
    probabilities: np.ndarray  # p_n

    @property
    def used(self) -> np.ndarray:
        """The length of the longest n-gram in the tables that ends with each token ``(tokens,)``."""
        return np.asarray(len(self.is_known) - self.is_known[::-1].argmax(0))


def orders_used(table: NgramTable, text: np.ndarray) -> OrdersUsed:
    """Look up every token of a text ``(tokens,)``, which begins after a boundary."""
    orders = table.orders
    ids = np.concatenate([np.full(len(orders) - 1, -1), [BOUNDARY], text]).astype(np.int64)
    indices = table.look_up(ids)[0]
    ngrams, contexts = indices[:, len(orders) :], indices[:, len(orders) - 1 : -1]
    is_known = ngrams >= 0
    backoffs, probabilities = np.ones(is_known.shape), np.empty(is_known.shape)
    probabilities[0] = orders[0].probability[ngrams[0]]
    for n in range(1, len(orders)):
        has_context = contexts[n - 1] >= 0
        backoffs[n, has_context] = orders[n - 1].backoff[contexts[n - 1][has_context]]
        probabilities[n] = backoffs[n] * probabilities[n - 1]
        probabilities[n, is_known[n]] = orders[n].probability[ngrams[n][is_known[n]]]
    return OrdersUsed(is_known, backoffs, probabilities)


def count_occurrences(train: np.ndarray, text: np.ndarray, order: int) -> tuple[np.ndarray, np.ndarray]:
    """Return how often the n-grams that end at each token of a text occur in a training text, with any last token, too.

    Both texts are ids that begin after a boundary. No n-gram crosses one: those of the text that do have the count 0.
    The context of a single token is empty, and counts all tokens.

    Returns:
        The counts of the n-grams, and those of their contexts before any token, ``(order, tokens)`` each.
    """
    given, read = (np.concatenate([[BOUNDARY], ids]).astype(np.int64) for ids in (text, train))
    size = int(max(given.max(), read.max())) + 1
    ngrams, contexts = (np.zeros((order, len(given)), np.int64) for _ in range(2))
    contexts[0] = len(train)
    context_of, at, context = np.zeros(len(given), np.int64), np.arange(len(read)), np.zeros(len(read), np.int64)

    # The n-grams of the text are numbered, and only the places of the training text are kept where one of them ends.
    for n in range(1, order + 1):
        is_whole = context_of >= 0
        keys, numbers = np.unique(np.where(is_whole, context_of * size + given, -1), return_inverse=True)
        wanted = context * size + read[at]
        found = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        is_found = keys[found] == wanted
        at, found = at[is_found], found[is_found]
        ngrams[n - 1] = np.where(is_whole, np.bincount(found, minlength=len(keys))[numbers], 0)

        # A boundary may be the first token of an n-gram or the last one.
        goes_on = is_whole & ((n == 1) | (given != BOUNDARY))
        context_of = np.concatenate([[-1], np.where(goes_on, numbers, -1)[:-1]])
        is_followed = (at + 1 < len(read)) & ((n == 1) | (read[at] != BOUNDARY))
        at, context = at[is_followed] + 1, found[is_followed]
        if n < order:
            followed = np.bincount(context, minlength=len(keys))[numbers]
            contexts[n, 1:] = np.where(goes_on, followed, 0)[:-1]
    return ngrams[:, 1:], contexts[:, 1:]
