"""A small training state to save and to go back to."""

from pathlib import Path

import torch
from torch import nn

from seriatim.storage.weights import load_tensors
from seriatim.training.checkpoints import OPTIMIZER, Progress, last_complete, load_checkpoint, save_checkpoint
from seriatim.training.optimizers import optimizer_tensors, restore_optimizer

WHOSE = {"seriatim": "1"}


def model(step: int) -> nn.Module:
    """A model as it is after so many steps."""
    torch.manual_seed(step)
    return nn.Linear(3, 2)


def save(folder: Path, step: int) -> None:
    """A checkpoint of that step, with what Adam keeps and a carried state."""
    made = model(step)
    optimizer = torch.optim.AdamW(made.parameters())
    made(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    moments = optimizer_tensors(made, optimizer)
    save_checkpoint(folder, made, moments, torch.full((2, 3), float(step)), Progress(step=step), WHOSE)


def load(folder: Path) -> int:
    """The step gone back to; everything is of that step."""
    made = model(0)
    optimizer = torch.optim.AdamW(made.parameters())
    last = last_complete(folder)
    state, progress = load_checkpoint(last, made, torch.zeros(2, 3), WHOSE)
    restore_optimizer(made, optimizer, load_tensors(last / OPTIMIZER), lambda name, value: value)
    expected = model(progress.step)
    kept = torch.optim.AdamW(expected.parameters())
    expected(torch.ones(1, 3)).sum().backward()
    kept.step()
    assert all(map(torch.equal, made.parameters(), expected.parameters()))
    for found, wanted in zip(made.parameters(), expected.parameters(), strict=True):
        assert torch.equal(optimizer.state[found]["exp_avg"], kept.state[wanted]["exp_avg"])
    assert isinstance(state, torch.Tensor)
    assert state.eq(progress.step).all()
    return progress.step
