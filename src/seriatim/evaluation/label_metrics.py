"""Metrics of predicted labels: one label per text (classification) or one per token (tagging).

The calibration error follows C. Guo et al., *On calibration of modern neural networks* (ICML 2017). Macro F1 is a mean
over the classes that occur in the true labels or in the predictions; a class that occurs in neither is left out.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..core.errors import EmptyError, MismatchError
from ..core.json_object import JsonObject
from ..data.tag_sets import marks_chunks
from .intervals import Compute, Measure, Measurement, mean, ratio, wilson, with_interval, with_intervals

# Chunks (named entities, phrases) of a tag sequence, by the rules of the CoNLL-2000 evaluation script.
# Published F1 scores come from that script, conlleval (E. Tjong Kim Sang and S. Buchholz, *Introduction to the
# CoNLL-2000 shared task: chunking*), which accepts any sequence of tags, well-formed or not. A tag is a prefix, a
# hyphen and a type; a tag without a hyphen has an empty type. Between two neighbouring tokens
# - a chunk *ends* after ``E``, ``S``, ``[`` or ``]``; after ``B`` or ``I`` if ``B``, ``S`` or ``O`` follows; and after
#   any prefix except ``O`` and ``.`` if a tag of another type follows;
# - a chunk *starts* with ``B``, ``S``, ``[`` or ``]``; with ``I`` or ``E`` after ``O``, ``E`` or ``S``; and with any
#   prefix except ``O`` and ``.`` after a tag of another type.
# Therefore ``I-PER`` after ``O`` starts a chunk, and so does ``I-LOC`` after ``I-PER``. The last token counts as
# followed by ``O``. ``S`` (a chunk of one token), and a new chunk at ``B`` after ``E``, a bracket or ``.``, are not in
# its first version; they follow later ones. ``L`` and ``U`` (BILOU) are read as ``E`` and ``S``, and ``M`` (BMES) as
# ``I``.


OTHER_SCHEMES = {"L": "E", "U": "S", "M": "I"}


class Counts(NamedTuple):
    """Numbers of correct chunks, of predicted chunks (``guessed``) and of true chunks (``gold``)."""

    correct: int
    guessed: int
    gold: int


class Boundary(NamedTuple):
    """Whether a chunk ends and whether one starts just before a token, and the type of the token."""

    ends: bool
    starts: bool
    type: str


def chunk_counts(truth: Sequence[str], predicted: Sequence[str]) -> Counts:
    """Count the chunks of a sentence over all types: precision is correct / guessed, recall is correct / gold."""
    by_type = chunk_counts_by_type(truth, predicted).values()
    return Counts(*map(sum, zip(Counts(0, 0, 0), *by_type, strict=True)))


def chunk_counts_by_type(truth: Sequence[str], predicted: Sequence[str]) -> dict[str, Counts]:
    """Count the chunks of a sentence for each type that occurs; sequences of different length are an InputError.

    Both sequences are scanned together, as conlleval does. For well-formed tags this equals comparing the two lists of
    chunks. If a chunk starts before another one has ended, the results differ, and conlleval's result is returned.
    """
    if len(truth) != len(predicted):
        raise MismatchError(f"got {len(predicted)} tags for {len(truth)} tokens; give one tag per token")

    # A chunk is right only if both sequences begin and end it together, with nothing else in between.
    correct, guessed, gold = Counter[str](), Counter[str](), Counter[str]()
    agree, last = False, ""
    for true, guess in zip(_boundaries(truth), _boundaries(predicted), strict=True):
        if agree and true.ends and guess.ends:
            correct[last] += 1
            agree = False
        elif true.ends != guess.ends or true.type != guess.type:
            agree = False
        gold[true.type] += true.starts
        guessed[guess.type] += guess.starts
        if true.starts and guess.starts and true.type == guess.type:
            agree = True
        last = true.type

    # Tokens outside of all chunks have an empty type, which is counted nowhere.
    types = sorted(kind for kind in gold.keys() | guessed.keys() if gold[kind] or guessed[kind])
    return {kind: Counts(correct[kind], guessed[kind], gold[kind]) for kind in types}


def _boundaries(tags: Sequence[str]) -> Iterator[Boundary]:
    """Yield the boundary before each token, and the one after the last token."""
    last, last_type = "O", ""
    for tag in (*tags, "O"):
        prefix, _, kind = tag.partition("-")
        prefix = OTHER_SCHEMES.get(prefix, prefix)
        other = kind != last_type
        yield Boundary(
            ends=last in ("E", "S", "[", "]")
            or (last in ("B", "I") and prefix in ("B", "S", "O"))
            or (last not in ("O", ".") and other),
            starts=prefix in ("B", "S", "[", "]")
            or (prefix in ("I", "E") and last in ("O", "E", "S"))
            or (prefix not in ("O", ".") and other),
            type=kind,
        )
        last, last_type = prefix, kind


MAX_CONFUSION = 1000
"""The largest number of labels whose confusion matrix is returned."""
MAX_STATISTICS = 1 << 25
"""The largest number of values of the statistics of macro F1: with more classes and items, it has no interval."""
BINS = 15  # number of bins of equal width in the calibration error
LEVELS, LEAST_PREDICTIONS = 10, 20  # bins of a reliability diagram at most, and predictions of each at least
TYPELESS = "chunk"  # the name of the type of chunks without types
Tags = Sequence[Sequence[str]]


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
    """Return the metrics of a classifier; ``labels`` names the classes, and after them true labels without a class.

    An item whose true label has no class counts as wrong, and is left out of the loss.

    Returns:
        ``accuracy``, ``macro_f1`` and ``loss`` (nats, −log P of the true label), each with its 95 % interval as
        ``NAME_low`` and ``NAME_high``; ``impossible``, the number of items whose true label has probability 0 (in the
        loss they count with the smallest positive number of the type); ``majority``, the accuracy of always predicting
        the most frequent label; ``classes``, with ``precision recall f1 support`` for each label; ``confusion``, with a
        row per true label; the ``calibration_error`` and bins of `calibration`; ``items``. Of more than `MAX_CONFUSION`
        labels, ``confusion`` is None, and ``classes`` has only those that occur.
    """
    truth, predicted, confidence, of_truth = predictions
    size, items = len(labels), len(truth)
    # items with equal labels are alike: one cell of the confusion matrix stands for all of them
    cells, counts = np.unique(truth * size + predicted, return_counts=True)
    cell_truth, cell_predicted = cells // size, cells % size
    hits = np.stack([cell_truth == cell_predicted, np.ones(len(counts))], 1)
    occurring, indices = np.unique([cell_truth, cell_predicted], return_inverse=True)
    cell_classes = indices.reshape(2, -1)
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
    """Return ``accuracy macro_f1 loss`` item by item; without ``macro_f1`` if it would take too much memory."""
    truth, predicted = predictions.truth, predictions.predicted
    measures = {
        "accuracy": Measure(np.stack([truth == predicted, np.ones(len(truth))], 1), mean),
        "loss": _loss(predictions.of_truth),
    }
    if 3 * len(truth) * len(labels) <= MAX_STATISTICS:
        measures["macro_f1"] = Measure(_class_counts(truth, predicted, len(labels)), _macro_f1)
    return measures


def measure_tags(truth: Tags, predicted: Tags) -> Measurement:
    """Measure a tagger by sentence, from the true and the predicted tags of each sentence.

    Returns:
        ``accuracy`` over tokens with its 95 % interval over sentences as ``accuracy_low`` and ``accuracy_high``,
        ``sentences`` and ``tokens``. If the true tags mark chunks (see `seriatim.data.tag_sets`), also ``precision``,
        ``recall`` and ``f1`` over whole chunks with their intervals, and ``entities``, with ``precision recall f1
        support`` for each type, or for `TYPELESS`, as conlleval computes them (`seriatim.evaluation.label_metrics`).

    Raises:
        InputError: no tokens, or sentences or tags that do not match.
    """
    _check_tags(truth, predicted)
    pairs, facts = list(zip(truth, predicted, strict=True)), JsonObject()
    hits = [[sum(a == b for a, b in zip(*pair, strict=True)), len(pair[0])] for pair in pairs]
    measures = {"accuracy": Measure(np.array(hits, float), mean)}
    if marks_chunks(itertools.chain.from_iterable(truth)):
        counts = np.array([chunk_counts(*pair) for pair in pairs], float)
        measures |= {name: Measure(counts, compute) for name, compute in OF_CHUNKS.items()}
        facts["entities"] = _by_type(truth, predicted)
    facts |= {"sentences": len(truth), "tokens": sum(map(len, truth))}
    return Measurement(with_intervals(measures) | facts, measures)


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


def reliability(confidence: np.ndarray, correct: np.ndarray) -> list[JsonObject]:
    """Return the accuracy at several levels of confidence, from predictions ``(items,)`` in bins of equal counts.

    Bins of equal width hold very unequal numbers of predictions, so that most of a drawing would rest on few of them.

    Returns:
        At most `LEVELS` bins with their mean ``confidence``, their ``accuracy``, its 95 % interval ``low`` to ``high``
        (E. Wilson), and their ``count``; lowest confidence first.
    """
    order = np.argsort(confidence, kind="stable")
    bins = np.array_split(order, max(1, min(LEVELS, len(order) // LEAST_PREDICTIONS)))
    found = []
    for rows in bins if len(order) else ():
        low, high = wilson(int(correct[rows].sum()), len(rows))
        means = {"confidence": float(confidence[rows].mean()), "accuracy": float(correct[rows].mean())}
        found.append({**means, "low": low, "high": high, "count": len(rows)})
    return found


def f1(sums: np.ndarray) -> np.ndarray:
    """Return F1 of summed counts ``(..., 3)``; 0 where there is nothing, as is usual."""
    return ratio(2 * sums[..., 0], sums[..., 1] + sums[..., 2])


OF_CHUNKS: dict[str, Compute] = {
    "precision": lambda sums: ratio(sums[..., 0], sums[..., 1]),
    "recall": lambda sums: ratio(sums[..., 0], sums[..., 2]),
    "f1": f1,
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
        for kind, counts in chunk_counts_by_type(*pair).items():
            sums[kind] = sums.get(kind, 0) + np.array(counts)
    return {kind or TYPELESS: _scores(*sums[kind]) for kind in sorted(sums)}


def _check_tags(truth: Tags, predicted: Tags) -> None:
    if len(truth) != len(predicted):
        raise MismatchError(f"got predictions for {len(predicted)} of {len(truth)} sentences; give one for each")
    for i, (true_tags, tags) in enumerate(zip(truth, predicted, strict=True), 1):
        if len(true_tags) != len(tags):
            raise MismatchError(
                f"sentence {i}: got {len(tags)} tags for {len(true_tags)} tokens; give one tag per token"
            )
    if not any(map(len, truth)):
        raise EmptyError("there is nothing to evaluate; give at least one token")


FIGURES = {"accuracy": mean, "macro_f1": _macro_f1, **OF_CHUNKS}
"""How each figure is computed from summed statistics."""


# Counts by class of labelled items, and a paired test of the F1 of two models in each class.
#
# Both models answer the same items. Under the hypothesis that they are equal, the answers of an item could be
# exchanged: the test exchanges the answers of random items, and counts how often F1 then differs by at least as much as
# it did (approximate randomization: E. Noreen, *Computer-intensive methods for testing hypotheses*, 1989; for F1,
# A. Yeh, *More accurate tests for the statistical significance of result differences*, COLING 2000). Many classes are
# tested together, so the p-values are adjusted (S. Holm, *A simple sequentially rejective multiple test procedure*,
# 1979).

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
    keys, indices = np.unique(np.concatenate([item * size + true, item * size + guess]), return_inverse=True)
    counts = np.zeros((len(keys), 3), np.int64)
    of_true, of_guess = indices[: len(item)], indices[len(item) :]
    np.add.at(counts[:, 0], of_true, true == guess)
    np.add.at(counts[:, 1], of_guess, 1)
    np.add.at(counts[:, 2], of_true, 1)
    return ClassCounts(classes, len(truth), np.stack([keys // size, keys % size], 1), counts)


def count_chunks(truth: Tags, predicted: Tags, classes: Sequence[str]) -> ClassCounts:
    """Count the chunks of each type, which must be one of ``classes``, in sequences of tags, as conlleval does."""
    numbers = {name: i for i, name in enumerate(classes)}
    cells, counts = [], []
    for i, pair in enumerate(zip(truth, predicted, strict=True)):
        for kind, found in chunk_counts_by_type(*pair).items():
            cells.append((i, numbers[kind]))
            counts.append(found)
    shape = (len(cells), 2), (len(cells), 3)
    return ClassCounts(
        classes, len(truth), np.array(cells, np.int64).reshape(shape[0]), np.array(counts, np.int64).reshape(shape[1])
    )


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
