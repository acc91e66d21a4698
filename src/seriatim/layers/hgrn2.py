"""HGRN2: a matrix whose rows decay, and whose key is one minus the decay.

Z. Qin et al., "HGRN2: gated linear RNNs with state expansion", COLM 2024, arXiv:2404.07904.

    q, v = SiLU(W_q x_t), W_i x_t          for each head
    f_t = σ(W_f x_t)                       forget gate of each row
    S_t = diag(f_t) S_{t−1} + (1 − f_t) vᵀ
    y_t = W_o norm(S_tᵀ q)                 norm is an RMS norm over all heads

x ``inputs`` · y ``outputs`` · S ``state.memory`` · W_q, W_f, W_i ``qfi_proj`` · W_o ``o_proj`` · norm ``o_norm``.
Simplified: the paper has a least value of f that grows with the number of the layer; here it is 0.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .attention import heads as divided
from .head_norm import HeadNorm
from .matrix_layer import HEAD_SIZE, MatrixLayer, MatrixState, Terms, split_heads
from .option_types import Size
from .scan import at_least_float32


class HGRN2State(MatrixState):
    """The state of a `HGRN2`."""


class HGRN2(MatrixLayer):
    """A gated linear recurrence with a matrix as its state; in a block by default, as in the paper.

    Args:
        num_heads: None for as many as leave each head at least 64 features.
    """

    keeps = "one matrix per head"
    paper = "Qin et al. 2024"
    gate_names = ("write 1 − f",)
    state_type = HGRN2State

    def __init__(self, input_size: int, hidden_size: int, *, num_heads: Size | None = None) -> None:
        super().__init__()
        heads = divided(hidden_size, num_heads, least=HEAD_SIZE)
        self.set_sizes(
            input_size, hidden_size, heads=heads, key_size=hidden_size // heads, value_size=hidden_size // heads
        )
        self.qfi_proj = nn.Linear(input_size, 3 * hidden_size, bias=False)
        self.o_norm = HeadNorm(hidden_size)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def terms(self, inputs: Tensor, before: list[Tensor]) -> Terms:
        """Return q, 1 − f, v and log f."""
        q, f, v = (split_heads(x, self.key_size) for x in self.qfi_proj(inputs).chunk(3, dim=-1))
        f = at_least_float32(f)
        return (F.silu(q), torch.sigmoid(-f), v, F.logsigmoid(f)), [], ()

    def outputs(self, heads: Tensor, *rest: Tensor) -> Tensor:
        """Normalise all heads together, and map them."""
        mapped: Tensor = self.o_proj(
            self.o_norm(heads.flatten(-2).unsqueeze(-2)).squeeze(-2).to(self.o_proj.weight.dtype)
        )
        return mapped
