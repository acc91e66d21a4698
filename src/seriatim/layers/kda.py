"""Kimi delta attention: Gated DeltaNet with a decay for every row of the matrix.

Kimi team, "Kimi Linear: an expressive, efficient attention architecture", 2025, arXiv:2510.26692.

    q, k, v = the short convolution of W_q x, W_k x, W_v x, and SiLU      q and k have length 1; q is divided by √d
    β_t = σ(W_b x_t)                                                      strength of writing, one number for each head
    α_t = exp(−e^a softplus(W_fb W_fa x_t + b))                           decay, d numbers for each head; a is one
    S_t = (I − β_t k kᵀ) diag(α_t) S_{t−1} + β_t k vᵀ
    y_t = W_o (norm(S_tᵀ q) ⊙ σ(W_gb W_ga x_t))                           norm is an RMS norm of each head

x ``inputs`` · y ``outputs`` · the last inputs of the convolution ``state.recent`` · S ``state.memory`` · W_q, W_k, W_v
``qkv_proj`` · W_b ``b_proj`` · W_fa ``f_a_proj`` and W_ga ``g_a_proj``, as narrow as a head · W_fb ``f_b_proj`` · W_gb
``g_b_proj`` · a ``A_log`` · b ``dt_bias`` · W_o ``o_proj`` · norm ``o_norm`` · d the features of a key. With
``negative_eigenvalues`` β is 2 σ(·), which the paper does not have. Nothing is simplified. This is the layer alone:
Kimi Linear puts one layer of attention after every three of these.
"""

import torch
from torch import Tensor, nn

from .delta_heads import add_delta_maps, decay_logarithm, delta_heads
from .delta_rule import delta_scan, delta_step
from .matrix_layer import ConvolvedState, MatrixLayer, Terms, split_heads
from .option_types import Size
from .selective_scan import init_step_bias


class KDAState(ConvolvedState):
    """The state of a `KDA`."""


class KDA(MatrixLayer):
    """The delta rule with a decay for each row; in a block by default, as in the paper.

    Args:
        num_heads: None for as many as leave each head at least 64 features.
        kernel_size: the number of inputs that the short convolution sees.
        negative_eigenvalues: whether β reaches 2 instead of 1.
    """

    keeps = "one matrix per head, and the last inputs of a short convolution"
    paper = "Kimi team 2025"
    gate_names = ("strength of writing β", "decay α", "output")
    state_type = KDAState
    scan = staticmethod(delta_scan)
    one_step = staticmethod(delta_step)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        num_heads: Size | None = None,
        kernel_size: Size = 4,
        negative_eigenvalues: bool = False,
    ) -> None:
        super().__init__()
        add_delta_maps(self, input_size, hidden_size, num_heads=num_heads, kernel_size=kernel_size)
        self.strength = 2.0 if negative_eigenvalues else 1.0
        self.b_proj = nn.Linear(input_size, self.num_heads, bias=False)
        self.f_a_proj = nn.Linear(input_size, self.key_size, bias=False)
        self.f_b_proj = nn.Linear(self.key_size, hidden_size, bias=False)
        self.g_a_proj = nn.Linear(input_size, self.key_size, bias=False)
        self.g_b_proj = nn.Linear(self.key_size, hidden_size, bias=False)
        self.A_log = nn.Parameter(torch.empty(self.num_heads).uniform_(1, 16).log_())
        self.dt_bias = nn.Parameter(torch.empty(hidden_size))
        init_step_bias(self.dt_bias, 0.001, 0.1)

    def terms(self, inputs: Tensor, before: list[Tensor]) -> Terms:
        """Return q, β k, v, k and log α; then the gate of the outputs."""
        q, k, v, after = delta_heads(self, inputs, before)
        beta = self.strength * torch.sigmoid(self.b_proj(inputs)).unsqueeze(-1)  # (..., H, 1)
        steps = split_heads(self.f_b_proj(self.f_a_proj(inputs)), self.key_size)  # (..., H, K)
        decay = decay_logarithm(steps, self.dt_bias.view(-1, self.key_size), self.A_log.unsqueeze(-1))
        return (q, beta * k, v, k, decay), after, (torch.sigmoid(self.g_b_proj(self.g_a_proj(inputs))),)
