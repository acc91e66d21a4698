"""Mistakes of a model on labelled data: confusions, calibration of its confidence, and the worst examples."""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from .intervals import Metrics
from .label_metrics import calibration

MAX_ITEMS, MAX_TOKENS, MAX_PAIRS = 2_000, 5_000, 100
"""Largest numbers of texts or sentences, of tokens of a running text, and of pairs to translate that are evaluated."""
MAX_WORST, MAX_CONFUSIONS = 10, 15
"""Numbers of examples and of pairs of labels that are listed."""


@dataclass(frozen=True)
class Confusion:
    """A label, the label that was predicted in its place, and how often that happened."""

    truth: str
    predicted: str
    count: int


class WrongExample(NamedTuple):
    """An example with a bad score.

    Attributes:
        score: the score; `Mistakes.score_name` says what it is.
        text: the input; for a language model the text itself.
        truth: the correct answer; empty for a language model.
        predicted: the answer of the model; empty for a language model.
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
        correct: number of correct predictions; for translators, of answers that equal their targets.
        total: number of predictions.
        confusions: the most frequent ones, in descending order.
        worst: examples with the worst scores, the worst first.
        score_name: what the scores are.
        labels: labels of the confusion matrix, in order; empty without a matrix.
        confusion: rows are true labels, columns are predicted labels ``(labels, labels)``.
        calibration: bins as returned by `seriatim.evaluation.label_metrics.calibration`; empty if predictions have no
            confidence.
        calibration_error: expected calibration error; None if predictions have no confidence.
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
    calibration: list[Metrics] = field(default_factory=list)
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
    """Return the mistakes of single predictions.

    Args:
        truth: true label of each item.
        predicted: predicted label of each item.
        confidence: probability of each predicted label ``(items,)``.
        evaluated: see `Mistakes`.
        worst: see `Mistakes`.
        score_name: see `Mistakes`.
        matrix: whether to count a confusion matrix.
    """
    pairs = list(zip(truth, predicted, strict=True))
    correct = np.array([a == b for a, b in pairs])
    wrong = Counter((a, b) for a, b in pairs if a != b)
    error, bins = calibration(confidence, correct)
    labels = sorted({*truth, *predicted}) if matrix else []
    index = {label: i for i, label in enumerate(labels)}
    confusion = np.zeros((len(labels), len(labels)), dtype=np.int64)
    if matrix:
        np.add.at(confusion, ([index[label] for label in truth], [index[label] for label in predicted]), 1)
    return Mistakes(
        evaluated,
        int(correct.sum()),
        len(correct),
        [Confusion(*pair, count) for pair, count in wrong.most_common(MAX_CONFUSIONS)],
        worst,
        score_name,
        labels,
        confusion if matrix else None,
        bins,
        error,
    )


def part_of(count: int, total: int, unit: str) -> str:
    """Return in words which part of the data was evaluated; ``unit`` is a plural such as ``texts``."""
    return f"all {total:,} {unit}" if count == total else f"the first {count:,} of {total:,} {unit}"
