"""The orders of an n-gram model, from the arrays that smoothing yields one after another."""

from collections.abc import Iterable

import numpy as np

from seriatim.counting.ngrams.table import NamedArray, Order, orders_from


def orders_of(arrays: Iterable[NamedArray]) -> list[Order]:
    """Join successive arrays of one name, and return the orders that they hold, shortest first."""
    chunks: dict[str, list[np.ndarray]] = {}
    for name, values in arrays:
        chunks.setdefault(name, []).append(values)
    return orders_from({name: np.concatenate(values) for name, values in chunks.items()})
