"""Metrics of predicted labels: one label per text (classification) or one per token (tagging).

The calibration error follows C. Guo et al., *On calibration of modern neural networks* (ICML 2017). Macro F1 is a mean
over the classes that occur in the true labels or in the predictions; a class that occurs in neither is left out.
"""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from ..core.errors import InputError
from . import entities
from .intervals import Measure, Metrics, mean, ratio, with_interval, with_intervals

BINS = 15
"""Number of bins of equal width in the calibration error."""
CHUNK = re.compile(r"[BIESLU\[\]]-.+")
"""A tag that marks part of a chunk, such as ``B-PER``."""
Tags = Sequence[Sequence[str]]


def classification_metrics(truth: np.ndarray, probabilities: np.ndarray, labels: Sequence[str]) -> Metrics:
    """Return the metrics of a classifier.

    Args:
        truth: index of the true label of each item ``(items,)``.
        probabilities: ``(items, classes)``; the most probable class is the prediction.
        labels: name of each class.

    Returns:
        ``accuracy``, ``macro_f1`` and ``loss`` (nats, −log P of the true label), each with its 95 % interval as
        ``NAME_low`` and ``NAME_high``; ``impossible``, the number of items whose true label has probability 0 (in the
        loss they count with the smallest positive number of the floating-point type); ``majority``, the accuracy of
        always predicting the most frequent label; ``classes``, with ``precision recall f1 support`` for each label;
        ``confusion``, with a row per true label and a column per predicted label; ``calibration_error`` (expected
        calibration error with 15 bins of equal width) and ``calibration``, with ``confidence accuracy count`` for each
        bin (None where the bin is empty); ``items``.

    Raises:
        InputError: no items, shapes that do not match, labels out of range or duplicate, rows that are not
            probabilities.
    """
    truth, probabilities = _checked(truth, probabilities, labels)
    predicted = probabilities.argmax(1)
    confusion = np.bincount(truth * len(labels) + predicted, minlength=len(labels) ** 2).reshape(2 * [len(labels)])
    cell_truth, cell_predicted = confusion.nonzero()
    counts = confusion[cell_truth, cell_predicted]  # items with equal labels are alike: one row stands for all of them
    error, bins = calibration(probabilities.max(1), predicted == truth)
    hits = np.stack([cell_truth == cell_predicted, np.ones(len(counts))], 1)
    return {
        **with_interval("accuracy", hits, mean, counts=counts),
        **with_interval("macro_f1", _class_counts(cell_truth, cell_predicted, len(labels)), _macro_f1, counts=counts),
        **with_interval("loss", *_loss(truth, probabilities)),
        "impossible": int((probabilities[np.arange(len(truth)), truth] == 0).sum()),
        "majority": float(confusion.sum(1).max() / len(truth)),
        "classes": _by_class(confusion, labels),
        "confusion": confusion.tolist(),
        "calibration_error": error,
        "calibration": bins,
        "items": len(truth),
    }


def classification_measures(truth: np.ndarray, probabilities: np.ndarray, labels: Sequence[str]) -> dict[str, Measure]:
    """Return ``accuracy``, ``macro_f1`` and ``loss`` item by item, for `seriatim.evaluation.intervals.paired`.

    Arguments and errors are those of `classification_metrics`; memory grows with items times classes.
    """
    truth, probabilities = _checked(truth, probabilities, labels)
    predicted = probabilities.argmax(1)
    return {
        "accuracy": Measure(np.stack([truth == predicted, np.ones(len(truth))], 1), mean),
        "macro_f1": Measure(_class_counts(truth, predicted, len(labels)), _macro_f1),
        "loss": _loss(truth, probabilities),
    }


def tagging_metrics(truth: Tags, predicted: Tags) -> Metrics:
    """Return the metrics of a tagger.

    Args:
        truth: true tags of each sentence.
        predicted: predicted tags of each sentence, one per true tag.

    Returns:
        ``accuracy`` over tokens with its 95 % interval over sentences as ``accuracy_low`` and ``accuracy_high``,
        ``sentences`` and ``tokens``. If the true tags mark chunks (each tag is ``O`` or ``X-TYPE``, with X in
        ``B I E S L U [ ]``), also ``precision``, ``recall`` and ``f1`` over whole chunks with their intervals, and
        ``entities``, with ``precision recall f1 support`` for each type. These are the figures of conlleval
        (`seriatim.evaluation.entities`), as fractions.

    Raises:
        InputError: no tokens, or sentences or tags that do not match.
    """
    measures = tagging_measures(truth, predicted)
    metrics = with_intervals(measures)
    if "f1" in measures:
        metrics["entities"] = _by_type(truth, predicted)
    return {**metrics, "sentences": len(truth), "tokens": sum(map(len, truth))}


def tagging_measures(truth: Tags, predicted: Tags) -> dict[str, Measure]:
    """Return ``accuracy``, and ``precision recall f1`` of chunks, sentence by sentence, for a paired test.

    Arguments and errors are those of `tagging_metrics`.
    """
    _check_tags(truth, predicted)
    pairs = list(zip(truth, predicted, strict=True))
    hits = [[sum(a == b for a, b in zip(*pair, strict=True)), len(pair[0])] for pair in pairs]
    measures = {"accuracy": Measure(np.array(hits, float), mean)}
    if _marks_chunks(truth):
        counts = np.array([entities.counts(*pair) for pair in pairs], float)
        for name, compute in {"precision": _precision, "recall": _recall, "f1": _f1}.items():
            measures[name] = Measure(counts, compute)
    return measures


def calibration(confidence: np.ndarray, correct: np.ndarray) -> tuple[float, list[Metrics]]:
    """Compare the confidence of predictions with their accuracy.

    Args:
        confidence: probability of each prediction ``(items,)``.
        correct: whether each prediction is correct ``(items,)``.

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


def _precision(sums: np.ndarray) -> np.ndarray:
    """Return the precision of summed counts ``(..., 3)``: correct, predicted and true chunks."""
    return ratio(sums[..., 0], sums[..., 1])


def _recall(sums: np.ndarray) -> np.ndarray:
    return ratio(sums[..., 0], sums[..., 2])


def _f1(sums: np.ndarray) -> np.ndarray:
    return ratio(2 * sums[..., 0], sums[..., 1] + sums[..., 2])


def _scores(correct: float, guessed: float, gold: float) -> Metrics:
    sums = np.array([correct, guessed, gold])
    scores = {"precision": float(_precision(sums)), "recall": float(_recall(sums)), "f1": float(_f1(sums))}
    return {**scores, "support": int(gold)}


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


def _loss(truth: np.ndarray, probabilities: np.ndarray) -> Measure:
    of_truth = probabilities[np.arange(len(truth)), truth]
    nats = -np.log(np.maximum(of_truth, np.finfo(of_truth.dtype).tiny), dtype=float)
    return Measure(np.stack([nats, np.ones(len(truth))], 1), mean)


def _by_class(confusion: np.ndarray, labels: Sequence[str]) -> dict[str, Metrics]:
    counts = zip(confusion.diagonal(), confusion.sum(0), confusion.sum(1), strict=True)
    return {label: _scores(*row) for label, row in zip(labels, counts, strict=True)}


def _by_type(truth: Tags, predicted: Tags) -> dict[str, Metrics]:
    sums: dict[str, Counter[str]] = {}
    for pair in zip(truth, predicted, strict=True):
        for kind, counts in entities.counts_by_type(*pair).items():
            sums.setdefault(kind, Counter()).update(counts._asdict())
    return {kind: _scores(**{name: sums[kind][name] for name in entities.Counts._fields}) for kind in sorted(sums)}


def _marks_chunks(truth: Tags) -> bool:
    tags = {tag for sentence in truth for tag in sentence} - {"O"}
    return bool(tags) and all(CHUNK.fullmatch(tag) for tag in tags)


def _checked(truth: np.ndarray, probabilities: np.ndarray, labels: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    truth, probabilities = np.asarray(truth), np.asarray(probabilities)
    shape = (len(truth), len(labels))
    if not len(truth):
        raise InputError("there is nothing to evaluate; give at least one item")
    if probabilities.shape != shape or truth.ndim != 1:
        raise InputError(
            f"probabilities have shape {probabilities.shape}; {shape[0]} items of {shape[1]} classes need {shape}"
        )
    if duplicates := [label for label, count in Counter(labels).items() if count > 1]:
        raise InputError(f"label {duplicates[0]!r} names two classes; give each class its own name")
    if not np.issubdtype(truth.dtype, np.integer) or truth.min() < 0 or truth.max() >= len(labels):
        raise InputError(
            f"true labels must be integers from 0 to {len(labels) - 1}, got {truth.min()} to {truth.max()}"
        )
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


FIGURES = {"accuracy": mean, "macro_f1": _macro_f1, "precision": _precision, "recall": _recall, "f1": _f1}
"""How each figure is computed from summed statistics."""
