"""Defaults that follow the training data, and the average of the weights."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import seriatim
from seriatim.config import Training, resolve
from seriatim.storage.weights import load_tensors
from seriatim.tasks.defaults import planned_passes, small_batches, text_dropout
from seriatim.training import loop
from seriatim.training.checkpoints import Progress, checkpoints
from seriatim.training.optimizers import WeightAverage
from seriatim.training.settle import MINUTES, default_budget

from ..conftest import small_config
from ..preparing import prepare
from ..refusals import refused


def test_the_average_is_that_of_its_definition() -> None:
    model, decay = nn.Linear(2, 3, bias=False), 0.5
    average, expected = WeightAverage(model, decay), model.weight.detach().clone()
    for step in range(1, 20):
        with torch.no_grad():
            model.weight += torch.randn(3, 2)
        average.update(step)
        kept = min(decay, (1 + step) / (10 + step))
        expected = kept * expected + (1 - kept) * model.weight.detach()
    torch.testing.assert_close(average.tensors["weight"], expected)
    before = model.weight.detach().clone()
    with average.applied():
        torch.testing.assert_close(model.weight.detach(), expected)
    assert torch.equal(model.weight, before)


def test_the_uniform_average_is_the_mean_of_the_weights() -> None:
    model = nn.Linear(2, 3, bias=False)
    average, steps = WeightAverage(model, None, first=7), []
    for step in range(8, 20):
        with torch.no_grad():
            model.weight += torch.randn(3, 2)
        average.update(step)
        steps.append(model.weight.detach().clone())
    torch.testing.assert_close(average.tensors["weight"], torch.stack(steps).mean(0))


def test_averaging_begins_when_the_loss_has_no_new_lowest_value() -> None:
    config, progress = Training(average_after=2, patience=3, minutes=1), Progress()
    for step, (loss, begins) in enumerate([(3.0, False), (2.0, False), (2.5, False), (2.1, True), (2.2, False)]):
        progress.step = step
        progress.record_validation(loss, loss, config, more_is_better=False)
        assert progress.begins_averaging(config) == begins
    assert progress.averaged_from == 3
    assert progress.failures == 1, "early stopping starts again when averaging begins"
    with refused("range", "training.average_after"):
        resolve({"training": {"average": 0.9, "average_after": 2}})


def test_a_resumed_training_continues_its_uniform_average(texts, tmp_path: Path) -> None:
    fields = {"average_after": 1, "evaluate_every": 2, "checkpoint_every": 10, "schedule": "constant"}
    fields |= {"optimizer": "sgd", "learning_rate": 40.0, "clip": 1.0, "keep": "last"}  # a rate that is too high
    whole = seriatim.train(small_config(texts, tmp_path / "whole", training={**fields, "steps": 40}))
    parts = seriatim.train(small_config(texts, tmp_path / "parts", training={**fields, "steps": 20}))
    checkpoint = checkpoints(parts.path / "checkpoints")[-1]
    begun = json.loads((checkpoint / "progress.json").read_text())["averaged_from"]
    assert 0 < begun < 20, "the average must have begun before the interruption"
    seriatim.resume(parts.path, overrides={"training.steps": 40})
    first, second = (load_tensors(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    last = load_tensors(checkpoints(whole.path / "checkpoints")[-1] / "model.safetensors")
    assert any(not torch.equal(value, first[name]) for name, value in last.items())


def test_a_resumed_training_continues_its_average(texts, tmp_path: Path) -> None:
    fields = {"steps": 40, "average": 0.9, "checkpoint_every": 10, "schedule": "constant"}
    whole = seriatim.train(small_config(texts, tmp_path / "whole", training=fields))
    parts = seriatim.train(small_config(texts, tmp_path / "parts", training={**fields, "steps": 20}))
    parts = seriatim.resume(parts.path, overrides={"training.steps": 40})
    first, second = (load_tensors(run.path / "model.safetensors") for run in (whole, parts))
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    plain = seriatim.train(small_config(texts, tmp_path / "plain", training={**fields, "average": 0.0}))
    assert any(
        not torch.equal(value, first[name]) for name, value in load_tensors(plain.path / "model.safetensors").items()
    )


@pytest.mark.exhaustive
def test_a_training_without_a_budget_ends_and_can_be_repeated(tmp_path: Path) -> None:
    data = tmp_path / "labelled.tsv"
    rows = [f"{'even' if i % 2 == 0 else 'odd'}\t{'two four' if i % 2 == 0 else 'three five'} {i}\n" for i in range(40)]
    data.write_text("label\ttext\n" + "".join(rows))
    config = {
        "task": "classify",
        "data": {"train": str(data), "valid": str(data)},
        "model": {"layer": "rnn", "embedding_size": 4, "hidden_size": 4},
        "training": {"baseline": "none", "patience": 3},
    }
    run = seriatim.train({**config, "out": str(tmp_path / "run")})
    assert "3 validations in a row" in run.summary["ended"]
    chosen = resolve(run.path / "config.yaml")
    assert None not in (chosen.training.batch_size, chosen.training.average, chosen.model.dropout)
    assert chosen.training.minutes == MINUTES
    again = seriatim.train(run.path / "config.yaml", overrides={"out": str(tmp_path / "again")})
    first, second = (load_tensors(one.path / "model.safetensors") for one in (run, again))
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def test_patience_counts_validations_without_a_new_best_value() -> None:
    config, progress = Training(patience=2, minutes=1), Progress()
    for accuracy, ended in ((0.5, False), (0.4, False), (0.6, False), (0.6, False), (0.5, True)):
        progress.record_validation(accuracy, 1.0, config, more_is_better=True)
        assert bool(progress.ended(config, 10)) == ended


def test_of_validations_with_the_best_metric_the_one_with_the_lowest_loss_is_kept() -> None:
    """Early stopping waits until neither the metric nor the loss has had a new best value so often."""
    config, progress = Training(patience=2, minutes=1), Progress()
    records = ((0.5, 1.0, True), (0.8, 0.9, True), (0.7, 0.95, False), (0.8, 0.7, True), (0.8, 0.8, False))
    for accuracy, loss, kept in records:
        assert progress.record_validation(accuracy, loss, config, more_is_better=True) == kept
    assert (progress.best_valid, progress.loss_of_best) == (0.8, 0.7)
    assert not progress.ended(config, 10)
    progress.record_validation(0.7, 0.6, config, more_is_better=True)
    assert progress.failures == 0
    for _ in range(2):
        progress.record_validation(0.8, 0.9, config, more_is_better=True)
    assert progress.ended(config, 10)


@pytest.mark.parametrize("budget", [{"epochs": 3}, {"steps": 5}, {"tokens": 100}])
def test_a_budget_that_is_given_is_the_only_one(budget: dict) -> None:
    fields = default_budget(Training(**budget), 10, held_out=True)
    assert set(fields) == {"training.schedule", "training.average"}


def test_minutes_alone_only_limit_a_training_that_ends_by_itself() -> None:
    limited, usual = (default_budget(Training(**given), 10, held_out=True) for given in ({"minutes": 1.0}, {}))
    assert limited == usual  # the given minutes stay, as only missing fields are filled in
    assert default_budget(Training(minutes=1.0), 10, held_out=False) == {
        "training.schedule": "cosine",
        "training.average": 0.0,
    }


def test_patience_spans_a_thousand_steps_of_little_data() -> None:
    for steps in (1, 30, 200, 5000):
        fields = default_budget(Training(), steps, held_out=True)
        between = fields.get("training.evaluate_every", steps)
        assert between <= 1000 <= between * fields["training.patience"]


def test_batches_grow_with_the_data() -> None:
    sizes = [small_batches(items) for items in (2, 1000, 3000, 100_000)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]


def test_dropout_rises_with_the_parameters_for_each_token() -> None:
    """Whatever the size of the text. A budget in which hardly anything is read twice needs none."""
    for tokens in (10, 182_000, 10**9):
        rates = [text_dropout(round(tokens * ratio), tokens, None) for ratio in (0, 0.13, 1, 4, 30, 1000)]
        assert rates == sorted(rates)
        assert rates[:2] == [0.0, 0.0]
        assert 0.0 < rates[2] < rates[3] < rates[4] == rates[5] < 0.99
        assert text_dropout(30 * tokens, tokens, 1.0) == 0.0
        assert text_dropout(30 * tokens, tokens, 50.0) == rates[4]


def test_a_budget_says_how_often_a_text_is_read() -> None:
    for budget in (
        {"epochs": 4},
        {"steps": 40},
        {"tokens": 4000},
        {"steps": 40, "epochs": 9},
        {"tokens": 4000, "steps": 90},
    ):
        assert planned_passes(Training(**budget), 1000, 100) == 4
    assert planned_passes(Training(minutes=1), 1000, 100) is None


@pytest.mark.parametrize("unit", ["stream", "line"])
def test_a_small_model_has_no_dropout_on_a_text_for_which_a_large_one_has(texts, tmp_path: Path, unit: str) -> None:
    """The plain command fills in the dropout; a budget of a few steps leaves it out."""
    rates = {}
    for size, steps in ((4, None), (64, None), (64, 5)):
        config = small_config(texts, tmp_path / f"{size}-{steps}", data={"unit": unit})
        config["model"] = {"layer": "rnn", "embedding_size": size, "hidden_size": size}
        config["training"] = {"baseline": "none", "batch_size": 8, "steps": steps}
        rates[size, steps] = prepare(resolve(config)).settled.config.model.dropout
    assert rates[4, None] == rates[64, 5] == 0.0
    assert rates[64, None] > 0.0


def test_little_data_is_validated_every_50_steps() -> None:
    fields = default_budget(Training(), 9, held_out=True)
    assert (fields["training.evaluate_every"], fields["training.patience"]) == (50, 20)
    assert "training.evaluate_every" not in default_budget(Training(), 500, held_out=True)


def test_the_recipe_for_words_trains_and_averages_at_the_end(tmp_path: Path, texts, monkeypatch) -> None:
    began = []

    class Recorded(WeightAverage):
        def __init__(self, model: nn.Module, decay: float | None, first: int = 0) -> None:
            began.append((decay, first))
            super().__init__(model, decay, first=first)

    monkeypatch.setattr(loop, "WeightAverage", Recorded)
    overrides = {"data.train": texts["train"], "data.valid": texts["valid"]}
    small = {"model.embedding_size": 8, "model.hidden_size": 8, "training.average_after": 1, "training.epochs": 12}
    run = seriatim.train("builtin:awd-lstm", overrides={**overrides, **small, "out": str(tmp_path / "run")})
    options = run.config.model.options
    assert (options["weight_dropout"], options["embedding_dropout"]) == (0.5, 0.1)
    assert (run.config.training.optimizer, run.config.training.average_after) == ("sgd", 1)
    ((decay, first),) = began
    assert decay is None
    assert 0 < first < run.summary["steps"]
    with refused("mismatch", "builtin:awd-lstm"):
        resolve("builtin:awd-lstm", {"task": "classify"})


@pytest.mark.parametrize("given", ["10", "0.1", "-5%", "None"])
def test_a_share_that_is_none_is_named(tmp_path: Path, texts, given: str) -> None:
    config = small_config(texts, tmp_path / "run", data={"valid": given})
    with refused("range", "data.valid", f"{given}"):
        seriatim.train(config)
