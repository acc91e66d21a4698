"""Several models as one: P(w | past) = (1/n) Σ_i P_i(w | past)."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..errors import InputError
from ..state import State
from .sampling import NextToken


class Ensemble:
    """The mean of the models' probabilities, behind the interface of one model.

    The state is the tuple of their states, in order. What is given as logits are log probabilities.

    Args:
        models: at least one; all with the same tokens, in evaluation mode.

    Raises:
        InputError: no models.
    """

    def __init__(self, models: Sequence[NextToken]) -> None:
        if not models:
            raise InputError("an ensemble needs at least one model")
        self.models = list(models)

    def initial_state(self, batch_size: int) -> State:
        """The tuple of the models' initial states."""
        return tuple(model.initial_state(batch_size) for model in self.models)

    def __call__(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Log probabilities after each of ``tokens (batch, time)``: ``(batch, time, vocabulary)``; and the state."""
        return self._mean([model.__call__ for model in self.models], tokens, state)

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """One token a row: ids ``(batch,)`` to log probabilities ``(batch, vocabulary)``."""
        return self._mean([model.step for model in self.models], tokens, state)

    def _mean(
        self, calls: Sequence[Callable[[Tensor, State], tuple[Tensor, State]]], tokens: Tensor, state: State
    ) -> tuple[Tensor, State]:
        found = [call(tokens, kept) for call, kept in zip(calls, state, strict=True)]
        log_p = torch.stack([torch.log_softmax(logits, dim=-1) for logits, _ in found])
        return torch.logsumexp(log_p, dim=0) - math.log(len(found)), tuple(kept for _, kept in found)
