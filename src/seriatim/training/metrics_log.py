"""`metrics.jsonl` of a run, and TensorBoard's files beside it if TensorBoard is installed."""

import importlib.util
import itertools
import json
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import InputError
from ..storage.files import open_regular, to_json, whole
from ..storage.written_folders import RUN, record
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
            raise InputError(f"{self.path}: {error}; remove it to go on without it") from None
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
                    raise InputError(f"{path}:{number}: damaged; {remedy}")
                records.append(record)
    except FileNotFoundError:
        return []
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error}); {remedy}") from None
    return records
