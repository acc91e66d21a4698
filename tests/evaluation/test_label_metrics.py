"""Metrics of classifiers and taggers, compared with their definitions."""

import json

import numpy as np
import pytest

from seriatim.evaluation import label_metrics
from seriatim.evaluation.intervals import interval, paired
from seriatim.evaluation.label_metrics import (
    Predictions,
    measure_tags,
    prediction_measures,
    prediction_metrics,
    reliability,
)

from ..refusals import refused

LABELS = ["a", "b", "c", "d", "never"]


def predictions(truth: np.ndarray, probabilities: np.ndarray) -> Predictions:
    made = Predictions.empty(truth, probabilities.dtype.type)
    made.set(np.arange(len(truth)), probabilities)
    return made


def classification_metrics(truth: np.ndarray, probabilities: np.ndarray, labels: list[str]) -> dict:
    return prediction_metrics(predictions(truth, probabilities), labels)


def classification_measures(truth: np.ndarray, probabilities: np.ndarray, labels: list[str]) -> dict:
    return prediction_measures(predictions(truth, probabilities), labels)


def example(items: int, seed: int = 0, skill: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Return true labels of four of five classes, and probabilities that depend on them."""
    random = np.random.default_rng(seed)
    truth = random.integers(0, 4, items)
    scores = random.normal(size=(items, 5)) + skill * np.eye(5)[truth] - 9 * (np.arange(5) == 4)
    weights = np.exp(scores)
    return truth, weights / weights.sum(1, keepdims=True)


def by_definition(truth: list[int], predicted: list[int], label: int) -> tuple[float, float, float]:
    both = sum(t == p == label for t, p in zip(truth, predicted, strict=True))
    precision = both / predicted.count(label) if label in predicted else 0.0
    recall = both / truth.count(label) if label in truth else 0.0
    return precision, recall, 2 * precision * recall / (precision + recall) if both else 0.0


@pytest.mark.parametrize("items", [1, 2, 7, 200])
def test_figures_by_definition(items: int) -> None:
    truth, probabilities = example(items)
    metrics = classification_metrics(truth, probabilities, LABELS)
    true, predicted = truth.tolist(), [max(range(5), key=row.__getitem__) for row in probabilities.tolist()]
    assert metrics["accuracy"] == pytest.approx(sum(t == p for t, p in zip(true, predicted, strict=True)) / items)
    occurring = set(true) | set(predicted)
    assert metrics["macro_f1"] == pytest.approx(np.mean([by_definition(true, predicted, i)[2] for i in occurring]))
    for i, label in enumerate(LABELS):
        own = metrics["classes"][label]
        assert (own["precision"], own["recall"], own["f1"]) == pytest.approx(by_definition(true, predicted, i))
        assert own["support"] == true.count(i)
    assert metrics["majority"] == max(true.count(i) for i in range(5)) / items
    assert metrics["loss"] == pytest.approx(-np.mean([np.log(probabilities[i, t]) for i, t in enumerate(true)]))
    assert sum(map(sum, metrics["confusion"])) == metrics["items"] == items
    assert all(metrics["confusion"][t][p] for t, p in zip(true, predicted, strict=True))
    json.dumps(metrics, allow_nan=False)


def test_many_labels_take_memory_of_those_that_occur(monkeypatch: pytest.MonkeyPatch) -> None:
    truth, probabilities = example(300)
    usual = classification_metrics(truth, probabilities, LABELS)
    labels = [*LABELS, *map(str, range(100_000))]
    predictions = label_metrics.Predictions.empty(truth)
    predictions.set(np.arange(300), probabilities)
    found = label_metrics.prediction_metrics(predictions, labels)
    assert found["confusion"] is None
    assert set(found["classes"]) == set(LABELS) - {"never"}
    for name in ("accuracy", "macro_f1", "loss", "macro_f1_low", "majority"):
        assert found[name] == pytest.approx(usual[name])
    assert "macro_f1" not in label_metrics.prediction_measures(predictions, labels)
    monkeypatch.setattr(label_metrics, "MAX_STATISTICS", 100)
    found = label_metrics.prediction_metrics(predictions, labels)
    assert (found["macro_f1"], found["macro_f1_low"]) == (pytest.approx(usual["macro_f1"]), None)


def test_calibration_by_definition() -> None:
    truth, probabilities = example(500)
    metrics = classification_metrics(truth, probabilities, LABELS)
    confidence, right = probabilities.max(1), probabilities.argmax(1) == truth
    error = 0.0
    for i, found in enumerate(metrics["calibration"]):
        inside = (confidence > i / 15) & (confidence <= (i + 1) / 15)
        assert found["count"] == inside.sum()
        if found["count"]:
            assert found["confidence"] == pytest.approx(confidence[inside].mean())
            assert found["accuracy"] == pytest.approx(right[inside].mean())
            error += inside.sum() / 500 * abs(confidence[inside].mean() - right[inside].mean())
    assert metrics["calibration_error"] == pytest.approx(error)


def test_the_calibration_error_is_small_only_for_a_calibrated_model() -> None:
    random = np.random.default_rng(0)
    sure = random.uniform(0.5, 1, 20000)
    probabilities = np.stack([sure, 1 - sure], 1)
    truth = (random.random(20000) > sure).astype(int)
    assert classification_metrics(truth, probabilities, ["a", "b"])["calibration_error"] < 0.02
    certain = np.eye(2)[np.zeros(20000, int)]
    assert classification_metrics(truth, certain, ["a", "b"])["calibration_error"] == pytest.approx(truth.mean())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_probability_zero_of_the_truth_costs_a_finite_amount(dtype: type) -> None:
    metrics = classification_metrics(np.array([1, 0]), np.array([[1, 0], [1, 0]], dtype), ["a", "b"])
    assert metrics["loss"] == pytest.approx(-np.log(np.finfo(dtype).tiny) / 2)
    assert metrics["impossible"] == 1


def test_intervals_agree_with_those_of_single_items() -> None:
    truth, probabilities = example(400)
    metrics = classification_metrics(truth, probabilities, LABELS)
    for name, measure in classification_measures(truth, probabilities, LABELS).items():
        value, low, high = interval(*measure)
        assert metrics[name] == pytest.approx(value)
        assert metrics[f"{name}_low"] < value < metrics[f"{name}_high"]
        np.testing.assert_allclose([metrics[f"{name}_low"], metrics[f"{name}_high"]], [low, high], atol=0.015)


def test_two_classifiers_are_compared_on_the_same_items() -> None:
    good, bad = (classification_measures(*example(400, skill=skill), LABELS) for skill in (2.0, 0.5))
    for name in ("accuracy", "macro_f1"):
        assert paired(good[name].statistics, bad[name].statistics, good[name].compute).p_value < 0.01


TRUTH = [["B-X", "I-X", "O"], ["B-Y"], [], ["O", "I-X", "B-X"]]
FOUND = [["B-X", "I-X", "O"], ["B-X"], [], ["O", "I-X", "I-X"]]


def test_tagging_by_hand() -> None:
    metrics = measure_tags(TRUTH, FOUND).metrics
    assert (metrics["accuracy"], metrics["tokens"], metrics["sentences"]) == (5 / 7, 7, 4)
    assert (metrics["precision"], metrics["recall"]) == pytest.approx((1 / 3, 1 / 4))
    assert metrics["f1"] == pytest.approx(2 / 7)
    assert metrics["entities"] == {
        "X": {"precision": 1 / 3, "recall": 1 / 3, "f1": 1 / 3, "support": 3},
        "Y": {"precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 1},
    }
    for name in ("accuracy", "precision", "recall", "f1"):
        assert metrics[f"{name}_low"] <= metrics[name] <= metrics[f"{name}_high"]
    json.dumps(metrics, allow_nan=False)


def test_f1_is_of_the_summed_counts() -> None:
    random = np.random.default_rng(0)
    tags = np.array(["O", "B-X", "I-X", "I-Y"])
    truth = [tags[random.integers(0, 4, random.integers(1, 9))].tolist() for _ in range(60)]
    found = [[t if random.random() < 0.8 else "O" for t in sentence] for sentence in truth]
    correct, guessed, gold = np.sum([label_metrics.chunk_counts(*pair) for pair in zip(truth, found, strict=True)], 0)
    metrics = measure_tags(truth, found).metrics
    assert metrics["f1"] == pytest.approx(2 * correct / (guessed + gold))
    assert sum(own["support"] for own in metrics["entities"].values()) == gold
    measures = measure_tags(truth, found).measures, measure_tags(truth, truth).measures
    assert paired(measures[1]["f1"].statistics, measures[0]["f1"].statistics, measures[0]["f1"].compute).p_value < 0.01


@pytest.mark.parametrize(
    ("truth", "found", "counts"),
    [
        ("B I O B O", "B I O B O", (2, 2, 2)),
        ("B I O B O", "B O O B I", (0, 2, 2)),
        ("B I B I O", "B I I I O", (0, 1, 2)),
        ("O I I O I", "O B I O B", (2, 2, 2)),  # as IOB1
        ("B E O S O", "B E O S S", (2, 3, 2)),  # IOBES
        ("B M E S O", "B M M S O", (2, 2, 2)),  # BMES: the first chunk of the answer ends where S begins
        ("B-X E-X O S-Y O", "B-X I-X O B-Y O", (2, 2, 2)),
        ("B-X L-X O U-Y O", "B-X L-X O U-X O", (1, 2, 2)),  # BILOU
        ("B-X I-X O PER O", "B-X I-X O B-X O", (1, 2, 1)),  # an odd tag
    ],
)
def test_chunks_of_every_scheme_by_hand(truth: str, found: str, counts: tuple[int, int, int]) -> None:
    """Correct, predicted and true chunks, as conlleval and seqeval count them."""
    correct, guessed, gold = counts
    metrics = measure_tags([truth.split()], [found.split()]).metrics
    assert (metrics["precision"], metrics["recall"]) == pytest.approx((correct / guessed, correct / gold))
    assert metrics["f1"] == pytest.approx(2 * correct / (guessed + gold))
    assert set(metrics["entities"]) == ({"chunk"} if "-" not in truth else {"X", "Y"} - ({"Y"} - set(truth)))


@pytest.mark.parametrize("tags", [["NOUN", "VERB"], ["O", "O"], ["B-X", "PRP$"], ["-LRB-", "O"], ["NN-X", "O"]])
def test_tags_that_mark_no_chunks_have_an_accuracy_only(tags: list[str]) -> None:
    metrics = measure_tags([tags, tags], [tags, tags]).metrics
    assert metrics["accuracy"] == metrics["accuracy_high"] == 1
    assert 0 < metrics["accuracy_low"] < 1  # two sentences do not show that all tags are right
    assert "f1" not in metrics


def test_tags_that_do_not_match_are_refused() -> None:
    with refused("mismatch"):
        measure_tags([["O"], ["O"]], [["O"]])
    with refused("mismatch"):
        measure_tags([["O"], ["O", "O"]], [["O"], ["O"]])
    for nothing in ([], [[]]):
        with refused("empty"):
            measure_tags(nothing, nothing)


def test_levels_of_confidence_have_equal_numbers_of_predictions() -> None:
    random = np.random.default_rng(0)
    confidence = random.beta(9, 1, 2_003)  # most predictions are confident
    correct = random.random(2_003) < confidence
    levels = reliability(confidence, correct)
    counts = [level["count"] for level in levels]
    assert len(levels) == 10
    assert max(counts) - min(counts) <= 1
    assert sum(counts) == 2_003
    assert sum(level["accuracy"] * level["count"] for level in levels) == pytest.approx(correct.sum())
    means = [level["confidence"] for level in levels]
    assert means == sorted(means)
    assert sum(level["low"] <= level["confidence"] <= level["high"] for level in levels) >= 8, "it is calibrated"
    assert [level["count"] for level in reliability(confidence[:50], correct[:50])] == [25, 25]
    assert reliability(confidence[:0], correct[:0]) == []
