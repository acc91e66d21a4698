"""Folders that an export or an import writes: all of it, or nothing."""

import math
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from ..core.errors import ExistsError, MissingError, SizeError
from ..data.vocabulary import Vocabulary
from ..runs.run import Run, load
from ..storage.files import locked
from ..storage.weights import stream_tensors
from ..storage.written_folders import RUN, record, settle
from ..tasks.task import Task
from ..training.run_files import begin_run, check_out, identity, nearest_existing, refuse_inside

PREFIX = ".seriatim-export-"


def check_new(out: str) -> Path:
    """Return the path of a folder that does not exist yet; raise InputError if it exists or cannot be written."""
    folder = Path(out)
    if folder.exists() or folder.is_symlink():
        raise ExistsError(f"--out: {out or 'an empty name'} exists; choose another folder")
    refuse_inside(out)
    if not Path(os.path.realpath(folder)).parent.is_dir():
        raise MissingError(f"{out}: cannot be written there; give a folder in one that exists")
    return folder


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder to write to, which gets the name ``folder`` when it is complete; errors name ``folder``."""
    parent = folder.resolve().parent
    try:
        with tempfile.TemporaryDirectory(prefix=PREFIX, dir=parent) as temporary:
            aside = Path(temporary) / "export"
            aside.mkdir()
            yield aside
            aside.rename(folder)
    except OSError as error:
        if str(error.filename).startswith(str(parent / PREFIX)):
            error.filename = str(folder)
        raise


def parameter_shapes(task: Task, vocabulary: Vocabulary) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters of a model by name, without its memory."""
    with torch.device("meta"):
        model = task.builder.build(vocabulary)
    return {name: tuple(value.shape) for name, value in model.named_parameters()}


def write_run(
    out: str | None,
    task: Task,
    vocabulary: Vocabulary,
    parameters: Iterable[tuple[str, np.ndarray]],
    *,
    overwrite: bool,
) -> Run:
    """Write a run whose parameters are read one at a time, in float32.

    Raises:
        InputError: the folder cannot be written, or the disk has no space.
    """
    folder = check_out(out, overwrite=overwrite)
    needed = sum(4 * math.prod(shape) for shape in parameter_shapes(task, vocabulary).values())
    parent = nearest_existing(folder.absolute().parent)
    free = shutil.disk_usage(parent).free
    if free < needed:
        raise SizeError(f"{folder}: needs {needed / 1e6:,.1f} MB, and {free / 1e6:,.1f} MB are free; make room")
    with tempfile.TemporaryDirectory(prefix=".seriatim-import-", dir=parent) as aside:
        weights = Path(aside) / "model.safetensors"  # complete before anything in the folder changes
        stream_tensors(parameters, weights, identity(task.config, vocabulary))
        with locked(folder):
            check_out(out, overwrite=overwrite)  # another process may have been quicker
            folder = begin_run(folder, task.config, vocabulary)
            record(folder, RUN, weights.name)
            weights.replace(folder / weights.name)
            return load(settle(folder))
