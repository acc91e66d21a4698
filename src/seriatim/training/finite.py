"""Losses, gradients and weights that are no numbers any more: found at once, and named."""

import math
from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from ..state import State, state_leaves
from .task import TaskBatch

MOST_SKIPPED = 10
"""Steps that may be skipped one after another; where none can be made, going on is of no use."""
NAMED = 3


def whats_wrong(model: nn.Module, losses: Sequence[float], norm: float, batches: Mapping[str, TaskBatch]) -> str | None:
    """What of a step is NaN or infinite, and which of its batches it comes from; None where all is well.

    Args:
        model: with the step's gradients.
        losses: of each batch.
        norm: of the gradient.
        batches: of the step, by what to call them.
    """
    for loss, (name, batch) in zip(losses, batches.items(), strict=True):
        if not math.isfinite(loss):
            return f"the loss is {loss} in {_named(name, batch)}"
    if math.isfinite(norm):
        return None
    gradients = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
    odd = next((f" of {name}" for name, gradient in gradients.items() if not finite(gradient)), "")
    return f"the gradient{odd} is not finite in {', '.join(_named(*each) for each in batches.items())}"


def _named(name: str, batch: TaskBatch) -> str:
    """A batch with what is in it, counted from 1 as lines of a file are."""
    rows = [str(row + 1) for row in sorted(batch.rows.tolist())]
    more = f" and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
    return f"{name} (rows {', '.join(rows[:NAMED])}{more})"


def finite(values: Tensor) -> bool:
    """Whether all of them are numbers."""
    return bool(values.isfinite().all())


def finite_state(state: State | None) -> State | None:
    """A state that can be carried on: None where it is not finite."""
    return state if state is None or all(map(finite, state_leaves(state))) else None


def odd_parameter(model: nn.Module) -> str | None:
    """The name of the first parameter that is not finite."""
    return next((name for name, value in model.named_parameters() if not finite(value.detach())), None)
