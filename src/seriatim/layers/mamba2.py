"""Mamba-2: a selective state space whose decay is one number a head, so that training is products of matrices.

T. Dao and A. Gu, "Transformers are SSMs: generalized models and efficient algorithms through structured state space
duality", ICML 2024, arXiv:2405.21060, section 7.

    z, x, B, C, δ = W_in u
    x, B, C = the short convolution of each, and SiLU
    Δ_t = softplus(δ_t + b_Δ)                                     one number for each head
    S_t = exp(−Δ_t e^{a}) S_{t−1} + B_t (Δ_t x_t)ᵀ                a = ``A_log``, one number for each head
    y_t = W_out norm((S_tᵀ C_t + D x_t) ⊙ SiLU(z_t))

u ``inputs`` · y ``outputs`` · the last inputs of the convolution ``state.recent`` · S ``state.memory`` · W_in
``in_proj``, stacked in the order above · ``conv_weight``, ``conv_bias`` · b_Δ ``dt_bias`` · D ``D`` · W_out
``out_proj`` · norm an RMS norm over the inner channels of a group of heads ``norm``. The heads of a group share B and
C. This is the mixer alone: `seriatim.layer` adds the norm before it and the residual connection around it. Nothing is
simplified.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .attention import check_divides
from .attention import heads as divided
from .head_norm import HeadNorm
from .matrix_layer import HEAD_SIZE, ConvolvedState, MatrixLayer, Terms, split_heads
from .option_types import Size, StepSize, check_sizes, check_step_sizes
from .pointwise import EPSILON, Epsilon
from .scan import at_least_float32
from .selective_scan import init_step_bias


class Mamba2State(ConvolvedState):
    """The state of a `Mamba2`."""


class Mamba2(MatrixLayer):
    """One Mamba-2 mixer; by default with a norm and a residual connection alone, as in the paper.

    Args:
        num_heads: None for as many as leave each head at least 64 inner channels.
        state_size: N, the rows of the matrix of each head.
        expansion: inner channels for every output.
        kernel_size: K, the number of inputs that the short convolution sees.
        num_groups: groups of heads with the same B and C; a divisor of the number of heads.
        dt_min: the smallest Δ at the start.
        dt_max: the largest Δ at the start.
        bias: whether the short convolution has a bias. b_Δ, which holds the size of the steps, is always there.
        norm_epsilon: is added to the mean square of what is normalized.
    """

    keeps = "one matrix per head, and the last inputs of a short convolution"
    paper = "Dao & Gu 2024"
    gate_names = ("step size Δ",)
    wrap = "residual"
    state_type = Mamba2State

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        num_heads: Size | None = None,
        state_size: Size = 128,
        expansion: Size = 2,
        kernel_size: Size = 4,
        num_groups: Size = 1,
        dt_min: StepSize = 0.001,
        dt_max: StepSize = 0.1,
        bias: bool = True,
        norm_epsilon: Epsilon = EPSILON,
    ) -> None:
        super().__init__()
        check_sizes(state_size=state_size, expansion=expansion, kernel_size=kernel_size)
        check_step_sizes(dt_min, dt_max)
        self.inner = expansion * hidden_size
        heads = divided(self.inner, num_heads, least=HEAD_SIZE)
        check_divides("num_groups", num_groups, "num_heads", heads)
        self.set_sizes(input_size, hidden_size, heads=heads, key_size=state_size, value_size=self.inner // heads)
        self.dt_min, self.dt_max = dt_min, dt_max
        self.shared = num_groups * state_size
        self.in_proj = nn.Linear(input_size, 2 * (self.inner + self.shared) + heads, bias=False)
        self.add_convolution(self.inner + 2 * self.shared, kernel_size, bias=bias)
        self.dt_bias = nn.Parameter(torch.empty(heads))
        self.A_log = nn.Parameter(torch.empty(heads))
        self.D = nn.Parameter(torch.ones(heads))
        self.norm = HeadNorm(self.inner // num_groups, heads=num_groups, epsilon=norm_epsilon)
        self.out_proj = nn.Linear(self.inner, hidden_size, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise e^a uniformly in [1, 16], and b_Δ so that Δ is log-uniform in [dt_min, dt_max]."""
        init_step_bias(self.dt_bias, self.dt_min, self.dt_max)
        with torch.no_grad():
            self.A_log.uniform_(1, 16).log_()

    def terms(self, inputs: Tensor, before: list[Tensor]) -> Terms:
        """Return C, B, Δ x and the decays; then x and z for `outputs`."""
        sizes = [self.inner, self.inner + 2 * self.shared, self.num_heads]
        z, u, delta = (F.linear(inputs, weight) for weight in torch.split(self.in_proj.weight, sizes))
        u, after = self.convolved(u, before)
        x, b, c = torch.split(u, [self.inner, self.shared, self.shared], dim=-1)
        delta = F.softplus(at_least_float32(delta) + self.dt_bias)  # (..., H)
        x, b, c = (
            split_heads(part, size) for part, size in ((x, self.value_size), (b, self.key_size), (c, self.key_size))
        )
        return (c, b, x * delta.unsqueeze(-1), -delta * self.A_log.exp()), after, (x, z)

    def outputs(self, heads: Tensor, *rest: Tensor) -> Tensor:
        """Add D x, gate, normalise and map."""
        x, z = rest
        gated = (heads + x * self.D.unsqueeze(-1)).flatten(-2) * F.silu(z)
        normed = self.norm(split_heads(gated, self.norm.size)).flatten(-2)
        mapped: Tensor = self.out_proj(normed.to(self.out_proj.weight.dtype))
        return mapped
