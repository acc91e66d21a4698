"""Gated linear attention: a matrix whose rows decay, each at a rate that depends on the input.

S. Yang, B. Wang, Y. Shen, R. Panda and Y. Kim, "Gated linear attention transformers with hardware-efficient training",
ICML 2024, arXiv:2312.06635.

    q, k, v = W_q x_t / √d, W_k x_t, W_v x_t            for each head
    α_t = σ(W_kb W_ka x_t + b)^{1/16}                   decay of each row; W_ka has rank 16
    S_t = diag(α_t) S_{t−1} + k vᵀ
    y_t = W_o (norm(S_tᵀ q) ⊙ SiLU(W_g x_t))            norm is an RMS norm of each head

x ``inputs`` · y ``outputs`` · S ``state.memory`` · W_q, W_k, W_v ``qkv_proj`` · W_ka ``gk_a_proj`` · W_kb, b
``gk_b_proj`` · W_g ``g_proj`` · W_o ``o_proj`` · norm ``o_norm`` · d the features of a key, half as many as those of a
value, as in the paper. Nothing is simplified.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from .attention import heads as divided
from .matrix_layer import HEAD_SIZE, MatrixLayer, MatrixState, Terms, split_heads
from .option_types import Size
from .scan import at_least_float32

RANK, TEMPERATURE = 16, 16.0


class GLAState(MatrixState):
    """The state of a `GLA`."""


class GLA(MatrixLayer):
    """Gated linear attention; in a block by default, as in the paper.

    Args:
        num_heads: None for as many as leave each head at least 64 features of values.
    """

    keeps = "one matrix per head"
    paper = "Yang et al. 2024"
    state_type = GLAState

    def __init__(self, input_size: int, hidden_size: int, *, num_heads: Size | None = None) -> None:
        super().__init__()
        heads = divided(hidden_size, num_heads, least=HEAD_SIZE)
        size = hidden_size // heads
        self.set_sizes(input_size, hidden_size, heads=heads, key_size=max(size // 2, 1), value_size=size)
        width = heads * self.key_size
        self.qkv_proj = nn.Linear(input_size, 2 * width + hidden_size, bias=False)
        self.gk_a_proj = nn.Linear(input_size, RANK, bias=False)
        self.gk_b_proj = nn.Linear(RANK, width)
        self.g_proj = nn.Linear(input_size, hidden_size, bias=False)
        self.add_outputs()

    def terms(self, inputs: Tensor, before: list[Tensor]) -> Terms:
        """Return q, k, v and log α; then the gate of the outputs."""
        width = self.num_heads * self.key_size
        q, k, v = self.qkv_proj(inputs).split([width, width, self.output_size], dim=-1)
        q, k, v = split_heads(q, self.key_size), split_heads(k, self.key_size), split_heads(v, self.value_size)
        decay = F.logsigmoid(at_least_float32(self.gk_b_proj(self.gk_a_proj(inputs)))) / TEMPERATURE
        return (q * self.key_size**-0.5, k, v, split_heads(decay, self.key_size)), [], (F.silu(self.g_proj(inputs)),)
