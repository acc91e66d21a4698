"""Where a training can go on from: parameters, optimizer, carried state and progress, whole or not there at all."""

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

from ..errors import InputError
from ..models.weights import load_tensors, load_weights, read_metadata, save_tensors, save_weights
from ..state import State, state_from_dict, state_to_dict
from .optimizers import optimizer_tensors, restore_optimizer

KEPT = 2


@dataclass
class Progress:
    """How far a training has come. ``window`` counts what was read of the epoch; the order follows from the seed.

    ``loss_sum`` and ``loss_terms`` hold what is not yet in `metrics.jsonl`; ``data`` is the key of the training text.
    """

    step: int = 0
    epoch: int = 0
    window: int = 0
    tokens: int = 0
    seconds: float = 0.0
    training_seconds: float = 0.0
    best_valid: float | None = None
    previous_valid: float | None = None
    failures: int = 0
    annealed: int = 0
    loss_sum: float = 0.0
    loss_terms: int = 0
    evaluated_at: int = -1
    data: str = ""


def save_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: State | None,
    progress: Progress,
    metadata: dict[str, str],
) -> None:
    """Writes a checkpoint aside, renames it, and lets the oldest go. ``metadata`` says whose weights they are."""
    name = f"step-{progress.step:09d}"
    aside = folder / f"{name}.partial"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    save_weights(model, aside / "model.safetensors", metadata)
    save_tensors(optimizer_tensors(model, optimizer), aside / "optimizer.safetensors")
    if state is not None:
        save_tensors(
            {f"state/{path}": leaf for path, leaf in state_to_dict(state).items()}, aside / "state.safetensors"
        )
    (aside / "progress.json").write_text(json.dumps(asdict(progress)))
    shutil.rmtree(folder / name, ignore_errors=True)
    aside.rename(folder / name)
    for old in checkpoints(folder)[:-KEPT]:
        shutil.rmtree(old)


def checkpoints(folder: Path) -> list[Path]:
    """Whole checkpoints, oldest first."""
    return sorted(path for path in folder.glob("step-*") if path.suffix != ".partial")


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
        InputError: no checkpoint, a damaged one, or one of another run.
    """
    found = checkpoints(folder)
    if not found:
        raise InputError(f"{folder}: no checkpoint to go on from; train from the start with --overwrite")
    last = found[-1]
    try:
        progress = Progress(**json.loads((last / "progress.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        raise InputError(
            f"{last}/progress.json: missing or damaged; remove {last} to go on from the one before"
        ) from None
    if read_metadata(last / "model.safetensors") != metadata:
        raise InputError(f"{last}: a checkpoint of another run; restore the run's own")
    load_weights(model, last / "model.safetensors")
    restore_optimizer(model, optimizer, load_tensors(last / "optimizer.safetensors"))
    if like is None or not (last / "state.safetensors").exists():
        return None, progress
    tensors = {name.removeprefix("state/"): leaf for name, leaf in load_tensors(last / "state.safetensors").items()}
    return state_from_dict(tensors, like), progress
