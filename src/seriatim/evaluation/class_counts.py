"""Counts by class of labelled items, and a paired test of the F1 of two models in each class.

Both models answer the same items. Under the hypothesis that they are equal, the answers of an item could be exchanged:
the test exchanges the answers of random items, and counts how often F1 then differs by at least as much as it did
(approximate randomization: E. Noreen, *Computer-intensive methods for testing hypotheses*, 1989; for F1, A. Yeh, *More
accurate tests for the statistical significance of result differences*, COLING 2000). Many classes are tested together,
so the p-values are adjusted (S. Holm, *A simple sequentially rejective multiple test procedure*, 1979).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from . import label_metrics
from .intervals import ratio
from .label_metrics import Tags

EXCHANGES = 10_000
"""Random exchanges of a test, so that the smallest p-value is about 0.0001."""
BLOCK = 1 << 22  # random bits held at once


@dataclass(frozen=True)
class ClassCounts:
    """Counts by item and class; what is not listed is 0.

    Attributes:
        classes: the names.
        items: number of items.
        cells: the item and the class of each row of ``counts`` ``(rows, 2)``; no pair occurs twice.
        counts: numbers of correct, of predicted and of true ones ``(rows, 3)``.
    """

    classes: Sequence[str]
    items: int
    cells: np.ndarray
    counts: np.ndarray

    def totals(self) -> np.ndarray:
        """Return the counts of each class over all items ``(classes, 3)``."""
        sums = np.zeros((len(self.classes), 3), np.int64)
        np.add.at(sums, self.cells[:, 1], self.counts)
        return sums

    def of_class(self, index: int) -> np.ndarray:
        """Return the counts of one class in each item ``(items, 3)``."""
        chosen = self.cells[:, 1] == index
        counts = np.zeros((self.items, 3), np.int64)
        counts[self.cells[chosen, 0]] = self.counts[chosen]
        return counts


def count_labels(truth: Tags, predicted: Tags, classes: Sequence[str]) -> ClassCounts:
    """Count each label, which must be one of ``classes``, in the sequences of labels of some items."""
    numbers = {name: i for i, name in enumerate(classes)}
    size = len(classes)
    item = np.repeat(np.arange(len(truth)), [len(labels) for labels in truth])
    true, guess = (np.array([numbers[label] for row in rows for label in row], np.int64) for rows in (truth, predicted))
    keys, places = np.unique(np.concatenate([item * size + true, item * size + guess]), return_inverse=True)
    counts = np.zeros((len(keys), 3), np.int64)
    of_true, of_guess = places[: len(item)], places[len(item) :]
    np.add.at(counts[:, 0], of_true, true == guess)
    np.add.at(counts[:, 1], of_guess, 1)
    np.add.at(counts[:, 2], of_true, 1)
    return ClassCounts(classes, len(truth), np.stack([keys // size, keys % size], 1), counts)


def count_chunks(truth: Tags, predicted: Tags, classes: Sequence[str]) -> ClassCounts:
    """Count the chunks of each type, which must be one of ``classes``, in sequences of tags, as conlleval does."""
    numbers = {name: i for i, name in enumerate(classes)}
    cells, counts = [], []
    for i, pair in enumerate(zip(truth, predicted, strict=True)):
        for kind, found in label_metrics.chunk_counts_by_type(*pair).items():
            cells.append((i, numbers[kind]))
            counts.append(found)
    shape = (len(cells), 2), (len(cells), 3)
    return ClassCounts(
        classes, len(truth), np.array(cells, np.int64).reshape(shape[0]), np.array(counts, np.int64).reshape(shape[1])
    )


def f1(sums: np.ndarray) -> np.ndarray:
    """Return F1 of summed counts ``(..., 3)``; 0 where there is nothing, as is usual."""
    return ratio(2 * sums[..., 0], sums[..., 1] + sums[..., 2])


def exchange_test(first: np.ndarray, second: np.ndarray, *, exchanges: int = EXCHANGES, seed: int = 0) -> float:
    """Return the p-value of the difference in F1 between two models, from the counts of one class ``(items, 3)``.

    The observed answers count as one of the exchanges, so the p-value is at least ``1 / (exchanges + 1)``.
    """
    apart = np.flatnonzero((first != second).any(1))
    change = (second - first)[apart].astype(np.float32)
    sums = first.sum(0), second.sum(0)
    observed = abs(float(f1(sums[0]) - f1(sums[1])))
    if not len(apart) or not observed:
        return 1.0
    random, as_far, block = np.random.default_rng(seed), 0, max(1, BLOCK // len(apart))
    for start in range(0, exchanges, block):
        size = min(block, exchanges - start)
        moved = random.integers(2, size=(size, len(apart)), dtype=np.int8).astype(np.float32) @ change
        apart_by = np.abs(f1(sums[0] + moved) - f1(sums[1] - moved))
        as_far += int((apart_by >= observed - 1e-9).sum())
    return (as_far + 1) / (exchanges + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for being tested together: at 0.05, any is wrong with a probability of 5 % at most."""
    order = np.argsort(np.array(p_values), kind="stable")
    adjusted, highest = [1.0] * len(p_values), 0.0
    for rank, i in enumerate(order.tolist()):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = highest
    return adjusted
