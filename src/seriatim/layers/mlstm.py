"""mLSTM: a long short-term memory whose cell is a matrix, with exponential gates that do not see the state.

M. Beck et al., "xLSTM: Extended long short-term memory", arXiv:2405.04517, 2024, section 2.3 and figure 11; for details
the layer of the package `xlstm`.

    x′, z   = W_up x_t                                              two branches
    u       = SiLU(b + Σ_k w_k ⊙ x′_{t−K+1+k})                      short causal convolution, each channel on its own
    q, k, v = W_q u, W_k u / √d, W_v x′                             block-diagonal maps
    i, f    = W_if [q; k; v] + b_if                                 one number of each for each head
    m_t     = max(log σ(f) + m_{t−1}, i)                            the stabilizer
    f′      = exp(log σ(f) + m_{t−1} − m_t),  i′ = exp(i − m_t)
    C_t     = f′ C_{t−1} + i′ k vᵀ,   n_t = f′ n_{t−1} + i′ k
    h_t     = C_tᵀ q / (max(|n_tᵀ q|, e^(−m_t)) + ε)
    y_t     = W_down ((γ ⊙ LN(h_t) + s ⊙ u) ⊙ SiLU(z))              LN over the features of each head

x ``inputs`` · y ``outputs`` · the last K − 1 of x′ ``state.recent`` · m ``state.stabilizer`` · C, and n as its last
column, ``state.memory`` (d, d + 1) · W_up ``up_proj`` · w, b ``conv_weight``, ``conv_bias`` · W_q, W_k, W_v ``q_proj``,
``k_proj``, ``v_proj`` · W_if, b_if ``if_proj``, all i first · γ ``norm`` · s ``skip`` · W_down ``down_proj`` · d the
features of a head. This is the mixer alone: `seriatim.layer` adds the norm before it and the residual connection around
it.

As m_t is the largest of sums of gates alone, m is computed first for all steps: with F the sums of log σ(f) up to a
step, m_t = F_t + max(m_0, i_s − F_s for s ≤ t). The recurrence is then that of `seriatim.layers.matrix_states`, whose
decay f′ and strength i′ are at most 1.

Simplified: W_down starts like every other map here, since a layer does not know how many there are. A head has 128
features where their number is not given.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .attention import heads as divided
from .block_diagonal import block_products, diagonal_blocks, head_products
from .head_norm import HeadLayerNorm
from .matrix_layer import HEAD_SIZE, MatrixLayer, Terms, split_heads
from .option_types import Size, check_sizes
from .pointwise import Epsilon
from .scan import at_least_float32

BLOCK = 4
"""The features of a block of W_q, W_k and W_v, or their greatest common divisor with the features of a head."""
EPSILON = 1e-6
"""What is added to the normalizer."""
LEAST = -80.0
"""Where m is below this, h is 0 to all digits that the norm after it keeps, and e^(−m) would be infinite."""


class MLSTMState(NamedTuple):
    """The last inputs of the convolution, m, and the matrix of every head with its normalizer.

    They are ``recent (batch, kernel_size − 1, inner)``, ``stabilizer (batch, heads)`` and
    ``memory (batch, heads, d, d + 1)``.
    """

    recent: Tensor
    stabilizer: Tensor
    memory: Tensor


class MLSTM(MatrixLayer):
    """One mLSTM mixer; by default with a norm and a residual connection alone, as in the paper.

    Args:
        num_heads: None for as many as leave each at least 128 inner channels.
        expansion: inner channels for every output.
        kernel_size: K, the number of inputs that the short convolution sees.
        norm_epsilon: is added to the variance of what is normalized.
        bias: whether the short convolution and the gates have biases.
    """

    keeps = "one matrix and one vector per head, and the last inputs of a short convolution"
    paper = "Beck et al. 2024"
    wrap = "residual"
    state_type = MLSTMState

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        num_heads: Size | None = None,
        expansion: Size = 2,
        kernel_size: Size = 4,
        norm_epsilon: Epsilon = 1e-5,
        bias: bool = True,
    ) -> None:
        super().__init__()
        check_sizes(expansion=expansion, kernel_size=kernel_size)
        self.inner, self.kernel_size = expansion * hidden_size, kernel_size
        heads = divided(self.inner, num_heads, least=2 * HEAD_SIZE)
        size = self.inner // heads
        self.set_sizes(input_size, hidden_size, heads=heads, key_size=size, value_size=size + 1)
        self.up_proj = nn.Linear(input_size, 2 * self.inner, bias=False)
        self.add_convolution(self.inner, kernel_size, bias=bias)
        block = math.gcd(BLOCK, size)
        self.q_proj, self.k_proj, self.v_proj = (
            nn.Parameter(torch.empty(self.inner // block, block, block)) for _ in range(3)
        )
        self.if_proj = nn.Linear(3 * self.inner, 2 * heads, bias=bias)
        self.norm = HeadLayerNorm(size, heads, epsilon=norm_epsilon)
        self.skip = nn.Parameter(torch.ones(self.inner))
        self.down_proj = nn.Linear(self.inner, hidden_size, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise maps from N(0, 2 / (5 width)), W_if to zero, and b_f from 3 to 6 over the heads."""
        for weight in (self.up_proj.weight, self.q_proj, self.k_proj, self.v_proj):
            nn.init.normal_(weight, std=(2 / (5 * self.output_size)) ** 0.5)
        nn.init.zeros_(self.if_proj.weight)
        if self.if_proj.bias is not None:
            nn.init.normal_(self.if_proj.bias, std=0.1)
            with torch.no_grad():
                self.if_proj.bias[self.num_heads :] = torch.linspace(3, 6, self.num_heads)

    def initial_state(self, batch_size: int) -> MLSTMState:
        """Return zeros, of at least float32 but for the convolution; see `MLSTMState`."""
        recent = self.zeros(batch_size, self.kernel_size - 1, self.inner)
        m, memory = (
            at_least_float32(self.zeros(batch_size, self.num_heads, *sizes))
            for sizes in ((), (self.key_size, self.value_size))
        )
        return MLSTMState(recent, m, memory)

    def terms(self, inputs: Tensor, before: list[Tensor]) -> Terms:
        """Return q, i′ k, [v, 1] and log f′; then m, u and z for `outputs`."""
        recent, start = before
        x, z = (F.linear(inputs, weight) for weight in self.up_proj.weight.chunk(2))
        u, after = self.convolved(x, [recent])
        maps = self.q_proj, self.k_proj, self.v_proj
        if inputs.dim() == 2:  # the fewest numbers are read
            q, k, v = map(block_products, (u, u, x), maps)
        else:  # few products of large matrices, although most of their elements are zero
            of_q, of_k, of_v = (diagonal_blocks(weight, self.num_heads) for weight in maps)
            q, k = head_products(u, torch.cat([of_q, of_k], dim=2), 2).chunk(2, dim=-1)
            v = head_products(x, of_v)
        i, f = at_least_float32(self.if_proj(torch.cat([q, k, v], dim=-1))).chunk(2, dim=-1)
        log_f = F.logsigmoid(f)

        # a sequence takes the differences of large numbers in float64; a step is compiled in one type
        if inputs.dim() == 2:
            m = last = torch.maximum(log_f + start, i)
        else:
            wide = torch.float32 if inputs.device.type == "mps" else torch.float64
            i, log_f = i.to(wide), log_f.to(wide)
            m = stabilizers(i, log_f, start)
            start, last = torch.cat([start.unsqueeze(1), m[:, :-1]], dim=1), m[:, -1].clone()
        q, k, v = (split_heads(at_least_float32(part), self.key_size) for part in (q, k, v))
        strength = torch.exp(i - m).to(k.dtype).unsqueeze(-1) * self.key_size**-0.5
        v = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)
        return (q, strength * k, v, log_f + start - m), [*after, last], (m, u, z)

    def outputs(self, heads: Tensor, *rest: Tensor) -> Tensor:
        """Divide by the normalizer, normalise, add the skipped part, gate and map."""
        m, u, z = rest
        sums, normalizer = heads[..., :-1], heads[..., -1:]
        least = torch.exp(-m.clamp(min=LEAST)).unsqueeze(-1)
        h = self.norm(sums / (torch.maximum(normalizer.abs(), least) + EPSILON)).flatten(-2).to(u.dtype)
        mapped: Tensor = self.down_proj((h + self.skip * u) * F.silu(z))
        return mapped


def stabilizers(i: Tensor, log_f: Tensor, start: Tensor) -> Tensor:
    """Return m of every step ``(batch, time, heads)`` in the type of m_0, ``start (batch, heads)``."""
    sums = log_f.cumsum(1)
    largest = torch.maximum((i - sums).cummax(1).values, start.unsqueeze(1))
    return (sums + largest).to(start.dtype)
