"""How sparse counts are: against an obvious count with dictionaries."""

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import seriatim
from seriatim.cli.main import main
from seriatim.counting.ngram import NGram
from seriatim.counting.ngrams.counts import count_ngrams
from seriatim.counting.ngrams.smoothing import Smoothing, smoothed
from seriatim.counting.ngrams.table import orders_of
from seriatim.counting.ngrams.unseen import EXACT, possible, seen_of, sparsity, tallied
from seriatim.pages.wording import percent

pytestmark = pytest.mark.filterwarnings("ignore:too few")
V = 5
TEXTS = st.lists(st.integers(0, V - 1), min_size=1, max_size=60).map(lambda ids: np.array([*ids, 0], dtype=np.int32))


def counted(ids: np.ndarray, order: int, how: Smoothing) -> NGram:
    record: list = []
    orders = orders_of(smoothed(tallied(count_ngrams(ids, order, V), record), V, how))
    return NGram(orders, seen_of(record))


def grams(ids: list[int], n: int) -> list[tuple[int, ...]]:
    """The n-grams that end at each token of a text, none across a boundary; before the text stands a boundary."""
    whole = [0, *ids]
    ends = range(max(1, n - 1), len(whole))
    found = [tuple(whole[end - n + 1 : end + 1]) for end in ends]
    return [words for words in found if 0 not in words[1:-1]]


def longest_match(ids: list[int], end: int, known: list[set[tuple[int, ...]]]) -> int:
    """The order of the longest n-gram that ends at a token and is known; 0 if there is none."""
    whole = [0, *ids]
    found = (
        n for n in range(len(known), 0, -1) if n <= end + 2 and tuple(whole[end + 2 - n : end + 2]) in known[n - 1]
    )
    return next(found, 0)


@settings(max_examples=80, deadline=None)
@given(TEXTS, TEXTS, st.integers(1, 6), st.sampled_from(["kneser-ney", "maximum-likelihood", "witten-bell", "add-k"]))
def test_figures_are_those_of_counting_with_dictionaries(train, other, order: int, name: str) -> None:
    model = counted(train, order, Smoothing(name))
    lookups = model.look_up(other)
    impossible = int(np.isinf(lookups.losses).sum())
    found = sparsity(lookups, model.seen, V, impossible)
    known = [set(grams(train.tolist(), n)) for n in range(1, order + 1)]
    longest = Counter(longest_match(other.tolist(), end, known) for end in range(len(other)))
    for n, row in enumerate(found["ngrams"], 1):
        there, asked = Counter(grams(train.tolist(), n)), grams(other.tolist(), n)
        lost = sum(words not in there for words in asked)
        assert row == {
            "order": n,
            "possible": V**n,
            "types": len(there),
            "once": sum(count == 1 for count in there.values()),
            "predicted": len(asked),
            "unseen": lost,
            "unseen_share": lost / len(asked) if asked else None,
            "matched": longest[n],
            "matched_share": longest[n] / len(other),
        }
    assert sum(row["matched"] for row in found["ngrams"]) + found["ngrams"][0]["unseen"] == len(other)
    if name != "maximum-likelihood":
        assert impossible == 0
        impossible = int(np.isinf(counted(train, order, Smoothing("maximum-likelihood")).look_up(other).losses).sum())
    assert found["maximum_likelihood_impossible_tokens"] == impossible
    assert found["maximum_likelihood_impossible_share"] == impossible / len(other)


def test_chunks_give_the_same_counts(monkeypatch) -> None:
    generator = np.random.default_rng(0)
    train, other = (np.append(generator.integers(0, V, 300), 0).astype(np.int32) for _ in range(2))
    model = counted(train, 4, Smoothing("maximum-likelihood"))
    whole = model.look_up(other)
    monkeypatch.setattr("seriatim.counting.ngram.LOOKUP_SIZE", 7)
    for one, part in zip(whole, model.look_up(other), strict=True):
        np.testing.assert_array_equal(one, part)


@pytest.mark.parametrize(("size", "n"), [(2, 53), (10, 20), (50_000, 100)])
def test_numbers_of_possible_ngrams_are_numbers_of_json(size: int, n: int) -> None:
    found = possible(size, n)
    assert found == size**n if size**n <= EXACT else isinstance(found, float)
    assert found == math.inf or math.isclose(math.log(found), n * math.log(size))


@pytest.fixture
def run(texts, tmp_path: Path) -> seriatim.Run:
    model = {"layer": "ngram", "options": {"order": 3, "smoothing": "maximum-likelihood"}}
    data = {"train": texts["train"], "valid": texts["valid"]}
    return seriatim.train({"data": data, "model": model, "out": str(tmp_path / "run")})


def test_evaluate_shows_them(run: seriatim.Run, texts, tmp_path: Path, capsys) -> None:
    other = tmp_path / "other.txt"
    other.write_text("a dog sees the sea .\nqq dog xx sees\n")
    assert main(["evaluate", str(run.path), "--data", str(other), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["loss"] is None  # infinite
    assert 0 < found["impossible_tokens"] < found["tokens"]
    shares = [row["unseen_share"] for row in found["ngrams"]]
    assert shares == sorted(shares)
    assert found["ngrams"][0]["types"] <= found["ngrams"][0]["possible"]
    assert main(["evaluate", str(run.path), "--data", str(other)]) == 0
    printed = capsys.readouterr().out
    assert "possible n-grams" in printed
    assert f"tokens of probability zero: {found['impossible_tokens']:,}" in printed
    assert run.summary["valid"]["ngrams"][2]["types"] == found["ngrams"][2]["types"]


def test_a_run_without_counts_of_its_training_text_says_so(run: seriatim.Run, texts) -> None:
    """Runs of earlier versions and imported ones hold tables alone."""
    known = run.evaluate(texts["valid"])
    run.model.seen = None
    unknown = run.evaluate(texts["valid"])
    assert [row["once"] for row in unknown["ngrams"]] == [None] * 3
    assert unknown["ngrams"][0]["unseen"] is None
    assert unknown["ngrams"][2]["unseen"] == known["ngrams"][2]["unseen"]
    lost = {key for key in known if key.startswith("maximum_likelihood_")}
    assert [unknown[key] for key in sorted(lost)] == [None, None]
    assert all(unknown[key] == known[key] for key in known.keys() - lost - {"ngrams"})


@pytest.mark.exhaustive
def test_inspect_has_a_section(run: seriatim.Run) -> None:
    page = Path(seriatim.inspect(run, "a dog sees the sea .").path).read_text()
    assert 'id="ngrams"' in page
    last = run.summary["valid"]["ngrams"][-1]
    assert f"{last['unseen']:,} ({percent(last['unseen_share'])})".replace(" %", "\xa0%") in page
    run.model.seen = None  # as in runs of earlier versions
    run.summary.pop("valid")
    assert "not known" in Path(seriatim.inspect(run, "a dog").path).read_text()


def test_a_cache_does_not_change_them(run: seriatim.Run, texts) -> None:
    plain = run.evaluate(texts["test"])
    run = run.reading({"model.options.cache": 0.1})
    run.model = run.task.builder.with_cache(run.model)
    cached = run.evaluate(texts["test"])
    assert cached["ngrams"] == plain["ngrams"]
    assert cached["loss"] != plain["loss"]
