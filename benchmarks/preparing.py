"""A training before its first step, for scripts that measure its steps."""

from typing import Any, NamedTuple

import torch
from torch import nn

from seriatim.config import Config
from seriatim.tasks.model_size import build_model
from seriatim.tasks.task import Task
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
