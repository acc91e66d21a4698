"""Mamba: a state space whose step size and whose input and output maps are functions of the input.

A. Gu and T. Dao, "Mamba: Linear-time sequence modeling with selective state spaces", 2023, figure 3.

    x, z    = W_in u                                   two branches
    x_t     = SiLU(b + Σ_k w_k ⊙ x_{t−K+1+k})          short causal convolution, each channel on its own
    δ, B, C = W_x x_t
    Δ_t     = softplus(W_Δ δ + b_Δ)
    h_t     = exp(Δ_t A) ⊙ h_{t−1} + (Δ_t x_t) B_tᵀ    the selective scan
    y_t     = W_out ((h_t C_t + D ⊙ x_t) ⊙ SiLU(z_t))

u inputs · y outputs · the last K − 1 of x ``state.recent`` · h ``state.memory`` · W_in ``in_proj`` ·
w ``conv_weight`` · b ``conv_bias`` · W_x ``x_proj`` · W_Δ, b_Δ ``dt_proj`` · A = −exp(``A_log``) · D ``D`` ·
W_out ``out_proj``. This is the mixer alone: `seriatim.layer` adds the norm before it and the residual connection around
it. Nothing is simplified. Inside, sequences are (time, batch, width), so that one step is contiguous.
"""

import math
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.state import State
from .option_types import Size, StepSize, check_sizes, check_step_sizes
from .path_lengths import direct_paths, joined_paths
from .scan import at_least_float32
from .selective_scan import init_step_bias, selective_scan, selective_step
from .short_convolution import init_convolution, short_convolution, short_convolution_step
from .unpadded_layer import UnpaddedLayer


class MambaState(NamedTuple):
    """The last inputs ``recent (batch, kernel_size − 1, inner)`` and h, ``memory (batch, state_size, inner)``."""

    recent: Tensor
    memory: Tensor


class Mamba(UnpaddedLayer):
    """One Mamba mixer.

    Args:
        state_size: N, the numbers in the state of every inner channel.
        expansion: inner channels for every output.
        kernel_size: K, the number of inputs that the short convolution sees.
        dt_rank: width of δ; None for a sixteenth of ``hidden_size``, rounded up.
        dt_min: the smallest Δ at the start.
        dt_max: the largest Δ at the start.
        bias: whether the short convolution has a bias. b_Δ, which holds the size of the steps, is always there.
    """

    keeps = "one small matrix, and the last inputs of a short convolution"
    paper = "Gu & Dao 2023"
    gate_names = ("step size Δ",)
    parallel = True
    wrap = "residual"
    grows = False
    undecayed = ("conv_weight", "A_log")
    conv_bias: nn.Parameter | None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        state_size: Size = 16,
        expansion: Size = 2,
        kernel_size: Size = 4,
        dt_rank: Size | None = None,
        dt_min: StepSize = 0.001,
        dt_max: StepSize = 0.1,
        bias: bool = True,
    ) -> None:
        super().__init__()
        dt_rank = math.ceil(hidden_size / 16) if dt_rank is None else dt_rank
        check_sizes(state_size=state_size, expansion=expansion, kernel_size=kernel_size, dt_rank=dt_rank)
        check_step_sizes(dt_min, dt_max)
        self.input_size, self.output_size, self.inner = input_size, hidden_size, expansion * hidden_size
        self.state_size, self.kernel_size, self.dt_rank = state_size, kernel_size, dt_rank
        self.dt_min, self.dt_max = dt_min, dt_max
        self.in_proj = nn.Linear(input_size, 2 * self.inner, bias=False)
        self.conv_weight = nn.Parameter(torch.empty(kernel_size, self.inner))
        self.register_parameter("conv_bias", nn.Parameter(torch.empty(self.inner)) if bias else None)
        self.x_proj = nn.Linear(self.inner, dt_rank + 2 * state_size, bias=False)
        self.dt_proj = nn.Linear(dt_rank, self.inner)
        self.A_log = nn.Parameter(torch.empty(self.inner, state_size))
        self.D = nn.Parameter(torch.empty(self.inner))
        self.out_proj = nn.Linear(self.inner, hidden_size, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise A = −1 … −N for every channel, D = 1, and b_Δ so that Δ is log-uniform in [dt_min, dt_max]."""
        init_convolution(self.conv_weight, self.conv_bias)
        nn.init.uniform_(self.dt_proj.weight, -(self.dt_rank**-0.5), self.dt_rank**-0.5)
        nn.init.ones_(self.D)
        with torch.no_grad():
            self.A_log.copy_(torch.arange(1, self.state_size + 1).log())
        init_step_bias(self.dt_proj.bias, self.dt_min, self.dt_max)

    def initial_state(self, batch_size: int) -> MambaState:
        """Return zeros; see `MambaState`."""
        recent = self.zeros(batch_size, self.kernel_size - 1, self.inner)
        return MambaState(recent, self.zeros(batch_size, self.state_size, self.inner))

    def path_lengths(self, distance: int) -> Tensor:
        """Return the path lengths: the convolution sees its inputs directly, the scan proceeds step by step."""
        return joined_paths([direct_paths(distance, self.kernel_size - 1), super().path_lengths(distance)])

    def forward_unpadded(self, inputs: Tensor, state: State) -> tuple[Tensor, MambaState]:
        """Run over a batch without padding; see `UnpaddedLayer`."""
        recent, memory = cast(MambaState, state)

        # Time comes first inside, because the convolution and the scan read one step of the whole batch after another.
        # One product for x and one for z: the halves of a single product would not be contiguous.
        inputs = inputs.transpose(0, 1).contiguous()  # (T, B, D_in)
        x, z = (F.linear(inputs, weight) for weight in self.in_proj.weight.chunk(2))  # (T, B, inner) each
        x, recent = short_convolution(x, recent.transpose(0, 1), self.conv_weight, self.conv_bias, time_dim=0)
        x = F.silu(x)

        # the scan takes (B, T, ...), but copies nothing where such a view is stored with time first
        delta, b, c = (tensor.transpose(0, 1) for tensor in self.selected(x))  # (B, T, inner), (B, T, N), (B, T, N)
        y, memory = selective_scan(x.transpose(0, 1), delta, self.a(), b, c, self.D, memory)
        outputs = self.out_proj(y.transpose(0, 1) * F.silu(z))  # (T, B, D_out)
        return outputs.transpose(0, 1), MambaState(recent.transpose(0, 1).contiguous(), memory)

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, MambaState]:
        """Compute the equations once."""
        self.check_step(inputs, state)
        recent, memory = cast(MambaState, state)
        x, z = self.in_proj(inputs).chunk(2, dim=-1)
        x, recent = short_convolution_step(x, recent, self.conv_weight, self.conv_bias)
        x = F.silu(x)
        delta, b, c = self.selected(x)
        y, memory = selective_step(x, delta, self.a(), b, c, self.D, memory)
        return self.out_proj(y * F.silu(z)), MambaState(recent, memory)

    def selected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return Δ, B and C for inner inputs ``(..., inner)``."""
        low, b, c = self.x_proj(x).split([self.dt_rank, self.state_size, self.state_size], dim=-1)
        return F.softplus(at_least_float32(self.dt_proj(low))), b, c

    def a(self) -> Tensor:
        """Return A ``(inner, state_size)``, which is negative."""
        return -torch.exp(at_least_float32(self.A_log))
