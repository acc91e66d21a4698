"""Scheduled sampling: in training, some steps read the model's own prediction instead of the true token.

S. Bengio, O. Vinyals, N. Jaitly and N. Shazeer, "Scheduled sampling for sequence prediction with recurrent neural
networks", NeurIPS 2015. The true token is read with probability ε, which decreases during training:

    constant          ε = 1 − r
    linear            ε = 1 − r p
    inverse sigmoid   ε = 1 − r (1 − k / (k + exp(i / k)))

r ``scheduled_sampling`` · p the share of the budget that is spent, 0 to 1 · i = 1000 p · k ``sampling_k``. In the paper
i counts batches and r is 1. Here i counts thousandths of the budget, so a schedule does not depend on the length of the
training. With k = 100, ε is half-way between its first and last value at 46 % of the budget.
"""

import math
from collections.abc import Callable
from typing import Annotated, Literal

import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor

from ..config import Section
from ..core.state import OutputsAndState, State

THOUSANDTHS = 1000
Features = Callable[[Tensor, State, Tensor | None], tuple[Tensor, State]]
"""Token ids ``(batch, 1)``, a state and lengths ``(batch,)`` to the inputs of the output layer and the next state."""


class ScheduledSampling(Section):
    """Options of a task whose model reads its own predictions while training; see this module."""

    scheduled_sampling: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.0
    """Highest probability with which a training step reads the model's own prediction instead of the data."""
    sampling_schedule: Literal["constant", "linear", "inverse-sigmoid"] = "constant"
    """How this probability rises during the training."""
    sampling_k: Annotated[float, Field(ge=2, le=THOUSANDTHS)] = 100.0
    """Steepness k of the inverse sigmoid; larger values rise later."""

    @field_validator("sampling_schedule")
    @classmethod
    def _needs_a_rate(cls, value: str, others: ValidationInfo) -> str:
        if value != "constant" and not others.data.get("scheduled_sampling"):
            raise ValueError("it cannot be used without scheduled_sampling; give a rate above 0")
        return value

    def own_predictions(self, progress: float) -> float:
        """Return the probability 1 − ε that a step reads the model's own prediction; ``progress`` is p."""
        fraction = min(max(progress, 0.0), 1.0)
        if self.sampling_schedule == "linear":
            return self.scheduled_sampling * fraction
        if self.sampling_schedule == "inverse-sigmoid":
            k = self.sampling_k
            return self.scheduled_sampling * (1 - k / (k + math.exp(fraction * THOUSANDTHS / k)))
        return self.scheduled_sampling


def sampled_features(
    features: Features,
    predict: Callable[[Tensor], Tensor],
    tokens: Tensor,
    state: State,
    own_predictions: float,
    lengths: Tensor | None = None,
) -> OutputsAndState:
    """Return the inputs of the output layer ``(batch, time, size)`` if some steps read the model's own predictions.

    ``features`` is one step of the model, ``predict`` its output layer, ``tokens`` the true inputs ``(batch, time)``.
    Every step but the first reads the most probable token of the step before with the probability
    ``own_predictions``. A row keeps its state after its last valid input; the last state is also returned.
    """
    is_sampled = torch.rand(tokens.shape, device=tokens.device) < own_predictions
    outputs: list[Tensor] = []
    for t, token in enumerate(tokens.unbind(1)):
        if t:
            with torch.no_grad():
                token = torch.where(is_sampled[:, t], predict(outputs[-1]).argmax(1), token)
        valid = None if lengths is None else (lengths > t).long()
        hidden, state = features(token.unsqueeze(1), state, valid)
        outputs.append(hidden.squeeze(1))
    return torch.stack(outputs, dim=1), state
