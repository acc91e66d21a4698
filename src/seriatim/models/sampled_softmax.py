"""The softmax of a large vocabulary, estimated from a part of its tokens while training.

    −log P(y) = log Σ_v exp(z_v) − z_y,  z = W h + b

The sum is taken over the target, the most frequent tokens F, and K draws v_k from a distribution q of the others, which
stand for the rest (Y. Bengio and J.-S. Senécal, "Quick training of probabilistic neural nets by importance sampling",
AISTATS 2003):

    Σ_v exp(z_v) ≈ exp(z_y) + Σ_{v ∈ F, v ≠ y} exp(z_v) + Σ_{k: v_k ≠ y} exp(z_{v_k}) / (K q(v_k))

Its expectation is the whole sum. A text consists mostly of frequent tokens, so that the exact terms have most of the
probability. Models are evaluated with the whole softmax.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from .cross_entropy import capped

FLATTENED = 0.75
"""q is proportional to this power of a token's count, since probabilities in a context are flatter than over a text."""


class TokenSampler:
    """Chooses the tokens whose logits are computed: half of them are the most frequent ones, half are drawn.

    Args:
        counts: how often each token occurs in the training text ``(vocabulary,)``.
        size: the number of tokens, at most the vocabulary.
    """

    def __init__(self, counts: np.ndarray, size: int) -> None:
        order = np.argsort(-counts, kind="stable")
        self.frequent, others = (torch.from_numpy(ids) for ids in np.split(order, [size // 2]))
        weights = torch.from_numpy(counts).double().clamp_min(1e-3)[others] ** FLATTENED
        self.others, self.drawn = others, size - size // 2
        self.cumulative = weights.cumsum(0)
        self.log_expected = (self.drawn * weights / weights.sum()).log().float()

    def draw(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return token ids ``(size,)``, some of them several times, and the logarithms of their expected numbers."""
        at = torch.rand(self.drawn, dtype=torch.float64) * self.cumulative[-1]
        drawn = torch.searchsorted(self.cumulative, at).clamp_max(len(self.others) - 1)
        expected = torch.cat([torch.zeros(len(self.frequent)), self.log_expected[drawn]])
        return torch.cat([self.frequent, self.others[drawn]]).to(device), expected.to(device)


def sampled_loss(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    sampler: TokenSampler,
    *,
    cap: float | None = None,
) -> Tensor:
    """Return the estimated sum of −log P(target), in nats; see `cross_entropy.summed_loss` for the other arguments."""
    ids, log_expected = sampler.draw(hidden.device)
    logits = F.linear(hidden, F.embedding(ids, weight)).to(weight.dtype)  # (positions, size)
    of_target = (hidden * F.embedding(targets, weight)).sum(1).to(weight.dtype)
    if bias is not None:
        logits, of_target = logits + bias[ids], of_target + bias[targets]
    logits, of_target = capped(logits, cap) - log_expected, capped(of_target, cap)
    others = logits.masked_fill(ids == targets.unsqueeze(1), -torch.inf).logsumexp(1)
    return F.softplus(others - of_target).sum()  # log(exp(others) + exp(z_y)) − z_y
