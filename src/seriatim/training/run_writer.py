"""What a training writes into the folder of its run: metrics, weights and checkpoints.

A run that is to replace another is written into a stage beside it, and takes its place when it has weights.
"""

from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from ..config import Training
from ..core.state import State
from ..storage.weights import save_weights
from ..storage.written_folders import RUN, outer, record, settle
from ..tasks.model_size import MOMENTS
from .checkpoints import MAX_CHECKPOINTS, save_checkpoint, saving
from .metrics_log import MetricsLog
from .optimizers import check_parameters
from .reporting import Record
from .training_state import Progress

OTHER_BYTES = 1 << 20
"""Disk space for everything but parameters: configuration, vocabulary, metrics."""
BYTES_PER_WORD = 16
"""Disk space for a word of a model that is fitted directly: its probability, and its backoff weight."""


def space_of_training(model: nn.Module, config: Training) -> int:
    """Return the bytes that a run takes at most: while a further checkpoint and new weights are written."""
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    checkpoint = weights * (1 + MOMENTS[config.optimizer] + bool(config.average or config.average_after))
    return (MAX_CHECKPOINTS + 1) * checkpoint + 2 * weights + OTHER_BYTES


def space_of_fitting(vocabulary_size: int) -> int:
    """Return the bytes of the words of a model that is fitted directly; other sizes are not known before."""
    return BYTES_PER_WORD * vocabulary_size + OTHER_BYTES


class RunWriter:
    """Writes into the folder of a run. Only the leader of the ranks writes.

    Attributes:
        folder: that of the run; of one that is to replace another, the stage until `take_place` is called.
        metadata: what the weights are saved with, to tell them from those of other runs; see `identity`.
        log: `metrics.jsonl`, while it is open.
    """

    def __init__(self, folder: Path, metadata: dict[str, str]) -> None:
        self.folder, self.metadata = folder, metadata
        self.log: MetricsLog | None = None

    def path(self, name: str) -> Path:
        """Return the path of a file or folder of the run that is written next, which its list names from now on."""
        with saving(self.folder):
            record(self.folder, RUN, name)
        return self.folder / name

    def take_place(self) -> None:
        """Let the run take the place of the one that it was to replace, if there is one: it has weights now."""
        self.folder = settle(self.folder)

    def open_log(self, progress: Progress) -> None:
        """Open `metrics.jsonl`, and drop records of steps that come after the present one."""
        self.log = MetricsLog(self.path("metrics.jsonl").parent, step=progress.step, records=progress.records)

    def close_log(self) -> None:
        """Close `metrics.jsonl` if it is open."""
        if self.log is not None:
            self.log.close()

    def write_record(self, values: Record) -> None:
        """Write a line of `metrics.jsonl`, on the rank that has opened it."""
        if self.log is not None:
            with saving(self.folder):
                self.log.write(values)

    def write_weights(self, model: nn.Module, step: int) -> None:
        """Write the weights of a model as those of the run."""
        check_parameters(model, step=step)
        with saving(self.folder):
            save_weights(model, self.path("model.safetensors"), self.metadata)
            if step and self.folder != outer(self.folder):
                log, self.log = self.log, None  # some systems rename no folder with open files
                if log is not None:
                    log.close()
                self.take_place()
                if log is not None:
                    self.log = MetricsLog(self.folder, step=step, records=log.records)

    def write_checkpoint(
        self,
        model: nn.Module,
        moments: dict[str, Tensor],
        average: dict[str, Tensor] | None,
        state: State | None,
        progress: Progress,
    ) -> None:
        """Write a checkpoint of the whole training; the tensors are those of all ranks together."""
        check_parameters(model, step=progress.step)
        assert self.log is not None
        with saving(self.folder):
            self.log.flush()
            progress = replace(progress, records=self.log.records)
            save_checkpoint(self.path("checkpoints"), model, moments, state, progress, self.metadata, average)
