"""What a training tells: `metrics.jsonl` always, TensorBoard if it is installed, and whoever listens."""

import importlib.util
import itertools
import json
import os
import warnings
from pathlib import Path
from typing import Any

from ..core.errors import InputError
from ..storage.atomic_files import to_json, whole
from ..storage.safe_files import open_regular

Record = dict[str, Any]
LONGEST = 1 << 20
"""Characters of a record, at most."""


class Reporter:
    """Receives what a training tells; these methods do nothing, and a subclass overrides those that it needs.

    The methods are called in the process and thread that trains. An `OSError` (a closed pipe, a full disk) ends the
    reports and not the training.
    """

    def begin(self, record: Record) -> None:
        """Before the first step: what `docs/training.md` lists, as for the other methods."""

    def step(self, record: Record) -> None:
        """After every step: ``step epoch tokens loss learning_rate tokens_per_second progress seconds_left``."""

    def validation(self, record: Record) -> None:
        """After every validation: ``step epoch seconds best`` and the metrics of the held-out data."""

    def end(self, record: Record) -> None:
        """After the last step: what `summary.json` holds; not where the training failed or was interrupted."""

    def close(self) -> None:
        """For whoever made the reporter, to release what it holds; `seriatim.train` does not call it."""


class SafeReporter(Reporter):
    """Passes everything on to a reporter until that fails to write; the training goes on without it.

    Args:
        reporter: who listens; its errors other than `OSError` (and writing to a closed file) are raised.
    """

    def __init__(self, reporter: Reporter) -> None:
        self.reporter: Reporter | None = reporter

    def begin(self, record: Record) -> None:
        """See `Reporter.begin`."""
        self._pass("begin", record)

    def step(self, record: Record) -> None:
        """See `Reporter.step`."""
        self._pass("step", record)

    def validation(self, record: Record) -> None:
        """See `Reporter.validation`."""
        self._pass("validation", record)

    def end(self, record: Record) -> None:
        """See `Reporter.end`."""
        self._pass("end", record)

    def close(self) -> None:
        """See `Reporter.close`."""
        self._pass("close")

    def _pass(self, method: str, *record: Record) -> None:
        if self.reporter is None:
            return
        try:
            getattr(self.reporter, method)(*record)
        except OSError:
            self.reporter = None
        except ValueError as error:
            if "closed file" not in str(error):
                raise
            self.reporter = None


class MetricsLog:
    """Appends to `metrics.jsonl`, and to TensorBoard's files beside it if that is installed.

    Args:
        folder: of the run.
        step: where the training goes on from.
        records: how many were written until there; later ones, of a run that was cut off, are dropped. None (where a
            checkpoint of version 0.1 does not say) drops those of later steps.

    Attributes:
        records: how many there are.
    """

    def __init__(self, folder: Path, *, step: int, records: int | None) -> None:
        self.path = folder / "metrics.jsonl"
        self.records = self._keep(step, records)
        if records is not None and self.records < records:
            lost = f"line {self.records + 1} is damaged or missing, and {records - self.records} lines with it"
            warnings.warn(f"{self.path}: {lost}; the training goes on without them", stacklevel=2)
        self.file = self.path.open("a", encoding="utf-8")
        self.board: Any = None
        if importlib.util.find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            self.board = SummaryWriter(str(folder / "tensorboard"), purge_step=step or None)

    def write(self, record: Record) -> None:
        """One line of JSON."""
        self.file.write(to_json(record) + "\n")
        self.file.flush()
        self.records += 1
        if self.board is not None:
            for name, value in record.items():
                if isinstance(value, float):
                    self.board.add_scalar(f"{record['kind']}/{name}", value, record["step"])

    def flush(self) -> None:
        """Waits until what was written is on the disk."""
        self.file.flush()
        os.fsync(self.file.fileno())

    def close(self) -> None:
        """Flushes and closes."""
        self.file.close()
        if self.board is not None:
            self.board.close()

    def _keep(self, step: int, most: int | None) -> int:
        """Drops later records, and a link to nothing, which would be filled where it leads; returns how many stay."""
        if not self.path.exists():
            self.path.unlink(missing_ok=True)
            return 0
        try:
            descriptor = open_regular(self.path)
        except ValueError as error:
            raise InputError(f"{self.path}: {error}; remove it to go on without it") from None
        with (
            open(descriptor, encoding="utf-8", errors="replace") as source,
            whole(self.path) as aside,
            aside.open("w", encoding="utf-8") as kept,
        ):
            before = itertools.takewhile(
                lambda line: _is_before(line, step), iter(lambda: source.readline(LONGEST), "")
            )
            return sum(kept.write(line) > 0 for line in itertools.islice(before, most))


def _is_before(line: str, step: int) -> bool:
    """Whether a record is of this step or one before; not so the line that a crash cut short."""
    try:
        return line.endswith("\n") and json.loads(line)["step"] <= step
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
