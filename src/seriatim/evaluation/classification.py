"""How well labels are predicted: one a text (classification), or one a token (tagging).

Calibration follows C. Guo et al., *On calibration of modern neural networks* (ICML 2017). Macro-F1 is the mean over
the classes that occur in the truth or among the predictions: a class in neither says nothing of the model.
"""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from ..core.errors import InputError
from . import entities
from .intervals import Measure, Metrics, mean, ratio, with_interval, with_intervals

BINS = 15
CHUNK = re.compile(r"[BIESLU\[\]]-.+")
Tags = Sequence[Sequence[str]]


def classification_metrics(truth: np.ndarray, probabilities: np.ndarray, labels: Sequence[str]) -> Metrics:
    """The metrics of a classifier.

    Args:
        truth: ``(items,)``, the index of each item's label.
        probabilities: ``(items, classes)``; the likeliest class is the prediction.
        labels: the name of each class.

    Returns:
        ``accuracy``, ``macro_f1`` and ``loss`` (nats, −log P of the truth), each with its 95 % interval as
        ``NAME_low`` and ``NAME_high``; ``impossible``, the items whose truth has probability 0 (they count in the
        loss with the smallest number of the probabilities' type); ``majority``, the accuracy of always answering the
        commonest label; ``classes``, for each label its ``precision recall f1 support``; ``confusion``, with a row
        for each true label and a column for each predicted one; ``calibration_error`` (expected, of 15 equal bins)
        and ``calibration``, for each bin its ``confidence accuracy count`` (None where it is empty); ``items``.

    Raises:
        InputError: no items, sizes that do not fit, labels out of range or named twice, rows that are no
            probabilities.
    """
    truth, probabilities = _checked(truth, probabilities, labels)
    predicted = probabilities.argmax(1)
    confusion = np.bincount(truth * len(labels) + predicted, minlength=len(labels) ** 2).reshape(2 * [len(labels)])
    true, own = confusion.nonzero()
    cells = confusion[true, own]  # items that agree in both labels are alike: a row stands for all of them
    error, bins = calibration(probabilities.max(1), predicted == truth)
    hits = np.stack([true == own, np.ones(len(true))], 1)
    return {
        **with_interval("accuracy", hits, mean, counts=cells),
        **with_interval("macro_f1", _class_counts(true, own, len(labels)), _macro_f1, counts=cells),
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
    """``accuracy``, ``macro_f1`` and ``loss`` item by item, for `seriatim.evaluation.intervals.paired`.

    Arguments and errors as of `classification_metrics`; memory grows with items times classes.
    """
    truth, probabilities = _checked(truth, probabilities, labels)
    predicted = probabilities.argmax(1)
    return {
        "accuracy": Measure(np.stack([truth == predicted, np.ones(len(truth))], 1), mean),
        "macro_f1": Measure(_class_counts(truth, predicted, len(labels)), _macro_f1),
        "loss": _loss(truth, probabilities),
    }


def tagging_metrics(truth: Tags, found: Tags) -> Metrics:
    """The metrics of a tagger.

    Args:
        truth: the tags of each sentence.
        found: those predicted, as many for each sentence.

    Returns:
        ``accuracy`` of tokens with its 95 % interval over sentences as ``accuracy_low`` and ``accuracy_high``,
        ``sentences`` and ``tokens``. Where the true tags mark chunks (each is ``O`` or ``X-TYPE``, with X of
        ``B I E S L U [ ]``), also ``precision``, ``recall`` and ``f1`` over whole chunks with their intervals, and
        ``entities``, for each type its ``precision recall f1 support``: the figures of conlleval
        (`seriatim.evaluation.entities`), as fractions.

    Raises:
        InputError: no tokens, or sentences or tags that do not match.
    """
    measures = tagging_measures(truth, found)
    metrics = with_intervals(measures)
    if "f1" in measures:
        metrics["entities"] = _by_type(truth, found)
    return {**metrics, "sentences": len(truth), "tokens": sum(map(len, truth))}


def tagging_measures(truth: Tags, found: Tags) -> dict[str, Measure]:
    """``accuracy``, and ``precision recall f1`` of chunks, sentence by sentence, to be paired.

    Arguments and errors as of `tagging_metrics`.
    """
    _check_tags(truth, found)
    hits = [[sum(a == b for a, b in zip(*pair, strict=True)), len(pair[0])] for pair in zip(truth, found, strict=True)]
    measures = {"accuracy": Measure(np.array(hits, float), mean)}
    if _marks_chunks(truth):
        counts = np.array([entities.counts(*pair) for pair in zip(truth, found, strict=True)], float)
        for name, of in {"precision": _precision, "recall": _recall, "f1": _f1}.items():
            measures[name] = Measure(counts, of)
    return measures


def calibration(confidence: np.ndarray, right: np.ndarray) -> tuple[float, list[Metrics]]:
    """How far confidence is from accuracy: the expected calibration error, and the bins.

    Args:
        confidence: the probability of each prediction ``(items,)``.
        right: whether each is right ``(items,)``.

    Returns:
        The error and `BINS` equal bins, which hold their upper edges: ``confidence accuracy count``, the first two None
        where there is nothing in a bin.
    """
    index = np.clip(np.ceil(confidence.astype(float) * BINS).astype(int) - 1, 0, BINS - 1)
    counts = np.bincount(index, minlength=BINS)
    sums = np.bincount(index, confidence, BINS), np.bincount(index, right, BINS)
    error = float(np.abs(sums[0] - sums[1]).sum() / len(confidence))
    return error, [
        {"confidence": a / count if count else None, "accuracy": b / count if count else None, "count": count}
        for a, b, count in zip(sums[0].tolist(), sums[1].tolist(), counts.tolist(), strict=True)
    ]


def _precision(sums: np.ndarray) -> np.ndarray:
    """From counts ``(..., 3)``: correct, guessed, gold."""
    return ratio(sums[..., 0], sums[..., 1])


def _recall(sums: np.ndarray) -> np.ndarray:
    return ratio(sums[..., 0], sums[..., 2])


def _f1(sums: np.ndarray) -> np.ndarray:
    return ratio(2 * sums[..., 0], sums[..., 1] + sums[..., 2])


def _scores(correct: float, guessed: float, gold: float) -> Metrics:
    sums = np.array([correct, guessed, gold])
    figures = {"precision": float(_precision(sums)), "recall": float(_recall(sums)), "f1": float(_f1(sums))}
    return {**figures, "support": int(gold)}


def _class_counts(truth: np.ndarray, predicted: np.ndarray, classes: int) -> np.ndarray:
    """For each class whether it is predicted rightly, predicted, and true: ``(items, 3 · classes)``."""
    rows, found = np.arange(len(truth)), np.zeros((len(truth), 3, classes))
    found[rows, 0, truth] = truth == predicted
    found[rows, 1, predicted] = 1
    found[rows, 2, truth] = 1
    return found.reshape(len(truth), 3 * classes)


def _macro_f1(sums: np.ndarray) -> np.ndarray:
    correct, guessed, gold = np.moveaxis(sums.reshape(*sums.shape[:-1], 3, -1), -2, 0)
    return ratio(ratio(2 * correct, guessed + gold).sum(-1), (guessed + gold > 0).sum(-1))


def _loss(truth: np.ndarray, probabilities: np.ndarray) -> Measure:
    given = probabilities[np.arange(len(truth)), truth]
    nats = -np.log(np.maximum(given, np.finfo(given.dtype).tiny), dtype=float)
    return Measure(np.stack([nats, np.ones(len(truth))], 1), mean)


def _by_class(confusion: np.ndarray, labels: Sequence[str]) -> dict[str, Metrics]:
    counts = zip(confusion.diagonal(), confusion.sum(0), confusion.sum(1), strict=True)
    return {label: _scores(*row) for label, row in zip(labels, counts, strict=True)}


def _by_type(truth: Tags, found: Tags) -> dict[str, Metrics]:
    sums: dict[str, Counter[str]] = {}
    for pair in zip(truth, found, strict=True):
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
    if twice := [label for label, count in Counter(labels).items() if count > 1]:
        raise InputError(f"label {twice[0]!r} names two classes; give each its own name")
    if not np.issubdtype(truth.dtype, np.integer) or truth.min() < 0 or truth.max() >= len(labels):
        raise InputError(
            f"true labels must be integers from 0 to {len(labels) - 1}; found {truth.min()} to {truth.max()}"
        )
    if not np.issubdtype(probabilities.dtype, np.floating):
        probabilities = probabilities.astype(float)
    # the tolerance leaves room for probabilities computed in 16 bits; a NaN fails the comparison too
    wrong = ~((probabilities >= 0).all(1) & (np.abs(probabilities.sum(1, dtype=float) - 1) < 0.02))
    if wrong.any():
        row = int(wrong.argmax())
        raise InputError(f"item {row + 1}: probabilities must not be negative and must sum to 1; give a softmax")
    return truth.astype(int), probabilities


def _check_tags(truth: Tags, found: Tags) -> None:
    if len(truth) != len(found):
        raise InputError(f"{len(found)} sentences found for {len(truth)}; give one for each")
    for i, (true, own) in enumerate(zip(truth, found, strict=True), 1):
        if len(true) != len(own):
            raise InputError(f"sentence {i}: {len(own)} tags found for {len(true)} tokens; give one tag a token")
    if not any(map(len, truth)):
        raise InputError("there is nothing to evaluate; give at least one token")


FIGURES = {"accuracy": mean, "macro_f1": _macro_f1, "precision": _precision, "recall": _recall, "f1": _f1}
"""What each figure makes of the sums of its statistics."""
