"""RMS norm and layer norm of each head of the outputs of a recurrence.

B. Zhang and R. Sennrich, "Root mean square layer normalization", NeurIPS 2019, and Y. Wu and K. He, "Group
normalization", ECCV 2018.

    y = x / √(mean of x² over the features of a head + ε) ⊙ g                             `HeadNorm`
    y = (x − mean of x) / √(variance of x over the features of a head + ε) ⊙ g + b        `HeadLayerNorm`

g ``weight (size,)``, shared by all heads, or ``weight (heads · size,)`` · b ``bias (heads · size,)``, or none.
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


class HeadLayerNorm(nn.Module):
    """Normalises the features of each head, whose mean becomes zero.

    Args:
        size: features of a head.
        heads: the number of heads, each of which has a gain of its own.
        bias: whether there is b.
        epsilon: is added to the variance.
    """

    bias: nn.Parameter | None

    def __init__(self, size: int, heads: int, *, bias: bool = False, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.size, self.epsilon = size, epsilon
        self.weight = nn.Parameter(torch.ones(size * heads))
        self.register_parameter("bias", nn.Parameter(torch.zeros(size * heads)) if bias else None)

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise ``(..., heads, size)``."""
        deviation = inputs - inputs.mean(-1, keepdim=True)
        variance = deviation.square().mean(-1, keepdim=True)
        normed = deviation * torch.rsqrt(variance + self.epsilon) * self.weight.view(-1, self.size)
        return normed if self.bias is None else normed + self.bias.view(-1, self.size)
