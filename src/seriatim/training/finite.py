"""Losses, gradients and weights that are no numbers any more: found at once, and named."""

import math
from collections.abc import Sequence

from torch import Tensor, nn

from ..core.errors import TrainingError
from ..core.state import State, state_leaves

MOST_SKIPPED = 10
"""Steps that may be skipped one after another; where none can be made, going on is of no use."""


def whats_wrong(model: nn.Module, losses: Sequence[float], norm: float) -> tuple[str, range] | None:
    """What of a step is NaN or infinite, and which of its batches it comes from; None where all is well.

    Args:
        model: with the step's gradients.
        losses: of each batch.
        norm: of the gradient.
    """
    for i, loss in enumerate(losses):
        if not math.isfinite(loss):
            return f"the loss is {loss}", range(i, i + 1)
    if math.isfinite(norm):
        return None
    gradients = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
    odd = next((f" of {name}" for name, gradient in gradients.items() if not finite(gradient)), "")
    return f"the gradient{odd} is not finite", range(len(losses))


def finite(values: Tensor) -> bool:
    """Whether all of them are numbers."""
    return bool(values.isfinite().all())


def finite_state(state: State | None) -> State | None:
    """A state that can be carried on: None where it is not finite."""
    return state if state is None or all(map(finite, state_leaves(state))) else None


def refuse_odd(model: nn.Module, *, step: int) -> None:
    """Raises TrainingError for parameters that are not finite."""
    odd = next((name for name, value in model.named_parameters() if not finite(value.detach())), None)
    if odd is not None:
        raise TrainingError(
            f"step {step}: {odd} is not finite after this update or one before; go on from the last checkpoint with a "
            "lower training.learning_rate"
        )
