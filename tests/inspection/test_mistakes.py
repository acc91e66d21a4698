"""Mistakes of runs, compared with their evaluation."""

from pathlib import Path

import numpy as np
import pytest

import seriatim
from seriatim.comparison.plan import MeasuredData
from seriatim.core.errors import InputError
from seriatim.evaluation.error_analysis import Mistakes
from seriatim.inspection.inspected_run import explainer_of, prepare
from seriatim.inspection.mistakes import calibration_chart, items_of, mistakes_section
from seriatim.recurrence import uncompiled
from seriatim.runs.run import Run


@pytest.fixture(autouse=True)
def _uncompiled():
    with uncompiled():
        yield


def find_mistakes(run: Run, data: str) -> Mistakes:
    return explainer_of(run).labelled.mistakes(data, None)


def test_texts_are_scored_as_in_evaluation(inspected) -> None:
    run = inspected["classify"]
    found, expected = find_mistakes(run, run.config.data.test), run.evaluate(run.config.data.test)
    assert found.correct / found.total == pytest.approx(expected["accuracy"])
    assert sum(one["count"] for one in found.calibration) == found.total
    right = sum(one["accuracy"] * one["count"] for one in found.calibration)
    assert right == pytest.approx(found.correct)
    places = [list(run.vocabulary.labels).index(label) for label in found.confusions.labels]
    assert found.confusions.matrix == np.array(expected["confusion"])[np.ix_(places, places)].tolist()
    assert len(found.items) == found.total
    answers = list(run.predict([one.text for one in found.items], details=True))
    for one, answer in zip(found.items, answers, strict=True):
        assert one.answers == [answer["text"]]
        assert one.right == [answer["text"] == one.truth]
        assert answer["probabilities"][one.truth] == pytest.approx(one.figures[0], abs=1e-6)
    shown = items_of(found, "rnn")
    assert [one.figures[0] for one in shown.items] == sorted(one.figures[0] for one in shown.items)


def test_sentences_are_scored_as_in_evaluation(inspected) -> None:
    run = inspected["tag"]
    found, expected = find_mistakes(run, run.config.data.test), run.evaluate(run.config.data.test)
    assert found.correct / found.total == pytest.approx(expected["accuracy"])
    assert np.sum(found.confusions.matrix) == found.total == expected["tokens"]
    assert sum(one["count"] for one in found.calibration) == found.total
    for one in found.items:
        assert one.figures == [sum(a != b for a, b in zip(one.truth, one.answers[0], strict=True))]
    assert sum(one.figures[0] for one in found.items) == found.total - found.correct


@pytest.mark.parametrize("name", ["lm", "lm-lines", "lm-words", "ngram", "mlm"])
def test_tokens_are_scored_as_in_evaluation(inspected, name: str) -> None:
    run = inspected[name]
    found, expected = find_mistakes(run, run.config.data.test), run.evaluate(run.config.data.test)
    assert found.total == expected["tokens"]
    if name == "mlm":
        assert found.correct / found.total == pytest.approx(expected["accuracy"])
    assert found.confusions.total == found.total
    assert found.confusions.wrong == found.total - found.correct
    bits = [value for one in found.items for value in one.answers[0]]
    assert len(bits) == found.total
    if None not in bits:
        assert np.mean(bits) * np.log(2) == pytest.approx(expected["loss"], rel=0.01)
    for one in found.items:
        if one.figures[0] is not None:
            assert np.mean(one.answers[0]) == pytest.approx(one.figures[0], abs=0.011)


def test_only_the_beginning_of_large_data_is_evaluated(inspected, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("label_explainer.MAX_ITEMS", "tag_explainer.MAX_ITEMS", "translation_explainer.MAX_PAIRS"):
        monkeypatch.setattr(f"seriatim.tasks.{limit}", 5)
    monkeypatch.setattr("seriatim.tasks.text_explainer.MAX_TOKENS", 100)
    for name in ("classify", "tag", "lm", "lm-lines", "seq2seq"):
        found = find_mistakes(inspected[name], inspected[name].config.data.test)
        spread = ("100 tokens in 2 stretches spread over", "78 tokens in 3 of 40 lines, spread")
        assert found.evaluated.startswith(("5 of 40 ", *spread))
        assert found.total <= 100


def test_answers_are_the_worst_by_chrf(inspected) -> None:
    run = inspected["seq2seq"]
    found = find_mistakes(run, run.config.data.test)
    expected = run.evaluate(run.config.data.test)
    assert found.chrf == pytest.approx(expected["chrf"])
    assert found.correct / found.total == pytest.approx(expected["exact_match"])
    assert sum(one.right[0] for one in found.items) == found.correct
    assert all((one.figures[0] == pytest.approx(100)) >= one.right[0] for one in found.items)


def test_calibration_has_the_accuracy_of_each_bin() -> None:
    bins = [{"confidence": 0.5, "accuracy": 0.25, "low": 0.1, "high": 0.4, "count": 4}]
    (series,) = calibration_chart(bins, "rnn").series
    assert (series.x, series.y, series.intervals) == ([0.5], [0.25], [(0.1, 0.4)])
    more = [*bins, {"confidence": 0.9, "accuracy": 0.8, "low": 0.7, "high": 0.9, "count": 6}]
    assert "0.160" in calibration_chart(more, "rnn").caption, "of the bins that are drawn: (4 · 0.25 + 6 · 0.1) / 10"


def test_data_of_another_format_is_refused(inspected, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("only words\n")
    for name in ("classify", "seq2seq"):
        with pytest.raises(InputError):
            find_mistakes(inspected[name], str(path))


def test_held_out_data_are_named_with_their_file(tmp_path: Path) -> None:
    path = tmp_path / "labelled.tsv"
    path.write_text("label\ttext\n" + "".join(f"{'ab'[i % 2]}\ttext {i} {'ab'[i % 2]}\n" for i in range(100)))
    model = {"layer": "rnn", "embedding_size": 4, "hidden_size": 4}
    config = {
        "task": "classify",
        "data": {"train": str(path)},
        "model": model,
        "training": {"baseline": "none", "steps": 1},
    }
    run = seriatim.train({**config, "out": str(tmp_path / "run")})
    content = mistakes_section(prepare(run, "text 1", beam=1, data=None, file_format=None))
    assert content.blocks[0].text.startswith("10 % of labelled.tsv")


def test_the_part_of_a_built_in_corpus_that_is_read_is_named_as_in_comparisons(inspected) -> None:
    found = prepare(inspected["lm"], "a", beam=1, data="builtin:python-docs", file_format=None)
    assert found.held_out_name == str(MeasuredData("builtin:python-docs", "test"))
