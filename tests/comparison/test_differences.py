"""Where models differ: parts add up to the whole, two models are treated alike, and pages say no more than that."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import seriatim
from seriatim.comparison.comparison_page import report
from seriatim.comparison.differences import (
    MAX_SHOWN,
    block_sums,
    buckets_of,
    choose_shown,
    compare_buckets,
    compare_classes,
    compare_texts,
    confusions,
    most_different,
)
from seriatim.comparison.differences_section import differences_section
from seriatim.comparison.item_answers import ItemAnswers, with_equal_names
from seriatim.comparison.results import Results
from seriatim.evaluation.token_scores import UNKNOWN, TokenLosses, cut_evenly, positions_in_lines
from seriatim.storage.weights import load_tensors

from ..exhaustive import parameters
from ..pages.test_page import HOSTILE, check_page
from .comparisons import LINES, SMALL, made_up, small
from .test_comparison_page import without_plots


def answers(truth: list[str], predicted: list[str]) -> ItemAnswers:
    """The answers of a classifier."""
    names = sorted({*truth, *predicted})
    true, guess = (np.array([names.index(label) for label in row]) for row in (truth, predicted))
    rows = np.arange(len(truth))
    return ItemAnswers(
        len(rows), rows, "texts", names, np.ones(len(rows), int), np.arange(len(rows)) % 9, true, guess, []
    )


def token_losses(seed: int = 0, lines: int = 30) -> TokenLosses:
    """Random losses of lines of 1 to 12 tokens, the last of which ends the line."""
    random = np.random.default_rng(seed)
    ends = np.random.default_rng(9).integers(1, 13, size=lines).cumsum()
    size = int(ends[-1])
    ids = np.random.default_rng(8).integers(1, 20, size=size)
    ids[ends - 1] = 0
    piece_ends, piece_blocks = cut_evenly(ends, 5)
    frequencies = np.where(ids == 1, UNKNOWN, ids**3 - 8)
    names = {token: f"w{token} " for token in range(20)}
    positions = positions_in_lines(ids, ids == 0)
    return TokenLosses(
        random.gamma(2, 1, size), ids, positions, frequencies, piece_ends, piece_blocks, names, {}, "all lines"
    )


def test_places_begin_at_1_after_each_end_of_a_line() -> None:
    ends = np.array([False, True, True, False, False])
    assert positions_in_lines(np.zeros(5), ends).tolist() == [1, 2, 1, 1, 2]
    assert positions_in_lines(np.zeros(0), np.zeros(0, bool)).tolist() == []


def test_pieces_cover_the_text_and_are_not_too_long() -> None:
    ends, blocks = cut_evenly(np.array([3, 14, 15]), 5)
    assert ends.tolist()[-1] == 15
    assert {3, 14, 15} <= set(ends.tolist())
    assert np.diff(ends, prepend=0).max() <= 5
    assert blocks.tolist() == sorted(blocks.tolist())


def test_losses_of_buckets_weighted_by_their_tokens_are_the_loss_of_the_whole() -> None:
    losses = token_losses()
    for buckets, found in zip(buckets_of(losses), compare_buckets({"a": losses}), strict=True):
        assert block_sums(losses, buckets)[..., 1].sum() == len(losses.nats)
        means = np.array([value or 0.0 for value, *_ in found["values"]["a"]])
        assert means @ found["counts"] == pytest.approx(losses.nats.sum())
        assert all(low <= value <= high for value, low, high in (found["values"]["a"][i] for i in found["shown"]))


def test_infinite_losses_have_no_mean_and_are_no_error() -> None:
    losses = token_losses()
    nats = losses.nats.copy()
    nats[0] = np.inf
    found = compare_buckets({"a": losses, "b": replace(losses, nats=nats)})[0]
    assert found["values"]["b"][0] == [None, None, None]
    assert found["values"]["a"][0][0] is not None
    assert all(test["bucket"] != 0 for test in found["tests"]["results"])


def test_a_disagreement_of_two_models_is_the_opposite_of_the_exchanged_one() -> None:
    random = np.random.default_rng(0)
    first, second = random.gamma(2, 1, 50), random.gamma(2, 1, 50)
    assert most_different(first, second, range(50)) == most_different(second, first, range(50))[::-1]
    assert most_different(first, first, range(50)) == ([], [])
    first[3], second[4] = math.inf, math.inf
    first[5] = second[5] = math.inf
    for_first, for_second = most_different(first, second, range(50))
    assert (for_first[0], for_second[0]) == (4, 3)
    assert 5 not in for_first + for_second
    one, other = token_losses(0), token_losses(1)
    found, exchanged = compare_texts({"a": one, "b": other}), compare_texts({"b": other, "a": one})
    assert [text["tokens"] for text in found["for_first"]] == [text["tokens"] for text in exchanged["for_second"]]
    assert found["better"] == exchanged["worse"]


def test_the_surprisals_of_a_text_add_up_to_its_loss() -> None:
    found = compare_texts({"a": token_losses(0), "b": token_losses(1)})
    for text in found["for_first"]:
        for bits, nats in zip(text["bits"], text["figures"], strict=True):
            assert sum(bits) == pytest.approx(nats / math.log(2), abs=0.01 * len(bits))


def test_classes_add_up_and_only_clear_differences_are_marked() -> None:
    truth = ["a"] * 40 + ["b"] * 40 + ["c"] * 4
    worse = ["b"] * 25 + truth[25:]
    given = with_equal_names(
        {"good": answers(truth, truth), "same": answers(truth, truth), "bad": answers(truth, worse)}
    )
    found = compare_classes(given, tags=False)
    assert sum(row["support"] for row in found["rows"]) == len(truth)
    assert found["tests"] == 4  # c has too few texts
    assert found["differing"] == {"same": 0, "bad": 2}
    assert found["rows"][2]["p_values"] == {}
    matrix = np.array(confusions(given)["bad"]["matrix"])
    assert matrix.sum() == len(truth)
    assert matrix[0].tolist() == [15, 25, 0]


def test_of_many_classes_some_are_shown_and_the_others_counted() -> None:
    names = [f"label {i:05}" for i in range(300)]
    truth = [name for i, name in enumerate(names) for _ in range(1 + (i < 100) * 5)]
    given = with_equal_names({"good": answers(truth, truth), "bad": answers(truth, truth[::-1])})
    found = compare_classes(given, tags=False)
    assert len(found["rows"]) == MAX_SHOWN
    assert found["classes"] == 300
    assert "pairs" in confusions(given)["bad"]
    values = made_up(("rnn", "lstm")) | {"differ": {"classes": found, "confusions": confusions(given)}}
    text = check_page(report(without_plots(values))).text()
    assert "270 of 300 classes are left out" in text
    assert choose_shown(list(range(100)), [90, 80], np.ones(100))[-2:] == [80, 90]


@pytest.mark.parametrize("task", parameters(["classify", "seq2seq", "tag"], everyday=["classify"]))
def test_answers_of_a_comparison_are_measured_and_shown(task: str, tmp_path: Path, in_process: None) -> None:
    path = tmp_path / ("data.conll" if task == "tag" else "data.tsv")
    path.write_text(LINES[task])
    data = {"train": str(path), "valid": str(path), "alternatives": False}
    config = {**SMALL, "task": task, "data": data, "out": str(tmp_path / "out")}
    kind = "word" if task == "tag" else "char"
    found = seriatim.compare({**config, "tokenizer": {"kind": kind}}, layers=["rnn", "window"], steps=2)
    differ = found.results["differ"]
    assert [differ["disagreement"]["first"], differ["disagreement"]["second"]] == [row["layer"] for row in found.rows]
    assert ("classes" in differ) == (task != "seq2seq")
    if task != "seq2seq":
        assert sum(row["support"] for row in differ["classes"]["rows"]) == {"classify": 12, "tag": 20}[task]
        for row in found.rows:
            matrix = np.array(differ["confusions"][row["layer"]]["matrix"])
            assert np.trace(matrix) / matrix.sum() == pytest.approx(row["metrics"]["accuracy"])
    assert "Where they differ" in check_page(report(json.loads(json.dumps(found.results)))).text()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("task", "unit"),
    [
        ("lm", "line"),
        ("mlm", "stream"),
        pytest.param("lm", "stream", marks=pytest.mark.exhaustive),
        pytest.param("mlm", "line", marks=pytest.mark.exhaustive),
    ],
)
def test_losses_of_tokens_are_those_of_the_evaluation(task: str, unit: str, texts, tmp_path: Path, in_process) -> None:
    config = small(texts, tmp_path / "a", unit=unit) | {"task": task, "tokenizer": {"kind": "word"}}
    found = seriatim.compare(config, layers=["rnn", "gru"], steps=2)
    assert {each["by"] for each in found.results["differ"]["buckets"]} == {"position", "frequency"}
    for row in found.rows:
        nats = load_tensors(tmp_path / "a" / "rows" / f"{row['layer']}-1.safetensors")["items.nats"]
        assert float(nats.mean()) == pytest.approx(row["metrics"]["loss"], rel=1e-4)
    page = report(json.loads(json.dumps(found.results)))
    assert "Each token below is shaded by its surprisal" in check_page(page).text()


def test_rows_of_earlier_versions_give_a_page_without_this_section() -> None:
    values = without_plots(made_up(("rnn", "lstm")))
    assert differences_section(Results(values)) == []
    assert 'id="differ"' not in report(values)
    for row in values["rows"]:
        assert not {"answers", "token_losses"} & row.keys()


def test_hostile_labels_and_texts_stay_text() -> None:
    truth, other = [HOSTILE, "\u202eabc"] * 20, [HOSTILE] * 40
    given = with_equal_names({"rnn": answers(truth, truth), "lstm": answers(truth, other)})
    item = {
        "text": HOSTILE,
        "truth": HOSTILE,
        "answers": [HOSTILE, "b"],
        "right": [True, False],
        "figures": [None, 2.0],
    }
    tokens = {"tokens": [HOSTILE, "e\u0301", "x" * 10_000], "bits": [[None, 0.0, 1.0]] * 2, "figures": [None, 1.0]}
    base = {"first": "rnn", "second": "lstm", "of": "loss", "items": 3, "outcomes": 9}
    base |= {"better": [0.5, 0.4, 0.6], "worse": [0.5, 0.4, 0.6]}
    for found in (
        base | {"kind": "answers", "for_first": [item], "for_second": []},
        base | {"kind": "tokens", "for_first": [tokens], "for_second": [tokens]},
    ):
        differ = {"classes": compare_classes(given, tags=False), "confusions": confusions(given), "disagreement": found}
        page = check_page(report(without_plots(made_up(("rnn", "lstm")) | {"differ": differ})))
        assert "<script>alert(1)" in page.text()
        assert not page.all("img")
