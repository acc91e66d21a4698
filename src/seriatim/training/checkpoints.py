"""Where a training can go on from: parameters, optimizer, carried state and progress, whole or not there at all."""

import hashlib
import itertools
import json
import math
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import torch
from pydantic import TypeAdapter
from torch import nn

from ..core.errors import InputError, TrainingError, shown
from ..core.state import State, state_from_dict, state_to_dict
from ..storage.atomic_files import PARTIAL, flush, remove, write_whole
from ..storage.safe_files import open_regular, read_json, read_text
from ..storage.weights import load_tensors, load_weights, read_metadata, save_tensors, save_weights
from .optimizers import optimizer_tensors, restore_optimizer
from .progress import Progress

KEPT = 2
NAME = re.compile(r"step-([0-9]{9})(?:\.([1-9][0-9]{0,5}))?")
"""Of a checkpoint; the number tells those of one step apart."""
MANIFEST, DAMAGED = "manifest.json", ".damaged"
NEEDED = {"model.safetensors", "optimizer.safetensors", "progress.json"}
SMALL = 1 << 16
"""Bytes of a manifest or of the progress, at most."""
RESTORE = "restore the run's own, or train from the start with --overwrite"


def save_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: State | None,
    progress: Progress,
    metadata: dict[str, str],
) -> None:
    """Writes a checkpoint and lets the oldest go. ``metadata`` says whose weights they are.

    It is written aside, each file flushed, its manifest last, and renamed: whole or not there at all.
    """
    _refuse_link(folder)
    if not folder.is_dir():
        folder.mkdir()
        flush(folder.parent)
    for left in folder.glob(f"step-*{PARTIAL}"):  # of a training that was killed
        remove(left)
    place = _next(folder, progress.step)
    aside = place.with_name(f"{place.name}{PARTIAL}")
    try:
        aside.mkdir()
        _write(aside, model, optimizer, state, progress, metadata)
    except OSError:
        remove(aside)  # the disk may be full
        raise
    aside.rename(place)
    flush(folder)
    for old in checkpoints(folder)[:-KEPT]:
        remove(old)


def _write(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: State | None,
    progress: Progress,
    metadata: dict[str, str],
) -> None:
    save_weights(model, folder / "model.safetensors", metadata)
    save_tensors(optimizer_tensors(model, optimizer), folder / "optimizer.safetensors")
    if state is not None:
        leaves = {f"state/{path}": leaf for path, leaf in state_to_dict(state).items()}
        save_tensors(leaves, folder / "state.safetensors")
    write_whole(folder / "progress.json", json.dumps(asdict(progress)))
    sums = {path.name: _sum(path) for path in sorted(folder.iterdir())}
    write_whole(folder / MANIFEST, json.dumps({"sha256": sums}, indent=2))


def checkpoints(folder: Path) -> list[Path]:
    """Whole checkpoints, oldest first."""
    return sorted((path for path in folder.glob("step-*") if NAME.fullmatch(path.name)), key=_order)


def _order(checkpoint: Path) -> tuple[int, int]:
    """Its step, and which of those of the step it is."""
    found = NAME.fullmatch(checkpoint.name)
    assert found is not None
    return int(found[1]), int(found[2] or 0)


def _next(folder: Path, step: int) -> Path:
    """Where the next checkpoint of a step belongs: behind those that are there."""
    there = [again for known, again in map(_order, checkpoints(folder)) if known == step]
    return folder / (f"step-{step:09d}" + (f".{max(there) + 1}" if there else ""))


@contextmanager
def saving(folder: Path) -> Iterator[None]:
    """While the files of a run are written: says what is there instead of one that cannot be.

    Raises:
        TrainingError: the disk is full, or takes nothing.
    """
    try:
        yield
    except OSError as error:
        saved = checkpoints(folder / "checkpoints")
        hint = f"{saved[-1].name} is whole, make room and go on with --resume" if saved else "make room, begin again"
        where, reason = error.filename or folder, error.strerror or error
        raise TrainingError(f"{where}: cannot be written ({reason}); {hint}") from None


def kept_weights(folder: Path) -> list[Path]:
    """The parameters of every checkpoint.

    Raises:
        InputError: there is none.
    """
    _refuse_link(folder)
    found = [path / "model.safetensors" for path in checkpoints(folder)]
    if not found:
        raise InputError(f"{folder}: no checkpoint to go on from; train from the start with --overwrite")
    return found


def _refuse_link(folder: Path) -> None:
    """Raises InputError where checkpoints lie outside the run, in which nothing may be removed."""
    if folder.is_symlink():
        raise InputError(f"{folder}: a link, and old checkpoints are removed there; put the folder itself in its place")


def damage(checkpoint: Path) -> str | None:
    """The first file that is not as it was written, and what is wrong with it; None where all are."""
    try:
        sums = read_json(checkpoint / MANIFEST, most=SMALL, hint="")["sha256"].items()
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{checkpoint / MANIFEST}: missing or damaged"
    if missing := sorted(NEEDED - {name for name, _ in sums}):
        return f"{checkpoint / MANIFEST}: damaged (it does not name {missing[0]})"
    for name, expected in sums:
        path = checkpoint / Path(name).name  # nowhere else
        try:
            if _sum(path) != expected:
                return f"{path}: damaged"
        except (OSError, ValueError):
            return f"{path}: missing or unreadable"
    return None


def load_checkpoint(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, like: State | None, metadata: dict[str, str]
) -> tuple[State | None, Progress]:
    """Goes back to the last checkpoint of ``folder``.

    Args:
        folder: ``checkpoints/`` of a run.
        model: receives the parameters.
        optimizer: receives what it kept.
        like: a state of the model, for its structure; None where none is carried.
        metadata: what `save_checkpoint` was given.

    Returns:
        The carried state, or None, and the progress.

    Raises:
        InputError: no whole checkpoint, or one of another run.

    Warns:
        UserWarning: a later one is damaged.
    """
    last = _last_whole(folder)
    progress = _progress(last / "progress.json")
    if read_metadata(last / "model.safetensors") != metadata:
        raise InputError(f"{last}: a checkpoint of another run; restore the run's own")
    load_weights(model, last / "model.safetensors")
    restore_optimizer(model, optimizer, load_tensors(last / "optimizer.safetensors"))
    if like is None or not (last / "state.safetensors").exists():
        return None, progress
    tensors = {name.removeprefix("state/"): leaf for name, leaf in load_tensors(last / "state.safetensors").items()}
    try:
        return state_from_dict(tensors, like), progress
    except ValueError as error:
        raise InputError(f"{last / 'state.safetensors'}: {error}; {RESTORE}") from None


def _progress(path: Path) -> Progress:
    """What a checkpoint says of its training, every figure of its type and within what a training can reach."""
    text = read_text(path, most=SMALL, hint=RESTORE)
    try:
        found = TypeAdapter(Progress).validate_json(text, strict=True)
    except ValueError:
        raise InputError(f"{path}: not the progress of a training, or damaged; {RESTORE}") from None
    for name, value in asdict(found).items():
        least = -1 if name == "evaluated_at" else 0
        if isinstance(value, int) and not least <= value < 2**53:
            raise InputError(f"{path}: {name} must be at least {least}, got {shown(value)}; {RESTORE}")
    for name in ("seconds", "training_seconds"):
        if not 0 <= getattr(found, name) < math.inf:
            raise InputError(f"{path}: {name} must be a number of seconds, got {getattr(found, name)}; {RESTORE}")
    return found


def _last_whole(folder: Path) -> Path:
    """The last checkpoint that is as it was written; later ones are put aside, and said."""
    wrong: list[tuple[Path, str]] = []
    for place in (path.parent for path in reversed(kept_weights(folder))):
        found = damage(place)
        if found is None:
            for other, what in reversed(wrong):
                other.rename(_free(folder, f"{other.name}{DAMAGED}"))
                warnings.warn(f"{what}; going on from the checkpoint before, {place}", stacklevel=2)
            return place
        wrong.append((place, found))
    raise InputError(f"{wrong[0][1]}, and no checkpoint before it is whole; train from the start with --overwrite")


def _free(folder: Path, name: str) -> Path:
    """A name that nothing has: this one, or with a number."""
    names = (folder / f"{name}{number}" for number in itertools.chain([""], (f".{i}" for i in itertools.count(1))))
    return next(path for path in names if not path.exists())


def _sum(path: Path) -> str:
    with open(open_regular(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
