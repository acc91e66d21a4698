"""Where models differ: parts add up to the whole, two models are treated alike, and pages say no more than that."""

import itertools
import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

import seriatim
from seriatim.comparison.comparison_page import report
from seriatim.comparison.differences import (
    MAX_SHOWN,
    answered_items,
    by_length,
    compare_classes,
    compare_tokens,
    scored_texts,
)
from seriatim.comparison.differences_section import bucket_chart, bucket_facts, class_table, differences_section
from seriatim.comparison.item_answers import ItemAnswers, with_equal_names
from seriatim.comparison.results import Results
from seriatim.evaluation.error_analysis import MAX_LABELS, count_confusions
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
    for found in compare_tokens({"a": losses}):
        assert sum(found["counts"]) == len(losses.nats)
        means = np.array([value or 0.0 for value, *_ in found["values"]["a"]])
        assert means @ found["counts"] * math.log(2) == pytest.approx(losses.nats.sum())
        assert all(low <= value <= high for value, low, high in (found["values"]["a"][i] for i in found["shown"]))


def test_infinite_losses_have_no_mean_and_are_no_error() -> None:
    losses = token_losses()
    nats = losses.nats.copy()
    nats[0] = np.inf
    found = compare_tokens({"a": losses, "b": replace(losses, nats=nats)})[0]
    assert found["values"]["b"][0] == [None, None, None]
    assert found["values"]["a"][0][0] is not None
    assert all(test["bucket"] != 0 for test in found["tests"]["results"])
    assert math.isnan(bucket_chart(found, Results(made_up(("rnn",))), None).series[1].y[0])


def test_buckets_of_lengths_have_nearly_equal_sizes_and_every_input_once() -> None:
    lengths = np.random.default_rng(0).permutation(300)
    groups = by_length(lengths)
    assert sorted(np.concatenate(groups)) == list(range(300))
    assert {len(rows) for rows in groups} <= {49, 50, 51}
    assert all(lengths[one].max() < lengths[other].min() for one, other in itertools.pairwise(groups))
    assert [len(by_length(np.array(each))) for each in ([3] * 100, [3, 4], [3, 5] * 50)] == [1, 1, 2]


def test_only_ranges_that_a_test_supports_are_named_and_none_of_unequal_budgets() -> None:
    names, results = ["1", "2–4", "5–16"], [(0.01, 0.2, 0.4), (0.2, 0.1, 0.5), (0.01, -0.4, -0.2)]
    tests = [
        {"bucket": i, "p_value": p, "low": low, "high": high, "difference": (low + high) / 2}
        for i, (p, low, high) in enumerate(results)
    ]
    buckets = {"names": names, "of": "loss (bits per token)"}
    buckets |= {"tests": {"first": "rnn", "second": "lstm", "results": tests}}
    values = made_up(("rnn", "lstm"))
    facts = bucket_facts(buckets, Results(values))
    assert facts is not None
    assert (facts.above, facts.below, facts.total) == ("1", "5–16", 3)
    given = with_equal_names({name: answers(["a"] * 40, [name[0]] * 40) for name in ("rnn", "lstm")})
    classes = compare_classes(given, tags=False)
    assert classes["tests"] == 1
    assert str(classes["tests"]) in class_table(classes, Results(values)).caption
    for i, row in enumerate(values["rows"]):
        for run in row["runs"]:
            run |= {"tokens": 1000 * (1 + i), "ended_early": False}
    values["budget"] = {"tokens": 1000}
    assert bucket_facts(buckets, Results(values)) is None
    assert "Holm" not in class_table(classes, Results(values)).caption


def test_the_surprisals_of_a_text_add_up_to_its_bits() -> None:
    losses = {"a": token_losses(0), "b": token_losses(1)}
    found = scored_texts(losses)
    assert "".join(itertools.chain(*(item["text"] for item in found["items"]))).split()[:2] == [
        f"w{token}" for token in losses["a"].ids[:2]
    ]
    for item in found["items"]:
        for bits, total in zip(item["answers"], item["figures"], strict=True):
            assert sum(bits) == pytest.approx(total, abs=0.01 * len(bits) + 0.01)
    totals = np.array([item["figures"] for item in found["items"]]).sum(0)
    assert totals == pytest.approx([each.nats.sum() / math.log(2) for each in losses.values()], rel=1e-3)


def test_items_have_the_answers_of_all_layers_and_wrong_tags_are_counted() -> None:
    texts = [{"row": i, "text": f"x{i} y", "truth": "A B", "answer": "A B", "right": True} for i in (0, 2)]
    one = ItemAnswers(
        3,
        np.arange(3),
        "words",
        ["A", "B"],
        np.full(3, 2),
        np.full(3, 2),
        np.tile([0, 1], 3),
        np.tile([0, 1], 3),
        texts,
    )
    wrong = replace(one, predicted=np.array([0, 1, 0, 1, 1, 1]))
    found = answered_items({"one": one, "wrong": wrong}, {"one": {}, "wrong": {}}, [], tags=True)
    assert found["layers"] == ["one", "wrong"]
    assert [item["figures"] for item in found["items"]] == [[0, 0], [0, 1]]
    assert found["items"][1]["answers"] == [["A", "B"], ["B", "B"]]
    assert answered_items({"one": one}, {"one": {}}, [], tags=False)["items"][0]["figures"] == []


def test_classes_add_up_and_only_clear_differences_are_marked() -> None:
    truth = ["a"] * 40 + ["b"] * 40 + ["c"] * 4
    worse = ["b"] * 25 + truth[25:]
    given = with_equal_names(
        {"good": answers(truth, truth), "same": answers(truth, truth), "bad": answers(truth, worse)}
    )
    found = compare_classes(given, tags=False)
    assert sum(row["support"] for row in found["rows"]) == len(truth)
    assert found["tests"] == 4  # c has too few texts
    assert all(row["p_values"].get("same", 1) == 1 for row in found["rows"])
    assert [row["p_values"]["bad"] < 0.05 for row in found["rows"][:2]] == [True, True]
    assert found["rows"][2]["p_values"] == {}
    counts = count_confusions(*given["bad"].flat_labels())
    assert np.sum(counts.matrix) == counts.total == len(truth)
    assert counts.matrix[0] == [15, 25, 0]
    assert (counts.true, counts.predicted, counts.wrong) == ([40, 40, 4], [15, 65, 4], 25)


def test_of_many_classes_some_are_shown_and_the_others_counted() -> None:
    names = [f"label {i:05}" for i in range(300)]
    truth = [name for i, name in enumerate(names) for _ in range(1 + (i < 100) * 5)]
    given = with_equal_names({"good": answers(truth, truth), "bad": answers(truth, truth[::-1])})
    found = compare_classes(given, tags=False)
    assert len(found["rows"]) == MAX_SHOWN
    assert found["classes"] == 300
    confused = {layer: asdict(count_confusions(*each.flat_labels())) for layer, each in given.items()}
    assert len(confused["bad"]["labels"]) == MAX_LABELS
    assert confused["bad"]["all_labels"] == 300
    values = made_up(("rnn", "lstm")) | {"differ": {"classes": found, "confusions": confused}}
    assert "270 of 300 classes" in check_page(report(without_plots(values))).text()


@pytest.mark.parametrize("task", parameters(["classify", "seq2seq", "tag"], everyday=["classify"]))
def test_answers_of_a_comparison_are_measured_and_shown(task: str, tmp_path: Path, in_process: None) -> None:
    path = tmp_path / ("data.conll" if task == "tag" else "data.tsv")
    path.write_text(LINES[task])
    data = {"train": str(path), "valid": str(path), "alternatives": False}
    config = {**SMALL, "task": task, "data": data, "out": str(tmp_path / "out")}
    kind = "word" if task == "tag" else "char"
    found = seriatim.compare({**config, "tokenizer": {"kind": kind}}, layers=["rnn", "window"], steps=2)
    differ = found.results["differ"]
    assert differ["items"]["layers"] == [row["layer"] for row in found.rows]
    assert all(len(item["answers"]) == 2 for item in differ["items"]["items"])
    assert ("classes" in differ) == (task != "seq2seq")
    if task != "seq2seq":
        assert sum(row["support"] for row in differ["classes"]["rows"]) == {"classify": 12, "tag": 20}[task]
        for row in found.rows:
            matrix = np.array(differ["confusions"][row["layer"]]["matrix"])
            assert np.trace(matrix) / matrix.sum() == pytest.approx(row["metrics"]["accuracy"])
    assert "Item by item" in check_page(report(json.loads(json.dumps(found.results)))).text()


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
    assert any("items" in each.get("class", "") for each in check_page(page).all("div"))


def test_rows_of_earlier_versions_give_a_page_without_this_section() -> None:
    values = without_plots(made_up(("rnn", "lstm")))
    assert differences_section(Results(values)) == []
    assert 'id="differ"' not in report(values)
    for row in values["rows"]:
        assert not {"answers", "token_losses"} & row.keys()


def test_hostile_labels_and_texts_stay_text() -> None:
    truth, other = [HOSTILE, "\u202eabc"] * 20, [HOSTILE] * 40
    given = with_equal_names({"rnn": answers(truth, truth), "lstm": answers(truth, other)})
    item = {"text": HOSTILE, "truth": HOSTILE, "answers": [HOSTILE, "b"], "right": [True, False]}
    item["figures"] = [None, 2.0]
    words = {"text": [HOSTILE, "\u05d0"], "truth": [HOSTILE, "b"], "answers": [[HOSTILE, "b"], ["b", HOSTILE]]}
    words |= {"right": [True, False], "figures": [0, 2]}
    tokens = {"text": [HOSTILE, "e\u0301"], "truth": "", "answers": [[None, 0.0]] * 2, "figures": [None, 1.0]}
    base = {"layers": ["rnn", "lstm"], "figure": HOSTILE, "more_is_better": False, "total": 3}
    confused = {layer: asdict(count_confusions(*each.flat_labels())) for layer, each in given.items()}
    for found in (item, words, tokens | {"right": []}):
        differ = {
            "classes": compare_classes(given, tags=False),
            "confusions": confused,
            "items": base | {"items": [found]},
        }
        page = check_page(report(without_plots(made_up(("rnn", "lstm")) | {"differ": differ})))
        assert "<script>alert(1)" in page.text()
        assert not page.all("img")
