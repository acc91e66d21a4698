"""Interpolates n-gram models from ARPA files into one, over the words of all of them.

The mixture p(w | h) = Σ_i λ_i p_i(w | h) is written for every n-gram that any of the models lists; of the others,

    γ(h) = (1 − Σ_w p(w | h)) / (1 − Σ_w p(w | h')),    w such that hw is listed, h' is h without its first word

restores the sum 1, as in every back-off model (A. Stolcke, "SRILM – an extensible language modeling toolkit", ICSLP
2002). A word that a model does not have has probability 0 there, also if the model has an unknown word.
"""

from collections.abc import Sequence

import numpy as np

from ..core.errors import InputError
from ..counting.ngrams.table import NgramTable, Order
from .arpa_reader import Arpa

SPECIAL = 2
"""The number of ids before those of words: the boundary and the unknown word."""
LEAST = 1e-12
"""The least share that a context leaves to words it does not list; smaller ones are errors of rounding."""


def mix(models: Sequence[Arpa], weights: Sequence[float]) -> Arpa:
    """Return one model for several, with ``weights`` that are positive and sum to 1."""
    words = list(dict.fromkeys(word for model in models for word in model.words))
    ids = {word: SPECIAL + i for i, word in enumerate(words)}
    to_mixed = [np.array([0, 1, *(ids[word] for word in model.words)]) for model in models]
    tables = [NgramTable(model.orders) for model in models]
    from_mixed = [_inverse(ids_of, SPECIAL + len(words)) for ids_of in to_mixed]
    size, orders = SPECIAL + len(words), list[Order]()
    grams = np.arange(size)[:, None]
    for n in range(1, max(len(model.orders) for model in models) + 1):
        if n > 1:
            listed = [
                ids_of[_grams(model.orders, n)]
                for model, ids_of in zip(models, to_mixed, strict=True)
                if len(model.orders) >= n
            ]
            grams = np.unique(np.concatenate(listed), axis=0)
        probability = np.zeros(len(grams))
        for table, weight, known in zip(tables, weights, from_mixed, strict=True):
            probability += weight * _probabilities(table, known[grams], is_known=known[grams[:, -1]] >= 0)
        key = grams[:, 0].astype(np.int64)
        if n > 1:
            key = _contexts(orders, grams[:, :-1]) * size + grams[:, -1]
            orders[-1] = orders[-1]._replace(backoff=_backoffs(orders, grams, key // size, probability))
        orders.append(Order(key, probability, np.ones(0)))
    return Arpa(words, orders)


def check_weights(weights: Sequence[float] | None, count: int) -> list[float]:
    """Return the weights of ``count`` models, by default equal; raise InputError if they are not weights."""
    if weights is None:
        return [1 / count] * count
    if len(weights) != count:
        raise InputError(f"--mixture-weights: {len(weights)} weights for {count} files; give one for each")
    if not all(weight > 0 for weight in weights) or not 0 < sum(weights) < float("inf"):
        raise InputError("--mixture-weights: must be positive numbers, such as 0.7,0.3")
    return [weight / sum(weights) for weight in weights]


def _inverse(ids: np.ndarray, size: int) -> np.ndarray:
    """Return the id of each word of the mixture in a model; −1 for a word that it does not have."""
    inverse = np.full(size, -1, dtype=np.int64)
    inverse[ids] = np.arange(len(ids))
    return inverse


def _grams(orders: Sequence[Order], n: int) -> np.ndarray:
    """Return the words of all n-grams of a model ``(n-grams, n)``."""
    size, columns = len(orders[0].probability), []
    index = np.arange(len(orders[n - 1].key))
    for order in reversed(orders[1:n]):
        key = order.key[index]
        columns.append(key % size)
        index = key // size
    return np.stack([index, *reversed(columns)], axis=1)


def _probabilities(table: NgramTable, grams: np.ndarray, *, is_known: np.ndarray) -> np.ndarray:
    """Return p of the last word of each n-gram ``(n-grams,)`` after the others; 0 if the model does not have it."""
    result = np.zeros(len(grams))
    some = grams[is_known]
    if grams.shape[1] == 1:
        result[is_known] = table.orders[0].probability[some[:, 0]]
        return result
    with np.errstate(divide="ignore"):
        result[is_known] = np.exp(table.log_probabilities(some[:, :-1], some[:, -1:])[:, 0])
    return result


def _contexts(orders: Sequence[Order], grams: np.ndarray) -> np.ndarray:
    """Return the indices of n-grams among those of their order."""
    table, index = NgramTable(orders), grams[:, 0].astype(np.int64)
    for n in range(2, grams.shape[1] + 1):
        index = table.find(n, index, grams[:, n - 1])
    assert (index >= 0).all()  # the first words of an n-gram are an n-gram, too
    return index


def _backoffs(orders: Sequence[Order], grams: np.ndarray, contexts: np.ndarray, probability: np.ndarray) -> np.ndarray:
    """Return γ of every n-gram of the last of ``orders``, given the n-grams that are one word longer."""
    lower = _probabilities(NgramTable(orders), grams[:, 1:], is_known=np.ones(len(grams), dtype=bool))
    count = len(orders[-1].key)
    left, left_below = (1 - np.bincount(contexts, values, minlength=count) for values in (probability, lower))
    follows = np.bincount(contexts, minlength=count) > 0
    backoff = np.ones(count)
    backoff[follows] = np.where(
        left_below[follows] > LEAST, left[follows].clip(min=0) / left_below[follows].clip(min=LEAST), 0.0
    )
    return backoff
