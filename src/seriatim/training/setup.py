"""From a configuration to everything a training needs, checked before anything is written."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from ..config import Config
from ..core.errors import InputError
from ..data.vocabulary import Vocabulary
from ..layers.origins import stacks_of, write_origins
from ..models.bounds import no_larger_than
from ..storage.atomic_files import PARTIAL, remove, write_whole
from ..storage.lock import LOCK
from .checkpoints import kept_weights
from .initial import Initial, open_initial, set_to_zero
from .memory import build_model
from .outputs import RUN_FILES, RUN_FOLDERS, RUN_MARKS, check_name
from .task import AnyTask, TaskBatch, TaskBatches, TaskData


@dataclass
class Job:
    """A training, ready to begin."""

    task: AnyTask
    folder: Path
    vocabulary: Vocabulary
    model: nn.Module
    batches: TaskBatches[TaskBatch]
    train: TaskData
    valid: Any


def check_out(out: str | None, *, overwrite: bool) -> Path:
    """The folder to write a run into.

    Raises:
        InputError: none is named, it is not empty, or it cannot be written.
    """
    if not out:
        raise InputError("out: no folder for the run; give one, for instance --out runs/first")
    check_name(out)
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: a file stands where the run's folder should; choose another --out")
    cut_off = (folder / LOCK).exists()  # a training was here, however little it left
    if folder.is_dir() and any(path.name != LOCK for path in folder.iterdir()) and not overwrite:
        raise InputError(f"{folder}: not empty; choose another --out, or replace the run there with --overwrite")
    others = [name for name in (*RUN_FILES, *RUN_FOLDERS) if (folder / name).exists()]
    if others and not cut_off and not all((folder / name).is_file() for name in RUN_MARKS):
        raise InputError(f"{folder}: not a run, and its {others[0]} would be lost; choose another --out")
    try:
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    except OSError as error:
        raise InputError(f"{out[:80]}: cannot be a folder ({error.strerror}); choose another --out") from None
    if not existing.is_dir():
        raise InputError(f"{folder}: {existing} is a file, not a folder; choose another --out")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(f"{folder}: cannot be written (no permission in {existing}); choose another --out")
    return folder


def begin_run(folder: Path, config: Config, vocabulary: Vocabulary) -> None:
    """Makes a folder that of a new run: removes the files of a run, and nothing else.

    The configuration comes first: from then on a training that is killed can go on.

    Raises:
        InputError: it may not be written.
    """
    try:
        for name in (*RUN_FILES, *RUN_FOLDERS):
            remove(folder / name)
        clear_partial(folder)
        write_whole(folder / "config.yaml", config.to_yaml())
        write_origins(folder, stacks_of(config))
        vocabulary.save(folder)
    except PermissionError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror}); choose another --out") from None


def clear_partial(folder: Path) -> None:
    """Removes files of a run that a process was killed over."""
    for name in RUN_FILES:
        for left in folder.glob(f"{name}.*{PARTIAL}"):
            remove(left)


def begun(folder: Path) -> bool:
    """Whether a run has anything that would be lost if its training began again: weights, checkpoints, figures."""
    metrics = folder / "metrics.jsonl"
    figures = (folder / "summary.json").exists() or (metrics.exists() and metrics.stat().st_size > 0)
    saved = any(path.suffix != PARTIAL for path in folder.glob("checkpoints/step-*"))
    return figures or saved or (folder / "model.safetensors").exists()


def check_initial(config: Config) -> None:
    """Raises InputError where parameters are to begin in two ways at once."""
    if config.model.initial == "zeros" and config.training.init is not None:
        raise InputError("model.initial: zeros has no meaning with training.init; leave one of them out")


def learn(task: AnyTask) -> tuple[Vocabulary, Initial | None]:
    """The vocabulary of a training, and the run it starts from, if any, whose tokenizer it takes.

    Raises:
        InputError: whatever is wrong with the training data, or with that run.
    """
    init = task.config.training.init
    initial = None if init is None else open_initial(init)
    if initial is not None:
        initial.settle(task.config)
    vocabulary = task.learn_vocabulary()
    return (vocabulary if initial is None else initial.with_tokenizer(vocabulary)), initial


def prepare(task: AnyTask, folder: Path, vocabulary: Vocabulary | None = None) -> Job:
    """Reads the data, learns the vocabulary unless one is given, and builds the model.

    With a vocabulary a training goes on, and ``training.init`` has done its work.

    Raises:
        InputError: whatever is wrong with data or configuration, before anything is written.
    """
    training = task.training_spec()
    initial, goes_on = None, vocabulary is not None
    check_initial(task.config)
    if vocabulary is None:
        vocabulary, initial = learn(task)
    known = goes_on and task.trainer is None  # what it goes on from says how large the model can be
    if known:
        with no_larger_than(*kept_weights(folder / "checkpoints")):
            model = task.make_model(vocabulary)
    else:
        model = build_model(task, vocabulary)
    if task.config.model.initial == "zeros" and not goes_on:
        set_to_zero(model)
    if initial is not None:
        initial.copy_to(model, task.config.model)
    train = task.read(training, "train", vocabulary)
    held_out = task.validation_spec()
    valid = None if held_out is None else task.read(held_out, "valid", vocabulary)
    task.check(train, valid)
    return Job(task, folder, vocabulary, model, task.batches(train), train, valid)
