"""DeltaProduct: several steps of the gated delta rule for every input.

J. Siems, T. Carstensen, A. Zela, F. Hutter, M. Pontil and R. Grazzi, "DeltaProduct: improving state-tracking in linear
RNNs via Householder products", NeurIPS 2025, arXiv:2502.10297.

    q, k_i, v_i = the short convolution of W_q x, W_k x, W_v x, and SiLU  q, k_i have length 1; q is divided by √d
    β_i = σ(W_b x_t)                                                      strengths of writing, i = 1 … n for each head
    α_t = exp(−e^a softplus(W_a x_t + b))                                 decay, one number for each head
    S_{t,0} = α_t S_{t−1,n},    S_{t,i} = S_{t,i−1} + β_i k_i (v_i − S_{t,i−1}ᵀ k_i)ᵀ
    y_t = W_o (norm(S_{t,n}ᵀ q) ⊙ SiLU(W_g x_t))                          norm is an RMS norm of each head

x ``inputs`` · y ``outputs`` · the last inputs of the convolution ``state.recent`` · S ``state.memory`` · W_q, W_k, W_v
``qkv_proj`` · W_b, W_a ``ba_proj`` · a ``A_log`` · b ``dt_bias`` · W_g ``g_proj`` · W_o ``o_proj`` · norm ``o_norm`` ·
d the features of a key · n ``num_products``. With ``negative_eigenvalues`` β is 2 σ(·); then the transition of an input
can be any rotation of n reflections. Nothing is simplified.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .delta_heads import add_delta_maps, decay_logarithm, delta_heads
from .delta_rule import delta_scan, delta_step
from .matrix_layer import ConvolvedState, MatrixLayer, Terms
from .option_types import Size, check_sizes
from .selective_scan import init_step_bias


class DeltaProductState(ConvolvedState):
    """The state of a `DeltaProduct`."""


def product_step(
    q: Tensor, k: Tensor, v: Tensor, read: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute one step of `product_scan`; sequences have no time dimension."""
    decay: Tensor | None = log_decay
    for k_i, v_i, read_i in zip(k.unbind(1), v.unbind(1), read.unbind(1), strict=True):
        outputs, state = delta_step(q, k_i, v_i, read_i, decay, state)
        decay = None
    return outputs, state


def product_scan(
    q: Tensor, k: Tensor, v: Tensor, read: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Run n steps of `delta_scan` for every input: only the first decays, and only the last has an output.

    Keys, values and ``read`` are ``(batch, time, n, heads, size)``, queries ``(batch, time, heads, K)`` and decays
    ``(batch, time, heads)``.
    """
    n = k.shape[2]
    q = q.unsqueeze(2).expand_as(k).flatten(1, 2)
    decays = F.pad(log_decay.unsqueeze(2), (0, 0, 0, n - 1)).flatten(1, 2)  # (B, T * n, H)
    outputs, state = delta_scan(q, k.flatten(1, 2), v.flatten(1, 2), read.flatten(1, 2), decays, state)
    return outputs[:, n - 1 :: n], state


class DeltaProduct(MatrixLayer):
    """The gated delta rule, n times for each input; in a block by default, as in the paper.

    Args:
        num_heads: None for as many as leave each head at least 64 features.
        num_products: n, the steps for each input.
        kernel_size: the number of inputs that the short convolution sees.
        negative_eigenvalues: whether β reaches 2 instead of 1.
    """

    keeps = "one matrix per head, and the last inputs of a short convolution"
    paper = "Siems et al. 2025"
    gate_names = ("strengths of writing β", "decay α")
    state_type = DeltaProductState
    scan = staticmethod(product_scan)
    one_step = staticmethod(product_step)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        num_heads: Size | None = None,
        num_products: Size = 2,
        kernel_size: Size = 4,
        negative_eigenvalues: bool = False,
    ) -> None:
        super().__init__()
        check_sizes(num_products=num_products)
        add_delta_maps(self, input_size, hidden_size, num_heads=num_heads, kernel_size=kernel_size, keys=num_products)
        self.strength = 2.0 if negative_eigenvalues else 1.0
        self.num_products = num_products
        self.ba_proj = nn.Linear(input_size, (num_products + 1) * self.num_heads, bias=False)
        self.g_proj = nn.Linear(input_size, hidden_size, bias=False)
        self.A_log = nn.Parameter(torch.empty(self.num_heads).uniform_(1, 16).log_())
        self.dt_bias = nn.Parameter(torch.empty(self.num_heads))
        init_step_bias(self.dt_bias, 0.001, 0.1)

    def terms(self, inputs: Tensor, before: list[Tensor]) -> Terms:
        """Return q, and β k, v and k of every step, and log α; then the gate of the outputs."""
        q, k, v, after = delta_heads(self, inputs, before)
        k, v = (torch.unflatten(x, -2, (self.num_products, self.num_heads)) for x in (k, v))  # (..., n, H, K)
        b, a = (F.linear(inputs, w) for w in self.ba_proj.weight.tensor_split([-self.num_heads]))
        beta = torch.unflatten(self.strength * torch.sigmoid(b), -1, (self.num_products, self.num_heads)).unsqueeze(-1)
        decay = decay_logarithm(a, self.dt_bias, self.A_log)
        return (q, beta * k, v, k, decay), after, (F.silu(self.g_proj(inputs)),)
