"""A diagonal state space.

A. Gu, A. Gupta, K. Goel and C. Ré, "On the parameterization and initialization of diagonal state space models",
NeurIPS 2022 (S4D-Lin).

    h'(t) = A h(t) + B x(t),  y(t) = 2 Re(C h(t)) + D x(t)         for every channel, A diagonal and complex
    Ā = exp(ΔA),  B̄ = A⁻¹ (Ā − 1) B                                zero-order hold over a step Δ
    h_t = Ā h_{t−1} + B̄ x_t                                        the recurrence, to stream
    y_{t} = Σ_l K_l x_{t−l} + 2 Re(C Ā^t h_0) + D x_t,  K_l = 2 Re(C Ā^l B̄)     the convolution, to train
    out_t = GLU(W GELU(y_t) + b)                                   mixes the channels

x inputs · h the state · A = −exp(``log_decay``) + i ``frequency`` · C ``c`` · D ``skip`` · Δ = exp(``log_dt``) ·
W, b ``mix`` · N ``state_size``. Eigenvalues come in conjugate pairs, and one of each is kept: N/2 complex numbers, as
pairs of reals. B is 1, as C can take its part. The convolution runs in chunks of time, with the state between them, so
that memory and time for each input do not depend on the length.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.errors import InputError
from ..core.state import State
from .option_types import Size, StepSize
from .unpadded_layer import UnpaddedLayer

CHUNK = 128
"""Steps of one convolution (measured on a CPU)."""


class S4D(UnpaddedLayer):
    """One diagonal state space for every channel, and a gated linear map over the channels.

    Args:
        input_size: width of an input.
        hidden_size: width of an output; the same.
        state_size: N, real numbers kept for every channel; even.
        dt_min: the smallest Δ at the start.
        dt_max: the largest.
        bias: whether the map over the channels has a bias.

    Raises:
        ValueError: widths that differ, an odd state size, or not 0 < dt_min ≤ dt_max.
    """

    keeps = "one small complex vector a channel"
    paper = "Gu, Gupta, Goel & Ré 2022"
    gate_names = ("output",)
    parallel = True
    wrap = "residual"
    square = True
    undecayed = ("log_decay", "frequency")

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        state_size: Size = 64,
        dt_min: StepSize = 0.001,
        dt_max: StepSize = 0.1,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if input_size != hidden_size:
            raise InputError(f"S4D gives as many features as it takes: set input_size to {hidden_size}")
        if state_size < 2 or state_size % 2:
            raise InputError(f"model.options.state_size must be even and at least 2; got {state_size}")
        if not 0 < dt_min <= dt_max:
            raise InputError(f"model.options.dt_min must be above 0 and at most dt_max; got {dt_min} and {dt_max}")
        self.input_size = self.output_size = hidden_size
        self.pairs, self.dt_min, self.dt_max = state_size // 2, dt_min, dt_max
        self.log_dt = nn.Parameter(torch.empty(hidden_size))
        self.log_decay = nn.Parameter(torch.empty(hidden_size, self.pairs))
        self.frequency = nn.Parameter(torch.empty(hidden_size, self.pairs))
        self.c = nn.Parameter(torch.empty(hidden_size, self.pairs, 2))
        self.skip = nn.Parameter(torch.empty(hidden_size))
        self.mix = nn.Linear(hidden_size, 2 * hidden_size, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A_n = −1/2 + iπn; Δ log-uniform in [dt_min, dt_max]; C complex normal of variance 1, D normal."""
        nn.init.uniform_(self.log_dt, math.log(self.dt_min), math.log(self.dt_max))
        nn.init.constant_(self.log_decay, math.log(0.5))
        with torch.no_grad():
            self.frequency.copy_(math.pi * torch.arange(self.pairs))
        nn.init.normal_(self.c, std=0.5**0.5)
        nn.init.normal_(self.skip)

    def initial_state(self, batch_size: int) -> Tensor:
        """Zeros ``(batch, hidden_size, state_size / 2, 2)``, real and imaginary parts."""
        return self.zeros(batch_size, self.output_size, self.pairs, 2)

    def dense(self, inputs: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """A batch without padding: one convolution for every chunk of time."""
        assert isinstance(state, Tensor)
        with torch.autocast(inputs.device.type, enabled=False):
            x = wide(inputs).permute(2, 0, 1).contiguous()  # (D, B, T)
            h = as_complex(state).transpose(0, 1)  # (D, B, N/2)
            steps = min(CHUNK, x.shape[2])
            exponent, b = self.discretised()
            powers = _powers(exponent, steps)  # (D, N, L + 1)
            c, decay = 2 * as_complex(self.c), torch.exp(exponent * steps)
            kernel = torch.bmm(_against(c * b).unsqueeze(1), powers[..., :steps])  # (D, 1, L)
            spectrum = torch.fft.rfft(kernel, 2 * steps)
            outputs = []
            for chunk in torch.split(x, steps, dim=2):
                time = chunk.shape[2]
                convolved = torch.fft.irfft(torch.fft.rfft(chunk, 2 * steps) * spectrum, 2 * steps)[..., :time]
                outputs.append(torch.baddbmm(convolved, _against(c.unsqueeze(1) * h), powers[..., 1 : time + 1]))
                added = torch.bmm(chunk.flip(2), powers[..., :time].transpose(1, 2))
                decay = decay if time == steps else torch.exp(exponent * time)
                h = decay.unsqueeze(1) * h + b.unsqueeze(1) * _pairs(added)
            y = (torch.cat(outputs, dim=2) + self.skip[:, None, None] * x).permute(1, 2, 0)
        return self.mixed(y.to(inputs.dtype)), torch.view_as_real(h.transpose(0, 1).contiguous()).to(state.dtype)

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """The recurrence, once."""
        self.check_step(inputs, state)
        assert isinstance(state, Tensor)
        exponent, b = self.discretised()
        x = wide(inputs)
        h = torch.exp(exponent) * as_complex(state) + b * x.unsqueeze(2)
        y = 2 * (as_complex(self.c) * h).real.sum(2) + self.skip * x
        return self.mixed(y.to(inputs.dtype)), torch.view_as_real(h).to(state.dtype)

    def discretised(self) -> tuple[Tensor, Tensor]:
        """ΔA and B̄, complex ``(hidden_size, state_size / 2)``."""
        a = torch.complex(-torch.exp(wide(self.log_decay)), wide(self.frequency))
        exponent = torch.exp(wide(self.log_dt)).unsqueeze(1) * a
        return exponent, torch.expm1(exponent) / a

    def mixed(self, y: Tensor) -> Tensor:
        """GELU, then the gated linear map over the channels."""
        return F.glu(self.mix(F.gelu(y)), dim=-1)

    def extra_repr(self) -> str:
        """Sizes, for ``print``."""
        return f"{self.input_size}, {self.output_size}, state_size={2 * self.pairs}"


def wide(tensor: Tensor) -> Tensor:
    """In float32 or wider: there is no complex bfloat16."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def as_complex(pairs: Tensor) -> Tensor:
    """Pairs of reals ``(..., 2)`` as complex numbers ``(...)``."""
    return torch.view_as_complex(wide(pairs).contiguous())


def _powers(exponent: Tensor, steps: int) -> Tensor:
    """Ā^l for l = 0 … steps, ``(D, N/2)`` to ``(D, N, steps + 1)``: real parts, then imaginary ones."""
    l = torch.arange(steps + 1, dtype=exponent.real.dtype, device=exponent.device)  # noqa: E741
    size, angle = torch.exp(exponent.real.unsqueeze(2) * l), exponent.imag.unsqueeze(2) * l
    return torch.cat([size * torch.cos(angle), size * torch.sin(angle)], dim=1)


def _against(weights: Tensor) -> Tensor:
    """``(..., N/2)`` complex to ``(..., N)`` real, whose product with `_powers` is Re(Σ_n weights_n Ā_n^l)."""
    return torch.cat([weights.real, -weights.imag], dim=-1)


def _pairs(parts: Tensor) -> Tensor:
    """Real parts, then imaginary ones ``(..., N)``, to complex ``(..., N/2)``."""
    return torch.complex(*parts.chunk(2, dim=-1))
