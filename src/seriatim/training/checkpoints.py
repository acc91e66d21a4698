"""What a training writes into the folder of its run: checkpoints, metrics and weights.

A training resumes from the parameters, optimizer, carried state and progress of a checkpoint with the same bits.
It is written to a temporary folder, each file flushed and the manifest of checksums last, and then renamed, so that it
is either complete or absent.

A run that is to replace another is written into a stage beside it, and takes its place when it has weights.
"""

import hashlib
import importlib.util
import itertools
import json
import math
import os
import re
import shlex
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import safetensors.torch
import torch
from pydantic import TypeAdapter
from torch import Tensor, nn

from ..config import Training
from ..core.contract import KIND, saved_kind
from ..core.errors import (
    DamagedError,
    ForbiddenError,
    InputError,
    MismatchError,
    MissingError,
    TrainingError,
    UnreadableError,
    shown,
)
from ..core.json_object import JsonObject
from ..core.key_value_cache import without_unused
from ..core.state import State, join_states, require_kind, select_state, state_from_dict, state_leaves, state_to_dict
from ..processes.ranks import Ranks, RankShard
from ..storage.files import PARTIAL, atomic, flush, open_regular, read_json, read_text, remove, to_json, write_whole
from ..storage.weights import is_finite, load_tensors, load_weights, read_metadata, save_tensors, save_weights
from ..storage.written_folders import RUN, latest_folder, outer, record, settle
from ..tasks.model_size import MOMENTS

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


@dataclass
class Progress:
    """The progress of a training. Losses are in nats; times are in seconds."""

    step: int = 0  # optimizer steps done, skipped ones included
    epoch: int = 0  # epochs completed
    window: int = 0  # batches read of the current epoch; their order follows from the seed
    tokens: int = 0  # tokens read
    seconds: float = 0.0  # time since the training began, after the last step or validation
    training_seconds: float = 0.0  # time spent in optimizer steps
    best_valid: float | None = None  # best value of the metric that selects weights
    loss_of_best: float | None = None  # held-out loss of the weights that are selected
    best_loss: float | None = None  # lowest held-out loss
    previous_loss: float | None = None  # held-out loss of the last validation
    failures: int = 0  # consecutive validations without improvement, for early stopping
    stalled: int = 0  # consecutive validations without a new lowest loss
    averaged_from: int = -1  # step after which ``average_after`` averages the weights; -1 before that
    annealed: int = 0  # how often the schedule ``plateau`` lowered the learning rate
    loss_sum: float = 0.0  # training loss that `metrics.jsonl` does not contain yet
    loss_terms: int = 0  # number of terms of ``loss_sum``
    evaluated_at: int = -1  # step of the last validation; -1 before the first
    last: JsonObject = field(default_factory=dict)  # record of the last step
    records: int = 0  # lines of `metrics.jsonl`
    skipped: int = 0  # steps skipped because the loss or a gradient was not finite
    skipped_in_a_row: int = 0
    data: str = ""  # key of the training data
    held_out: str | None = None  # key of the held-out data
    environment: dict[str, str] = field(default_factory=dict)  # what else the last bits depend on; see `environment`

    def fractions(self, config: Training, windows: int) -> dict[str, float]:
        """Return the fraction that is spent of each budget: epochs of ``windows`` batches, steps, tokens, minutes."""
        fraction_of_epoch = min(self.window / max(windows, 1), 0.999_999)
        done = {
            "epochs": self.epoch + fraction_of_epoch,
            "steps": self.step,
            "tokens": self.tokens,
            "minutes": self.seconds / 60,
        }
        budgets = {name: getattr(config, name) for name in done}
        return {name: done[name] / budget for name, budget in budgets.items() if budget is not None}

    def spent(self, config: Training, windows: int) -> float:
        """Return the largest of `fractions`."""
        return max(self.fractions(config, windows).values())

    def ended(self, config: Training, windows: int) -> str:
        """Return why the training has ended, or an empty string while it has not."""
        for name, fraction in self.fractions(config, windows).items():
            if fraction >= 1:
                count = getattr(config, name)
                return f"the budget of {count:,} {name if count != 1 else name[:-1]} is spent"
        stopping = config.tolerance is not None or config.patience is not None
        if stopping and self.failures >= (config.patience or 1):
            count = "1 validation" if self.failures == 1 else f"{self.failures} validations in a row"
            if config.tolerance is None:
                return f"neither the held-out metric nor the loss had a new best value in {count}"
            least = f"by {config.tolerance:g} nats" if config.tolerance else "at all"
            return f"the held-out loss did not improve {least} in {count}"
        return ""

    def begins_averaging(self, config: Training) -> bool:
        """Record and return whether the uniform average of ``average_after`` begins; early stopping counts anew."""
        if config.average_after is None or self.averaged_from >= 0 or self.stalled < config.average_after:
            return False
        self.averaged_from, self.failures = self.step, 0
        return True

    def record_validation(self, metric: float, loss: float, config: Training, *, more_is_better: bool) -> bool:
        """Record a validation, and return whether its metric, which selects the weights, is the best so far.

        Of several validations with the best metric, the one with the lowest loss counts, as exact answers or the
        accuracy of few texts often have the same value.

        Early stopping waits until neither the metric nor the loss has a new best value: a metric of few items moves
        by chance while the loss still falls. With a tolerance it looks at the loss alone, in nats; so do the schedule
        ``plateau`` and ``average_after``, which gives early stopping a new start.
        """
        # What selects the weights, and what early stopping looks at, are two questions.
        sign = 1 if more_is_better else -1
        best = self.best_valid is None or sign * metric > sign * self.best_valid
        lowest = self.best_loss is None or loss < self.best_loss
        improved = best or lowest
        tied = self.best_valid == metric and self.loss_of_best is not None and loss < self.loss_of_best
        if config.tolerance is not None:
            improved = self.previous_loss is None or self.previous_loss - loss >= config.tolerance

        # Early stopping, the start of an average and the schedule each count in their own way.
        self.failures = 0 if improved else self.failures + 1
        self.stalled = 0 if lowest else self.stalled + 1
        self.annealed += int(not lowest and config.schedule == "plateau")
        self.previous_loss = loss
        self.best_loss = loss if lowest else self.best_loss
        if best or tied:
            self.best_valid, self.loss_of_best = metric, loss
        return best or tied


MAX_CHECKPOINTS = 2
"""Number of checkpoints that are kept."""
NAME = re.compile(r"step-([0-9]{9})(?:\.([1-9][0-9]{0,5}))?")
"""Names of checkpoints; the second number distinguishes checkpoints of the same step."""
MANIFEST, DAMAGED = "manifest.json", ".damaged"
OPTIMIZER, AVERAGE = "optimizer.safetensors", "average.safetensors"
REQUIRED_FILES = {"model.safetensors", OPTIMIZER, "progress.json"}
MAX_BYTES = 1 << 16
"""Largest size of a manifest or of the progress."""
REMEDY = "restore the checkpoint, or train from the start with --overwrite"


def save_checkpoint(
    folder: Path,
    model: nn.Module,
    moments: dict[str, Tensor],
    state: State | None,
    progress: Progress,
    metadata: dict[str, str],
    average: dict[str, Tensor] | None = None,
) -> None:
    """Write a checkpoint into ``checkpoints/`` of a run, and remove the oldest ones.

    The moments are the result of `optimizer_tensors`. The state is carried between batches, if any; the metadata
    identifies the run that the weights belong to; the average is that of the model's weights, if there is one.

    Raises:
        OSError: the disk is full or cannot be written.
    """
    _refuse_link(folder)
    if not folder.is_dir():
        folder.mkdir()
        flush(folder.parent)
    for partial in folder.glob(f"step-*{PARTIAL}"):  # of a training that was killed
        remove(partial)

    # A step can have several checkpoints, since a training that was given more budget goes on from its last step.
    numbers = [number for step, number in map(_order, checkpoints(folder)) if step == progress.step]
    path = folder / (f"step-{progress.step:09d}" + (f".{max(numbers) + 1}" if numbers else ""))
    partial = path.with_name(f"{path.name}{PARTIAL}")

    # The manifest is written last: a folder without it is no checkpoint, whatever else it holds.
    try:
        partial.mkdir()
        save_weights(model, partial / "model.safetensors", metadata)
        save_tensors(moments, partial / OPTIMIZER)
        if average is not None:
            save_tensors(average, partial / AVERAGE)
        if state is not None:
            leaves = {f"state/{path}": leaf for path, leaf in state_to_dict(state).items()}
            save_tensors(leaves, partial / "state.safetensors", {KIND: saved_kind(model, state)})
        write_whole(partial / "progress.json", json.dumps(asdict(progress)))
        sums = {path.name: _sum(path) for path in sorted(partial.iterdir())}
        write_whole(partial / MANIFEST, json.dumps({"sha256": sums}, indent=2))
    except OSError:
        remove(partial)  # the disk may be full
        raise

    # Old checkpoints go only after the new one has its name, so that one is complete at every moment.
    partial.rename(path)
    flush(folder)
    for old in checkpoints(folder)[:-MAX_CHECKPOINTS]:
        remove(old)


def checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints, oldest first."""
    return sorted((path for path in folder.glob("step-*") if NAME.fullmatch(path.name)), key=_order)


def _order(checkpoint: Path) -> tuple[int, int]:
    """Return the step of a checkpoint and its number among those of the step."""
    match = NAME.fullmatch(checkpoint.name)
    assert match is not None
    return int(match[1]), int(match[2] or 0)


@contextmanager
def saving(folder: Path) -> Iterator[None]:
    """Turn an `OSError` of writing into a `TrainingError` that says how to continue."""
    try:
        yield
    except OSError as error:
        where, reason = error.filename or folder, error.strerror or error
        raise TrainingError(f"{where}: cannot be written ({reason}); make room; {how_to_continue(folder)}") from None


def how_to_continue(folder: Path) -> str:
    """Return in words what to do after the training of a run has failed."""
    folder = outer(folder)
    saved = checkpoints(latest_folder(folder, RUN) / "checkpoints")
    if not saved:
        return "no checkpoint is complete, start the training again"
    return f"{saved[-1].name} is complete, resume with --resume {shlex.quote(str(folder))}"


def checkpoint_weights(folder: Path) -> list[Path]:
    """Return the file of parameters of every checkpoint, oldest first; raise InputError if there is none."""
    _refuse_link(folder)
    paths = [path / "model.safetensors" for path in checkpoints(folder)]
    if not paths:
        raise MissingError(f"{folder}: no checkpoint to resume from; train from the start with --overwrite")
    return paths


def _refuse_link(folder: Path) -> None:
    """Raise InputError if checkpoints lie outside the run, where no file may be removed."""
    if folder.is_symlink():
        raise ForbiddenError(
            f"{folder}: a link, and old checkpoints are removed there; replace it by the folder itself"
        )


def damage(checkpoint: Path) -> str | None:
    """Return one line on the first damaged or missing file of a checkpoint; None if all are as they were written."""
    try:
        sums = read_json(checkpoint / MANIFEST, max_bytes=MAX_BYTES, remedy="")["sha256"].items()
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{checkpoint / MANIFEST}: missing or damaged"
    if missing := sorted(REQUIRED_FILES - {name for name, _ in sums}):
        return f"{checkpoint / MANIFEST}: damaged (it does not name {missing[0]})"
    for name, expected in sums:
        path = checkpoint / Path(name).name  # no other folder
        try:
            if _sum(path) != expected:
                return f"{path}: damaged"
        except (OSError, ValueError):
            return f"{path}: missing or unreadable"
    return None


def load_checkpoint(
    last: Path, model: nn.Module, like: State | None, metadata: dict[str, str]
) -> tuple[State | None, Progress]:
    """Load the weights of a checkpoint; return the carried state, or None, and the progress.

    The state has the structure of ``like``; None if no state is carried. The metadata is that of `save_checkpoint`.

    Raises:
        InputError: the checkpoint belongs to another run.
    """
    progress = _read_progress(last / "progress.json")
    if read_metadata(last / "model.safetensors") != metadata:
        raise MismatchError(f"{last}: it belongs to another run; {REMEDY}")
    load_weights(model, last / "model.safetensors")
    if like is None or not (last / "state.safetensors").exists():
        return None, progress
    file = last / "state.safetensors"
    tensors = {name.removeprefix("state/"): leaf for name, leaf in load_tensors(file).items()}
    expected = saved_kind(model, like)
    try:
        require_kind(read_metadata(file).get(KIND, expected), expected, "this model")
        return state_from_dict(tensors, like), progress
    except ValueError as error:
        raise MismatchError(f"{file}: {str(error).partition('; ')[0]}; {REMEDY}") from None


def _read_progress(path: Path) -> Progress:
    """Read the progress of a checkpoint, and check the types and the ranges of its values."""
    text = read_text(path, max_bytes=MAX_BYTES, remedy=REMEDY)
    try:
        progress = TypeAdapter(Progress).validate_json(text, strict=True)
    except ValueError:
        raise DamagedError(f"{path}: not the progress of a training, or damaged; {REMEDY}") from None
    for name, value in asdict(progress).items():
        least = -1 if name in ("evaluated_at", "averaged_from") else 0
        if isinstance(value, int) and not least <= value < 2**53:
            raise DamagedError(f"{path}: {name} must be at least {least}, got {shown(value)}; {REMEDY}")
        if name in ("seconds", "training_seconds") and not 0 <= value < math.inf:
            raise DamagedError(f"{path}: {name} must be a number of seconds, got {value}; {REMEDY}")
    return progress


def last_complete(folder: Path) -> Path:
    """Return the last undamaged checkpoint; rename later ones.

    Raises:
        InputError: there is none.

    Warns:
        UserWarning: a later checkpoint is damaged.
    """
    problems: dict[Path, str] = {}
    for path in (weights.parent for weights in reversed(checkpoint_weights(folder))):
        problem = damage(path)
        if problem is None:
            for other, text in reversed(problems.items()):
                suffixes = itertools.chain([""], (f".{i}" for i in itertools.count(1)))
                paths = (folder / f"{other.name}{DAMAGED}{suffix}" for suffix in suffixes)
                other.rename(next(path for path in paths if not path.exists()))
                warnings.warn(f"{text}; going on from the checkpoint before, {path}", stacklevel=2)
            return path
        problems[path] = problem
    reason = next(iter(problems.values()))
    raise DamagedError(f"{reason}, and no earlier checkpoint is complete; train from the start with --overwrite")


def _sum(path: Path) -> str:
    with open(open_regular(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# The state that is carried from window to window


def join_carried(state: State | None, like: State | None, ranks: Ranks, *, has_rows: bool) -> State | None:
    """Return the state of the rows of all ranks, in order, on the CPU.

    ``like`` is a state of the same structure; rows that are not the rank's own are left out. Every rank calls this, and
    only rank 0 has the result.
    """
    if ranks.count == 1 or state is None or like is None:
        return state
    rows = select_state(state, torch.arange(0)) if not has_rows else state
    contents = ranks.gather_bytes(safetensors.torch.save({f"/{k}": v.cpu() for k, v in state_to_dict(rows).items()}))
    tensors = ({name[1:]: leaf for name, leaf in safetensors.torch.load(content).items()} for content in contents)
    return join_states([state_from_dict(leaves, like) for leaves in tensors]) if ranks.is_rank_zero else None


def split_carried(state: State | None, shard: RankShard) -> tuple[State | None, bool]:
    """Return the rows of this rank, given those of all, and whether it has rows of its own; see `join_carried`."""
    if state is None or shard.count == 1:
        return state, True
    rows = np.arange(len(state_leaves(state)[0]))
    return without_unused(select_state(state, torch.from_numpy(shard.of(rows)))), not shard.is_idle(rows)


# Metrics and weights


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

    def write(self, record: JsonObject) -> None:
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
        with source, atomic(self.path) as temporary, temporary.open("w", encoding="utf-8") as target:
            lines = iter(lambda: source.readline(MAX_CHARACTERS), "")
            complete = itertools.takewhile(lambda line: _is_before(line, step), lines)
            return sum(target.write(line) > 0 for line in itertools.islice(complete, records))


def _is_before(line: str, step: int) -> bool:
    """Return whether a line is a complete record of this step or an earlier one."""
    record = _record(line)
    return record is not None and record["step"] <= step


def _record(line: str) -> JsonObject | None:
    """Return the record of a line; None for a line that is incomplete or damaged."""
    try:
        record = json.loads(line) if line.endswith("\n") else None
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None


def read_metrics(folder: Path) -> list[JsonObject]:
    """Return the records of a run's `metrics.jsonl`; none if there is no such file.

    Raises:
        InputError: the file cannot be read, or a line is damaged.
    """
    path, remedy = folder / "metrics.jsonl", "restore it, or remove the run to train it again"
    records: list[JsonObject] = []
    try:
        # The file may be anything that lies in the folder: lines are read up to a bound, never a file at once.
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
        folder: that of the run; of one that is to replace another, the stage until `replace_previous` is called.
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

    def replace_previous(self) -> None:
        """Let the run take the place of the one that it was to replace, if there is one: it has weights now."""
        self.folder = settle(self.folder)

    def open_log(self, progress: Progress) -> None:
        """Open `metrics.jsonl`, and drop records of steps that come after the present one."""
        self.log = MetricsLog(self.path("metrics.jsonl").parent, step=progress.step, records=progress.records)

    def close_log(self) -> None:
        """Close `metrics.jsonl` if it is open."""
        if self.log is not None:
            self.log.close()

    def write_record(self, values: JsonObject) -> None:
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
                self.replace_previous()
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


def check_parameters(model: nn.Module, *, step: int) -> None:
    """Raise TrainingError if a parameter is not finite."""
    name = next((name for name, value in model.named_parameters() if not is_finite(value.detach())), None)
    if name is not None:
        raise TrainingError(
            f"step {step}: {name} is not finite after this update or one before; go on from the last checkpoint with "
            "a lower training.learning_rate"
        )
