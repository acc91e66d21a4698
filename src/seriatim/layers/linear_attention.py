"""Linear attention: the softmax of attention replaced by a product of features, so that the past is one matrix.

A. Katharopoulos, A. Vyas, N. Pappas and F. Fleuret, "Transformers are RNNs", ICML 2020, arXiv:2006.16236.

    q, k, v = W_q x_t, W_k x_t, W_v x_t                    for each head
    S_t = S_{t−1} + φ(k) vᵀ,    z_t = z_{t−1} + φ(k)       φ(x) = elu(x) + 1 > 0
    y_t = W_o [S_tᵀ φ(q) / (z_tᵀ φ(q) + ε)]

x ``inputs`` · y ``outputs`` · S and z ``state.memory``, z as its last column · W_q, W_k, W_v ``qkv_proj`` · W_o
``o_proj``. As in the authors' code, ε = 10⁻⁶ keeps the quotient finite. Nothing is simplified.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .attention import heads as divided
from .matrix_layer import HEAD_SIZE, MatrixLayer, MatrixState, Terms, split_heads
from .option_types import Size
from .scan import at_least_float32

EPSILON = 1e-6


class LinearAttentionState(MatrixState):
    """The state of a `LinearAttention`."""


class LinearAttention(MatrixLayer):
    """Multi-head linear attention; in a block by default, as the paper puts it into a Transformer.

    Args:
        num_heads: None for as many as leave each head at least 64 features.
        bias: whether the maps have biases.
    """

    keeps = "one matrix per head, and a vector of weights"
    paper = "Katharopoulos et al. 2020"
    state_type = LinearAttentionState

    def __init__(self, input_size: int, hidden_size: int, *, num_heads: Size | None = None, bias: bool = False) -> None:
        super().__init__()
        heads = divided(hidden_size, num_heads, least=HEAD_SIZE)
        self.head_size = hidden_size // heads
        self.set_sizes(input_size, hidden_size, heads=heads, key_size=self.head_size, value_size=self.head_size + 1)
        self.qkv_proj = nn.Linear(input_size, 3 * hidden_size, bias=bias)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=bias)

    def terms(self, inputs: Tensor, before: list[Tensor]) -> Terms:
        """Return φ(q), φ(k), and v with a one after it, which sums up φ(k)."""
        q, k, v = (split_heads(x, self.head_size) for x in self.qkv_proj(inputs).chunk(3, dim=-1))
        v = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)  # (..., H, V + 1)
        return (F.elu(at_least_float32(q)) + 1, F.elu(at_least_float32(k)) + 1, v, None), [], ()

    def outputs(self, heads: Tensor, *rest: Tensor) -> Tensor:
        """Divide by the sums of weights, and map all heads."""
        sums, weights = torch.split(heads, [self.head_size, 1], dim=-1)
        mapped: Tensor = self.o_proj((sums / (weights + EPSILON)).flatten(-2).to(self.o_proj.weight.dtype))
        return mapped
