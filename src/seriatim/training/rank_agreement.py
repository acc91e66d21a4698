"""What the ranks of a training agree on: equal data, configuration and version, and how to go on after a restart.

``torchrun`` starts its ranks again after a failure, and when machines come or go; it counts a restart only in the first
case, and only on the machine of the failure. Therefore a run records the job that has begun it (``--rdzv-id``).
"""

import json
import os
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from ..config import Config
from ..core.errors import InputError, MismatchError, NotSupportedError, RangeError, shown
from ..processes.ranks import Ranks
from ..storage.files import read_text, write_whole
from ..storage.written_folders import RUN, is_run, place_of, record, remove_written
from ..version import __version__
from .run_files import has_begun, read_config
from .settle import Settled


def require_equal(settled: Settled, ranks: Ranks) -> None:
    """Raise InputError on every rank if one differs from rank 0."""
    facts = {
        "seriatim": __version__,
        "torch": torch.__version__,
        **_flat(settled.config),
        "the training text": settled.train.key,
        "the held-out text": None if settled.valid is None else settled.valid.key,
        "the vocabulary": settled.vocabulary.fingerprint(),
    }

    # Gradients are added up whatever they belong to, so that a difference would go unnoticed.
    leader, *others = map(json.loads, ranks.gather_bytes(json.dumps(facts).encode()))
    for rank, theirs in enumerate(others, start=1):
        name = next((name for name in leader if theirs.get(name) != leader[name]), None)
        if name is None:
            continue
        if name.startswith("the "):
            difference = f"{name} differs from that of rank 0"
        else:
            difference = f"{name} is {shown(theirs.get(name))}, and {shown(leader[name])} on rank 0"
        raise MismatchError(f"rank {rank}: {difference}; start every rank with the same command, data and version")


def require_divisible(settled: Settled, model: nn.Module, ranks: Ranks) -> None:
    """Raise InputError if every batch has fewer sequences than there are ranks, or fsdp cannot divide a parameter."""
    objective, training = settled.task.objective, settled.config.training
    if ranks.count == 1 or objective is None:
        return
    scalar = next((name for name, value in model.named_parameters() if value.dim() == 0), None)
    if scalar is not None and training.parallel == "fsdp":
        raise NotSupportedError(
            f"training.parallel: fsdp cannot divide the parameter {scalar}, a single number; give it the shape (1,), "
            "or set training.parallel to data"
        )

    # A rank without a sequence in every batch would only wait for the others.
    groups = objective.batches(settled.train).shuffled(training.seed, 0)
    if not any(len(group) >= ranks.count for group in groups):
        largest = max(map(len, groups), default=0)
        sequences = f"{largest:,} sequence{'s' * (largest != 1)}"
        raise RangeError(
            f"training.batch_size: the largest batch has {sequences} for {ranks.count:,} ranks; start at most "
            f"{largest:,}, or raise training.batch_size"
        )


def _flat(config: Config) -> dict[str, object]:
    """Return the values of a configuration by dotted name, without the folder to write."""
    flat: dict[str, object] = {}
    for name, value in config.model_dump(mode="json", exclude={"out"}).items():
        flat |= {f"{name}.{key}": part for key, part in value.items()} if isinstance(value, dict) else {name: value}
    return flat


# Restarts


JOB = ".torchrun"
"""The file of a run with the name of the job that has begun it."""
MAX_NAME_BYTES = 1 << 16
CHOSEN = (None, "auto")
"""Values for which a training chooses others."""
Beginning = Literal["new", "again", "resume"]
"""Start in an empty folder; start again, as there is no checkpoint; or go on from the last checkpoint."""


def record_job(folder: Path) -> None:
    """Write the name of the present job into a run, if it has one."""
    if name := _present_job():
        record(folder, RUN, JOB)
        write_whole(folder / JOB, name)
    else:
        remove_written(folder, RUN, JOB)


def how_to_begin(config: Config, folder: Path, *, restarts: int) -> Beginning:
    """Return how a training begins that torchrun may have started again.

    The run in the folder is continued only if this job has begun it, as far as is known, with this configuration.
    """
    folder = place_of(folder, RUN)
    if not is_run(folder) or not (restarts or _is_of_this_job(folder)):
        return "new"
    given, saved = (each.model_dump(exclude={"out"}) for each in (config, read_config(folder)))
    if not _agrees(given, saved):
        return "new"
    return "resume" if has_begun(folder) else "again"


def _present_job() -> str:
    name = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    return "" if name == "none" else name


def _is_of_this_job(folder: Path) -> bool:
    try:
        name = read_text(folder / JOB, max_bytes=MAX_NAME_BYTES, remedy="remove it")
    except InputError:  # usually there is none
        return False
    return bool(name) and name == _present_job()


def _agrees(given: object, saved: object) -> bool:
    """Return whether what is given is what was saved, where the training did not choose it."""
    if isinstance(given, dict) and isinstance(saved, dict):
        return all(_agrees(value, saved.get(name)) for name, value in given.items())
    return given in CHOSEN or given == saved
