"""The algorithms that fit a model: their interface, and fitting at once; see `loop` for gradient descent."""

import time
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import torch
from torch import nn

from ..config import Training
from ..core.allocator import freed_memory_kept
from ..data.vocabulary import Vocabulary
from ..evaluation.intervals import Metrics
from ..processes.ranks import ONE_RANK, Ranks
from ..storage.written_folders import RUN, record, settle
from .checkpoints import saving
from .metrics_log import MetricsLog
from .reporting import Record, Reporter
from .task_data import TaskBatch, TaskBatches
from .training_state import Progress

BLOCK_BYTES = 1 << 23
"""Size of the blocks of memory that are kept for reuse while counting; larger ones are allocated once."""
BYTES_PER_WORD = 16
"""Disk space for a word: its probability, and its backoff weight."""
OTHER_BYTES = 1 << 20
"""Disk space for everything but parameters: configuration, vocabulary, metrics."""
TaskType = TypeVar("TaskType")


@dataclass
class Job(Generic[TaskType]):
    """Everything that fitting a model needs; see `seriatim.training.setup.prepare`."""

    task: TaskType
    folder: Path  # of the run; of one that is to replace another, the stage until `settle` is called
    vocabulary: Vocabulary
    model: nn.Module  # before training
    batches: TaskBatches[TaskBatch]  # of ``train``
    train: Any  # the training data, as the task reads it
    valid: Any  # the held-out data, or None

    def path(self, name: str) -> Path:
        """Return the path of a file or folder of the run that is written next, which its list names from now on."""
        with saving(self.folder):
            record(self.folder, RUN, name)
        return self.folder / name

    def settle(self) -> None:
        """Let the run take the place of the one that it was to replace, if there is one: it has weights now."""
        self.folder = settle(self.folder)


class Estimator(ABC):
    """Fits the model of a job on a device, and writes its weights into the folder of the run.

    The reporter receives the progress. The metadata is written with the weights, to tell them from those of other runs.
    The ranks share the work if `divides` says that it can be divided; otherwise the leader does it alone.
    """

    resumable: ClassVar[bool]  # whether `fit` writes checkpoints that `resume` restores
    divides: ClassVar[bool] = False  # whether several ranks can share the work
    work_unit: ClassVar[str]  # plural noun for the work that was done: a field of `Progress` and of reports
    model: nn.Module  # once `start` or `resume` has returned
    progress: Progress
    metrics: Metrics | None = None  # the last validation if it measured the weights of the run
    ended: str = ""  # why the training ended, in words
    finished: ClassVar[str] = ""  # why a finished run that cannot resume is left as it is, and what to do, in words

    def __init__(
        self,
        job: Job[Any],
        device: torch.device,
        reporter: Reporter,
        metadata: dict[str, str],
        ranks: Ranks = ONE_RANK,
    ) -> None:
        self.job, self.device, self.reporter, self.metadata, self.ranks = job, device, reporter, metadata, ranks
        self.prepare()

    @abstractmethod
    def prepare(self) -> None:
        """Set what `start` and `resume` need; ``progress`` is that of a training that has not begun."""

    @classmethod
    @abstractmethod
    def space_needed(cls, model: nn.Module, vocabulary: Vocabulary, config: Training) -> int:
        """Return the disk space that a run needs, in bytes."""

    @abstractmethod
    def start(self) -> None:
        """Prepare a new training. Afterwards ``model`` has its parameters."""

    def resume(self) -> None:
        """Restore the last checkpoint of the run.

        Raises:
            InputError: there is none, or it belongs to another run or other data.
        """
        raise NotImplementedError

    def nothing_left(self) -> str:
        """Return why there is nothing left to do, in words; an empty string if there is."""
        return ""

    @abstractmethod
    def fit(self) -> Progress:
        """Train from the present state to the end.

        Raises:
            TrainingError: the training failed.
        """

    def report(self, event: Literal["begin", "step", "validation", "end"], record: Record) -> None:
        """Tell the reporter, until it fails to write: the training continues without it."""
        try:
            getattr(self.reporter, event)(record)
        except (OSError, ValueError) as error:
            if isinstance(error, ValueError) and "closed file" not in str(error):
                raise
            self.reporter = Reporter()


class Written(NamedTuple):
    """Facts about a model that was fitted and written: the tokens of its training data, and why the fitting ended."""

    tokens: int
    ended: str


class OnePassEstimator(Estimator):
    """Fits the model of a job at once, by the method ``write_model`` of the task."""

    resumable = False
    work_unit = "tokens"
    finished = "counted in one pass, nothing is left to do; count again with --overwrite"

    def prepare(self) -> None:
        """Note the data; see `Estimator.prepare`."""
        self.progress = Progress(data=self.job.train.key)

    @classmethod
    def space_needed(cls, model: nn.Module, vocabulary: Vocabulary, config: Training) -> int:
        """Return the space for the words, in bytes; that of n-grams is not known before they are counted."""
        return BYTES_PER_WORD * vocabulary.tokenizer.vocabulary_size + OTHER_BYTES

    def allocation(self) -> AbstractContextManager[None]:
        """Return a context in which memory is allocated as the fitting needs it."""
        return freed_memory_kept(up_to=BLOCK_BYTES)

    def start(self) -> None:
        """Fit the model, and open its tables, which are in the folder of the run."""
        job, started = self.job, time.perf_counter()
        weights = job.path("model.safetensors")
        with self.allocation():
            tokens, self.ended = job.task.write_model(job.train, job.vocabulary, weights, self.metadata)
        self.progress.tokens = tokens
        job.settle()
        self.model = job.task.load_model(job.vocabulary, job.folder / weights.name)
        self.progress.training_seconds = time.perf_counter() - started

    def fit(self) -> Progress:
        """Measure the held-out data."""
        job, progress = self.job, self.progress
        began = time.perf_counter() - progress.training_seconds
        progress.step = progress.epoch = 1
        if job.valid is not None:
            self.metrics = metrics = job.task.validate(self.model, job.valid)
            progress.best_valid = float(metrics[job.task.selection_metric(job.vocabulary)])
            record = {"kind": "valid", "step": 1, "epoch": 1, "seconds": time.perf_counter() - began, **metrics}
            with closing(MetricsLog(job.path("metrics.jsonl").parent, step=0, records=0)) as log:
                log.write(record)
            self.report("validation", {**record, "best": True})
        progress.seconds = time.perf_counter() - began
        return progress


class ConvergingEstimator(OnePassEstimator):
    """Fits the model of a job until its loss no longer falls, in seconds and without checkpoints."""

    finished = "trained until its loss no longer fell, nothing is left to do; train again with --overwrite"

    def allocation(self) -> AbstractContextManager[None]:
        """Return a context in which freed memory is kept, because every step needs blocks of the same sizes."""
        return freed_memory_kept()
