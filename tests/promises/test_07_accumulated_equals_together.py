"""Eight batches of one sequence, accumulated, make the step that one batch of eight makes, to rounding.

The loss is a mean over the tokens of a step, however they are spread over its batches; at the end of an epoch, where
sequences are left over, too. In float64, so that rounding is small.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from seriatim.config import resolve
from seriatim.processes.ranks import ONE_RANK
from seriatim.training.checkpoints import RunWriter
from seriatim.training.loop import Trainer
from seriatim.training.reporting import Reporter, SafeReporter

from ..preparing import prepare
from .jobs import OPTIONS, configurations

SEQUENCES, TOGETHER = 19, 8
"""Two steps of eight, and a ragged last one of three."""
TASKS = [name for name in OPTIONS if name not in ("ngram", "masked")]  # what is masked is drawn batch by batch


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    folder = tmp_path_factory.mktemp("data")
    return configurations(folder, steps=6, accumulate=1, precision="float32", schedule="constant", sequence_length=99)


def losses_and_weights(config: dict, out: Path, together: int, accumulate: int) -> tuple[list[float], dict]:
    """Two epochs over the first sequences in their order, ``together`` a batch."""
    config = {
        **config,
        "data": {**config["data"], "unit": "line", "valid": None},
        "model": {**config["model"], "dropout": 0.0},
        "training": {**config["training"], "accumulate": accumulate, "batch_size": together},
    }
    torch.manual_seed(0)
    settled, _, model, batches = prepare(resolve(config))
    model.double()
    rows = np.arange(SEQUENCES)
    steps = [rows[i : i + TOGETHER] for i in range(0, SEQUENCES, TOGETHER)]
    groups = [step[i : i + together] for step in steps for i in range(0, len(step), together)]
    batches.shuffled = lambda seed, epoch: groups
    out.mkdir()

    class Losses(Reporter):
        def __init__(self) -> None:
            self.found: list[float] = []

        def step(self, record) -> None:
            self.found.append(record["loss"])

    reporter = Losses()
    writer = RunWriter(out, {})
    trainer = Trainer(settled, model, torch.device("cpu"), writer, SafeReporter(reporter), ONE_RANK)
    trainer.batches = batches
    trainer.start()
    trainer.fit()
    return reporter.found, {name: value.detach() for name, value in model.named_parameters()}


def exact_word_dropout(config: dict) -> dict:
    """Without what is drawn batch by batch."""
    options = config["model"].get("options", {})
    if config["task"] == "tag":
        options = {**options, "word_dropout": 0.0, "hidden_words": 0.0}
    if config["task"] == "seq2seq":
        options = {**options, "hallucination": 0.0}
    return {**config, "model": {**config["model"], "options": options}}


@pytest.mark.parametrize("name", TASKS)
def test_eight_times_one_is_one_time_eight(configs: dict[str, dict], tmp_path: Path, name: str) -> None:
    config = exact_word_dropout(configs[name])
    losses, weights = losses_and_weights(config, tmp_path / "together", TOGETHER, 1)
    others, accumulated = losses_and_weights(config, tmp_path / "accumulated", 1, TOGETHER)
    assert len(losses) == 6
    assert losses == pytest.approx(others, rel=1e-6)  # some losses are taken in float32
    for key, value in weights.items():
        torch.testing.assert_close(value, accumulated[key], rtol=1e-5, atol=1e-7)
