"""Several models as one: P(w | past) = (1/n) Σ_i P_i(w | past)."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..core.state import State


class EncoderDecoders(nn.Module):
    """Encoder-decoders of one vocabulary; the state is the tuple of their states, in order."""

    def __init__(self, models: Sequence[Any]) -> None:
        super().__init__()
        self.models: Any = nn.ModuleList(models)

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Return log probabilities ``(batch, vocabulary)`` after one token per row ``(batch,)``, and the state."""
        results = [model.step(tokens, member_state) for model, member_state in zip(self.models, state, strict=True)]
        log_p = torch.stack([torch.log_softmax(logits, dim=-1) for logits, _ in results])
        return torch.logsumexp(log_p, dim=0) - math.log(len(results)), tuple(
            member_state for _, member_state in results
        )

    def encode(self, source: Tensor, source_lengths: Tensor | None = None) -> State:
        """Return the tuple of the states of the models."""
        return tuple(model.encode(source, source_lengths) for model in self.models)

    def token_losses(self, *batch: Tensor | None) -> Tensor:
        """Return −log of the mean probability of every target, from the models' own −log P; zero on padding."""
        losses = torch.stack([model.token_losses(*batch) for model in self.models])
        return math.log(len(losses)) - torch.logsumexp(-losses, dim=0)

    def attention(self, *batch: Tensor | None) -> Tensor:
        """Return the mean of the attention weights of the models."""
        return torch.stack([model.attention(*batch) for model in self.models]).mean(0)


class Classifiers(nn.Module):
    """Classifiers of one vocabulary and the same labels, whose probabilities are averaged."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.models: Any = nn.ModuleList(models)
