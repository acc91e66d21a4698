"""Gated DeltaNet-2: separate gates for what is erased from the matrix and for what is written to it.

A. Hatamizadeh, Y. Choi and J. Kautz, "Gated DeltaNet-2: decoupling erase and write in linear attention", 2026,
arXiv:2605.22791.

    q, k, v = the short convolution of W_q x, W_k x, W_v x, and SiLU      q and k have length 1; q is divided by √d
    b_t = σ(W_b x_t),    w_t = σ(W_w x_t)                                 gates of erasing and of writing
    α_t = exp(−e^a softplus(W_fb W_fa x_t + c))                           decay, d numbers for each head; a is one
    S_t = (I − k (b_t ⊙ k)ᵀ) diag(α_t) S_{t−1} + k (w_t ⊙ v)ᵀ
    y_t = W_o (norm(S_tᵀ q) ⊙ SiLU(W_g x_t))                              norm is an RMS norm of each head

x ``inputs`` · y ``outputs`` · the last inputs of the convolution ``state.recent`` · S ``state.memory`` · W_q, W_k, W_v
``qkv_proj`` · W_b ``b_proj`` · W_w ``w_proj`` · W_fa ``f_a_proj`` · W_fb ``f_b_proj`` · a ``A_log`` · c ``dt_bias`` ·
W_g ``g_proj`` · W_o ``o_proj`` · norm ``o_norm`` · d the features of a key. With ``negative_eigenvalues`` b is 2 σ(·).
The recurrence and the gates of erasing and writing are those of the paper; decay and output gate are those of
`seriatim.layers.kda` and `seriatim.layers.gated_deltanet`.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .delta_heads import add_delta_maps, decay_logarithm, delta_heads
from .delta_rule import delta_scan, delta_step
from .matrix_layer import ConvolvedState, MatrixLayer, Terms, split_heads
from .option_types import Size
from .selective_scan import init_step_bias


class GatedDeltaNet2State(ConvolvedState):
    """The state of a `GatedDeltaNet2`."""


class GatedDeltaNet2(MatrixLayer):
    """The delta rule with a gate for erasing and one for writing; in a block by default, as in the paper.

    Args:
        num_heads: None for as many as leave each head at least 64 features.
        kernel_size: the number of inputs that the short convolution sees.
        negative_eigenvalues: whether the gate of erasing reaches 2 instead of 1.
    """

    keeps = "one matrix per head, and the last inputs of a short convolution"
    paper = "Hatamizadeh et al. 2026"
    gate_names = ("erase b", "write w", "decay α")
    state_type = GatedDeltaNet2State
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
        self.b_proj, self.w_proj, self.g_proj = (nn.Linear(input_size, hidden_size, bias=False) for _ in range(3))
        self.f_a_proj = nn.Linear(input_size, self.key_size, bias=False)
        self.f_b_proj = nn.Linear(self.key_size, hidden_size, bias=False)
        self.A_log = nn.Parameter(torch.empty(self.num_heads).uniform_(1, 16).log_())
        self.dt_bias = nn.Parameter(torch.empty(hidden_size))
        init_step_bias(self.dt_bias, 0.001, 0.1)

    def terms(self, inputs: Tensor, before: list[Tensor]) -> Terms:
        """Return q, k, w ⊙ v, b ⊙ k and log α; then the gate of the outputs."""
        q, k, v, after = delta_heads(self, inputs, before)
        erase, write = (split_heads(torch.sigmoid(each(inputs)), self.key_size) for each in (self.b_proj, self.w_proj))
        steps = split_heads(self.f_b_proj(self.f_a_proj(inputs)), self.key_size)  # (..., H, K)
        decay = decay_logarithm(steps, self.dt_bias.view(-1, self.key_size), self.A_log.unsqueeze(-1))
        return (q, k, write * v, self.strength * erase * k, decay), after, (F.silu(self.g_proj(inputs)),)
