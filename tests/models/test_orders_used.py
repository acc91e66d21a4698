"""The orders that an n-gram model uses for each token: against its losses, and against counting with dictionaries."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import seriatim
from seriatim.counting.ngram import NGram
from seriatim.counting.ngrams.counts import count_ngrams
from seriatim.counting.ngrams.orders_used import count_occurrences, orders_used
from seriatim.counting.ngrams.smoothing import Smoothing, smoothed
from seriatim.counting.ngrams.table import orders_of
from seriatim.inspection.inspected_run import explainer_of
from seriatim.inspection.ngram_section import note_lines, order_lens

V = 5
TEXTS = st.lists(st.integers(0, V - 1), min_size=1, max_size=60).map(lambda ids: np.array([*ids, 0], dtype=np.int32))
NAMES = ("kneser-ney", "absolute", "witten-bell", "add-k", "maximum-likelihood", "stupid-backoff")


@pytest.mark.filterwarnings("ignore:too few")
@settings(max_examples=60, deadline=None)
@given(TEXTS, TEXTS, st.integers(1, 5), st.sampled_from(NAMES))
def test_the_product_is_the_probability_of_the_model(train, other, order: int, name: str) -> None:
    model = NGram(orders_of(smoothed(count_ngrams(train, order, V), V, Smoothing(name))))
    found = orders_used(model.table, other)
    expected = np.exp(-model.look_up(other).losses)
    np.testing.assert_allclose(found.probabilities[-1], expected, rtol=1e-12)
    for token, n in enumerate(found.used.tolist()):
        assert found.is_known[n - 1, token]
        assert not found.is_known[n:, token].any()
        product = found.probabilities[n - 1, token] * found.backoffs[n:, token].prod()
        assert product == pytest.approx(expected[token])


def whole_grams(ids: list[int], n: int) -> list[tuple[int, ...]]:
    """The n-grams of a text that stands after a boundary, none across a boundary."""
    found = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
    return [words for words in found if 0 not in words[1:-1]]


@settings(max_examples=60, deadline=None)
@given(TEXTS, TEXTS, st.integers(1, 5))
def test_counts_are_those_of_dictionaries(train, other, order: int) -> None:
    ngrams, contexts = count_occurrences(train, other, order)
    text, read = [0, *other.tolist()], [0, *train.tolist()]
    for n in range(1, order + 1):
        there, before = Counter(whole_grams(read, n)), Counter(words[:-1] for words in whole_grams(read, n))
        for token in range(1, len(text)):
            words = tuple(text[token - n + 1 : token + 1]) if token >= n - 1 else ()
            is_whole = len(words) == n and 0 not in words[1:-1]
            assert ngrams[n - 1, token - 1] == (there[words] if is_whole else 0)
            if n == 1 or is_whole:
                assert contexts[n - 1, token - 1] == (len(train) if n == 1 else before[words[:-1]])


def test_a_run_shows_its_orders_with_the_counts_of_its_training_text(texts, tmp_path: Path) -> None:
    model = {"layer": "ngram", "options": {"order": 3, "smoothing": "maximum-likelihood"}}
    data = {"train": texts["train"], "valid": texts["valid"]}
    run = seriatim.train({"data": data, "tokenizer": {"kind": "word"}, "model": model, "out": str(tmp_path / "run")})
    found = explainer_of(run).ngram_orders("the cat sees the", texts["train"])
    words = Path(texts["train"]).read_text().split()
    assert found.counts[0][0].tolist() == [words.count(token) for token in found.tokens]
    used = found.used.used.tolist()
    for token, n in enumerate(used):  # with maximum likelihood, the n-gram that matched has the share of its count
        ngram, context = (counts[n - 1, token] for counts in found.counts)
        if n > 1:
            assert found.used.probabilities[n - 1, token] == pytest.approx(ngram / context)
    lens = order_lens(found)
    assert lens.values == used
    assert len(lens.notes) == len(found.tokens)
    assert explainer_of(run).ngram_orders("the cat", None).counts is None
    assert note_lines(found, 0)[0] == f"{used[0]}-gram"
