"""Fitting a model in one pass over the training data, by counting."""

import time
from typing import Any

import torch
from torch import nn

from ..config import Training
from ..core.allocator import freed_memory_kept
from ..data.vocabulary import Vocabulary
from .estimator import Estimator, Job
from .metrics_log import MetricsLog
from .reporting import Reporter
from .training_state import Progress

BLOCK_BYTES = 1 << 23
"""Size of the blocks of memory that are kept for reuse while counting; larger ones are allocated once."""
BYTES_PER_WORD = 16
"""Disk space for a word: its probability, and its backoff weight."""
OTHER_BYTES = 1 << 20
"""Disk space for everything but the tables: configuration, vocabulary, metrics."""


class OnePassEstimator(Estimator):
    """Counts the training data of a job. The task has a method ``write_model``."""

    resumable = False
    work_unit = "tokens"
    ended = "counting is one pass over the text"

    def __init__(self, job: Job[Any], device: torch.device, reporter: Reporter, metadata: dict[str, str]) -> None:
        super().__init__(job, device, reporter, metadata)
        self.progress = Progress(data=job.train.key)

    @classmethod
    def space_needed(cls, model: nn.Module, vocabulary: Vocabulary, config: Training) -> int:
        """Return the space for the words, in bytes; that of longer n-grams is not known before they are counted."""
        return BYTES_PER_WORD * vocabulary.tokenizer.vocabulary_size + OTHER_BYTES

    def start(self) -> None:
        """Count the training data, and open the tables, which are in the folder of the run."""
        job, weights, started = self.job, self.job.folder / "model.safetensors", time.perf_counter()
        with freed_memory_kept(up_to=BLOCK_BYTES):
            job.task.write_model(job.train, job.vocabulary, weights, self.metadata)
        self.model = job.task.load_model(job.vocabulary, weights)
        self.progress.training_seconds = time.perf_counter() - started

    def resume(self) -> None:
        """Count from the start, since nothing is kept of a count that was interrupted."""
        self.start()

    def nothing_left(self) -> str:
        """Return an empty string, since counting always begins at the start."""
        return ""

    def fit(self) -> Progress:
        """Measure the held-out data."""
        job, progress = self.job, self.progress
        started = time.perf_counter()
        progress.step = progress.epoch = 1
        progress.tokens = len(job.train.ids)
        if job.valid is not None:
            self.metrics = metrics = job.task.validate(self.model, job.valid)
            progress.best_valid = float(metrics[job.task.selection_metric(job.vocabulary)])
            progress.seconds = progress.training_seconds + time.perf_counter() - started
            record = {"kind": "valid", "step": 1, "epoch": 1, "seconds": progress.seconds, **metrics}
            log = MetricsLog(job.folder, step=0, records=0)
            log.write(record)
            log.close()
            self.reporter.validation({**record, "best": True})
        progress.seconds = progress.training_seconds + time.perf_counter() - started
        return progress
