"""Mistakes of runs, compared with their evaluation."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import seriatim
from seriatim.core.errors import InputError
from seriatim.evaluation.error_analysis import Mistakes
from seriatim.inspection.inspected_run import explainer_of, prepare
from seriatim.inspection.mistakes import calibration_figure, confusion_figure, mistakes_section, most_confused
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
    assert found.calibration_error == pytest.approx(expected["calibration_error"])
    assert found.calibration == expected["calibration"]
    places = [list(run.vocabulary.labels).index(label) for label in found.labels]
    assert found.confusion.tolist() == np.array(expected["confusion"])[np.ix_(places, places)].tolist()
    assert [one.score for one in found.worst] == sorted((one.score for one in found.worst), reverse=True)
    answers = list(run.predict([one.text for one in found.worst], details=True))
    for one, answer in zip(found.worst, answers, strict=True):
        assert answer["text"] == one.predicted != one.truth
        assert max(answer["probabilities"].values()) == pytest.approx(one.score, abs=1e-6)


def test_sentences_are_scored_as_in_evaluation(inspected) -> None:
    run = inspected["tag"]
    found, expected = find_mistakes(run, run.config.data.test), run.evaluate(run.config.data.test)
    assert found.correct / found.total == pytest.approx(expected["accuracy"])
    assert found.confusion.sum() == found.total == expected["tokens"]
    assert sum(one["count"] for one in found.calibration) == found.total
    for one in found.worst:
        assert one.score == len(one.truth.split()) == len(one.predicted.split())


@pytest.mark.parametrize("name", ["lm", "lm-lines", "lm-words", "ngram", "mlm"])
def test_tokens_are_scored_as_in_evaluation(inspected, name: str) -> None:
    run = inspected[name]
    found, expected = find_mistakes(run, run.config.data.test), run.evaluate(run.config.data.test)
    assert found.total == expected["tokens"]
    if name == "mlm":
        assert found.correct / found.total == pytest.approx(expected["accuracy"])
    assert found.correct + sum(one.count for one in found.confusions) <= found.total
    assert all(one.truth != one.predicted for one in found.confusions)
    scores = [one.score for one in found.worst]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] >= expected["loss"]


def test_only_the_beginning_of_large_data_is_evaluated(inspected, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("label_explainer.MAX_ITEMS", "tag_explainer.MAX_ITEMS", "translation_explainer.MAX_PAIRS"):
        monkeypatch.setattr(f"seriatim.tasks.{limit}", 5)
    monkeypatch.setattr("seriatim.tasks.text_explainer.MAX_TOKENS", 100)
    for name in ("classify", "tag", "lm", "lm-lines", "seq2seq"):
        found = find_mistakes(inspected[name], inspected[name].config.data.test)
        spread = ("100 tokens in 2 stretches spread over", "78 tokens in 3 of 40 lines, spread")
        assert found.evaluated.startswith(("the first", *spread))
        assert found.total <= 100


def test_answers_are_the_worst_by_chrf(inspected) -> None:
    run = inspected["seq2seq"]
    found = find_mistakes(run, run.config.data.test)
    expected = run.evaluate(run.config.data.test)
    assert found.chrf == pytest.approx(expected["chrf"])
    assert found.correct / found.total == pytest.approx(expected["exact_match"])
    assert [one.score for one in found.worst] == sorted(one.score for one in found.worst)
    assert all(one.truth != one.predicted for one in found.worst)


def test_figures_show_the_counts() -> None:
    random = np.random.default_rng(0)
    confusion = random.integers(0, 9, (30, 30))
    shown = most_confused(confusion, count=5)
    wrong = confusion.sum(0) + confusion.sum(1) - 2 * confusion.diagonal()
    assert Counter(wrong[shown]) == Counter(sorted(wrong)[-5:])
    axes = confusion_figure(confusion[:3, :3], ["a$", "b", "c"]).axes[0]
    assert [text.get_text() for text in axes.texts] == [str(count) for count in confusion[:3, :3].ravel()]
    assert len(confusion_figure(confusion, [str(i) for i in range(30)]).axes[0].get_xticks()) == 20
    bins = [{"confidence": 0.5, "accuracy": 0.25, "count": 4}, {"confidence": None, "accuracy": None, "count": 0}]
    bins += [bins[1]] * 13
    assert calibration_figure(bins, 0.25).axes[0].lines[1].get_xydata().tolist() == [[0.5, 0.25]]


@pytest.mark.parametrize("labels", [2, 6, 12])
@pytest.mark.parametrize("largest", [9, 12_345, 1_234_567])
def test_counts_fit_into_their_cells(labels: int, largest: int) -> None:
    figure = confusion_figure(np.full((labels, labels), largest), [f"label {i}" for i in range(labels)])
    figure.draw_without_rendering()
    axes = figure.axes[0]
    width = axes.bbox.width / labels
    assert len(axes.texts) == labels**2
    assert max(text.get_window_extent().width for text in axes.texts) < width


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
    (summary,) = content.summary
    assert summary.endswith(" on 10 % of labelled.tsv")
