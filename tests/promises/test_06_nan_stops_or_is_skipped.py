"""NaN or infinity in a loss, a gradient, a weight or a held-out loss stops a training, naming step and batch.

Configured so, the step is skipped instead: the parameters stay, the loss is in no mean, and it is said.
"""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import seriatim
from seriatim.config import resolve
from seriatim.core.errors import TrainingError
from seriatim.core.state import map_state
from seriatim.storage.weights import load_tensors
from seriatim.tasks import new_task
from seriatim.training.checkpoints import checkpoints
from seriatim.training.reporting import Reporter

from ..exhaustive import parameters
from .jobs import OPTIONS, configurations
from .kills import outcome

TRAINED = [name for name in OPTIONS if name != "ngram"]
ITEMS = {"lm": "lines", "mlm": "windows", "classify": "texts", "tag": "sentences", "seq2seq": "pairs"}
BAD = 5
"""The batch that is."""


class _Poisoned(torch.autograd.Function):
    """Nothing but that its gradient is NaN."""

    @staticmethod
    def forward(_: Any, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return gradient * math.nan


WRONG: dict[str, Callable[[Tensor], Tensor]] = {
    "nan": lambda loss: loss * math.nan,
    "inf": lambda loss: loss + math.inf,
    "gradient": _Poisoned.apply,
}


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    folder = tmp_path_factory.mktemp("data")
    return configurations(folder, steps=12, checkpoint_every=1, accumulate=1, schedule="constant")


def spoil(patched: pytest.MonkeyPatch, config: dict, bad: Callable[[int], bool], how: str) -> None:
    """Makes the loss of some batches, counted from 1, what it should not be; the state that is carried, too."""
    owner = type(new_task(resolve(config)).objective)
    loss, calls = owner.loss, iter(range(1, 10**6))

    def spoiled(*arguments: Any, **settings: Any) -> tuple[Tensor, Any]:
        found, state = loss(*arguments, **settings)
        if not bad(next(calls)):
            return found, state
        return WRONG[how](found), None if state is None else map_state(lambda leaf: leaf * math.nan, state)

    patched.setattr(owner, "loss", spoiled)


SPOILED = [f"{name}-{how}" for name in TRAINED for how in WRONG]
EVERYDAY = [f"{name}-{list(WRONG)[i % len(WRONG)]}" for i, name in enumerate(TRAINED)]


@pytest.mark.parametrize("job", parameters(SPOILED, everyday=EVERYDAY))
def test_it_stops_and_says_where(configs, tmp_path: Path, job: str, monkeypatch) -> None:
    name, _, how = job.rpartition("-")
    spoil(monkeypatch, configs[name], lambda batch: batch == BAD, how)
    what = r"the gradient of \S+ is not finite" if how == "gradient" else f"the loss is {how}"
    task, running = configs[name]["task"], configs[name]["data"].get("unit") == "stream"
    items = (
        "tokens 65 to 80 of each of 8 parts of the text" if running else rf"{ITEMS[task]} \d+(, \d+)*( and \d+ more)?"
    )
    where = rf"step {BAD}: {what} in batch {BAD} of epoch 1 \({items}\); lower training"
    with pytest.raises(TrainingError, match=where):
        seriatim.train({**configs[name], "out": str(tmp_path / "run")})
    last = checkpoints(tmp_path / "run" / "checkpoints")[-1]
    assert last.name == f"step-{BAD - 1:09d}"
    assert all(value.isfinite().all() for path in last.glob("*.safetensors") for value in load_tensors(path).values())


class Losses(Reporter):
    """Remembers the loss of every step."""

    def __init__(self) -> None:
        self.found: dict[int, float] = {}

    def step(self, record) -> None:
        self.found[record["step"]] = record["loss"]


@pytest.mark.parametrize("how", WRONG)
def test_it_is_skipped_where_that_is_configured(configs, tmp_path: Path, how: str, monkeypatch) -> None:
    config, losses = {**configs["lstm"], "out": str(tmp_path / "run")}, Losses()
    spoil(monkeypatch, config, lambda batch: batch == BAD, how)
    kept: dict[int, dict[str, Tensor]] = {}
    after_step = losses.step

    def keep(record) -> None:
        after_step(record)
        last = checkpoints(tmp_path / "run" / "checkpoints")[-1]  # of the step before
        kept[record["step"] - 1] = load_tensors(last / "model.safetensors")

    losses.step = keep
    with pytest.warns(UserWarning, match=rf"step {BAD}: the .* in batch {BAD} of epoch 1 .*; the step is skipped"):
        run = seriatim.train(config, overrides={"training.nonfinite": "skip"}, reporter=losses)
    assert run.summary["skipped_steps"] == 1
    assert all(torch.equal(value, kept[BAD - 1][name]) for name, value in kept[BAD].items())
    assert not all(torch.equal(value, kept[BAD][name]) for name, value in kept[BAD + 1].items())
    records = list(map(json.loads, (run.path / "metrics.jsonl").read_text().splitlines()))
    (skipped,) = [record for record in records if record["kind"] == "skipped"]
    assert (skipped["step"], skipped["epoch"]) == (BAD, 0)
    assert re.search(rf"batch {BAD} of epoch 1", skipped["reason"])
    (line,) = [record for record in records if record["kind"] == "train" and record["step"] == 10]
    others = [losses.found[step] for step in range(1, 11) if step != BAD]  # of a stream, so that all count alike
    assert line["loss"] == pytest.approx(sum(others) / len(others))


@pytest.mark.filterwarnings("ignore:step .* is skipped")
def test_a_training_that_skips_and_is_cut_off_ends_with_the_same_bits(configs, tmp_path: Path, monkeypatch) -> None:
    config = {**configs["lstm"], "training": {**configs["lstm"]["training"], "nonfinite": "skip"}}

    class Cut(Reporter):
        def step(self, record) -> None:
            if record["step"] == 6:
                raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        spoil(patched, config, lambda batch: batch in (3, 5, 6), "nan")
        whole = seriatim.train({**config, "out": str(tmp_path / "whole")})
    with monkeypatch.context() as patched:
        spoil(patched, config, lambda batch: batch in (3, 5), "nan")
        with pytest.raises(KeyboardInterrupt):
            seriatim.train({**config, "out": str(tmp_path / "cut")}, reporter=Cut())
    with monkeypatch.context() as patched:
        spoil(patched, config, lambda batch: batch == 1, "nan")  # that of step 6: the checkpoint is of step 5
        resumed = seriatim.resume(tmp_path / "cut")
    assert resumed.summary["skipped_steps"] == whole.summary["skipped_steps"] == 3
    assert outcome(resumed.path) == outcome(whole.path)


def test_where_no_step_can_be_made_it_stops(configs, tmp_path: Path, monkeypatch) -> None:
    config = {**configs["convolution"], "out": str(tmp_path / "run")}
    spoil(monkeypatch, config, lambda batch: batch > 1, "inf")
    with (
        pytest.warns(UserWarning, match="the step is skipped"),
        pytest.raises(TrainingError, match=r"step 11: .*, as in the 9 steps before, which were skipped; lower"),
    ):
        seriatim.train(config, overrides={"training.nonfinite": "skip"})


@pytest.mark.parametrize("steps", [1, 12])
def test_weights_that_are_not_finite_are_never_saved(configs, tmp_path: Path, steps: int) -> None:
    """Nor kept as the run's, where no checkpoint is due."""
    odd = {"training.optimizer": "sgd", "training.learning_rate": 1e39, "training.clip": None}
    odd |= {"training.steps": steps, "training.checkpoint_every": 100, "data.valid": None}
    config = {**configs["feed-forward"], "out": str(tmp_path / "run")}
    with pytest.raises(TrainingError, match=r"step \d+: .* is not finite|step \d+: the loss is"):
        seriatim.train(config, overrides=odd)
    for path in (tmp_path / "run").rglob("*.safetensors"):
        assert all(value.isfinite().all() for value in load_tensors(path).values())


@pytest.mark.parametrize("how", ["a loss", "the scores"])
def test_a_held_out_loss_that_is_not_finite(configs, tmp_path: Path, monkeypatch, how: str) -> None:
    config = {**configs["classifier"], "out": str(tmp_path / "run")}
    owner = type(new_task(resolve(config)).objective)
    validate = owner.validate

    def spoiled(task: Any, model: Any, data: Any) -> dict[str, Any]:
        if how == "the scores":
            model.output.bias.data[0] = math.nan
        return {**validate(task, model, data), "loss": math.nan}

    monkeypatch.setattr(owner, "validate", spoiled)
    with pytest.raises(TrainingError, match=r"step \d+: the held-out loss is nan; go on from the last checkpoint"):
        seriatim.train(config)
    assert not (tmp_path / "run" / "model.safetensors").exists()
