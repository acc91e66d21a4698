"""A structured state space: the HiPPO matrix, diagonal plus low rank.

A. Gu, K. Goel and C. Ré, "Efficiently modeling long sequences with structured state spaces", ICLR 2022
(arXiv:2111.00396). Where sources differ, the official implementation decides (github.com/state-spaces/s4,
``models/s4/s4.py``: A = Λ − P P* with Re Λ < 0, the bilinear transform, complex numbers in conjugate pairs).

    h'(t) = A h(t) + B x(t),  y(t) = C h(t) + D x(t),  A = Λ − P P*            for every channel
    Ā = (1 − Δ/2 A)⁻¹ (1 + Δ/2 A),  B̄ = (1 − Δ/2 A)⁻¹ Δ B                      the bilinear transform over a step Δ
    h_t = Ā h_{t−1} + B̄ x_t,  y_t = C h_t + D x_t                              the recurrence, to stream
    y_t = Σ_{l<t} K_l x_{t−l} + C Ā^t h_0 + D x_t,  K_l = C Ā^l B̄               the convolution, to train (t = 1, 2, …)
    out_t = GLU(W GELU(y_t) + b)                                               mixes the channels

The kernel K, and what carries a state into and out of a chunk of time, come from Cauchy kernels and an inverse FFT:
see `seriatim.layers.dplr`. The convolution runs by FFT in chunks of `CHUNK` steps, all at once, with a recurrence over
one state a chunk between them.

x inputs · h the state · Λ = −exp(``log_decay``) + i ``frequency`` · P ``p`` · B ``b`` · C ``c`` · D ``skip`` ·
Δ = exp(``log_dt``) · W, bias ``mix`` · N ``state_size``. One of each conjugate pair is kept: N/2 complex numbers, as
pairs of reals, and y = 2 Re(C h). A and B start as HiPPO-LegS.

Simplified: the official code learns C (1 − Ā^L) for one length L, and gives these parameters a learning rate of their
own; here C is the parameter, so that every length is exact, and there is one learning rate.
"""

import math
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.errors import InputError
from ..core.state import State
from .dplr import System, Unrolled, hippo_legs, unroll
from .option_types import Between, StepSize
from .s4d import as_complex, wide
from .unpadded_layer import UnpaddedLayer

CHUNK = 128
"""Steps of one convolution; a power of two."""
StateSize = Annotated[int, Between(2, 1024)]
"""The eigenvalues of HiPPO-LegS take time in proportion to the third power of its size: 1,024 take some seconds."""


class S4(UnpaddedLayer):
    """One structured state space for every channel, and a gated linear map over the channels.

    Args:
        input_size: width of an input.
        hidden_size: width of an output; the same.
        state_size: N, real numbers kept for every channel; even, at most 1,024.
        dt_min: the smallest Δ at the start.
        dt_max: the largest.
        bias: whether the map over the channels has a bias.

    Raises:
        InputError: widths that differ, an odd state size, or not 0 < dt_min ≤ dt_max.
    """

    keeps = "one small complex vector a channel"
    paper = "Gu, Goel & Ré 2022"
    gate_names = ("output",)
    parallel = True
    wrap = "residual"
    square = True
    undecayed = ("log_decay", "frequency", "p", "b")

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
            raise InputError(f"S4 gives as many features as it takes: set input_size to {hidden_size}")
        if state_size < 2 or state_size % 2:
            raise InputError(f"model.options.state_size must be even and at least 2; got {state_size}")
        if not 0 < dt_min <= dt_max:
            raise InputError(f"model.options.dt_min must be above 0 and at most dt_max; got {dt_min} and {dt_max}")
        self.input_size = self.output_size = hidden_size
        self.pairs, self.dt_min, self.dt_max = state_size // 2, dt_min, dt_max
        self.log_dt = nn.Parameter(torch.empty(hidden_size))
        self.log_decay = nn.Parameter(torch.empty(hidden_size, self.pairs))
        self.frequency = nn.Parameter(torch.empty(hidden_size, self.pairs))
        self.p = nn.Parameter(torch.empty(hidden_size, self.pairs, 2))
        self.b = nn.Parameter(torch.empty(hidden_size, self.pairs, 2))
        self.c = nn.Parameter(torch.empty(hidden_size, self.pairs, 2))
        self.skip = nn.Parameter(torch.empty(hidden_size))
        self.mix = nn.Linear(hidden_size, 2 * hidden_size, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """HiPPO-LegS for every channel; Δ log-uniform in [dt_min, dt_max]; C complex normal of variance 1, D normal."""
        nn.init.uniform_(self.log_dt, math.log(self.dt_min), math.log(self.dt_max))
        frequency, p, b = hippo_legs(2 * self.pairs)
        with torch.no_grad():
            self.log_decay.fill_(math.log(0.5))
            self.frequency.copy_(frequency)
            self.p.copy_(torch.view_as_real(p))
            self.b.copy_(torch.view_as_real(b))
        nn.init.normal_(self.c, std=0.5**0.5)
        nn.init.normal_(self.skip)

    def initial_state(self, batch_size: int) -> Tensor:
        """Zeros ``(batch, hidden_size, state_size / 2, 2)``, real and imaginary parts."""
        return self.zeros(batch_size, self.output_size, self.pairs, 2)

    def dense(self, inputs: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """A batch without padding: one convolution over all chunks of time, and a short recurrence between chunks."""
        assert isinstance(state, Tensor)
        with torch.autocast(inputs.device.type, enabled=False):
            x = wide(inputs).permute(2, 0, 1)  # (D, B, T)
            length = min(CHUNK, 1 << (x.shape[2] - 1).bit_length())
            unrolled = unroll(self.system(), length)
            h = wide(state).permute(1, 3, 2, 0).flatten(1, 2)  # (D, N, B)
            y, h = _convolved(unrolled, x, h)
            y = (y + self.skip[:, None, None] * x).permute(1, 2, 0)
            end = h.reshape(self.output_size, 2, self.pairs, -1).permute(3, 0, 2, 1)
        return self.mixed(y.to(inputs.dtype)), end.contiguous().to(state.dtype)

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """The recurrence, once: a number of operations proportional to the state."""
        self.check_step(inputs, state)
        assert isinstance(state, Tensor)
        system, x = self.system(), wide(inputs)
        h = system.advanced(as_complex(state), x)
        y = 2 * (system.c * h).real.sum(2) + self.skip * x
        return self.mixed(y.to(inputs.dtype)), torch.view_as_real(h).to(state.dtype)

    def system(self) -> System:
        """The parameters as complex numbers."""
        eigenvalues = torch.complex(-torch.exp(wide(self.log_decay)), wide(self.frequency))
        half_step = torch.exp(wide(self.log_dt)).unsqueeze(1) / 2
        return System(eigenvalues, as_complex(self.p), as_complex(self.b), as_complex(self.c), half_step)

    def mixed(self, y: Tensor) -> Tensor:
        """GELU, then the gated linear map over the channels."""
        return F.glu(self.mix(F.gelu(y)), dim=-1)

    def extra_repr(self) -> str:
        """Sizes, for ``print``."""
        return f"{self.input_size}, {self.output_size}, state_size={2 * self.pairs}"


def _convolved(unrolled: Unrolled, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """C h_t for inputs ``(D, B, T)`` after the state ``(D, N, B)``: ``(D, B, T)``, and the last state."""
    kernel, observed, reached, powers = unrolled
    (channels, batch, time), length = x.shape, kernel.shape[1]
    last = (time - 1) % length + 1
    chunks = F.pad(x, (0, length - last)).reshape(channels, batch, -1, length)  # (D, B, K, L)
    spectrum = torch.fft.rfft(kernel, 2 * length)[:, None, None]
    convolved = torch.fft.irfft(torch.fft.rfft(chunks, 2 * length) * spectrum, 2 * length)[..., :length]
    starts = [h]
    if chunks.shape[2] > 1:
        added = reached @ chunks[:, :, :-1].flip(3).flatten(1, 2).mT  # (D, N, B (K − 1))
        for one in added.reshape(channels, -1, batch, chunks.shape[2] - 1).unbind(3):
            starts.append(powers[-1] @ starts[-1] + one)
    end = starts[-1]
    for i, power in enumerate(powers):
        if last >> i & 1:
            end = power @ end
    end = end + reached[..., :last] @ chunks[:, :, -1, :last].flip(2).mT
    moved = powers[0] @ torch.cat(starts, dim=2)  # (D, N, K B)
    free = (observed @ moved).reshape(channels, length, -1, batch).permute(0, 3, 2, 1)  # (D, B, K, L)
    return (convolved + free).flatten(2)[..., :time], end
