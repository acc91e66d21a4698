"""Learning rates, their schedules, and early stopping."""

import json
from pathlib import Path
from typing import Any

import pytest

import seriatim
from seriatim.comparison.planning import ComparisonSettings, make_plan
from seriatim.config import Training, resolve
from seriatim.recurrence import uncompiled
from seriatim.tasks import TASKS, find_kind
from seriatim.tasks.classify import ClassifierObjective
from seriatim.tasks.defaults import default_rate, rate_of
from seriatim.training.checkpoints import Progress
from seriatim.training.optimizers import learning_rate

from ..conftest import small_config


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_train_and_compare_take_the_rate_that_the_layer_declares(texts, tmp_path: Path, optimizer: str) -> None:
    training = {"steps": 1, "learning_rate": None, "optimizer": optimizer}
    for layer in ("rnn", "transformer", "mgu,transformer"):
        config = small_config(texts, tmp_path / layer.replace(",", "+"), model={"layer": layer}, training=training)
        declared = min(rate_of(name, "lm", find_kind("lm").learning_rate) for name in layer.split(","))
        expected = declared if optimizer == "adamw" else 1.0
        with uncompiled():
            seriatim.train(config)
        assert resolve(tmp_path / layer.replace(",", "+") / "config.yaml").training.learning_rate == expected
        compared = layer.replace(",", "+")
        config = {**config, "model": {"hidden_size": 24}}
        assert make_plan(config, ComparisonSettings([compared])).sized[compared].learning_rate == expected


def test_every_layer_declares_a_rate_for_every_task() -> None:
    for name in seriatim.layers.names():
        assert set(seriatim.layers.find(name).learning_rates) <= set(TASKS)
        assert all(1e-4 <= rate_of(name, task, find_kind(task).learning_rate) <= 0.1 for task in TASKS)


def test_a_translator_takes_the_smaller_rate_of_encoder_and_decoder() -> None:
    config = {"task": "seq2seq", "model": {"layer": "transformer", "options": {"decoder": "gru"}}}
    rates = [rate_of(name, "seq2seq", find_kind("seq2seq").learning_rate) for name in ("transformer", "gru")]
    assert default_rate(resolve(config), 1e-2) == min(rates)


def test_schedules() -> None:
    def rate(schedule: str, step: int = 100, progress: float = 0.0, annealed: int = 0) -> float:
        config = Training(schedule=schedule, learning_rate=1.0, warmup_steps=10, anneal=4)
        return learning_rate(config, step=step, progress=progress, annealed=annealed)

    assert [rate("cosine", step=step) for step in (0, 4, 9)] == pytest.approx([0.1, 0.5, 1.0])
    assert rate("constant", progress=0.9) == 1.0
    assert rate("plateau", annealed=2) == 1 / 16
    assert rate("cosine", progress=0.0) == 1.0
    assert rate("cosine", progress=0.5) == pytest.approx(0.505)
    assert rate("cosine", progress=1.0) == pytest.approx(0.01)


def test_the_rate_rises_at_first_where_no_number_of_steps_is_given() -> None:
    def rate(progress: float, **settings: Any) -> float:
        return learning_rate(Training(learning_rate=1.0, **settings), step=0, progress=progress, annealed=0)

    rising = [rate(progress) for progress in (0.0, 0.01, 0.02, 0.04, 0.05)]
    assert rising == sorted(rising)
    assert rising[0] > 0
    assert rising[-1] == pytest.approx(1.0, rel=0.01)
    for settings in ({"optimizer": "sgd"}, {"schedule": "constant"}, {"warmup_steps": 0}):
        assert rate(0.0, **settings) == 1.0


def test_tolerance_stops_and_plateaus_anneal(texts, tmp_path: Path) -> None:
    texts = {**texts, "train": texts["test"]}
    training = {"steps": None, "epochs": 50, "tolerance": 10.0, "patience": 2}
    run = seriatim.train(small_config(texts, tmp_path / "tolerance", training=training))
    assert run.summary["epochs"] == 3
    training = {
        "steps": None,
        "epochs": 4,
        "optimizer": "sgd",
        "learning_rate": 400.0,
        "schedule": "plateau",
        "clip": 0.5,
    }
    run = seriatim.train(small_config(texts, tmp_path / "plateau", training=training))
    records = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in records if record["kind"] == "valid"]
    worse = sum(loss >= min(losses[:i]) for i, loss in enumerate(losses) if i)
    expected = sum(loss >= min(losses[:i]) for i, loss in enumerate(losses[:-1]) if i)
    rates = {record["learning_rate"] for record in records if record["kind"] == "train"}
    assert worse
    assert rates == {400.0 / 4**k for k in range(expected + 1)}


class Judged:
    """A task's validations, one after another: accuracy that stays, and a loss that falls."""

    def __init__(self, losses: list[float]) -> None:
        self.losses = iter(losses)

    def __call__(self, model: object, data: object) -> dict[str, float]:
        return {"loss": next(self.losses), "accuracy": 0.5, "macro_f1": 0.5}


def labelled(folder: Path) -> str:
    """A file of labelled texts."""
    path = folder / "labelled.tsv"
    path.write_text("label\ttext\n" + "".join(f"{word[0]}\t{word} {word}\n" for word in ("a", "b", "ab", "ba")))
    return str(path)


@pytest.mark.parametrize(
    ("training", "validations"),
    [({"tolerance": 0.01}, 4), ({"tolerance": 0.0, "patience": 2}, 6), ({"tolerance": 0.3, "patience": 2}, 3)],
)
def test_a_tolerance_looks_at_the_held_out_loss(tmp_path: Path, monkeypatch, training, validations: int) -> None:
    """Not at accuracy, which selects the weights of a classifier, and has another unit."""
    losses = [2.0, 1.9, 1.8, 1.795, 1.796, 1.797, 1.798]
    monkeypatch.setattr(ClassifierObjective, "validate", Judged(losses).__call__)
    data, sizes = labelled(tmp_path), {"layer": "rnn", "embedding_size": 4, "hidden_size": 4}
    config = {"task": "classify", "data": {"train": data, "valid": data}, "model": sizes, "out": str(tmp_path / "run")}
    run = seriatim.train({**config, "training": {"epochs": 7, **training}})
    assert run.summary["epochs"] == validations
    assert "held-out loss did not improve" in run.summary["ended"]


def test_plateaus_are_those_of_the_held_out_loss() -> None:
    config, progress = Training(schedule="plateau"), Progress()
    for loss in (2.0, 1.0, 1.5, 1.2, 0.9):
        progress.record_validation(0.5, loss, config, more_is_better=True)
    assert progress.annealed == 2
