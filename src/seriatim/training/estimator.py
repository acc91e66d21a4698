"""The interface of the algorithms that fit a model: gradient descent in many steps, or counting in one pass."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import nn

from ..config import Training
from ..data.vocabulary import Vocabulary
from ..evaluation.intervals import Metrics
from .reporting import Reporter
from .task_data import TaskBatch, TaskBatches
from .training_state import Progress

TaskType = TypeVar("TaskType")


@dataclass
class Job(Generic[TaskType]):
    """Everything that fitting a model needs; see `seriatim.training.setup.prepare`.

    Attributes:
        task: the task.
        folder: the folder of the run.
        vocabulary: encodes the data.
        model: the model before training.
        batches: the batches of ``train``.
        train: the training data, as the task reads it.
        valid: the held-out data, or None.
    """

    task: TaskType
    folder: Path
    vocabulary: Vocabulary
    model: nn.Module
    batches: TaskBatches[TaskBatch]
    train: Any
    valid: Any


class Estimator(ABC):
    """Fits the model of a job and writes its weights into the folder of the run.

    Args:
        job: the task with its data and its model.
        device: where to compute.
        reporter: is told the progress.
        metadata: is written with the weights, to tell them from those of other runs.

    Attributes:
        model: the model, once `start` or `resume` has returned.
        progress: how far the training has come.
        metrics: the last validation if the weights of the run are those that it measured, else None.
        ended: why the training ended, in words.
        resumable: whether `fit` writes checkpoints that `resume` restores.
        work_unit: plural noun for the work that was done: a field of `Progress` and of reports, as ``steps``.
    """

    resumable: ClassVar[bool]
    work_unit: ClassVar[str]
    model: nn.Module
    progress: Progress
    metrics: Metrics | None = None
    ended: str = ""

    def __init__(self, job: Job[Any], device: torch.device, reporter: Reporter, metadata: dict[str, str]) -> None:
        self.job, self.device, self.reporter, self.metadata = job, device, reporter, metadata

    @classmethod
    @abstractmethod
    def space_needed(cls, model: nn.Module, vocabulary: Vocabulary, config: Training) -> int:
        """Return the disk space that a run needs, in bytes."""

    @abstractmethod
    def start(self) -> None:
        """Prepare a new training. Afterwards ``model`` has its parameters."""

    @abstractmethod
    def resume(self) -> None:
        """Restore the last checkpoint of the run.

        Raises:
            InputError: there is none, or it belongs to another run or other data.
        """

    @abstractmethod
    def fit(self) -> Progress:
        """Train from the present state to the end.

        Raises:
            TrainingError: the training failed.
        """

    @abstractmethod
    def nothing_left(self) -> str:
        """Return why there is nothing left to do, in words; an empty string if there is."""
