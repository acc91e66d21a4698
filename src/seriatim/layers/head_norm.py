"""RMS norm of each head of the outputs of a recurrence.

B. Zhang and R. Sennrich, "Root mean square layer normalization", NeurIPS 2019.

    y = x / √(mean of x² over the features of a head + ε) ⊙ g

g ``weight (size,)``, shared by all heads, or ``weight (heads · size,)``.
"""

import torch
from torch import Tensor, nn

from .pointwise import EPSILON


class HeadNorm(nn.Module):
    """Normalises the features of each head.

    Args:
        size: features of a head.
        heads: the number of heads where each has a gain of its own; None where they share one.
        gain: whether there is g.
        epsilon: is added to the mean square.
    """

    weight: nn.Parameter | None

    def __init__(self, size: int, *, heads: int | None = None, gain: bool = True, epsilon: float = EPSILON) -> None:
        super().__init__()
        self.size, self.epsilon = size, epsilon
        self.register_parameter("weight", nn.Parameter(torch.ones(size * (heads or 1))) if gain else None)

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise ``(..., heads, size)``."""
        normed = inputs * torch.rsqrt(inputs.square().mean(-1, keepdim=True) + self.epsilon)
        return normed if self.weight is None else normed * self.weight.view(-1, self.size)
