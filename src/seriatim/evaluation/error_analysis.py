"""Mistakes of a model on labelled data: confusions, calibration of its confidence, and the worst examples."""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ..core.json_object import JsonObject
from .label_metrics import calibration, reliability

MAX_ITEMS, MAX_TOKENS, MAX_PAIRS = 2_000, 5_000, 100
"""Largest numbers of texts or sentences, of tokens of a running text, and of pairs to translate that are evaluated."""
MAX_WORST, MAX_CONFUSIONS = 10, 15  # numbers of examples and of pairs of labels that are listed

MAX_MATRIX = 1_000  # the largest number of labels of a confusion matrix


@dataclass(frozen=True)
class Confusion:
    """A label, the label that was predicted in its place, and how often that happened."""

    truth: str
    predicted: str
    count: int


class WrongExample(NamedTuple):
    """An example with a bad score, which `Mistakes.score_name` explains: an input, its correct answer and the model's.

    For a language model, the input is the text itself, and there are no answers.
    """

    score: float
    text: str
    truth: str = ""
    predicted: str = ""


@dataclass(frozen=True)
class Mistakes:
    """Mistakes on some data.

    Attributes:
        evaluated: the part of the data that was evaluated, in words.
        correct: number of correct ones of ``total`` predictions; of translators, answers that equal their targets.
        confusions: the most frequent ones, in descending order.
        worst: examples with the worst scores, which are ``score_name``; the worst first.
        labels: labels of the confusion matrix, in order; empty without a matrix.
        confusion: rows are true labels, columns are predicted labels ``(labels, labels)``.
        calibration: the result of `seriatim.evaluation.label_metrics.reliability`.
        calibration_error: the expected calibration error. It is None, and ``calibration`` empty, if predictions have no
            confidence.
        chrf: chrF of all answers of a translator, 0 to 100; None for other tasks.
    """

    evaluated: str
    correct: int
    total: int
    confusions: list[Confusion]
    worst: list[WrongExample]
    score_name: str
    labels: list[str] = field(default_factory=list)
    confusion: np.ndarray | None = None
    calibration: list[JsonObject] = field(default_factory=list)
    calibration_error: float | None = None
    chrf: float | None = None


def compare_labels(
    truth: list[str],
    predicted: list[str],
    confidence: np.ndarray,
    *,
    evaluated: str,
    worst: list[WrongExample],
    score_name: str,
    matrix: bool = True,
) -> Mistakes:
    """Return the mistakes of single predictions, with a confusion matrix if ``matrix``.

    ``confidence`` is the probability of each predicted label ``(items,)``; `Mistakes` explains the other arguments.
    """
    pairs = Counter(zip(truth, predicted, strict=True))
    correct = np.array([a == b for a, b in zip(truth, predicted, strict=True)])
    wrong = Counter({pair: count for pair, count in pairs.items() if pair[0] != pair[1]})
    error, _ = calibration(confidence, correct)

    # A matrix of very many labels would take more memory than it is worth.
    labels = sorted({*truth, *predicted})
    matrix = matrix and len(labels) <= MAX_MATRIX
    return Mistakes(
        evaluated,
        int(correct.sum()),
        len(correct),
        [Confusion(*pair, count) for pair, count in wrong.most_common(MAX_CONFUSIONS)],
        worst,
        score_name,
        labels if matrix else [],
        np.array([[pairs[true, label] for label in labels] for true in labels]) if matrix else None,
        reliability(confidence, correct),
        error,
    )


def evaluated_items(count: int, total: int, unit: str) -> str:
    """Return in words which part of the data was evaluated; ``unit`` is a plural such as ``texts``."""
    return f"all {total:,} {unit}" if count == total else f"the first {count:,} of {total:,} {unit}"
