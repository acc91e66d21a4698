"""Fitting a model directly, without steps of gradient descent: by counting, or until its loss no longer falls."""

import time
from contextlib import closing
from dataclasses import dataclass, field

import torch
from torch import nn

from ..core.json_object import JsonObject
from .checkpoints import MetricsLog, Progress, RunWriter
from .hardware import freed_memory_kept
from .reporting import SafeReporter
from .settle import Settled

BLOCK_BYTES = 1 << 23
"""Size of the blocks of memory that are kept for reuse while counting; larger ones are allocated once."""


@dataclass
class DirectFit:
    """Fits a model, and measures it on the validation data; the attributes are those of `Trainer`."""

    settled: Settled
    writer: RunWriter
    reporter: SafeReporter
    model: nn.Module
    progress: Progress
    metrics: JsonObject | None = None
    ended: str = ""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def start(self) -> None:
        """Fit the model, and open its tables, which are in the folder of the run."""
        task, started = self.settled.task, time.perf_counter()
        assert task.fitter is not None
        weights = self.writer.path("model.safetensors")
        # Counting allocates large arrays once. Iterations need blocks of the same sizes again and again.
        with freed_memory_kept(up_to=BLOCK_BYTES) if task.fitter.counts else freed_memory_kept():
            fitted = task.fitter.fit(self.settled.train, self.settled.vocabulary, weights, self.writer.metadata)
        self.ended = fitted.ended
        self.writer.replace_previous()
        self.model = task.builder.load(self.settled.vocabulary, self.writer.folder / weights.name)
        self.progress = Progress(data=self.settled.train.key, tokens=fitted.tokens)
        self.progress.training_seconds = time.perf_counter() - started

    def nothing_left(self) -> str:
        """Return nothing: a model that is fitted directly does not resume."""
        return ""

    def fit(self) -> None:
        """Measure the validation data."""
        settled, progress = self.settled, self.progress
        progress.step = progress.epoch = 1
        began = time.perf_counter() - progress.training_seconds
        if settled.valid is not None:
            evaluator = settled.task.evaluator
            valid = evaluator.sample(settled.valid, settled.config.training.validate_tokens)
            self.metrics = metrics = evaluator.evaluate(self.model, valid)
            progress.best_valid = float(metrics[evaluator.selection(settled.vocabulary).key])
            record = {"kind": "valid", "step": 1, "epoch": 1, "seconds": time.perf_counter() - began, **metrics}
            with closing(MetricsLog(self.writer.path("metrics.jsonl").parent, step=0, records=0)) as log:
                log.write(record)
            self.reporter.tell("validation", {**record, "best": True})
        progress.seconds = time.perf_counter() - began
