"""Several models as one: P(w | past) = (1/n) Σ_i P_i(w | past)."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import InputError
from ..core.state import State
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
        """Return the tuple of the initial states of the models."""
        return tuple(model.initial_state(batch_size) for model in self.models)

    def __call__(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Return log probabilities ``(batch, time, vocabulary)`` after each token ``(batch, time)``, and the state."""
        return self._mean([model.__call__ for model in self.models], tokens, state)

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Return log probabilities ``(batch, vocabulary)`` after one token per row ``(batch,)``, and the state."""
        return self._mean([model.step for model in self.models], tokens, state)

    def _mean(
        self, calls: Sequence[Callable[[Tensor, State], tuple[Tensor, State]]], tokens: Tensor, state: State
    ) -> tuple[Tensor, State]:
        found = [call(tokens, kept) for call, kept in zip(calls, state, strict=True)]
        log_p = torch.stack([torch.log_softmax(logits, dim=-1) for logits, _ in found])
        return torch.logsumexp(log_p, dim=0) - math.log(len(found)), tuple(kept for _, kept in found)


class EncoderDecoders(nn.Module):
    """Encoder-decoders of one vocabulary; the search for answers uses P(y) = (1/n) Σ_i P_i(y)."""

    def __init__(self, models: Sequence[Any]) -> None:
        super().__init__()
        self.models: Any = nn.ModuleList(models)
        self.step = Ensemble(models).step

    def encode(self, source: Tensor, source_lengths: Tensor | None = None) -> State:
        """Return the tuple of the states of the models."""
        return tuple(model.encode(source, source_lengths) for model in self.models)

    def token_losses(self, *given: Tensor | None) -> Tensor:
        """Return −log of the mean probability of every target, from the models' own −log P; zero on padding."""
        losses = torch.stack([model.token_losses(*given) for model in self.models])
        return math.log(len(losses)) - torch.logsumexp(-losses, dim=0)

    def attention(self, *given: Tensor | None) -> Tensor:
        """Return the mean of the attention weights of the models."""
        return torch.stack([model.attention(*given) for model in self.models]).mean(0)


class Classifiers(nn.Module):
    """Classifiers of one vocabulary and the same labels."""

    def __init__(self, models: Sequence[Any]) -> None:
        super().__init__()
        self.models: Any = nn.ModuleList(models)
        self.output = models[0].output

    def probabilities(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the mean of the probabilities of the models ``(batch, labels)``."""
        found = [model.probabilities(tokens, lengths) for model in self.models]
        return torch.stack(found).mean(0)
