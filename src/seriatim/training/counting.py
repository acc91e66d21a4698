"""Training that is one pass over the text: a model is counted, measured and written."""

import time
from functools import cached_property
from typing import Any, cast

import torch
from torch import nn

from ..core.allocator import freed_memory_kept
from ..evaluation.intervals import Metrics
from .progress import Progress
from .reporting import MetricsLog, Reporter
from .setup import Job

BLOCKS = 1 << 23
"""Bytes of blocks that come and go while a text is counted; what is larger comes once."""


class CountingTrainer:
    """Counts one job, as soon as its model is asked for.

    Args:
        job: everything it needs.
        device: where to compute.
        reporter: who listens.
        metadata: written beside the tables, to tell them from those of another run.
    """

    def __init__(self, job: Job, device: torch.device, reporter: Reporter, metadata: dict[str, str]) -> None:
        self.job, self.device, self.reporter, self.metadata = job, device, reporter, metadata
        self.metrics: Metrics | None = None
        self.ended = "counting is one pass over the text"
        self.task, self.progress = cast(Any, job.task), Progress(data=job.train.key)

    def why_ended(self, seconds: float) -> str:
        """Empty: counting is always done from the start."""
        return ""

    @cached_property
    def model(self) -> nn.Module:
        """The model, whose tables are in the run's folder."""
        job, weights, started = self.job, self.job.folder / "model.safetensors", time.perf_counter()
        with freed_memory_kept(up_to=BLOCKS):
            self.task.write_model(job.train, job.vocabulary, weights, self.metadata)
        found: nn.Module = self.task.load_model(job.vocabulary, weights)
        self.progress.training_seconds = time.perf_counter() - started
        return found

    def run(self) -> Progress:
        """Measures the held-out text."""
        progress, started = self.progress, time.perf_counter()
        progress.step = progress.epoch = 1
        train: Any = self.job.train
        progress.tokens = len(train.ids)
        if self.job.valid is not None:
            self.metrics = metrics = self.task.validate(self.model, self.job.valid)
            progress.best_valid = float(metrics[self.task.selection_metric(self.job.vocabulary)])
            progress.seconds = progress.training_seconds + time.perf_counter() - started
            record = {"kind": "valid", "step": 1, "epoch": 1, "seconds": progress.seconds, **metrics}
            log = MetricsLog(self.job.folder, step=0, records=0)
            log.write(record)
            log.close()
            self.reporter.validation({**record, "best": True})
        progress.seconds = progress.training_seconds + time.perf_counter() - started
        return progress
