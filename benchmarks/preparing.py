"""A training before its first step, for scripts that measure its steps."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from seriatim.config import Config
from seriatim.processes.ranks import ONE_RANK
from seriatim.tasks.model_size import build_model
from seriatim.tasks.task import Task
from seriatim.training.checkpoints import RunWriter
from seriatim.training.loop import Trainer
from seriatim.training.reporting import Reporter, SafeReporter
from seriatim.training.settle import Settled, settle


class Prepared(NamedTuple):
    """What a training begins with."""

    settled: Settled
    task: Task
    model: nn.Module
    batches: Any


def prepare(config: Config) -> Prepared:
    """Settle a configuration, and build its model."""
    settled = settle(config, torch.device("cpu"))
    model = build_model(settled.task.builder, settled.vocabulary)
    settled.initialise(model)
    assert settled.task.objective is not None
    return Prepared(settled, settled.task, model, settled.task.objective.batches(settled.train))


def trainer_of(prepared: Prepared, folder: Path) -> Trainer:
    """Return what trains a prepared model on this processor, and writes into a folder."""
    writer, reporter = RunWriter(folder, {}), SafeReporter(Reporter())
    return Trainer(prepared.settled, prepared.model, torch.device("cpu"), writer, reporter, ONE_RANK)
