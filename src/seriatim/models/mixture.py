"""Several language models as one, by linear interpolation.

    P(w_t | w_<t) = Σ_i λ_i P_i(w_t | w_<t),  Σ_i λ_i = 1

F. Jelinek and R. Mercer, "Interpolated estimation of Markov source parameters from sparse data", Pattern Recognition in
Practice, 1980; the weights λ that make a text likeliest, by expectation maximisation (A. Dempster, N. Laird and
D. Rubin, 1977):

    λ_i ← 1/T Σ_t λ_i P_i(w_t | w_<t) / Σ_j λ_j P_j(w_t | w_<t)
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..core.errors import InputError
from ..core.state import State
from .base_models import TextModel

TOLERANCE = 1e-7
"""Nats a token by which a round must raise the likelihood to be followed by another."""
ROUNDS = 200


class Mixture(TextModel):
    """The mean of language models under the contract of one; its state is all of theirs.

    Args:
        models: of one vocabulary.
        weights: λ, one a model; None for equal ones.

    Raises:
        InputError: vocabularies of different sizes, or weights that are no shares.
    """

    def __init__(self, models: Sequence[TextModel], weights: Sequence[float] | None = None) -> None:
        super().__init__()
        shares = [1 / len(models)] * len(models) if weights is None else list(weights)
        if len(shares) != len(models) or min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
            raise InputError(f"weights of a mixture are not negative and add up to 1; got {shares}")
        if len({model.vocabulary_size for model in models}) > 1:
            raise InputError("the models of a mixture need one vocabulary")
        self.models = nn.ModuleList(models)
        self.weights, self.vocabulary_size = shares, models[0].vocabulary_size

    def initial_state(self, batch_size: int) -> State:
        """Each model's."""
        return tuple(model.initial_state(batch_size) for model, _ in self.parts(None))

    def forward(
        self, tokens: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Ids ``(batch, time)`` to logarithms of probabilities ``(batch, time, vocabulary)``, and the state."""
        found = [model(tokens, kept, lengths=lengths) for model, kept in self.parts(state)]
        return self.joined([logits for logits, _ in found]), tuple(kept for _, kept in found)

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """One token a row: ids ``(batch,)`` to ``(batch, vocabulary)``."""
        found = [model.step(tokens, kept) for model, kept in self.parts(state)]
        return self.joined([logits for logits, _ in found]), tuple(kept for _, kept in found)

    @torch.no_grad()
    def token_losses(
        self, tokens: Tensor, targets: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """−log P(target) of every position ``(batch, time)``, in nats, zero on padding; and the state."""
        found = [model.token_losses(tokens, targets, kept, lengths=lengths) for model, kept in self.parts(state)]
        losses = torch.stack([-losses.double() for losses, _ in found])
        mixed = -torch.logsumexp(losses + self.log_weights(losses), dim=0)
        return mixed.masked_fill((losses == 0).all(0), 0.0), tuple(kept for _, kept in found)

    def log_weights(self, values: Tensor) -> Tensor:
        """The logarithms of λ, to be added to values ``(models, ...)``."""
        found = torch.tensor(self.weights, dtype=values.dtype, device=values.device).log()
        return found.view(-1, *[1] * (values.dim() - 1))

    def parts(self, state: State | None) -> Iterator[tuple[TextModel, Any]]:
        """Each model with its part of the state."""
        states = [None] * len(self.models) if state is None else state
        yield from zip(self.models, states, strict=True)

    def joined(self, logits: Sequence[Tensor]) -> Tensor:
        """Logarithms of the mean of probabilities."""
        found = torch.stack([torch.log_softmax(part.double(), dim=-1) for part in logits])
        return torch.logsumexp(found + self.log_weights(found), dim=0).to(logits[0].dtype)


def fit_weights(losses: np.ndarray) -> list[float]:
    """The weights that make a text likeliest.

    Args:
        losses: −log P of every token by every model ``(models, tokens)``, in nats. Tokens that are impossible to all
            say nothing.
    """
    losses = losses[:, np.isfinite(losses).any(axis=0)]
    models = len(losses)
    if not losses.size:
        return [1 / models] * models
    shares, before = np.full(models, 1 / models), np.inf
    least = losses.min(axis=0)
    likelihood = np.exp(least - losses)  # of each model, times what is the same for all
    for _ in range(ROUNDS):
        mixed = shares[:, None] * likelihood
        total = mixed.sum(axis=0)
        loss = float((least - np.log(total)).mean())
        if before - loss < TOLERANCE:
            break
        before = loss
        shares = (mixed / total).mean(axis=1)
    return [float(share) for share in shares / shares.sum()]
