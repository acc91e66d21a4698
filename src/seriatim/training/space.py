"""Room on the disk, asked for before a training begins rather than when its first checkpoint does not fit."""

import shutil
from pathlib import Path

from torch import nn

from ..config import Training
from ..core.errors import TrainingError
from .checkpoints import KEPT
from .outputs import RUN_FILES, RUN_FOLDERS

MOMENTS = {"sgd": 0, "adam": 2, "adamw": 2}
"""Numbers that an optimizer keeps for a parameter."""
WORD = 16
"""Bytes of a word that is counted: its probability, and the weight of backing off from it."""
MORE = 1 << 20
"""Bytes for everything that is not weights: configuration, vocabulary, metrics."""


def check_space(folder: Path, needed: int) -> None:
    """Raises TrainingError where a run does not fit; what the training replaces is counted in."""
    free = free_space(folder)
    if needed > free:
        raise TrainingError(
            f"{folder}: {needed / 1e6:,.1f} MB are needed for the run, {free / 1e6:,.1f} MB are free; "
            "make room, or train elsewhere (--out)"
        )


def space_needed(model: nn.Module, config: Training) -> int:
    """Bytes that a run takes at most, while one more checkpoint than is kept, and new weights, are being written."""
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    checkpoint = weights * (1 + MOMENTS[config.optimizer])
    return (KEPT + 1) * checkpoint + 2 * weights + MORE


def space_to_count(vocabulary_size: int) -> int:
    """Bytes that a model of counts takes at least, those of its words; how many more only counting tells."""
    return WORD * vocabulary_size + MORE


def free_space(folder: Path) -> int:
    """Bytes that a run in this folder may take: those that are free, and those of the run that is there."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    own = [folder / name for name in (*RUN_FILES, *RUN_FOLDERS)]
    files = [file for path in own for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file()]
    return shutil.disk_usage(existing).free + sum(file.stat().st_size for file in files)
