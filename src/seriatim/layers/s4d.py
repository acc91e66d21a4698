"""The diagonal structured state space.

A. Gu, A. Gupta, K. Goel and C. Ré, "On the parameterization and initialization of diagonal state space models",
NeurIPS 2022.

    h'(t) = A h(t) + B x(t),  y(t) = 2 Re(C h(t)) + D x(t)       in continuous time, for every channel
    h_t = Ā h_{t−1} + B̄ x_t,  Ā = exp(ΔA),  B̄ = A⁻¹ (Ā − 1) B     held constant over a step Δ
    y_t = Σ_{s ≤ t} K_{t−s} x_s + D x_t,  K_l = 2 Re(C Ā^l B̄)      the same as a convolution
    outputs = GLU(W GELU(y) + b)                                   across channels

x inputs · h the state, its real and imaginary part last · A ``−exp(log_decay) + i frequency``, one of each pair of
conjugates · B is 1 · C ``c``, real and imaginary part last · D ``skip`` · Δ ``exp(log_step)`` · W, b ``mix``. A starts
as −½ + iπn (S4D-Lin), Δ log-uniform. Training convolves chunks of `CHUNK` inputs by the fast Fourier transform and
carries the state from each to the next, so that neither memory nor work grows faster than the length.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import InputError
from ..layer import SequenceLayer, refuse_memory
from ..lengths import run_by_length
from ..state import State

CHUNK = 256
"""Inputs convolved at once."""


class S4D(SequenceLayer):
    """A state space for every channel, then a mixture of channels. The state is ``(batch, channels, state/2, 2)``.

    Args:
        input_size: width of an input, the number of channels.
        hidden_size: the same.
        state_size: dimensions of a channel's state, conjugates counted; even.
        dt_min: the least step Δ at first.
        dt_max: the largest.

    Raises:
        ValueError: two widths, an odd state size, or steps that are not 0 < dt_min ≤ dt_max.
    """

    keeps = "a small complex vector for every channel"
    parallel = True
    paper = "Gu et al. 2022"
    wrap = "residual"
    square = True

    def __init__(
        self, input_size: int, hidden_size: int, *, state_size: int = 64, dt_min: float = 0.001, dt_max: float = 0.1
    ) -> None:
        super().__init__()
        if input_size != hidden_size:
            raise InputError(f"s4d gives what it takes: hidden_size must be {input_size}; got {hidden_size}")
        if state_size < 2 or state_size % 2:
            raise InputError(f"state_size must be even and at least 2; got {state_size}")
        if not 0 < dt_min <= dt_max:
            raise InputError(f"dt_min and dt_max must be 0 < dt_min <= dt_max; got {dt_min} and {dt_max}")
        self.input_size = self.output_size = hidden_size
        self.pairs = state_size // 2
        self.log_step = nn.Parameter(torch.empty(hidden_size).uniform_(math.log(dt_min), math.log(dt_max)))
        self.log_decay = nn.Parameter(torch.full((hidden_size, self.pairs), math.log(0.5)))
        self.frequency = nn.Parameter(math.pi * torch.arange(self.pairs).float().repeat(hidden_size, 1))
        self.c = nn.Parameter(torch.randn(hidden_size, self.pairs, 2) * math.sqrt(0.5))
        self.skip = nn.Parameter(torch.randn(hidden_size))
        self.mix = nn.Linear(hidden_size, 2 * hidden_size)

    def initial_state(
        self, batch_size: int, memory: Tensor | None = None, memory_lengths: Tensor | None = None
    ) -> State:
        """Zeros ``(batch, channels, state_size / 2, 2)``."""
        refuse_memory(self, memory)
        return self.zeros(batch_size, self.input_size, self.pairs, 2)

    def forward(
        self, inputs: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Convolves ``(batch, time, input_size)``; see `SequenceLayer.forward`."""
        inputs, state, lengths = self.begin(inputs, state, lengths)
        if 0 in inputs.shape[:2]:
            return inputs.new_zeros(inputs.shape), state
        if lengths is not None:
            return run_by_length(self.dense, inputs, state, lengths)
        return self.dense(inputs, state)

    def dense(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """A batch without padding: whole chunks side by side, then what is left of the last."""
        assert isinstance(state, Tensor)
        time = inputs.shape[1]
        size = min(CHUNK, time)
        with torch.autocast(inputs.device.type, enabled=False):
            channels = inputs.to(state.dtype).permute(2, 0, 1)  # (H, B, T)
            step = self.discrete()
            kept = torch.view_as_real(torch.view_as_complex(state).transpose(0, 1)).flatten(2)  # (H, B, 2n)
            parts = []
            for start, end in ((0, time - time % size), (time - time % size, time)):
                if start < end:
                    length = min(size, end - start)
                    chunks = channels[:, :, start:end].reshape(*channels.shape[:2], -1, length)
                    outputs, kept = self.convolve(chunks, kept, *step)
                    parts.append(outputs)
            y = torch.cat(parts, dim=2).permute(1, 2, 0) + self.skip * inputs
            end_state = kept.view(*kept.shape[:2], self.pairs, 2).transpose(0, 1).contiguous()
        return self.mixed(y.to(inputs.dtype)), end_state

    def convolve(self, chunks: Tensor, state: Tensor, exponent: Tensor, drive: Tensor) -> tuple[Tensor, Tensor]:
        """Runs chunks ``(H, B, K, L)`` after a state ``(H, B, 2n)``: outputs ``(H, B, K·L)`` and the last state.

        Within a chunk the inputs are convolved with the kernel; what the chunks before it left is read off the state at
        its start. Complex numbers are pairs of real ones wherever a matrix product can then do the work.
        """
        length = chunks.shape[3]
        powers = torch.exp(exponent.unsqueeze(2) * torch.arange(length + 1, device=chunks.device))  # (H, n, L + 1)
        c = torch.view_as_complex(self.c)
        kernel = 2 * torch.einsum("hn,hnl->hl", c * drive, powers[..., :length]).real
        spectrum = torch.fft.rfft(chunks, 2 * length) * torch.fft.rfft(kernel, 2 * length)[:, None, None]
        outputs = torch.fft.irfft(spectrum, 2 * length)[..., :length]
        into = torch.view_as_real((drive.unsqueeze(2) * powers[..., :length].flip(2)).transpose(1, 2))  # (H, L, n, 2)
        gained = (chunks.flatten(1, 2) @ into.flatten(2)).view(*chunks.shape[:3], -1)  # (H, B, K, 2n)
        decay = powers[..., length].unsqueeze(1)  # (H, 1, n)
        starts = []
        for k in range(chunks.shape[2]):
            starts.append(state)
            passed = decay * torch.view_as_complex(state.view(*state.shape[:2], self.pairs, 2))
            state = torch.view_as_real(passed).flatten(2) + gained[:, :, k]
        seen = 2 * torch.view_as_real((c.unsqueeze(2) * powers[..., 1:]).conj().resolve_conj())  # (H, n, L, 2)
        left = torch.stack(starts, dim=2).flatten(1, 2) @ seen.transpose(2, 3).flatten(1, 2)  # Re(h z) = ⟨h, z̄⟩
        return (outputs + left.view(outputs.shape)).flatten(2), state

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """The recurrence, once."""
        assert isinstance(state, Tensor)
        exponent, drive = self.discrete()
        wide = inputs.to(state.dtype).unsqueeze(2)
        h = torch.exp(exponent) * torch.view_as_complex(state) + drive * wide  # (B, H, n)
        y = 2 * (torch.view_as_complex(self.c) * h).real.sum(2) + self.skip * inputs
        return self.mixed(y.to(inputs.dtype)), torch.view_as_real(h)

    def discrete(self) -> tuple[Tensor, Tensor]:
        """ΔA and B̄ = A⁻¹ (exp(ΔA) − 1), both complex ``(channels, state_size / 2)``."""
        a = torch.complex(-torch.exp(self.log_decay), self.frequency)
        exponent = torch.exp(self.log_step).unsqueeze(1) * a
        return exponent, torch.expm1(exponent) / a

    def mixed(self, outputs: Tensor) -> Tensor:
        """The nonlinearity and the mixture of channels."""
        return F.glu(self.mix(F.gelu(outputs)), dim=-1)
