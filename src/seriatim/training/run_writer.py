"""What a training writes into the folder of its run: metrics, weights and checkpoints.

A run that is to replace another is written into a stage beside it, and takes its place when it has weights.
"""

import importlib.util
import itertools
import json
import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor, nn

from ..config import Training
from ..core.errors import DamagedError, InputError, UnreadableError
from ..core.state import State
from ..storage.files import open_regular, to_json, whole
from ..storage.weights import save_weights
from ..storage.written_folders import RUN, outer, record, settle
from ..tasks.model_size import MOMENTS
from .checkpoints import MAX_CHECKPOINTS, Progress, save_checkpoint, saving
from .optimizers import check_parameters
from .reporting import Record

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

MAX_CHARACTERS = 1 << 20
"""Largest length of a record."""


class MetricsLog:
    """Appends to `metrics.jsonl`, and to TensorBoard's files if TensorBoard is installed.

    Args:
        folder: the folder of the run.
        step: the step from which the training resumes.
        records: the number of records at that step; later ones, of a training that was interrupted, are dropped.

    Warns:
        UserWarning: records are damaged or missing.
    """

    def __init__(self, folder: Path, *, step: int, records: int) -> None:
        self.path = folder / "metrics.jsonl"
        self.records = self._truncate(step, records)
        if self.records < records:
            lost = f"line {self.records + 1} is damaged or missing, and {records - self.records} lines with it"
            warnings.warn(f"{self.path}: {lost}; the training goes on without them", stacklevel=2)
        self.file = self.path.open("a", encoding="utf-8")
        self.board: SummaryWriter | None = None
        if importlib.util.find_spec("tensorboard") is not None:
            from torch.utils import tensorboard

            record(folder, RUN, "tensorboard")
            self.board = tensorboard.SummaryWriter(str(folder / "tensorboard"), purge_step=step or None)

    def write(self, record: Record) -> None:
        """Write a record as one line of JSON."""
        self.file.write(to_json(record) + "\n")
        self.file.flush()
        self.records += 1
        if self.board is not None:
            for name, value in record.items():
                if isinstance(value, float):
                    self.board.add_scalar(f"{record['kind']}/{name}", value, record["step"])

    def flush(self) -> None:
        """Wait until all records are on the disk."""
        self.file.flush()
        os.fsync(self.file.fileno())

    def close(self) -> None:
        """Flush and close the files."""
        self.file.close()
        if self.board is not None:
            self.board.close()

    def _truncate(self, step: int, records: int) -> int:
        """Drop later records, and return the number that is left. A link to a missing file is removed."""
        if not self.path.exists():
            self.path.unlink(missing_ok=True)
            return 0
        try:
            descriptor = open_regular(self.path)
        except ValueError as error:
            raise UnreadableError(f"{self.path}: {error}; remove it to go on without it") from None
        source = open(descriptor, encoding="utf-8", errors="replace")  # noqa: SIM115
        with source, whole(self.path) as temporary, temporary.open("w", encoding="utf-8") as target:
            lines = iter(lambda: source.readline(MAX_CHARACTERS), "")
            complete = itertools.takewhile(lambda line: _is_before(line, step), lines)
            return sum(target.write(line) > 0 for line in itertools.islice(complete, records))


def _is_before(line: str, step: int) -> bool:
    """Return whether a line is a complete record of this step or an earlier one."""
    record = _record(line)
    return record is not None and record["step"] <= step


def _record(line: str) -> Record | None:
    """Return the record of a line; None for a line that is incomplete or damaged."""
    try:
        record = json.loads(line) if line.endswith("\n") else None
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None


def read_metrics(folder: Path) -> list[Record]:
    """Return the records of a run's `metrics.jsonl`; none if there is no such file.

    Raises:
        InputError: the file cannot be read, or a line is damaged.
    """
    path, remedy = folder / "metrics.jsonl", "restore it, or remove the run to train it again"
    records: list[Record] = []
    try:
        with open(open_regular(path), encoding="utf-8") as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_CHARACTERS), ""), start=1):
                if (record := _record(line)) is None:
                    raise DamagedError(f"{path}:{number}: damaged; {remedy}")
                records.append(record)
    except FileNotFoundError:
        return []
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise UnreadableError(
            f"{path}: cannot be read ({getattr(error, 'strerror', None) or error}); {remedy}"
        ) from None
    return records


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
    """Writes into the folder of a run. Only rank 0 writes.

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
