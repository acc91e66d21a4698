"""Scheduled sampling: in training, some steps read the model's own prediction instead of the true token.

S. Bengio, O. Vinyals, N. Jaitly and N. Shazeer, "Scheduled sampling for sequence prediction with recurrent neural
networks", NeurIPS 2015. The true token is read with probability ε, which falls while the model trains:

    constant          ε = 1 − r
    linear            ε = 1 − r p
    inverse sigmoid   ε = 1 − r (1 − k / (k + exp(i / k)))

r ``scheduled_sampling`` · p the share of the budget that is spent, 0 to 1 · i = 1000 p · k ``sampling_k``. In the paper
i counts batches and r is 1; counted in thousandths of the budget, a schedule is the same for trainings of any length.
With k = 100 the half-way point lies at 46 % of the budget.
"""

import math
from collections.abc import Callable
from typing import Annotated, Literal

import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor

from ..config import Section
from ..core.state import State

THOUSANDTHS = 1000
Features = Callable[[Tensor, State, Tensor | None], tuple[Tensor, State]]
"""Token ids ``(batch, 1)``, a state and lengths ``(batch,)`` to what the output layer reads, and the next state."""


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
            raise ValueError("it has no meaning without scheduled_sampling; give a rate above 0")
        return value

    def own_predictions(self, progress: float) -> float:
        """Return the probability 1 − ε that a step reads the model's own prediction.

        Args:
            progress: share of the budget that is spent, 0 to 1.
        """
        share = min(max(progress, 0.0), 1.0)
        if self.sampling_schedule == "linear":
            return self.scheduled_sampling * share
        if self.sampling_schedule == "inverse-sigmoid":
            k = self.sampling_k
            return self.scheduled_sampling * (1 - k / (k + math.exp(share * THOUSANDTHS / k)))
        return self.scheduled_sampling


def sampled_features(
    features: Features,
    predict: Callable[[Tensor], Tensor],
    tokens: Tensor,
    state: State,
    own_predictions: float,
    lengths: Tensor | None = None,
) -> tuple[Tensor, State]:
    """Return the inputs of the output layer if some inputs of the model are its own predictions.

    Args:
        features: one step of the model.
        predict: what the output layer reads ``(batch, size)`` to logits ``(batch, vocabulary)``.
        tokens: the true inputs, ids ``(batch, time)``; the first one is always read.
        state: before the first input.
        own_predictions: probability that a later step reads the likeliest token after the step before.
        lengths: ``(batch,)``; a row keeps its state after its last valid input.

    Returns:
        ``(batch, time, size)`` and the state after the last input.
    """
    mine = torch.rand(tokens.shape, device=tokens.device) < own_predictions
    found: list[Tensor] = []
    for t, true in enumerate(tokens.unbind(1)):
        given = true
        if t:
            with torch.no_grad():
                given = torch.where(mine[:, t], predict(found[-1]).argmax(1), true)
        valid = None if lengths is None else (lengths > t).long()
        hidden, state = features(given.unsqueeze(1), state, valid)
        found.append(hidden.squeeze(1))
    return torch.stack(found, dim=1), state
