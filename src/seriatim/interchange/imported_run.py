"""Writes the run of an imported model: all of it, or nothing."""

import math
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from ..core.errors import InputError
from ..data.vocabulary import Vocabulary
from ..runs.run import Run, load
from ..storage.lock import locked
from ..storage.weights import stream_tensors
from ..storage.written_folders import RUN, record, settle
from ..tasks.task import Task
from ..training.run_files import begin_run, check_out, identity, nearest_existing


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
        raise InputError(f"{folder}: needs {needed / 1e6:,.1f} MB, and {free / 1e6:,.1f} MB are free; make room")
    with tempfile.TemporaryDirectory(prefix=".seriatim-import-", dir=parent) as aside:
        weights = Path(aside) / "model.safetensors"  # complete before anything in the folder changes
        stream_tensors(parameters, weights, identity(task.config, vocabulary))
        with locked(folder):
            check_out(out, overwrite=overwrite)  # another process may have been quicker
            place = begin_run(folder, task.config, vocabulary)
            record(place, RUN, weights.name)
            weights.replace(place / weights.name)
            return load(settle(place))
