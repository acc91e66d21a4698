"""Runs that answer with their network together with the simple baseline: the page gives the answers of the run."""

import math
from pathlib import Path

import pytest

import seriatim
from seriatim.inspection.inspected_run import explainer_of, prepare
from seriatim.inspection.surprisal import read_text
from seriatim.recurrence import uncompiled

from .inspected import SENTENCE, TAGS, total_bits, write_data

GIVEN = {"beam": 1, "data": None, "file_format": None}


@pytest.fixture(scope="module")
def blended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, seriatim.Run]:
    """Runs whose network has learned next to nothing, and whose baseline has the weight 0.9."""
    folder = tmp_path_factory.mktemp("blended")
    write_data(folder)
    runs = {}
    for task, ending in (("classify", "tsv"), ("tag", "conll"), ("lm", "txt")):
        paths = {part: str(folder / f"{task}.{part}.{ending}") for part in ("train", "test")}
        config = {
            "task": task,
            "data": paths,
            "model": {"layer": "gru", "embedding_size": 4, "hidden_size": 4},
            "tokenizer": {"kind": "word"},
            "training": {"steps": 1, "learning_rate": 1e-6, "baseline_weight": 0.9},
            "out": str(folder / task),
        }
        with uncompiled():
            runs[task] = seriatim.train(config)
    return runs


@pytest.fixture(autouse=True)
def _uncompiled():
    with uncompiled():
        yield


@pytest.mark.exhaustive
def test_the_label_is_that_of_the_run(blended: dict[str, seriatim.Run]) -> None:
    run = blended["classify"]
    rows = [line.split("\t") for line in Path(run.config.data.test).read_text().splitlines()[1:]]
    explainer = explainer_of(run)

    def alone(text: str) -> str:
        return explainer.inputs.target_names(explainer.examples(text)[0])[0]

    label, text = next(row for row in rows if alone(row[1]) != row[0] == next(run.predict([row[1]])))
    (answer,) = run.predict([text], details=True)
    effect = explainer.label_effect(text)
    assert effect.answer.tolist() == pytest.approx(list(answer["probabilities"].values()), abs=1e-6)
    reading = read_text(prepare(run, text, **GIVEN))
    first, gold, *_, last = reading.answers
    assert first.text.startswith(f"{label} ")
    assert (first.mark, gold.text) == ("right", label)
    assert last.text.startswith(f"{alone(text)} ")
    assert "network alone" in last.heading


def test_tags_are_those_of_the_run(blended: dict[str, seriatim.Run]) -> None:
    run = blended["tag"]
    (answer,) = run.predict([SENTENCE], details=True)
    subject = prepare(run, SENTENCE, **GIVEN)
    scores = subject.explainer.token_scores(SENTENCE)
    assert list(scores.answers) == answer["tags"] == [TAGS.get(word, "X") for word in SENTENCE.split()]
    assert [2**-score.bits for score in scores.scores] == pytest.approx(answer["probabilities"], abs=1e-5)
    reading = read_text(subject)
    alone = subject.explainer.inputs.target_names(subject.explainer.examples(SENTENCE)[0])
    assert any(tag != other for tag, other in zip(answer["tags"], alone, strict=True))
    tokens = reading.layout.rows[0].tokens
    for token, note, tag, other in zip(tokens, reading.lenses[0].notes, answer["tags"], alone, strict=True):
        assert token.above == tag
        assert note.endswith(f"; the network alone answers {other}") == (tag != other)


def test_surprisal_is_that_of_the_run(blended: dict[str, seriatim.Run]) -> None:
    run = blended["lm"]
    bits = total_bits(explainer_of(run).token_scores(SENTENCE))
    assert bits * math.log(2) == pytest.approx(-run.stream().feed(SENTENCE).log_probability, rel=1e-5)
    mistakes = explainer_of(run).labelled.mistakes(run.config.data.test, None)
    assert mistakes.correct / mistakes.total > 0.3, "the network alone is hardly ever right"
