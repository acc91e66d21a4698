"""The feed-forward network of a block, plain or gated.

    plain:  W₂ g(W₁ x)             A. Vaswani et al. 2017 (ReLU); D. Hendrycks and K. Gimpel 2016 (GELU)
    gated:  W₂ (W₁ x ⊙ g(V x))      N. Shazeer, "GLU variants improve transformer", 2020; Y. Dauphin et al. 2017

W₁ ``up_proj`` · V ``gate_proj`` · W₂ ``down_proj`` · g ``activation``.
"""

from typing import Annotated

from annotated_types import Interval
from torch import Tensor, nn

from ..core.errors import require_known
from .experts import Experts
from .option_types import OneOf, Size, check_sizes
from .pointwise import activation_named

PLAIN = ("relu", "gelu", "gelu-tanh", "silu")
GATED = {
    "glu": "sigmoid",
    "reglu": "relu",
    "geglu": "gelu",
    "geglu-tanh": "gelu-tanh",
    "swiglu": "silu",
    "bilinear": "identity",
}
KINDS = ["none", *PLAIN, *GATED]
MULTIPLE = 8
"""Widths are rounded up to a multiple of this number, for which matrix products are faster."""


class FeedForward(nn.Module):
    """``(..., size)`` to the same shape, with ``inner_size`` features in between; a kind of `PLAIN` or `GATED`."""

    def __init__(self, size: int, inner_size: int, *, kind: str, bias: bool = False) -> None:
        super().__init__()
        self.activation = activation_named(GATED.get(kind, kind))
        self.up_proj = nn.Linear(size, inner_size, bias=bias)
        self.gate_proj = nn.Linear(size, inner_size, bias=bias) if kind in GATED else None
        self.down_proj = nn.Linear(inner_size, size, bias=bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the equation."""
        up: Tensor = self.up_proj(inputs)
        hidden = self.activation(up) if self.gate_proj is None else up * self.activation(self.gate_proj(inputs))
        outputs: Tensor = self.down_proj(hidden)
        return outputs


def feed_forward(
    size: int,
    *,
    feed_forward: Annotated[str, OneOf(KINDS)] = "swiglu",
    feed_forward_size: Size | None = None,
    num_experts: Size | None = None,
    experts_per_token: Size = 2,
    balance: Annotated[float, Interval(ge=0, le=1000)] = 0.01,
    shared_expert_size: Size | None = None,
    bias: bool = False,
) -> nn.Module | None:
    """Return the feed-forward network of a block, or a mixture of several networks.

    Args:
        size: width of the block.
        feed_forward: the kind of network; `none` for no network.
        feed_forward_size: width between the maps; None for four times ``size``, or for the same number of weights in a
            gated network.
        num_experts: the number of networks in a mixture; None for a single network.
        experts_per_token: the number of networks that process each input.
        balance: weight of the load-balancing loss.
        shared_expert_size: width of one more network of a mixture, which processes every input; None for none.
        bias: whether the maps have biases.

    Raises:
        InputError: an unknown kind, or more experts chosen than there are.
    """
    if require_known("feed_forward", feed_forward, KINDS) == "none":
        return None
    inner = feed_forward_size
    if inner is None:
        inner = -(-(8 * size // 3 if feed_forward in GATED else 4 * size) // MULTIPLE) * MULTIPLE
    check_sizes(feed_forward_size=inner, num_experts=1 if num_experts is None else num_experts)
    networks = [FeedForward(size, inner, kind=feed_forward, bias=bias) for _ in range(num_experts or 1)]
    if num_experts is None:
        return networks[0]
    shared = None
    if shared_expert_size is not None:
        check_sizes(shared_expert_size=shared_expert_size)
        shared = FeedForward(size, shared_expert_size, kind=feed_forward, bias=bias)
    return Experts(size, networks, per_token=experts_per_token, balance=balance, shared=shared)
