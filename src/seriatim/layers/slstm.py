"""sLSTM: a long short-term memory with exponential gates, whose heads do not mix.

M. Beck et al., "xLSTM: Extended long short-term memory", arXiv:2405.04517, 2024, section 2.2; for details the cell
"vanilla" of the package `xlstm`.

    x′_t = SiLU(b + Σ_k w_k ⊙ x_{t−K+1+k})                short causal convolution, each channel on its own
    i, f = W_i x′_t + R_i h_{t−1} + b_i, …                 pre-activations of the input gate and the forget gate
    z, o = W_z x_t + R_z h_{t−1} + b_z, …                  those of the candidate and the output gate
    m_t  = max(log σ(f) + m_{t−1}, i)                      the stabilizer, m_0 = −∞
    f′   = exp(log σ(f) + m_{t−1} − m_t),  i′ = exp(i − m_t)
    c_t  = f′ ⊙ c_{t−1} + i′ ⊙ tanh(z)
    n_t  = f′ ⊙ n_{t−1} + i′
    h_t  = σ(o) ⊙ c_t / n_t
    y_t  = γ ⊙ LN(h_t)                                     over the features of each head

x_t inputs · y_t outputs · the last K − 1 of x ``state.recent`` · h, c, n, m ``state.cell`` · w ``conv_weight`` ·
b ``conv_bias`` · W ``if_proj``, ``zo_proj`` · R ``cell.recurrent`` · b_i, b_f, b_z, b_o ``cell.bias`` · γ ``norm``.
W and R are block-diagonal: a head reads its own part of x and of h only. They are stored head by head, and the matrices
of a head are stacked i, f, z, o along the last dimension. As one of f′ and i′ is 1, n_t is at least 1, and no input
causes an overflow.

This is the mixer alone: `seriatim.layer` adds the norms, the residual connections and the feed-forward network of the
paper's block. Simplified: this network is that of every other block here; the forget gates of all layers start like
those of the lowest layer of `xlstm`.
"""

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.contract import RecurrentCell
from ..core.state import State
from ..recurrence.recurrent import unroll
from .attention import heads as divided
from .block_diagonal import head_products
from .head_norm import HeadLayerNorm
from .matrix_layer import HEAD_SIZE, split_heads
from .option_types import Size, check_sizes
from .path_lengths import direct_paths, joined_paths
from .pointwise import Epsilon
from .short_convolution import init_convolution, short_convolution, short_convolution_step
from .unpadded_layer import UnpaddedLayer


class SLSTMCellState(NamedTuple):
    """Four vectors ``(batch, hidden_size)``: h, c, n and m."""

    hidden: Tensor
    cell: Tensor
    normalizer: Tensor
    stabilizer: Tensor


class SLSTMState(NamedTuple):
    """The last inputs ``recent (batch, kernel_size − 1, input_size)``, and the state of the cell."""

    recent: Tensor
    cell: SLSTMCellState


class SLSTMCell(RecurrentCell):
    """The recurrence of an sLSTM. Its inputs ``(batch, 4 * hidden_size)`` are W x, the gates i, f, z, o side by side.

    Args:
        hidden_size: width of h, divided among the heads.
        num_heads: the number of heads.
        bias: whether gates and candidate have biases.
    """

    keeps = "four vectors: hidden, cell, normalizer and stabilizer"
    paper = "Beck et al. 2024"
    recurrent_weights = ("recurrent",)
    bias: nn.Parameter | None

    def __init__(self, hidden_size: int, *, num_heads: int, bias: bool = True) -> None:
        super().__init__()
        self.input_size, self.output_size, self.num_heads = 4 * hidden_size, hidden_size, num_heads
        size = hidden_size // num_heads
        self.recurrent = nn.Parameter(torch.empty(num_heads, size, 4 * size))
        self.register_parameter("bias", nn.Parameter(torch.empty(4 * hidden_size)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise R and the biases to zero, but those of the forget gates from 5 down to −7 in each head."""
        nn.init.zeros_(self.recurrent)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
            with torch.no_grad():
                forget = self.bias.view(4, self.num_heads, -1)[1]
                forget.copy_(5 - 12 * torch.linspace(0, 1, forget.shape[1]) ** 0.3)

    def initial_state(self, batch_size: int) -> SLSTMCellState:
        """Return zeros, and for m the least number instead of −∞."""
        h, c, n, m = (self.zeros(batch_size, self.output_size) for _ in SLSTMCellState._fields)
        return SLSTMCellState(h, c, n, m.fill_(torch.finfo(m.dtype).min))

    def forward(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """Compute the equations from m_t to h_t."""
        hidden, c, n, m = cast(SLSTMCellState, state)
        gates = inputs + head_products(hidden, self.recurrent, 4)
        i, f, z, o = (gates if self.bias is None else gates + self.bias).chunk(4, dim=1)
        log_f = F.logsigmoid(f) + m
        m = torch.maximum(log_f, i)
        f, i = torch.exp(log_f - m), torch.exp(i - m)
        c = f * c + i * torch.tanh(z)
        n = f * n + i
        hidden = torch.sigmoid(o) * c / n
        return hidden, SLSTMCellState(hidden, c, n, m)


class SLSTM(UnpaddedLayer):
    """One sLSTM with its short convolution and the norm of its heads.

    Args:
        num_heads: None for as many as leave each at least 64 features.
        kernel_size: K, the number of inputs that the short convolution sees.
        norm_epsilon: is added to the variance of what is normalized.
        bias: whether the short convolution, the gates and the candidate have biases.
    """

    keeps = "four vectors, and the last inputs of a short convolution"
    paper = "Beck et al. 2024"
    gate_names = ("output",)
    wrap = "block"
    square = True
    grows = False
    undecayed = ("conv_weight",)
    conv_bias: nn.Parameter | None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        num_heads: Size | None = None,
        kernel_size: Size = 4,
        norm_epsilon: Epsilon = 1e-5,
        bias: bool = True,
    ) -> None:
        super().__init__()
        check_sizes(kernel_size=kernel_size)
        num_heads = divided(hidden_size, num_heads, least=HEAD_SIZE)
        divided(input_size, num_heads)
        self.input_size, self.output_size, self.num_heads = input_size, hidden_size, num_heads
        self.kernel_size = kernel_size
        self.conv_weight = nn.Parameter(torch.empty(kernel_size, input_size))
        self.register_parameter("conv_bias", nn.Parameter(torch.empty(input_size)) if bias else None)
        shape = num_heads, input_size // num_heads, 2 * (hidden_size // num_heads)
        self.if_proj, self.zo_proj = nn.Parameter(torch.empty(shape)), nn.Parameter(torch.empty(shape))
        self.cell = SLSTMCell(hidden_size, num_heads=num_heads, bias=bias)
        self.norm = HeadLayerNorm(hidden_size // num_heads, num_heads, epsilon=norm_epsilon)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise W from a normal distribution of variance 2 / (5 input_size), and the cell as it says itself."""
        init_convolution(self.conv_weight, self.conv_bias)
        for weight in (self.if_proj, self.zo_proj):
            nn.init.normal_(weight, std=(2 / (5 * self.input_size)) ** 0.5)
        self.cell.reset_parameters()

    def initial_state(self, batch_size: int) -> SLSTMState:
        """Return the state of the cell, and zeros for the inputs before the first."""
        recent = self.zeros(batch_size, self.kernel_size - 1, self.input_size)
        return SLSTMState(recent, self.cell.initial_state(batch_size))

    def path_lengths(self, distance: int) -> Tensor:
        """Return the path lengths: the convolution sees its inputs directly, the cell proceeds step by step."""
        return joined_paths([direct_paths(distance, self.kernel_size - 1), super().path_lengths(distance)])

    def forward_unpadded(self, inputs: Tensor, state: State) -> tuple[Tensor, SLSTMState]:
        """Run over a batch without padding; see `UnpaddedLayer`."""
        recent, before = cast(SLSTMState, state)
        x, recent = short_convolution(inputs, recent, self.conv_weight, self.conv_bias)  # (B, T, D_in)
        hidden, after = unroll(self.cell, self.gates(F.silu(x), inputs), before)
        return self.normalized(hidden), SLSTMState(recent, cast(SLSTMCellState, after))

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, SLSTMState]:
        """Compute the equations once."""
        self.check_step(inputs, state)
        recent, before = cast(SLSTMState, state)
        x, recent = short_convolution_step(inputs, recent, self.conv_weight, self.conv_bias)
        hidden, after = self.cell(self.gates(F.silu(x), inputs), before)
        return self.normalized(hidden), SLSTMState(recent, after)

    def gates(self, convolved: Tensor, inputs: Tensor) -> Tensor:
        """Return W x′ and W x side by side, ``(..., 4 * hidden_size)``."""
        pairs = ((convolved, self.if_proj), (inputs, self.zo_proj))
        return torch.cat([head_products(x, weight, 2) for x, weight in pairs], dim=-1)

    def normalized(self, hidden: Tensor) -> Tensor:
        """Return γ ⊙ LN(h) for ``(..., hidden_size)``."""
        return cast(Tensor, self.norm(split_heads(hidden, self.norm.size))).flatten(-2)
