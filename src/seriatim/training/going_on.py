"""Whether a training finds again what it left: texts, weights, the machine."""

import warnings

from ..core.errors import InputError
from ..storage.weights import unusable
from .environment import changes
from .progress import Progress
from .setup import Job


def keys(job: Job) -> tuple[str, str]:
    """Those of the texts, training and held-out; empty where nothing is held out."""
    return job.train.key, "" if job.valid is None else job.valid.key


def check_same(progress: Progress, job: Job, environment: dict[str, str]) -> None:
    """Looks at what a training goes on with; best weights that are lost are to be sought anew.

    Raises:
        InputError: a text is another.

    Warns:
        UserWarning: the best weights are lost, or the machine is another, so that the last bits will be.
    """
    data, (train, held_out) = job.task.config.data, keys(job)
    if progress.data != train:
        raise InputError(f"{data.train}: not the text that the run began with; restore it, or train anew")
    if progress.held_out not in (None, held_out):
        raise InputError(f"{data.valid}: not the held-out text that the run began with; restore it, or train anew")
    kept = progress.best_valid is not None
    if kept and (lost := unusable(job.folder / "model.safetensors")):
        warnings.warn(f"{lost}; the best weights are sought anew", stacklevel=2)
        progress.best_valid, progress.evaluated_at = None, -1
    if changed := changes(progress.environment, environment):
        warnings.warn(f"{job.folder}: goes on with {changed}; the last bits will differ", stacklevel=2)
