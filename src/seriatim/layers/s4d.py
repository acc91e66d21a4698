"""A diagonal state space.

A. Gu, A. Gupta, K. Goel and C. Ré, "On the parameterization and initialization of diagonal state space models",
NeurIPS 2022 (S4D-Lin).

    h'(t) = A h(t) + B x(t),  y(t) = 2 Re(C h(t)) + D x(t)         for every channel, A diagonal and complex
    Ā = exp(ΔA),  B̄ = A⁻¹ (Ā − 1) B                                zero-order hold over a step Δ
    h_t = Ā h_{t−1} + B̄ x_t                                        the recurrence, for streaming
    y_t = Σ_l K_l x_{t−l} + 2 Re(C Ā^t h_0) + D x_t,  K_l = 2 Re(C Ā^l B̄)     the convolution, for training

`seriatim.layers.state_space` lists the symbols. Simplified: B is 1, because C can absorb it. The convolution runs in
chunks of time with the state between them, so that memory and time for each input do not depend on the length.
"""

import math

import torch
from torch import Tensor

from ..core.state import State
from .dplr import real_then_imaginary
from .scan import at_least_float32
from .state_space import CHUNK, RealImag, StateSpace, as_complex, times


class S4D(StateSpace):
    """A diagonal state space for every channel; see `StateSpace` for the arguments."""

    paper = "Gu, Gupta, Goel & Ré 2022"
    undecayed = ("log_A_real", "A_imag")

    def reset_parameters(self) -> None:
        """Initialise A_n = −1/2 + iπn, and the other parameters as every `StateSpace`."""
        super().reset_parameters()
        with torch.no_grad():
            self.A_imag.copy_(math.pi * torch.arange(self.pairs))

    def forward_unpadded(self, inputs: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """Run one convolution for every chunk of time; see `UnpaddedLayer`."""
        assert isinstance(state, Tensor)
        with torch.autocast(inputs.device.type, enabled=False):
            x = at_least_float32(inputs).permute(2, 0, 1).contiguous()  # (D, B, T)
            h = as_complex(state).transpose(0, 1)  # (D, B, N/2)
            steps = min(CHUNK, x.shape[2])

            # everything that all chunks have in common: the powers of Ā, and the kernel of the convolution
            exponent, b = self.discretised()
            powers = _powers(exponent, steps)  # (D, N, L + 1)
            c, decay = 2 * as_complex(self.C), torch.exp(exponent * steps)
            kernel = torch.bmm(real_then_imaginary((c * b).conj()).unsqueeze(1), powers[..., :steps])  # (D, 1, L)
            spectrum = torch.fft.rfft(kernel, 2 * steps)

            # An output of a chunk is the convolution of its own inputs, and what the state before the chunk leaves of
            # itself; both are linear, so that one call computes the second and adds the first.
            outputs = []  # (D, B, L) each
            for chunk in torch.split(x, steps, dim=2):
                time = chunk.shape[2]
                convolved = torch.fft.irfft(torch.fft.rfft(chunk, 2 * steps) * spectrum, 2 * steps)[..., :time]
                free = real_then_imaginary((c.unsqueeze(1) * h).conj())  # its product with a power of Ā is Re(C Ā^l h)
                outputs.append(torch.baddbmm(convolved, free, powers[..., 1 : time + 1]))

                # the state after the chunk, whose last one may be shorter
                added = torch.bmm(chunk.flip(2), powers[..., :time].transpose(1, 2))
                decay = decay if time == steps else torch.exp(exponent * time)
                h = decay.unsqueeze(1) * h + b.unsqueeze(1) * torch.complex(*added.chunk(2, dim=-1))
            y = (torch.cat(outputs, dim=2) + self.D[:, None, None] * x).permute(1, 2, 0)
        return self.mix_channels(y.to(inputs.dtype)), torch.view_as_real(h.transpose(0, 1).contiguous()).to(state.dtype)

    def next_state(self, h: RealImag, x: Tensor) -> RealImag:
        """Return the next state."""
        exponent, b = self.discretised()
        real, imaginary = times(torch.exp(exponent), h)
        return real + b.real * x, imaginary + b.imag * x

    def discretised(self) -> tuple[Tensor, Tensor]:
        """Return ΔA and B̄, complex ``(hidden_size, state_size / 2)``."""
        a = self.eigenvalues()
        exponent = torch.exp(at_least_float32(self.log_dt)).unsqueeze(1) * a
        return exponent, torch.expm1(exponent) / a


def _powers(exponent: Tensor, steps: int) -> Tensor:
    """Return Ā^l for l = 0 … steps, ``(D, N/2)`` to ``(D, N, steps + 1)``: real parts, then imaginary parts."""
    l = torch.arange(steps + 1, dtype=exponent.real.dtype, device=exponent.device)  # noqa: E741
    size, angle = torch.exp(exponent.real.unsqueeze(2) * l), exponent.imag.unsqueeze(2) * l
    return torch.cat([size * torch.cos(angle), size * torch.sin(angle)], dim=1)
