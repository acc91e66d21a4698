"""Mistakes of a model on labelled data: what it confuses, the calibration of its confidence, and its answers."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from ..core.json_object import JsonObject
from .label_metrics import reliability
from .token_scores import counted

Each = TypeVar("Each")
MAX_ITEMS, MAX_TOKENS, MAX_PAIRS = 2_000, 5_000, 100
"""Largest numbers of texts or sentences, of tokens of a running text, and of pairs to translate that are evaluated."""
MAX_LABELS = 20
"""Labels of a table of confusions; of more labels, those with the most errors."""


@dataclass(frozen=True)
class ConfusionCounts:
    """How often each label was predicted for each true label.

    Attributes:
        labels: all of them, or those with the most errors.
        matrix: rows are true labels, columns predicted labels ``(labels, labels)``.
        true, predicted: how often each of the labels is true, and how often it is predicted, among all labels.
        all_labels: number of labels that occur.
        wrong, total: numbers of wrong predictions and of all predictions.
    """

    labels: Sequence[str]
    matrix: Sequence[Sequence[int]]
    true: Sequence[int]
    predicted: Sequence[int]
    all_labels: int
    wrong: int
    total: int


def count_confusions(truth: Sequence[str], predicted: Sequence[str]) -> ConfusionCounts:
    """Count the predictions by true and predicted label, for at most `MAX_LABELS` labels."""
    pairs, true, given = Counter(zip(truth, predicted, strict=True)), Counter(truth), Counter(predicted)
    errors = {label: true[label] + given[label] - 2 * pairs[label, label] for label in sorted({*true, *given})}
    labels = sorted(sorted(errors, key=lambda label: -errors[label])[:MAX_LABELS])
    return ConfusionCounts(
        labels,
        [[pairs[row, column] for column in labels] for row in labels],
        [true[label] for label in labels],
        [given[label] for label in labels],
        len(errors),
        sum(errors.values()) // 2,
        len(truth),
    )


class AnsweredItem(NamedTuple):
    """An input with its right answer, and the answers of one or several models.

    Text and answers are strings; or the words of a sentence, and tags of them; or the tokens of a text, which has no
    right answer, and their surprisals in bits, None if infinite. ``figures`` are those of the answers, of one name, and
    ``right`` says which answers are right.
    """

    text: str | Sequence[str]
    truth: str | Sequence[str]
    answers: Sequence[Sequence[str | float | None]]
    figures: Sequence[float | None] = ()
    right: Sequence[bool] = ()


@dataclass(frozen=True)
class Mistakes:
    """Mistakes on some data.

    Attributes:
        evaluated: the part of the data that was evaluated, in words.
        correct: number of correct ones of ``total`` predictions; of translators, answers that equal their targets.
        items: all inputs that were answered, with a figure that is called ``figure``.
        more_is_better: whether larger values of the figure are better.
        confusions: of predictions that are labels or tokens.
        calibration: see `seriatim.evaluation.label_metrics.reliability`; empty if predictions have no confidence.
        chrf: chrF of all answers of a translator, 0 to 100; None for other tasks.
    """

    evaluated: str
    correct: int
    total: int
    items: Sequence[AnsweredItem]
    figure: str
    more_is_better: bool = False
    confusions: ConfusionCounts | None = None
    calibration: Sequence[JsonObject] = ()
    chrf: float | None = None


def compare_labels(
    truth: list[str],
    predicted: list[str],
    confidence: np.ndarray,
    *,
    evaluated: str,
    items: Sequence[AnsweredItem],
    figure: str,
    more_is_better: bool = False,
) -> Mistakes:
    """Return the mistakes of single predictions.

    ``confidence`` is the probability of each predicted label ``(predictions,)``; `Mistakes` explains the others.
    """
    confusions = count_confusions(truth, predicted)
    correct = np.array([a == b for a, b in zip(truth, predicted, strict=True)])
    bins = reliability(confidence, correct)
    right = int(correct.sum())
    return Mistakes(evaluated, right, len(correct), items, figure, more_is_better, confusions, bins)


def evaluated_items(count: int, total: int, unit: str) -> str:
    """Return in words which part of the data was evaluated; ``unit`` is a plural such as ``texts``."""
    if count < total:
        return f"{count:,} of {total:,} {unit}, spread over the data"
    return f"{'all ' * (total > 1)}{counted(total, unit)}"


def evenly(items: Sequence[Each], count: int) -> list[Each]:
    """Return up to ``count`` items, spread evenly over all."""
    return [items[i * len(items) // count] for i in range(count)] if len(items) > count else list(items)
