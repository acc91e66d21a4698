"""A mixture of language models: linear interpolation.

    P(w_t | w_<t) = Σ_i λ_i P_i(w_t | w_<t),  Σ_i λ_i = 1

F. Jelinek and R. Mercer, "Interpolated estimation of Markov source parameters from sparse data", Pattern Recognition in
Practice, 1980. Expectation maximization (A. Dempster, N. Laird and D. Rubin, 1977) finds the weights λ that maximize
the likelihood of a text:

    λ_i ← 1/T Σ_t λ_i P_i(w_t | w_<t) / Σ_j λ_j P_j(w_t | w_<t)
"""

from collections.abc import Iterable, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from ..core.errors import MismatchError, RangeError
from ..core.state import OutputsAndState, State
from .base_models import TextModel
from .probabilities import token_log_probabilities

TOLERANCE = 1e-7
"""The iteration stops when the log likelihood improves by less than this, in nats per token."""
MAX_ITERATIONS = 200


class Mixture(TextModel):
    """The weighted mean of language models, with the contract of one model; its state is the tuple of their states.

    ``weights`` are λ, by default equal. InputError is raised if the vocabularies differ in size, a weight is negative,
    or the weights do not sum to 1.
    """

    gives_log_probabilities = True

    def __init__(self, models: Sequence[TextModel], weights: Sequence[float] | None = None) -> None:
        super().__init__()
        weights = [1 / len(models)] * len(models) if weights is None else list(weights)
        if len(weights) != len(models) or min(weights) < 0 or abs(sum(weights) - 1) > 1e-6:
            raise RangeError(f"weights: {weights} is no mixture; give shares of 0 or more that sum to 1")
        if len({model.vocabulary_size for model in models}) > 1:
            raise MismatchError("models: they have different vocabularies; give models of one vocabulary")
        self.models = cast(Sequence[TextModel], nn.ModuleList(models))
        self.weights, self.vocabulary_size = weights, models[0].vocabulary_size
        self.begin = models[0].begin

    def initial_state(self, batch_size: int) -> State:
        """Return the tuple of the models' initial states."""
        return tuple(model.initial_state(batch_size) for model in self.models)

    def forward(self, tokens: Tensor, state: State | None = None, *, lengths: Tensor | None = None) -> OutputsAndState:
        """Return log probabilities ``(batch, time, vocabulary)`` after ids ``(batch, time)``, and the state."""
        state = self.initial_state(len(tokens)) if state is None else state
        return self.mix([model(tokens, inner, lengths=lengths) for model, inner in self.with_states(state)])

    def step(self, tokens: Tensor, state: State) -> OutputsAndState:
        """Read one token per row: ids ``(batch,)`` to log probabilities ``(batch, vocabulary)``."""
        return self.mix([model.step(tokens, inner) for model, inner in self.with_states(state)])

    @torch.no_grad()
    def token_losses(
        self, tokens: Tensor, targets: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> OutputsAndState:
        """Return −log P(target) of every position ``(batch, time)``, in nats, zero on padding; and the state."""
        state = self.initial_state(len(tokens)) if state is None else state
        results = [
            model.token_losses(tokens, targets, inner, lengths=lengths) for model, inner in self.with_states(state)
        ]
        log_probabilities = torch.stack([-losses.double() for losses, _ in results])
        mixed = -torch.logsumexp(log_probabilities + self.log_weights(log_probabilities), dim=0)
        return mixed.masked_fill((log_probabilities == 0).all(0), 0.0), tuple(inner for _, inner in results)

    def log_weights(self, values: Tensor) -> Tensor:
        """Return log λ, in a shape that broadcasts with values ``(models, ...)``."""
        logarithms = torch.tensor(self.weights, dtype=values.dtype, device=values.device).log()
        return logarithms.view(-1, *[1] * (values.dim() - 1))

    def with_states(self, state: State) -> Iterable[tuple[TextModel, State]]:
        """Return each model with its state."""
        return zip(self.models, cast(tuple[State, ...], state), strict=True)

    def mix(self, results: Sequence[tuple[Tensor, State]]) -> OutputsAndState:
        """Return the logarithms of the weighted mean of the models' probabilities, and the state of the mixture."""
        pairs = zip(self.models, results, strict=True)
        log_probabilities = torch.stack([token_log_probabilities(model, logits) for model, (logits, _) in pairs])
        mixed = torch.logsumexp(log_probabilities + self.log_weights(log_probabilities), dim=0)
        return mixed.to(results[0][0].dtype), tuple(inner for _, inner in results)


def fit_weights(losses: np.ndarray) -> list[float]:
    """Return the weights that maximize the likelihood of a text.

    ``losses`` is −log P of every token by every model ``(models, tokens)``, in nats. Tokens that are impossible for all
    models are ignored.
    """
    losses = losses[:, np.isfinite(losses).any(axis=0)]
    models = len(losses)
    if not losses.size:
        return [1 / models] * models
    weights, before = np.full(models, 1 / models), np.inf

    # Probabilities relative to those of the best model for each token, since the smallest ones would be rounded to 0.
    smallest = losses.min(axis=0)
    likelihood = np.exp(smallest - losses)  # of each model, times a factor that is the same for all models
    for _ in range(MAX_ITERATIONS):
        mixed = weights[:, None] * likelihood
        total = mixed.sum(axis=0)
        loss = float((smallest - np.log(total)).mean())
        if before - loss < TOLERANCE:
            break
        before = loss
        weights = (mixed / total).mean(axis=1)
    return [float(weight) for weight in weights / weights.sum()]
