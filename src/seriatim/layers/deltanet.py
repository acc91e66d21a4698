"""DeltaNet: a matrix in which a value replaces the one that stood at its key.

S. Yang, B. Wang, Y. Zhang, Y. Shen and Y. Kim, "Parallelizing linear transformers with the delta rule over sequence
length", NeurIPS 2024, arXiv:2406.06484.

    q, k, v = the short convolution of W_q x, W_k x, W_v x, and SiLU      q and k have length 1; q is divided by √d
    β_t = σ(W_b x_t)                                                      strength of writing, one number for each head
    S_t = S_{t−1} + β_t k (v − S_{t−1}ᵀ k)ᵀ
    y_t = W_o norm(S_tᵀ q)                                                norm is an RMS norm of each head

x ``inputs`` · y ``outputs`` · the last inputs of the convolution ``state.recent`` · S ``state.memory`` · W_q, W_k, W_v
``qkv_proj`` · W_b ``b_proj`` · W_o ``o_proj`` · norm ``o_norm`` · d the features of a key. With
``negative_eigenvalues`` β is 2 σ(·), and the transition I − β k kᵀ has eigenvalues down to −1, which state tracking
needs (R. Grazzi et al., "Unlocking state-tracking in linear RNNs through negative eigenvalues", 2024). Nothing is
simplified.
"""

import torch
from torch import Tensor, nn

from .delta_heads import add_delta_maps, delta_heads
from .delta_rule import delta_scan, delta_step
from .matrix_layer import ConvolvedState, MatrixLayer, Terms
from .option_types import Size


class DeltaNetState(ConvolvedState):
    """The state of a `DeltaNet`."""


class DeltaNet(MatrixLayer):
    """The delta rule; in a block by default, as in the paper.

    Args:
        num_heads: None for as many as leave each head at least 64 features.
        kernel_size: the number of inputs that the short convolution sees.
        negative_eigenvalues: whether β reaches 2 instead of 1.
    """

    keeps = "one matrix per head, and the last inputs of a short convolution"
    paper = "Yang et al. 2024"
    gate_names = ("strength of writing β",)
    state_type = DeltaNetState
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

    def terms(self, inputs: Tensor, before: list[Tensor]) -> Terms:
        """Return q, β k, v and k."""
        q, k, v, after = delta_heads(self, inputs, before)
        beta = self.strength * torch.sigmoid(self.b_proj(inputs)).unsqueeze(-1)  # (..., H, 1)
        return (q, beta * k, v, k, None), after, ()
