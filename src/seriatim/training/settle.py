"""Every open value of a configuration, decided once: by the task, the training data and the machine.

`settle` is the only author of a configuration. It works in stages, each of which returns a changed copy, because some
values depend on others: a vocabulary can only be learned from the training split, and the number of parameters depends
on the vocabulary. Its result cannot be changed; docs/defaults.md says how the defaults were chosen.

Without a budget, a training takes steps at a constant rate and validates an exponential moving average of the weights,
until that stops improving: the average stands in for a falling learning rate, whose length would have to be known
(B. Polyak and A. Juditsky, "Acceleration of stochastic approximation by averaging", 1992).
"""

import json
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from pydantic import BaseModel, ValidationError
from torch import nn

from ..config import BATCH_SIZE, Config, Training
from ..core.errors import InputError, NotSupportedError, RangeError, RequiredError
from ..core.json_object import JsonObject
from ..data.corpus import Corpus
from ..data.repairs import DataWarning, Repairs, rows_kept
from ..data.vocabulary import Vocabulary
from ..storage.files import read_json
from ..tasks import open_task, with_defaults
from ..tasks.data_files import NOTHING, fraction_of
from ..tasks.defaults import default_rate, fill, has_budget
from ..tasks.task import Task, TaskData
from .hardware import choose_precision
from .initial import Initial, open_initial, set_to_zero

NO_FILE = re.compile(r"-?[\d.]+%?|[Nn][Oo][Nn][Ee]")
"""What a user may give who means a fraction of the training data, or no held-out data."""
DEFAULT = "the default of the task"
"""The reason of values that follow from the task alone, which are not reported."""
USUAL: JsonObject = {"training.batch_size": BATCH_SIZE, "model.dropout": 0.0}
"""Defaults where a task has none of its own."""
MINUTES = 20.0
"""Longest time of a training without a budget."""
PATIENCE, PATIENT_STEPS = 5, 1000
"""Validations and steps without improvement that end a training without a budget: the larger of both."""
STEPS_BETWEEN = (50, 1000)
"""Smallest and largest number of steps between two validations of a training without a budget."""
AVERAGE = 0.998
"""Decay of the average of the weights, in a training without a budget."""
WARMUP_STEPS = 100
"""Steps in which the learning rate rises, in a training without a budget."""
BLIND_STEPS, BLIND_EPOCHS = 2000, (5, 50)
"""Steps of a training with neither a budget nor held-out data, and the bounds of its epochs."""


MAX_DECISIONS_BYTES = 1 << 20


class Decision(NamedTuple):
    """A value that nobody gave: its dotted name, the value, and what decided it."""

    name: str
    value: object
    reason: str


class _Value(BaseModel):
    value: object
    reason: str


class _Stored(BaseModel):
    """The content of the file of `Settled.to_json`."""

    decisions: dict[str, _Value]
    counts: dict[str, int]


@dataclass(frozen=True)
class Settled:
    """A training before its model is built: all is decided, and the data are read."""

    config: Config  # cannot be changed
    task: Task  # composed for it
    vocabulary: Vocabulary
    initial: Initial | None  # the run that the training starts from
    train: TaskData  # the training data, as the task reads them
    valid: TaskData | None  # the validation data
    decisions: tuple[Decision, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)  # of what the data give to a new model; see `initialise`

    def to_json(self) -> str:
        """Return what a training that resumes can't find out again: the decisions, and the counts of a new model."""
        decisions = {one.name: {"value": one.value, "reason": one.reason} for one in self.decisions}
        return json.dumps({"decisions": decisions, "counts": self.counts}, indent=2, ensure_ascii=False) + "\n"

    def initialise(self, model: nn.Module) -> None:
        """Set the parameters of a new model that do not begin at random."""
        self.counts.update(self.task.builder.initialise(model, self.train))
        if self.config.model.initial == "zeros":
            set_to_zero(model)
        if self.initial is not None:
            self.initial.copy_to(model, self.config, self.vocabulary)


@rows_kept()
def settle(given: Config, device: torch.device, written: Path | None = None) -> Settled:
    """Decide every open value of a new training, and read its data.

    Args:
        given: the configuration as the user gave it.
        device: where the model will be trained.
        written: the file of `Settled.to_json` of the same training, if it was killed before its first checkpoint: its
            configuration holds what was decided then.

    Raises:
        InputError: data or configuration have a problem.
    """
    decided = Decisions(given)
    if written is not None:
        decided.found.update(_read_decisions(written)[0])
    config, initial, vocabulary = settle_texts(given, decided)
    task = open_task(config)
    train, valid, config = read_data(task, vocabulary)
    config = decided.record(config, "words of the training data")

    config = settle_amounts(config, train, decided, has_validation=valid is not None)
    precision = choose_precision(config.training.precision, device)
    config = decided.record(config.replaced({"training.precision": precision}), f"the device {device}").settled()

    task = open_task(config)
    task.check(train, valid)
    task.evaluator.selection(vocabulary)  # refuses a metric that these data do not have
    warn_of_overlap(task, train, valid)
    return Settled(config, task, vocabulary, initial, train, valid, decided.all())


def settle_texts(given: Config, decided: "Decisions | None" = None) -> tuple[Config, Initial | None, Vocabulary]:
    """Decide what must be known before data are encoded, and learn the vocabulary.

    Returns:
        The configuration so far; the run that the training starts from, if any; and the vocabulary.
    """
    decided = decided or Decisions(given)

    # What needs no data: the options of the task, and the tokenizer of the run that the training starts from.
    config = decided.record(with_defaults(given), DEFAULT)
    open_task(config).files.training_source()  # refuses sources that contradict each other, before one is read
    initial = None if config.training.init is None else open_initial(config)
    if initial is not None:
        config = decided.record(with_tokenizer_of(initial, config), "that of the initial run")
    elif config.tokenizer.kind == "pretrained":
        raise RequiredError("tokenizer.kind: pretrained is that of an imported run; give --init RUN, or another kind")

    # The split comes before anything is learned, so that nothing is learned from validation data.
    config = decided.record(leave_out_markers(config), "on every line of the training data")
    config = decided.record(split_data(config), "the size of the training data")
    require_validation(config)

    # Tokens and models that suit the texts; then the vocabulary, which the data are encoded with.
    task = open_task(config)
    config = decided.record(task.kind.choose(given, config, task.reader), "the texts of the training data")
    task.kind.check_config(config)
    task = open_task(config)
    vocabulary = task.reader.learn_vocabulary()
    vocabulary = vocabulary if initial is None else initial.with_tokenizer(vocabulary)
    return config, initial, vocabulary


def settle_amounts(config: Config, train: TaskData, decided: "Decisions", *, has_validation: bool) -> Config:
    """Return the configuration with the values that depend on the amount of data.

    Of what is still open, the budget comes last, since it counts the batches of an epoch.
    """
    task = open_task(config)
    if task.objective is None:
        return config
    config = decided.record(with_data_defaults(config, train), task.reader.describe(train))
    if config.training.learning_rate is None:
        rate = {"training.learning_rate": default_rate(config, task.kind.learning_rate)}
        config = decided.record(fill(config, rate), f"the default of {config.model.layer}")
    budget = default_budget(config.training, _steps_per_epoch(config, train), held_out=has_validation)
    reason = "a budget is given" if has_budget(config.training) else "no budget is given"
    return decided.record(fill(config, budget), reason)


def settle_again(saved: Config, vocabulary: Vocabulary, device: torch.device, written: Path) -> Settled:
    """Read the data of a training that resumes, and decide what the user has opened again, such as the budget.

    ``written`` is the file of `Settled.to_json` in the run, which is missing in runs that were not trained here.
    """
    precision = choose_precision(saved.training.precision, device)
    config = saved.replaced({"training.precision": precision}).settled()
    train, valid, _ = read_data(open_task(config), vocabulary)
    decided = Decisions(config)
    config = settle_amounts(config, train, decided, has_validation=valid is not None)
    task = open_task(config)
    task.check(train, valid)
    warn_of_overlap(task, train, valid)
    decisions, counts = _read_decisions(written)
    decisions |= {one.name: one for one in decided.all()}
    return Settled(config, task, vocabulary, None, train, valid, tuple(decisions.values()), counts)


def _read_decisions(path: Path) -> tuple[dict[str, Decision], dict[str, int]]:
    """Return what `Settled.to_json` wrote, or nothing if there is no such file."""
    if not path.exists():
        return {}, {}
    try:
        stored = _Stored.model_validate(read_json(path, max_bytes=MAX_DECISIONS_BYTES, remedy=""))
    except (ValidationError, InputError):  # it only informs
        warnings.warn(f"{path}: damaged, and written again without the former reasons", DataWarning, stacklevel=2)
        return {}, {}
    return {name: Decision(name, one.value, one.reason) for name, one in stored.decisions.items()}, stored.counts


class Decisions:
    """Notes which values of a configuration are decided, and why."""

    def __init__(self, given: Config) -> None:
        self.before, self.found = by_dotted_name(given), dict[str, Decision]()

    def record(self, config: Config, reason: str) -> Config:
        """Note what changed since the last call, and return the configuration."""
        after = by_dotted_name(config)
        for name in after:
            if after[name] != self.before.get(name):
                self.found[name] = Decision(name, after[name], reason)
        self.before = after
        return config

    def all(self) -> tuple[Decision, ...]:
        """Return the decisions, in the order in which they were made."""
        return tuple(self.found.values())


def by_dotted_name(config: Config) -> dict[str, object]:
    """Return the values of a configuration by dotted name; each option of the model has a name of its own."""
    flat: dict[str, object] = {}
    for name, value in config.model_dump(exclude={"out"}).items():
        flat |= {f"{name}.{key}": one for key, one in value.items()} if isinstance(value, dict) else {name: value}
    options = flat.pop("model.options")
    assert isinstance(options, dict)
    return flat | {f"model.options.{key}": value for key, value in options.items()}


def with_data_defaults(config: Config, train: TaskData) -> Config:
    """Return the configuration with the values that depend on the amount of data."""
    return fill(config, {**USUAL, **open_task(config).kind.data_defaults(config, train)})


def with_tokenizer_of(initial: Initial, config: Config) -> Config:
    """Return the configuration with the settings of an initial run's tokenizer."""
    return config.model_copy(update={"tokenizer": initial.config.tokenizer.model_copy()})


# Markers and the validation split


def leave_out_markers(config: Config) -> Config:
    """Return the configuration with the boundary markers that every line of the training data has, if it has any."""
    task, source = open_task(config), config.data.train
    markers = None if source is None else task.files.markers_in(task.reader.texts(source, "train"))
    return config.replaced({"data.markers": " ".join(markers)}) if markers else config


def split_data(config: Config) -> Config:
    """Return the configuration with ``data.valid``: a fraction of the training data if the user names no other data.

    Nothing is held out if the usual fraction would put all data on one side.

    Raises:
        InputError: the user gives a fraction, and it puts all data on one side.

    Warns:
        DataWarning: the usual fraction puts all data on one side.
    """
    given, task = config.data.valid, open_task(config)
    if (
        given not in (None, NOTHING)
        and NO_FILE.fullmatch(given)
        and not fraction_of(given)
        and not Path(given).exists()
    ):
        raise RangeError(f"data.valid: {given} is neither a file nor a share; give a file, a share (10%) or none")
    if task.files.validation_source() is None and given is None:
        task.files.training_source()
        config = config.replaced({"data.valid": task.reader.default_split()})
    if not fraction_of(config.data.valid):
        return config

    # A fraction of few rows may take none of them, or all.
    reader, fraction, train = open_task(config).reader, str(config.data.valid), task.files.training_source()
    none_held_out = not reader.has_content(fraction, "valid")
    if not none_held_out and reader.has_content(train, "train"):
        return config
    undivided = config.replaced({"data.valid": NOTHING})
    reason = open_task(undivided).reader.explain_empty_split(fraction, none_held_out=none_held_out)
    if given is not None:
        remedy = "give another share, a file, or none"
        raise RangeError(f"data.valid: {fraction} of {train} cannot be held out, because {reason}; {remedy}")
    remedy = "give other data with --valid FILE"
    warnings.warn(f"nothing is held out of {train}, because {reason}; {remedy}", DataWarning, stacklevel=2)
    return undivided


def require_validation(config: Config) -> None:
    """Raise InputError if the schedule or early stopping needs validation data and none is given."""
    settings, task = config.training, open_task(config)
    stopping = settings.tolerance is not None or settings.patience is not None
    if task.objective is None or task.files.validation_source() is not None:
        return
    if settings.schedule == "plateau" or stopping:
        key = "patience: early stopping" if stopping else "schedule: plateau"
        raise RequiredError(f"training.{key} needs held-out text; give --valid FILE")


@runtime_checkable
class Repaired(Protocol):
    """Data that know what was repaired while they were read."""

    repairs: Repairs | None


def read_data(task: Task, vocabulary: Vocabulary) -> tuple[TaskData, TaskData | None, Config]:
    """Read the training and the validation data; return also the configuration, which may keep boundary markers.

    Markers that only most lines have are words. Then they are words in the validation data, too.
    """
    config, source = task.config, task.files.training_source()
    train = task.reader.read(source, "train", vocabulary)
    repairs = train.repairs if isinstance(train, Repaired) else None
    if repairs is not None and repairs.keeps_markers and config.data.markers == "auto":
        config = config.replaced({"data.markers": "keep"})
        task = open_task(config)
    held_out = task.files.validation_source()
    valid = None if held_out is None else task.reader.read(held_out, "valid", vocabulary)
    return train, valid, config


# Rows of the training data among the held-out ones


OVERLAP_FRACTION = 0.05
"""Fraction of the long lines of a running text from which on an overlap is reported."""


@runtime_checkable
class DataOfRows(Protocol):
    """Data whose rows (a text, a sentence, a pair, a line) can be compared."""

    def row_digests(self) -> np.ndarray | None:
        """Return a number for each row ``(rows,)``, equal for equal rows of one process; None if there are no rows."""


@runtime_checkable
class DataOfManyRows(Protocol):
    """Data that need not fit in memory, whose rows are compared block by block."""

    def row_digest_blocks(self) -> Iterator[np.ndarray]:
        """Iterate over the numbers of `DataOfRows.row_digests`, many at a time."""


def _blocks(data: DataOfRows) -> Iterator[np.ndarray]:
    if isinstance(data, DataOfManyRows):
        yield from data.row_digest_blocks()
    elif (digests := data.row_digests()) is not None:
        yield digests


def warn_of_overlap(task: Task, train: object, valid: object) -> None:
    """Warn if rows of the held-out data, whatever their labels, are rows of the training data.

    Running text, which may repeat a line, needs an overlap in `OVERLAP_FRACTION` of its long lines.

    Nothing is said of built-in corpora, which have splits of their own, of a fraction of the training data, which has
    no row of the rest, and of data without rows.
    """
    source = task.files.validation_source() or ""
    if source.startswith("builtin:") or fraction_of(source):
        return
    if not isinstance(train, DataOfRows) or not isinstance(valid, DataOfRows):
        return

    # The training data may not fit in memory: its rows are looked up block by block among the held-out ones.
    held_out = valid.row_digests()
    if held_out is None or not len(held_out):
        return
    distinct, indices = np.unique(held_out, return_inverse=True)
    seen = np.zeros(len(distinct), dtype=bool)
    for known in _blocks(train):
        seen |= np.isin(distinct, known)
    count = int(seen[indices].sum())

    # A running text repeats a line now and then, which says nothing.
    running_text = isinstance(valid, Corpus) and valid.ends is None
    if count and (not running_text or count >= OVERLAP_FRACTION * len(held_out)):
        overlap = f"{count:,} of the {len(held_out):,} held-out {task.kind.items_name} ({count / len(held_out):.1%})"
        advice = "figures on them say little about new data; remove them from one of the files"
        warnings.warn(f"{source}: {overlap} are in the training data, too; {advice}", DataWarning, stacklevel=2)


# The budget


def _steps_per_epoch(config: Config, train: TaskData) -> int:
    objective = open_task(config).objective
    assert objective is not None
    batches = objective.batches(train)
    windows = batches.windows(batches.shuffled(config.training.seed, 0))
    return -(-windows // config.training.accumulate)


def default_budget(training: Training, steps_per_epoch: int, *, held_out: bool) -> JsonObject:
    """Return the budget and the schedule of a training, by dotted name, for the fields that are None."""
    given = has_budget(training)
    falling: JsonObject = {"schedule": "cosine", "average": 0.0}
    if given or (not held_out and training.minutes is not None):
        fields = falling
    elif not held_out:
        least, most = BLIND_EPOCHS
        epochs = min(most, max(least, -(-BLIND_STEPS // steps_per_epoch)))
        fields = {**falling, "minutes": MINUTES, "epochs": epochs}
    else:
        # Validations are neither so rare that the best weights are missed, nor so frequent that they take the time.
        least, most = STEPS_BETWEEN
        between = min(most, max(least, steps_per_epoch))
        patience = max(PATIENCE, -(-PATIENT_STEPS // between))
        average = AVERAGE if training.average_after is None else 0.0
        fields = {"schedule": "constant", "average": average, "warmup_steps": WARMUP_STEPS}
        fields |= {"minutes": MINUTES, "patience": patience}
        if between != steps_per_epoch:
            fields["evaluate_every"] = between
    return {f"training.{name}": value for name, value in fields.items()}


# What a model that answers with its simple baseline needs


def check_weight(config: Config, *, has_validation: bool | None = None) -> None:
    """Raise InputError if the configuration blends a model with a baseline that it cannot have.

    ``has_validation`` says whether there are validation data, once that is known: ``auto`` chooses the weight on them.
    """
    task, weight = open_task(config), config.training.baseline_weight
    if not weight:
        return
    reason = ""
    if task.blender is None and task.kind.layer is None:
        reason = f"not supported for {config.task}"
    elif task.kind.reference_model is None or config.training.baseline == "none":
        reason = "there is no simple baseline to answer with"
    elif weight == "auto" and has_validation is False:
        raise RequiredError("training.baseline_weight: auto needs held-out data; give --valid FILE, or a weight")
    if reason:
        raise NotSupportedError(f"training.baseline_weight: {reason}; leave it out")
