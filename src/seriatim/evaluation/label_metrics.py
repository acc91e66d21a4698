"""Metrics of predicted labels: one label per text (classification) or one per token (tagging).

The calibration error follows C. Guo et al., *On calibration of modern neural networks* (ICML 2017). Macro F1 is a mean
over the classes that occur in the true labels or in the predictions; a class that occurs in neither is left out.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..core.errors import InputError
from ..core.json_object import JsonObject
from ..data.tag_sets import marks_chunks
from . import entities
from .intervals import Compute, Measure, mean, ratio, with_interval, with_intervals

MAX_CONFUSION = 1000
"""The largest number of labels whose confusion matrix is returned."""
MAX_STATISTICS = 1 << 25
"""The largest number of values of the statistics of macro F1: with more classes and items, it has no interval."""
BINS = 15  # number of bins of equal width in the calibration error
TYPELESS = "chunk"  # the name of the type of chunks without types
Tags = Sequence[Sequence[str]]


def classification_metrics(truth: np.ndarray, probabilities: np.ndarray, labels: Sequence[str]) -> JsonObject:
    """Return the metrics of a classifier, from the index of the true label of each item ``(items,)``.

    The most probable class by the probabilities ``(items, classes)`` is the prediction; ``labels`` names the classes.

    Returns:
        ``accuracy``, ``macro_f1`` and ``loss`` (nats, −log P of the true label), each with its 95 % interval as
        ``NAME_low`` and ``NAME_high``; ``impossible``, the number of items whose true label has probability 0 (in the
        loss they count with the smallest positive number of the type); ``majority``, the accuracy of always predicting
        the most frequent label; ``classes``, with ``precision recall f1 support`` for each label; ``confusion``, with a
        row per true label; the ``calibration_error`` and bins of `calibration`; ``items``.

    Raises:
        InputError: no items, shapes that do not match, labels out of range or duplicate, rows that are not
            probabilities.
    """
    truth, probabilities = _checked(truth, probabilities, labels)
    return prediction_metrics(_reduced(truth, probabilities), labels)


def classification_measures(truth: np.ndarray, probabilities: np.ndarray, labels: Sequence[str]) -> dict[str, Measure]:
    """Return ``accuracy macro_f1 loss`` item by item, as `classification_metrics`; memory is items times classes."""
    truth, probabilities = _checked(truth, probabilities, labels)
    return prediction_measures(_reduced(truth, probabilities), labels)


class Predictions(NamedTuple):
    """What metrics need of the probabilities of some items, ``(items,)`` each."""

    truth: np.ndarray  # index of the true label, at least the number of classes for a label without a class
    predicted: np.ndarray  # index of the most probable class
    confidence: np.ndarray  # its probability
    of_truth: np.ndarray  # probability of the true label; NaN for a label without a class

    @classmethod
    def empty(cls, truth: np.ndarray, dtype: type = np.float64) -> "Predictions":
        """Return predictions that are still to be `set`."""
        return cls(truth, np.zeros(len(truth), np.int64), *(np.zeros(len(truth), dtype) for _ in range(2)))

    def set(self, rows: np.ndarray, probabilities: np.ndarray) -> None:
        """Set the predictions of some items from the probabilities of their classes ``(rows, classes)``."""
        truth, classes = self.truth[rows], probabilities.shape[1]
        self.predicted[rows], self.confidence[rows] = probabilities.argmax(1), probabilities.max(1)
        of_truth = probabilities[np.arange(len(rows)), np.minimum(truth, classes - 1)]
        self.of_truth[rows] = np.where(truth < classes, of_truth, np.nan)


def prediction_metrics(predictions: Predictions, labels: Sequence[str]) -> JsonObject:
    """Return the metrics of `classification_metrics`; labels without a class follow those of the classes.

    An item whose true label has no class counts as wrong, and is left out of the loss. Of more than `MAX_CONFUSION`
    labels, ``confusion`` is None, and ``classes`` has only those that occur.
    """
    truth, predicted, confidence, of_truth = predictions
    size, items = len(labels), len(truth)
    # items with equal labels are alike: one cell of the confusion matrix stands for all of them
    cells, counts = np.unique(truth * size + predicted, return_counts=True)
    cell_truth, cell_predicted = cells // size, cells % size
    hits = np.stack([cell_truth == cell_predicted, np.ones(len(counts))], 1)
    occurring, places = np.unique([cell_truth, cell_predicted], return_inverse=True)
    cell_classes = places.reshape(2, -1)
    sums = np.zeros((3, len(occurring)))  # correct, predicted and true items of each class that occurs
    np.add.at(sums[0], cell_classes[1], counts * hits[:, 0])
    np.add.at(sums[1], cell_classes[1], counts)
    np.add.at(sums[2], cell_classes[0], counts)
    macro_f1: JsonObject = {"macro_f1": float(_macro_f1(sums.reshape(-1))), "macro_f1_low": None, "macro_f1_high": None}
    if 3 * len(cells) * len(occurring) <= MAX_STATISTICS:
        statistics = _class_counts(cell_classes[0], cell_classes[1], len(occurring))
        macro_f1 = with_interval("macro_f1", statistics, _macro_f1, counts=counts)
    error, bins = calibration(confidence, predicted == truth)
    of_classes = dict(zip(occurring.tolist(), sums.T.astype(int).tolist(), strict=True))
    shown, confusion = occurring.tolist(), None
    if size <= MAX_CONFUSION:
        shown = list(range(size))
        confusion = np.zeros((size, size), int)
        confusion[cell_truth, cell_predicted] = counts
    return {
        **with_interval("accuracy", hits, mean, counts=counts),
        **macro_f1,
        **with_interval("loss", *_loss(of_truth)),
        "impossible": int((of_truth == 0).sum()),
        "majority": float(sums[2].max() / items),
        "classes": {labels[i]: _scores(*of_classes.get(i, (0, 0, 0))) for i in shown},
        "confusion": None if confusion is None else confusion.tolist(),
        "calibration_error": error,
        "calibration": bins,
        "items": items,
    }


def prediction_measures(predictions: Predictions, labels: Sequence[str]) -> dict[str, Measure]:
    """Return the measures of `classification_measures`; without ``macro_f1`` if they would take too much memory."""
    truth, predicted = predictions.truth, predictions.predicted
    measures = {
        "accuracy": Measure(np.stack([truth == predicted, np.ones(len(truth))], 1), mean),
        "loss": _loss(predictions.of_truth),
    }
    if 3 * len(truth) * len(labels) <= MAX_STATISTICS:
        measures["macro_f1"] = Measure(_class_counts(truth, predicted, len(labels)), _macro_f1)
    return measures


def _reduced(truth: np.ndarray, probabilities: np.ndarray) -> Predictions:
    predictions = Predictions.empty(truth, probabilities.dtype.type)
    predictions.set(np.arange(len(truth)), probabilities)
    return predictions


def tagging_metrics(truth: Tags, predicted: Tags) -> JsonObject:
    """Return the metrics of a tagger, from the true and the predicted tags of each sentence.

    Returns:
        ``accuracy`` over tokens with its 95 % interval over sentences as ``accuracy_low`` and ``accuracy_high``,
        ``sentences`` and ``tokens``. If the true tags mark chunks (see `seriatim.data.tag_sets`), also ``precision``,
        ``recall`` and ``f1`` over whole chunks with their intervals, and ``entities``, with ``precision recall f1
        support`` for each type, or for `TYPELESS`, as conlleval computes them (`seriatim.evaluation.entities`).

    Raises:
        InputError: no tokens, or sentences or tags that do not match.
    """
    measures = tagging_measures(truth, predicted)
    metrics = with_intervals(measures)
    if "f1" in measures:
        metrics["entities"] = _by_type(truth, predicted)
    return {**metrics, "sentences": len(truth), "tokens": sum(map(len, truth))}


def tagging_measures(truth: Tags, predicted: Tags) -> dict[str, Measure]:
    """Return ``accuracy``, and ``precision recall f1`` of chunks, by sentence; arguments as in `tagging_metrics`."""
    _check_tags(truth, predicted)
    pairs = list(zip(truth, predicted, strict=True))
    hits = [[sum(a == b for a, b in zip(*pair, strict=True)), len(pair[0])] for pair in pairs]
    measures = {"accuracy": Measure(np.array(hits, float), mean)}
    if marks_chunks(itertools.chain.from_iterable(truth)):
        counts = np.array([entities.counts(*pair) for pair in pairs], float)
        measures |= {name: Measure(counts, compute) for name, compute in OF_CHUNKS.items()}
    return measures


def calibration(confidence: np.ndarray, correct: np.ndarray) -> tuple[float, list[JsonObject]]:
    """Compare the confidence of predictions with whether they are correct, ``(items,)`` each.

    Returns:
        The expected calibration error, and `BINS` bins of equal width. A bin includes its upper edge and has
        ``confidence accuracy count``; the first two are None if the bin is empty.
    """
    index = np.clip(np.ceil(confidence.astype(float) * BINS).astype(int) - 1, 0, BINS - 1)
    counts = np.bincount(index, minlength=BINS)
    sums = np.bincount(index, confidence, BINS), np.bincount(index, correct, BINS)
    error = float(np.abs(sums[0] - sums[1]).sum() / len(confidence))
    return error, [
        {"confidence": a / count if count else None, "accuracy": b / count if count else None, "count": count}
        for a, b, count in zip(sums[0].tolist(), sums[1].tolist(), counts.tolist(), strict=True)
    ]


OF_CHUNKS: dict[str, Compute] = {
    "precision": lambda sums: ratio(sums[..., 0], sums[..., 1]),
    "recall": lambda sums: ratio(sums[..., 0], sums[..., 2]),
    "f1": lambda sums: ratio(2 * sums[..., 0], sums[..., 1] + sums[..., 2]),
}
"""Figures of summed counts ``(..., 3)``: correct, predicted and true chunks."""


def _scores(*counts: float) -> JsonObject:
    """Return the figures of counts of correct, predicted and true ones."""
    return {
        **{name: float(compute(np.array(counts))) for name, compute in OF_CHUNKS.items()},
        "support": int(counts[2]),
    }


def _class_counts(truth: np.ndarray, predicted: np.ndarray, classes: int) -> np.ndarray:
    """Count for each item and class whether it is a hit, predicted, and true: ``(items, 3 · classes)``."""
    rows, counts = np.arange(len(truth)), np.zeros((len(truth), 3, classes))
    counts[rows, 0, truth] = truth == predicted
    counts[rows, 1, predicted] = 1
    counts[rows, 2, truth] = 1
    return counts.reshape(len(truth), 3 * classes)


def _macro_f1(sums: np.ndarray) -> np.ndarray:
    correct, guessed, gold = np.moveaxis(sums.reshape(*sums.shape[:-1], 3, -1), -2, 0)
    return ratio(ratio(2 * correct, guessed + gold).sum(-1), (guessed + gold > 0).sum(-1))


def _loss(of_truth: np.ndarray) -> Measure:
    nats = -np.log(np.maximum(of_truth, np.finfo(of_truth.dtype).tiny), dtype=float)
    counted = ~np.isnan(of_truth)
    return Measure(np.stack([np.where(counted, nats, 0), counted], 1), mean)


def _by_type(truth: Tags, predicted: Tags) -> dict[str, JsonObject]:
    sums: dict[str, np.ndarray] = {}
    for pair in zip(truth, predicted, strict=True):
        for kind, counts in entities.counts_by_type(*pair).items():
            sums[kind] = sums.get(kind, 0) + np.array(counts)
    return {kind or TYPELESS: _scores(*sums[kind]) for kind in sorted(sums)}


def _checked(truth: np.ndarray, probabilities: np.ndarray, labels: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    truth, probabilities = np.asarray(truth), np.asarray(probabilities)
    shape = (len(truth), len(labels))
    if not len(truth):
        raise InputError("there is nothing to evaluate; give at least one item")
    if probabilities.shape != shape or truth.ndim != 1:
        needed = f"{len(truth)} items of {len(labels)} classes need {shape}"
        raise InputError(f"probabilities have shape {probabilities.shape}; {needed}")
    if duplicates := [label for label, count in Counter(labels).items() if count > 1]:
        raise InputError(f"label {duplicates[0]!r} names two classes; give each class its own name")
    if not np.issubdtype(truth.dtype, np.integer) or truth.min() < 0 or truth.max() >= len(labels):
        found = f"{truth.min()} to {truth.max()}"
        raise InputError(f"true labels must be integers from 0 to {len(labels) - 1}, got {found}")
    if not np.issubdtype(probabilities.dtype, np.floating):
        probabilities = probabilities.astype(float)
    # the tolerance allows for probabilities computed in 16 bits; a NaN fails the comparison too
    wrong = ~((probabilities >= 0).all(1) & (np.abs(probabilities.sum(1, dtype=float) - 1) < 0.02))
    if wrong.any():
        row = int(wrong.argmax())
        raise InputError(f"item {row + 1}: probabilities must not be negative and must sum to 1; give a softmax")
    return truth.astype(int), probabilities


def _check_tags(truth: Tags, predicted: Tags) -> None:
    if len(truth) != len(predicted):
        raise InputError(f"got predictions for {len(predicted)} of {len(truth)} sentences; give one for each")
    for i, (true_tags, tags) in enumerate(zip(truth, predicted, strict=True), 1):
        if len(true_tags) != len(tags):
            raise InputError(f"sentence {i}: got {len(tags)} tags for {len(true_tags)} tokens; give one tag per token")
    if not any(map(len, truth)):
        raise InputError("there is nothing to evaluate; give at least one token")


FIGURES = {"accuracy": mean, "macro_f1": _macro_f1, **OF_CHUNKS}
"""How each figure is computed from summed statistics."""
