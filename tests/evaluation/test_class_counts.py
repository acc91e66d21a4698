"""Counts by class add up to those of the whole, and the tests of classes find differences only where there are any."""

import numpy as np
import pytest

from seriatim.evaluation import label_metrics
from seriatim.evaluation.label_metrics import count_chunks, count_labels, exchange_test, f1, holm

TAGS = ["O", "B-X", "I-X", "B-Y", "I-Y"]


def random_tags(seed: int, items: int = 40) -> list[list[str]]:
    random = np.random.default_rng(seed)
    return [random.choice(TAGS, size=1 + i % 7).tolist() for i in range(items)]


def test_counts_of_labels_add_up_to_the_whole() -> None:
    truth, predicted = random_tags(0), random_tags(1)
    counts = count_labels(truth, predicted, TAGS)
    correct, guessed, true = counts.totals().sum(0)
    assert guessed == true == sum(map(len, truth))
    assert correct == sum(a == b for pair in zip(truth, predicted, strict=True) for a, b in zip(*pair, strict=True))
    assert np.array_equal(counts.totals(), [counts.of_class(i).sum(0) for i in range(len(TAGS))])


def test_counts_of_chunks_are_those_of_conlleval() -> None:
    truth, predicted = random_tags(2), random_tags(3)
    counts = count_chunks(truth, predicted, ["X", "Y"])
    whole = np.sum([label_metrics.chunk_counts(*pair) for pair in zip(truth, predicted, strict=True)], axis=0)
    assert np.array_equal(counts.totals().sum(0), whole)


def test_exchanging_equal_answers_shows_nothing_and_clear_ones_something() -> None:
    truth = [["a"]] * 30 + [["b"]] * 30
    good = count_labels(truth, truth, ["a", "b"])
    bad = count_labels(truth, [["b"]] * 20 + truth[20:], ["a", "b"])
    assert exchange_test(good.of_class(0), good.of_class(0)) == 1.0
    assert exchange_test(good.of_class(0), bad.of_class(0)) < 0.001
    assert exchange_test(bad.of_class(0), good.of_class(0)) == pytest.approx(
        exchange_test(good.of_class(0), bad.of_class(0)), abs=0.002
    )
    assert f1(bad.totals())[0] == pytest.approx(2 * 10 / (10 + 30))


def test_the_exchange_test_is_exact_for_one_item() -> None:
    """Of one item that differs, half of the exchanges give the observed difference, half its opposite."""
    first, second = np.array([[1, 1, 1], [1, 1, 1]]), np.array([[1, 1, 1], [0, 0, 1]])
    assert exchange_test(first, second, exchanges=200) == 1.0


def test_adjusted_p_values_keep_their_order_and_are_no_smaller() -> None:
    p_values = [0.01, 0.04, 0.03, 0.9]
    assert holm(p_values) == pytest.approx([0.04, 0.09, 0.09, 0.9])
    assert holm([]) == []
