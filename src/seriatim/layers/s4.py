"""A structured state space: the HiPPO matrix, diagonal plus low rank.

A. Gu, K. Goel and C. Ré, "Efficiently modeling long sequences with structured state spaces", ICLR 2022
(arXiv:2111.00396). Where sources differ, the official implementation decides (github.com/state-spaces/s4,
``models/s4/s4.py``: A = Λ − P P* with Re Λ < 0, the bilinear transform, complex numbers in conjugate pairs).

    h'(t) = A h(t) + B x(t),  y(t) = C h(t) + D x(t),  A = Λ − P P*            for every channel
    Ā = (1 − Δ/2 A)⁻¹ (1 + Δ/2 A),  B̄ = (1 − Δ/2 A)⁻¹ Δ B                      bilinear transform over a step Δ
    h_t = Ā h_{t−1} + B̄ x_t,  y_t = C h_t + D x_t                              the recurrence, for streaming
    y_t = Σ_{l<t} K_l x_{t−l} + C Ā^t h_0 + D x_t,  K_l = C Ā^l B̄               the convolution, for training (t ≥ 1)

`seriatim.layers.dplr` computes K and the maps that carry a state into and out of a chunk of time. The convolution runs
by FFT in chunks of `CHUNK` steps, all at once, with a recurrence over the states between chunks.

Λ = −exp(``log_A_real``) + i ``A_imag`` · P ``P`` · B ``B``; `seriatim.layers.state_space` lists the other symbols.
y = 2 Re(C h), because one of each conjugate pair is stored. A and B start as HiPPO-LegS.

Simplified: the official code learns C (1 − Ā^L) for one length L, and gives these parameters their own learning rate.
Here C is the parameter, so that every length is exact, and there is one learning rate.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.state import State
from .dplr import System, Unrolled, hippo_legs, inner, unroll
from .scan import at_least_float32
from .state_space import CHUNK, RealImag, StateSpace, as_complex, times


class S4(StateSpace):
    """A state space with a diagonal plus low-rank matrix for every channel; see `StateSpace` for the arguments."""

    paper = "Gu, Goel & Ré 2022"
    undecayed = ("log_A_real", "A_imag", "P", "B")

    def reset_parameters(self) -> None:
        """Initialise A and B as HiPPO-LegS, and the other parameters as every `StateSpace`."""
        super().reset_parameters()
        imaginary, p, b = hippo_legs(2 * self.pairs)
        self.A_imag.data.copy_(imaginary)
        self.P, self.B = (nn.Parameter(torch.view_as_real(x).to(self.C).repeat(len(self.C), 1, 1)) for x in (p, b))

    def forward_unpadded(self, inputs: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """Run one convolution over all chunks of time, and a recurrence between them; see `UnpaddedLayer`."""
        assert isinstance(state, Tensor)
        with torch.autocast(inputs.device.type, enabled=False):
            x = at_least_float32(inputs).permute(2, 0, 1)  # (D, B, T)
            length = min(CHUNK, 1 << (x.shape[2] - 1).bit_length())
            unrolled = unroll(self.system(), length)
            h = at_least_float32(state).permute(1, 3, 2, 0).flatten(1, 2)  # (D, N, B)
            y, h = _convolved(unrolled, x, h)
            y = (y + self.D[:, None, None] * x).permute(1, 2, 0)
            end = h.reshape(self.output_size, 2, self.pairs, -1).permute(3, 0, 2, 1)
        return self.mix_channels(y.to(inputs.dtype)), end.contiguous().to(state.dtype)

    def next_state(self, h: RealImag, x: Tensor) -> RealImag:
        """Return the next state as `System.next_state` does; the number of operations is proportional to the state."""
        eigenvalues, p, b, _, half_step = self.system()
        inverse = 1 / (1 - half_step * eigenvalues)
        # the right side of (1 − Δ/2 A) h_t = (1 + Δ/2 A) h_{t−1} + Δ B x_t, whose matrices are Λ − P P*
        product = _inner_of_pair(p, h)  # (B, D, 1)
        drive, low_rank = 2 * half_step * b, half_step * p
        real, imaginary = times(1 + half_step * eigenvalues, h)
        right = real - low_rank.real * product + drive.real * x, imaginary - low_rank.imag * product + drive.imag * x
        # its solution by Woodbury's formula: that of the diagonal part, corrected by a multiple of one vector
        real, imaginary = times(inverse, right)
        factor = half_step / (1 + half_step * inner(p, inverse * p))
        product, vector = factor * _inner_of_pair(p, (real, imaginary)), inverse * p
        return real - vector.real * product, imaginary - vector.imag * product

    def system(self) -> System:
        """Return the parameters as complex numbers."""
        half_step = torch.exp(at_least_float32(self.log_dt)).unsqueeze(1) / 2
        return System(self.eigenvalues(), as_complex(self.P), as_complex(self.B), as_complex(self.C), half_step)


def _inner_of_pair(p: Tensor, h: RealImag) -> Tensor:
    """Return `inner` of p and the state ``(..., D, N/2)``: ``(..., D, 1)``."""
    return 2 * times(p.conj(), h)[0].sum(-1, keepdim=True)


def _convolved(unrolled: Unrolled, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Return C h_t ``(D, B, T)`` and the last state, for inputs ``(D, B, T)`` after the state ``(D, N, B)``."""
    kernel, c_powers, b_powers, powers = unrolled
    (channels, batch, time), length = x.shape, kernel.shape[1]
    last = (time - 1) % length + 1  # steps of the last chunk

    # what the inputs of a chunk add to its own outputs: one convolution for all chunks
    chunks = F.pad(x, (0, length - last)).reshape(channels, batch, -1, length)  # (D, B, K, L)
    spectrum = torch.fft.rfft(kernel, 2 * length)[:, None, None]
    convolved = torch.fft.irfft(torch.fft.rfft(chunks, 2 * length) * spectrum, 2 * length)[..., :length]

    # the states between chunks: a recurrence of K − 1 steps, each over a whole chunk
    starts = [h]  # (D, N, B) each
    if chunks.shape[2] > 1:
        added = b_powers @ chunks[:, :, :-1].flip(3).flatten(1, 2).mT  # (D, N, B (K − 1))
        for carried in added.reshape(channels, -1, batch, chunks.shape[2] - 1).unbind(3):
            starts.append(powers[-1] @ starts[-1] + carried)

    # the last chunk may be shorter: its power of Ā is the product of those for the binary digits of its length
    end = starts[-1]
    for i, power in enumerate(powers):
        if last >> i & 1:
            end = power @ end
    end = end + b_powers[..., :last] @ chunks[:, :, -1, :last].flip(2).mT

    # what the state before a chunk adds to its outputs, C Ā^{l+1} h: Ā is applied to the few states, not to C
    after_one = powers[0] @ torch.cat(starts, dim=2)  # (D, N, K B)
    free = (c_powers @ after_one).reshape(channels, length, -1, batch).permute(0, 3, 2, 1)  # (D, B, K, L)
    return (convolved + free).flatten(2)[..., :time], end
