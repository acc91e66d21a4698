"""M²RNN: a non-linear recurrent network whose state is a matrix, so that it is large and cheap to read.

M. Mishra, S. Tan, I. Stoica, J. E. Gonzalez and T. Dao, "M²RNN: non-linear RNNs with matrix-valued states for scalable
language modeling", arXiv:2603.14360, 2026; for details the authors' package `lm-engine`.

    q, k, v = the short convolution of W_q x, W_k x, W_v x, and SiLU
    f_t = exp(−e^a softplus(W_f x_t + b))                  how much is kept, one number for each head
    S_t = f_t S_{t−1} + (1 − f_t) tanh(S_{t−1} W + k_t v_tᵀ)
    y_t = W_o norm((S_tᵀ q_t + D ⊙ v_t) ⊙ SiLU(W_g x_t))   norm is an RMS norm over all heads

x ``inputs`` · y ``outputs`` · the last inputs of the convolution ``state.recent`` · S ``state.memory`` (K, V) · W_q,
W_k, W_v ``qkv_proj`` · W_f ``f_proj`` · a ``A_log`` · b ``dt_bias`` · W ``cell.weight`` · D ``D`` · W_g ``g_proj`` ·
W_o ``o_proj``. The state is inside a tanh, so that the recurrence cannot be computed in chunks of time: it is a cell,
and training takes one step after another. W starts as the identity, D as 1.

Simplified: every head has queries, keys, values, a gate and a W of its own, which the package may share among heads.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.contract import RecurrentCell
from ..core.state import State
from ..recurrence.recurrent import unroll
from .attention import heads as divided
from .delta_heads import decay_logarithm
from .head_norm import HeadNorm
from .matrix_layer import HEAD_SIZE, ConvolvedState, MatrixLayer, Terms, split_heads
from .option_types import Size, check_sizes
from .scan import at_least_float32
from .selective_scan import init_step_bias


class M2RNNState(ConvolvedState):
    """The state of an `M2RNN`."""


class M2RNNCell(RecurrentCell):
    """The recurrence of an M²RNN. Its inputs are q, k, v and f side by side, ``(batch, heads (2 K + V + 1))``.

    The state is one matrix per head ``(batch, heads, K, V)``, and outputs are Sᵀ q, ``(batch, heads V)``.
    """

    keeps = "one matrix per head"
    paper = "Mishra et al. 2026"
    recurrent_weights = ("weight",)

    def __init__(self, num_heads: int, key_size: int, value_size: int) -> None:
        super().__init__()
        self.num_heads, self.key_size, self.value_size = num_heads, key_size, value_size
        self.sizes = [num_heads * size for size in (key_size, key_size, value_size, 1)]  # of q, k, v and f
        self.input_size, self.output_size = sum(self.sizes), num_heads * value_size
        self.weight = nn.Parameter(torch.eye(value_size).repeat(num_heads, 1, 1))

    def initial_state(self, batch_size: int) -> Tensor:
        """Return zeros, in at least float32."""
        return at_least_float32(self.zeros(batch_size, self.num_heads, self.key_size, self.value_size))

    def forward(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """Compute S_t and S_tᵀ q_t."""
        before = cast(Tensor, state)
        q, k, v, f = (torch.unflatten(part, 1, (self.num_heads, -1)) for part in torch.split(inputs, self.sizes, dim=1))
        new = torch.tanh(before @ at_least_float32(self.weight) + k.unsqueeze(3) * v.unsqueeze(2))  # (B, H, K, V)
        f = f.unsqueeze(3)
        after = f * before + (1 - f) * new
        return (q.unsqueeze(3) * after).sum(2).flatten(1), after


class M2RNN(MatrixLayer):
    """A non-linear recurrence with a matrix state; in a block by default, as in the paper.

    Args:
        num_heads: None for as many as leave each at least 64 values.
        head_size: features of a key; None for a head's share of the width.
        kernel_size: the number of inputs that the short convolution sees.
    """

    keeps = "one matrix per head, and the last inputs of a short convolution"
    paper = "Mishra et al. 2026"
    parallel = False
    gate_names = ("decay f",)
    undecayed = ("conv_weight", "D")
    state_type = M2RNNState

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        num_heads: Size | None = None,
        head_size: Size | None = None,
        kernel_size: Size = 4,
    ) -> None:
        super().__init__()
        heads = divided(hidden_size, num_heads, least=HEAD_SIZE)
        value_size = hidden_size // heads
        key_size = value_size if head_size is None else head_size
        check_sizes(head_size=key_size, kernel_size=kernel_size)
        self.set_sizes(input_size, hidden_size, heads=heads, key_size=key_size, value_size=value_size)
        self.cell = M2RNNCell(heads, key_size, value_size)
        channels = sum(self.cell.sizes[:3])
        self.qkv_proj = nn.Linear(input_size, channels, bias=False)
        self.add_convolution(channels, kernel_size)
        self.f_proj = nn.Linear(input_size, heads, bias=False)
        self.A_log = nn.Parameter(torch.empty(heads).uniform_(1, 16).log_())
        self.dt_bias = nn.Parameter(torch.empty(heads))
        init_step_bias(self.dt_bias, 0.001, 0.1)
        self.D = nn.Parameter(torch.ones(heads, value_size))
        self.g_proj = nn.Linear(input_size, hidden_size, bias=False)
        self.norm = HeadNorm(hidden_size)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward_unpadded(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """Run over a batch without padding; see `UnpaddedLayer`."""

        def recurrence(features: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
            outputs, after = unroll(self.cell, features, memory)
            return outputs, cast(Tensor, after)

        return self.run(inputs, state, recurrence)

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """Compute the equations once."""
        self.check_step(inputs, state)
        return self.run(inputs, state, self.cell)

    def terms(self, inputs: Tensor, before: list[Tensor]) -> Terms:
        """Return what the cell reads; then v and the gate for `outputs`."""
        u, after = self.convolved(self.qkv_proj(inputs), before)
        f = torch.exp(decay_logarithm(self.f_proj(inputs), self.dt_bias, self.A_log))
        v = u[..., -self.cell.sizes[2] :]
        return (torch.cat([at_least_float32(u), f], dim=-1),), after, (v, F.silu(self.g_proj(inputs)))

    def outputs(self, heads: Tensor, *rest: Tensor) -> Tensor:
        """Add D v, gate, normalise and map."""
        v, gate = rest
        gated = (heads + v * self.D.flatten()) * gate
        normed = self.norm(split_heads(gated, self.norm.size)).flatten(-2)
        mapped: Tensor = self.o_proj(normed.to(self.o_proj.weight.dtype))
        return mapped
