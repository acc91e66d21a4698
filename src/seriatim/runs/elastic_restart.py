"""Whether a training that torchrun starts again continues the run in its folder."""

from pathlib import Path

from ..config import Config
from ..training.run_files import has_begun, is_run
from .identity import read_config

CHOSEN = (None, "auto")
"""Values for which a training chooses others."""


def continues(config: Config, folder: Path) -> bool:
    """Return whether a folder holds a run with checkpoints that this configuration has begun.

    Without this check, a training that failed because its folder holds another run would continue that run when
    torchrun starts it again.
    """
    if not is_run(folder) or not has_begun(folder):
        return False
    given, saved = (each.model_dump(exclude={"out"}) for each in (config, read_config(folder)))
    return _agrees(given, saved)


def _agrees(given: object, saved: object) -> bool:
    if isinstance(given, dict) and isinstance(saved, dict):
        return all(_agrees(value, saved.get(name)) for name, value in given.items())
    return given in CHOSEN or given == saved
