"""Gated DeltaNet: a matrix that decays, and in which a value replaces the one that stood at its key.

S. Yang, J. Kautz and A. Hatamizadeh, "Gated delta networks: improving Mamba2 with delta rule", ICLR 2025,
arXiv:2412.06464.

    q, k, v = the short convolution of W_q x, W_k x, W_v x, and SiLU      q and k have length 1; q is divided by √d
    β_t = σ(W_b x_t)                                                      strength of writing, one number for each head
    α_t = exp(−e^a softplus(W_a x_t + b))                                 decay, one number for each head
    S_t = α_t S_{t−1} + β_t k (v − α_t S_{t−1}ᵀ k)ᵀ
    y_t = W_o (norm(S_tᵀ q) ⊙ SiLU(W_g x_t))                              norm is an RMS norm of each head

x ``inputs`` · y ``outputs`` · the last inputs of the convolution ``state.recent`` · S ``state.memory`` · W_q, W_k, W_v
``qkv_proj`` · W_b, W_a ``ba_proj`` · a ``A_log`` · b ``dt_bias`` · W_g ``g_proj`` · W_o ``o_proj`` · norm ``o_norm`` ·
d the features of a key. With ``negative_eigenvalues`` β is 2 σ(·), and the transition has negative eigenvalues, which
state tracking needs (R. Grazzi et al., "Unlocking state-tracking in linear RNNs through negative eigenvalues", 2024).
Several heads may share queries and keys, as in Qwen3-Next. Nothing is simplified.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .delta_heads import add_delta_maps, decay_logarithm, delta_heads
from .delta_rule import delta_scan, delta_step
from .matrix_layer import ConvolvedState, MatrixLayer, Terms
from .matrix_states import same_heads
from .option_types import Size
from .pointwise import EPSILON, Epsilon
from .selective_scan import init_step_bias


class GatedDeltaNetState(ConvolvedState):
    """The state of a `GatedDeltaNet`."""


class GatedDeltaNet(MatrixLayer):
    """The gated delta rule; in a block by default, as in the paper.

    Args:
        num_heads: heads of values; None for as many as leave each at least 64 features.
        num_key_heads: heads of queries and keys, a divisor of the number of heads; None for the same number.
        head_size: features of a key; None for a head's share of the width.
        expansion: features of all values for every output.
        kernel_size: the number of inputs that the short convolution sees.
        negative_eigenvalues: whether β reaches 2 instead of 1.
        norm_epsilon: is added to the mean square of what is normalized.
    """

    keeps = "one matrix per head, and the last inputs of a short convolution"
    paper = "Yang et al. 2025"
    gate_names = ("strength of writing β", "decay α")
    state_type = GatedDeltaNetState
    scan = staticmethod(delta_scan)
    one_step = staticmethod(delta_step)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        num_heads: Size | None = None,
        num_key_heads: Size | None = None,
        head_size: Size | None = None,
        expansion: Size = 1,
        kernel_size: Size = 4,
        negative_eigenvalues: bool = False,
        norm_epsilon: Epsilon = EPSILON,
    ) -> None:
        super().__init__()
        add_delta_maps(
            self,
            input_size,
            hidden_size,
            num_heads=num_heads,
            num_key_heads=num_key_heads,
            head_size=head_size,
            expansion=expansion,
            kernel_size=kernel_size,
            norm_epsilon=norm_epsilon,
        )
        self.strength = 2.0 if negative_eigenvalues else 1.0
        self.ba_proj = nn.Linear(input_size, 2 * self.num_heads, bias=False)
        self.g_proj = nn.Linear(input_size, self.num_heads * self.value_size, bias=False)
        self.A_log = nn.Parameter(torch.empty(self.num_heads).uniform_(1, 16).log_())
        self.dt_bias = nn.Parameter(torch.empty(self.num_heads))
        init_step_bias(self.dt_bias, 0.001, 0.1)

    def terms(self, inputs: Tensor, before: list[Tensor]) -> Terms:
        """Return q, β k, v, k and log α; then the gate of the outputs."""
        q, k, v, after = delta_heads(self, inputs, before)
        q, k = same_heads(v, q, k)
        b, a = (F.linear(inputs, weight) for weight in self.ba_proj.weight.chunk(2))  # (..., H)
        beta = self.strength * torch.sigmoid(b).unsqueeze(-1)
        decay = decay_logarithm(a, self.dt_bias, self.A_log)
        return (q, beta * k, v, k, decay), after, (F.silu(self.g_proj(inputs)),)
