"""What the structured state spaces S4 and S4D have in common: parameters, initialisation and the map over the channels.

    h'(t) = A h(t) + B x(t),  y(t) = C h(t) + D x(t)         for every channel
    out_t = GLU(W GELU(y_t) + b)                             mixes the channels

x inputs · h the state · Re A = −exp(``log_A_real``) · Im A ``A_imag`` · C ``C`` · D ``D`` · step size
Δ = exp(``log_dt``) · W, b ``out_proj`` · N ``state_size``. Eigenvalues come in conjugate pairs, of which one is stored:
N/2 complex numbers, as pairs of real numbers.
"""

import math
from typing import Annotated, ClassVar, TypeAlias

import torch
from annotated_types import Interval
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.errors import MismatchError, RangeError
from ..core.state import State
from .option_types import StepSize, check_step_sizes, check_value
from .scan import at_least_float32
from .unpadded_layer import UnpaddedLayer

RealImag: TypeAlias = tuple[Tensor, Tensor]
"""Real and imaginary parts. One step computes with these, because complex operators are not compiled."""
CHUNK = 128
"""Steps of one convolution, a power of two (measured on a CPU)."""


StateSize = Annotated[int, Interval(ge=2, le=1024)]
"""The eigenvalues of HiPPO-LegS take time proportional to the cube of the size: some seconds for 1,024."""


class StateSpace(UnpaddedLayer):
    """One state space for every channel, and a gated linear map over the channels; both widths are the same.

    Args:
        state_size: N, real numbers in the state of every channel; even.
        dt_min: the smallest Δ at the start.
        dt_max: the largest Δ at the start.
        bias: whether the map over the channels has a bias.
    """

    keeps = "one small complex vector per channel"
    gate_names = ("output",)
    parallel = True
    wrap = "residual"
    square = True
    learning_rates: ClassVar = {"classify": 3e-2, "mlm": 3e-2}

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        state_size: StateSize = 64,
        dt_min: StepSize = 0.001,
        dt_max: StepSize = 0.1,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if input_size != hidden_size:
            name = type(self).__name__
            raise MismatchError(f"input_size: {name} gives as many features as it takes; set it to {hidden_size}")
        check_value("model.options.state_size", state_size, StateSize)
        if state_size % 2:
            raise RangeError(f"model.options.state_size: {state_size} is odd; give an even number")
        check_step_sizes(dt_min, dt_max)
        self.input_size = self.output_size = hidden_size

        # numbers of the state come in conjugate pairs, of which one is kept
        self.pairs, self.dt_min, self.dt_max = state_size // 2, dt_min, dt_max
        self.log_dt = nn.Parameter(torch.empty(hidden_size))
        self.log_A_real = nn.Parameter(torch.empty(hidden_size, self.pairs))
        self.A_imag = nn.Parameter(torch.empty(hidden_size, self.pairs))
        self.C = nn.Parameter(torch.empty(hidden_size, self.pairs, 2))
        self.D = nn.Parameter(torch.empty(hidden_size))
        self.out_proj = nn.Linear(hidden_size, 2 * hidden_size, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise Re A = −1/2, Δ log-uniform in [dt_min, dt_max], C complex normal of variance 1 and D normal."""
        nn.init.uniform_(self.log_dt, math.log(self.dt_min), math.log(self.dt_max))
        nn.init.constant_(self.log_A_real, math.log(0.5))
        nn.init.normal_(self.C, std=0.5**0.5)
        nn.init.normal_(self.D)

    def initial_state(self, batch_size: int) -> Tensor:
        """Return zeros ``(batch, hidden_size, state_size / 2, 2)``, real and imaginary parts."""
        return self.zeros(batch_size, self.output_size, self.pairs, 2)

    def eigenvalues(self) -> Tensor:
        """Return the diagonal of A, complex ``(hidden_size, state_size / 2)``."""
        return torch.complex(-torch.exp(at_least_float32(self.log_A_real)), at_least_float32(self.A_imag))

    def next_state(self, h: RealImag, x: Tensor) -> RealImag:
        """Return Ā h + B̄ x for states ``(batch, D, N/2)`` and inputs ``(batch, D, 1)`` of D channels."""
        raise NotImplementedError

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """Compute one step of the recurrence."""
        self.check_step(inputs, state)
        assert isinstance(state, Tensor)
        x = at_least_float32(inputs)
        real, imaginary = at_least_float32(state).unbind(3)
        h = self.next_state((real, imaginary), x.unsqueeze(2))
        y = 2 * times(as_complex(self.C), h)[0].sum(2) + self.D * x
        return self.mix_channels(y.to(inputs.dtype)), torch.stack(h, dim=3).to(state.dtype)

    def mix_channels(self, y: Tensor) -> Tensor:
        """Apply GELU, then the gated linear map over the channels."""
        return F.glu(self.out_proj(F.gelu(y)), dim=-1)


def times(factor: Tensor, h: RealImag) -> RealImag:
    """Return the product with a complex factor."""
    real, imaginary = h
    return factor.real * real - factor.imag * imaginary, factor.real * imaginary + factor.imag * real


def as_complex(pairs: Tensor) -> Tensor:
    """Return pairs of real numbers ``(..., 2)`` as complex numbers ``(...)``; PyTorch has no complex bfloat16."""
    return torch.view_as_complex(at_least_float32(pairs).contiguous())
