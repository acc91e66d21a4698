"""Answers of a network together with its simple baseline."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import seriatim
from seriatim.config import resolve
from seriatim.evaluation.label_metrics import Predictions
from seriatim.tasks import classify
from seriatim.tasks.documents import Documents

from ..conftest import sentences, small_config
from ..refusals import refused

WORDS = {"good": "ADJ", "bad": "ADJ", "film": "NOUN", "actor": "NOUN", "was": "VERB", "is": "VERB"}


def classified(folder: Path) -> str:
    rows = [f"{'even' if len(text) % 2 == 0 else 'odd'}\t{text}" for text in sentences(120)]
    (folder / "labelled.tsv").write_text("label\ttext\n" + "\n".join(rows) + "\n")
    return str(folder / "labelled.tsv")


def tagged(folder: Path) -> str:
    order = np.random.default_rng(0)
    lines = []
    for _ in range(80):
        lines += [f"{word}\t{WORDS[word]}" for word in order.choice(list(WORDS), 5)] + [""]
    (folder / "tagged.conll").write_text("\n".join(lines) + "\n")
    return str(folder / "tagged.conll")


def config(task: str, data: str, out: Path, **training: object) -> dict:
    return {
        "task": task,
        "data": {"train": data, "valid": data},
        "model": {"layer": "rnn", "embedding_size": 8, "hidden_size": 8},
        "training": {"steps": 10, **training},
        "out": str(out),
    }


@pytest.mark.parametrize("task", ["classify", "tag"])
def test_answers_are_the_mean_of_both_models(tmp_path: Path, task: str) -> None:
    data = classified(tmp_path) if task == "classify" else tagged(tmp_path)
    run = seriatim.train(config(task, data, tmp_path / "run", baseline_weight=0.4))
    alone = seriatim.train(config(task, data, tmp_path / "alone", baseline_weight=0))
    baseline = seriatim.load(run.path / "baseline")
    opened = seriatim.load(run.path)
    item = "good film was bad"

    def shares(one: seriatim.Run) -> np.ndarray:
        answer = next(iter(one.predict([item], details=True)))
        values = answer["probabilities"]
        return np.array(list(values.values()) if isinstance(values, dict) else values)

    if task == "classify":
        expected = 0.6 * shares(alone) + 0.4 * shares(baseline)
        np.testing.assert_allclose(shares(opened), expected, atol=1e-6)
    assert opened.evaluate(data)["loss"] == pytest.approx(run.summary["valid"]["loss"], abs=1e-6)
    assert opened.evaluate(data)["loss"] != pytest.approx(alone.evaluate(data)["loss"], abs=1e-6)


def test_the_chosen_weight_of_a_tagger_is_no_worse_than_the_model_alone(tmp_path: Path) -> None:
    data = tagged(tmp_path)
    run = seriatim.train(config("tag", data, tmp_path / "run"))
    alone = seriatim.train(config("tag", data, tmp_path / "alone", baseline="none"))
    assert resolve(run.path / "config.yaml").training.baseline_weight is not None
    assert run.summary["valid"]["accuracy"] >= alone.summary["valid"]["accuracy"]
    assert not (alone.path / "baseline").exists()


@pytest.mark.parametrize(("sure", "expected"), [((0.95, 0.5), 0.0), ((0.6, 0.6), 0.65), ((0.5, 0.9), 0.8)])
def test_a_classifier_keeps_the_usual_weight_unless_another_is_clearly_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sure: tuple[float, float], expected: float
) -> None:
    """The probabilities of the true labels are ``sure`` for the network and the baseline, with some noise."""
    run = seriatim.train(config("classify", classified(tmp_path), tmp_path / "run"))
    baseline = seriatim.load(run.path / "baseline")
    data = run.task.reader.read(str(tmp_path / "labelled.tsv"), "valid", run.vocabulary)

    def predicted(model: object, data: Documents) -> Predictions:
        noise = np.random.default_rng(model is run.model).uniform(-0.05, 0.05, len(data.labels))
        of_truth = sure[model is not run.model] + noise
        return Predictions(data.labels, data.labels, of_truth, of_truth)

    monkeypatch.setattr(classify, "predictions", predicted)
    assert run.task.blender.best_weight(run.model, baseline.model, data) == expected


@pytest.mark.parametrize("task", ["classify", "tag"])
def test_an_ensemble_of_a_blended_run_with_itself_is_the_run(tmp_path: Path, task: str) -> None:
    data = classified(tmp_path) if task == "classify" else tagged(tmp_path)
    run = seriatim.train(config(task, data, tmp_path / "run", baseline_weight=0.4))
    both = seriatim.ensemble([run, seriatim.load(run.path)])
    assert both.evaluate(data)["loss"] == pytest.approx(run.evaluate(data)["loss"], rel=1e-6)


def test_a_blended_run_without_its_baseline_is_refused(tmp_path: Path) -> None:
    run = seriatim.train(config("classify", classified(tmp_path), tmp_path / "run", baseline_weight=0.5))
    shutil.rmtree(run.path / "baseline")
    with refused("missing", "baseline"):
        seriatim.load(run.path)


def test_a_blended_run_goes_on(tmp_path: Path) -> None:
    data = classified(tmp_path)
    run = seriatim.train(config("classify", data, tmp_path / "run", baseline_weight=0.5))
    whole = seriatim.train(config("classify", data, tmp_path / "whole", baseline_weight=0.5, steps=20))
    more = seriatim.resume(run.path, overrides={"training.steps": 20})
    assert more.evaluate(data)["texts"] == whole.evaluate(data)["texts"]
    assert more.config.training.baseline_weight == 0.5


@pytest.mark.parametrize(
    ("task", "training", "kind", "place"),
    [
        ("classify", {"baseline": "none"}, "unsupported", "training.baseline_weight"),
        ("classify", {"layer": "bag"}, "unsupported", "training.baseline_weight"),
        ("mlm", {}, "unsupported", "training.baseline_weight"),
    ],
)
def test_a_weight_without_a_baseline_is_refused_before_training(
    tmp_path: Path, task: str, training: dict, kind: str, place: str
) -> None:
    settings = config(task, classified(tmp_path), tmp_path / "run", baseline_weight=0.5)
    if "layer" in training:
        settings["model"] = training
    else:
        settings["training"] |= training
    with refused(kind, place):
        seriatim.train(settings)
    assert not (tmp_path / "run").exists()


def test_a_language_model_writes_and_scores_with_its_baseline(texts, tmp_path: Path) -> None:
    run = seriatim.train(
        small_config(texts, tmp_path / "run", training={"baseline": "simple", "baseline_weight": "auto"})
    )
    weight = resolve(run.path / "config.yaml").training.baseline_weight
    assert isinstance(weight, float)
    assert 0 < weight < 1
    opened, baseline = seriatim.load(run.path), seriatim.load(run.path / "baseline")
    both = run.evaluate(texts["valid"])["loss"]
    assert both == pytest.approx(run.summary["valid"]["loss"], abs=1e-6)
    assert both <= min(run.summary["best_valid"], baseline.evaluate(texts["valid"])["loss"]) + 0.02
    line = "the sea"
    (score,) = opened.score([line])
    stream = opened.stream()
    total = stream.feed(f"{line}\n").log_probability
    assert score.log_probability == pytest.approx(total, abs=1e-4)
    assert "".join(run.generate("the ", seed=3)) == "".join(opened.generate("the ", seed=3))


@pytest.mark.parametrize("task", ["classify", "tag"])
def test_the_usual_weight_is_taken_without_held_out_data(tmp_path: Path, task: str) -> None:
    data = classified(tmp_path) if task == "classify" else tagged(tmp_path)
    settings = config(task, data, tmp_path / "run")
    run = seriatim.train({**settings, "data": {"train": data, "valid": "none"}})
    assert run.config.training.baseline_weight == run.task.blender.default_weight > 0
    assert seriatim.load(run.path).config.training.baseline_weight == run.task.blender.default_weight


def test_a_weight_is_chosen_on_what_is_held_out_by_default(texts, tmp_path: Path) -> None:
    text = tmp_path / "long.txt"
    text.write_text(Path(texts["train"]).read_text() * (1 + 60_000 // Path(texts["train"]).stat().st_size))
    settings = small_config(texts, tmp_path / "run", training={"baseline": "simple", "baseline_weight": "auto"})
    settings["data"] = {"train": str(text)}
    assert seriatim.train(settings).config.data.valid == "10%"


def test_a_chosen_weight_needs_held_out_data(texts, tmp_path: Path) -> None:
    settings = small_config(
        texts, tmp_path / "run", training={"baseline": "simple", "baseline_weight": "auto"}, data={"valid": "none"}
    )
    with refused("required", "training.baseline_weight"):
        seriatim.train(settings)
