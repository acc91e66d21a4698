"""Retention: linear attention that forgets at a fixed rate, another one for each head.

Y. Sun et al., "Retentive network: a successor to Transformer for large language models", 2023, arXiv:2307.08621.

    q, k, v = W_q x_t, W_k x_t / √d, W_v x_t      for each head h = 0 …; q and k are rotated by their position
    S_t = γ_h S_{t−1} + k vᵀ,    o_t = S_tᵀ q     γ_h = 1 − 2^{−5−h}
    y_t = W_o (norm(o_t) ⊙ SiLU(W_g x_t))         norm is applied to each head

x ``inputs`` · y ``outputs`` · S ``state.memory`` · the number of inputs read, for positions, ``state.seen`` · W_q, W_k,
W_v ``qkv_proj`` · W_g ``g_proj`` · W_o ``o_proj`` · d the features of a key. As in the authors' code, the norm of a
head is an RMS norm without a gain, where the paper writes group norm. Simplified: the factors by which the paper
divides the parallel form are left out, because the norm cancels them; pairs of features that are rotated together lie
half a head apart.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.state import State
from .attention import heads as divided
from .matrix_layer import HEAD_SIZE, MatrixLayer, Terms, split_heads
from .option_types import Size, check_sizes
from .positions import Rotary, positions
from .scan import at_least_float32


class RetNetState(NamedTuple):
    """The number of inputs read ``seen (batch,)``, and S, ``memory (batch, heads, key_size, value_size)``."""

    seen: Tensor
    memory: Tensor


class RetNet(MatrixLayer):
    """Multi-scale retention; in a block by default, as in the paper.

    Args:
        num_heads: None for as many as leave each head at least 64 features of keys.
        expansion: features of a value for every feature of a key.
        bias: whether the maps have biases.
    """

    keeps = "one matrix per head, and how many inputs there were"
    paper = "Sun et al. 2023"
    state_type = RetNetState
    forgotten: Tensor

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        num_heads: Size | None = None,
        expansion: Size = 2,
        bias: bool = False,
    ) -> None:
        super().__init__()
        check_sizes(expansion=expansion)
        heads, inner = divided(hidden_size, num_heads, least=HEAD_SIZE), expansion * hidden_size
        self.set_sizes(input_size, hidden_size, heads=heads, key_size=hidden_size // heads, value_size=inner // heads)
        self.qkv_proj = nn.Linear(input_size, 2 * hidden_size + inner, bias=bias)
        self.g_proj = nn.Linear(input_size, inner, bias=bias)
        self.add_outputs(gain=False, bias=bias)
        self.rotary = Rotary(self.key_size // 2)
        self.register_buffer("forgotten", torch.pow(2.0, -5 - torch.arange(heads)), persistent=False)  # 1 − γ

    def initial_state(self, batch_size: int) -> State:
        """Return zeros; see `RetNetState`."""
        memory = at_least_float32(self.zeros(batch_size, self.num_heads, self.key_size, self.value_size))
        return RetNetState(self.zeros(batch_size).long(), memory)

    def terms(self, inputs: Tensor, before: list[Tensor]) -> Terms:
        """Return q, k, v and the fixed decays."""
        (seen,), width, time = before, self.num_heads * self.key_size, inputs.shape[1] if inputs.dim() == 3 else 1
        qk, v = self.qkv_proj(inputs).split([2 * width, self.num_heads * self.value_size], dim=-1)
        qk = split_heads(qk if inputs.dim() == 3 else qk.unsqueeze(1), self.key_size).transpose(1, 2)  # (B, 2 H, T, K)
        qk = self.rotary(qk, positions(seen, time), 2 * self.num_heads).transpose(1, 2)  # (B, T, 2 H, K)
        q, k = (qk if inputs.dim() == 3 else qk.squeeze(1)).chunk(2, dim=-2)
        log_decay = torch.log1p(-at_least_float32(self.forgotten)).expand(*inputs.shape[:-1], self.num_heads)
        terms = (q, k * self.key_size**-0.5, split_heads(v, self.value_size), log_decay)
        return terms, [seen + time], (F.silu(self.g_proj(inputs)),)
