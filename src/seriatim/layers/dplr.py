"""State spaces whose matrix is diagonal plus low rank, A = Λ − P P*: one step, and the combined effect of L steps.

A. Gu, K. Goel and C. Ré, "Efficiently modeling long sequences with structured state spaces", ICLR 2022
(arXiv:2111.00396), theorem 3 and appendix C.3. Ā and B̄ are the bilinear transform of A and B (`seriatim.layers.s4`).

At the L-th roots of unity z the truncated power series of Ā are resolvents,

    Σ_{l<L} C Ā^l z^l = C̃ (1 − Āz)⁻¹,  C̃ = C (1 − Ā^L),  (1 − Āz)⁻¹ = M(z)⁻¹ (1 − Δ/2 A)
    M(z) = (1 − z) − Δ/2 (1 + z) A = diag(e) + w P P*,  e_k = (1 − z) − w λ_k,  w = Δ/2 (1 + z)
    M(z)⁻¹ = diag(1/e) − diag(1/e) P (w / (1 + w Σ_k |P_k|²/e_k)) P* diag(1/e)

by Woodbury's formula. The sums over 1/e_k are Cauchy kernels, and one inverse FFT gives C Ā^l for all l < L. Ā^l B̄
follows in the same way from (1 − Ā^L) B̄, and the kernel of the convolution from both. The paper divides M by w, which
has a pole at z = −1. Only Ā^L is a dense matrix, computed by repeated squaring.

Vectors are stored as one of each conjugate pair, complex ``(..., N/2)``, or as the real parts and then the imaginary
parts of these, real ``(..., N)``.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Unrolled(NamedTuple):
    """The effect of L steps in real numbers: D channels, N numbers of state (real parts, then imaginary parts)."""

    kernel: Tensor  # K_l, (D, L)
    c_powers: Tensor  # C Ā^l, (D, L, N)
    b_powers: Tensor  # Ā^l B̄, (D, N, L)
    powers: list[Tensor]  # Ā to the power 1, 2, 4, …, L, each (D, N, N)


class System(NamedTuple):
    """The parameters as complex numbers ``(D, N/2)``, and Δ/2 ``(D, 1)``."""

    eigenvalues: Tensor
    p: Tensor
    b: Tensor
    c: Tensor
    half_step: Tensor

    def applied(self, h: Tensor) -> Tensor:
        """Return A h for ``(..., D, N/2)``."""
        return self.eigenvalues * h - self.p * inner(self.p, h)

    def solved(self, h: Tensor) -> Tensor:
        """Return the solution g of (1 − Δ/2 A) g = h for ``(..., D, N/2)``, by Woodbury's formula."""
        inverse = 1 / (1 - self.half_step * self.eigenvalues)
        factor = self.half_step / (1 + self.half_step * inner(self.p, inverse * self.p))
        return inverse * (h - self.p * (factor * inner(self.p, inverse * h)))

    def next_state(self, h: Tensor, x: Tensor | None = None) -> Tensor:
        """Return Ā h + B̄ x for states ``(..., D, N/2)`` and inputs ``(..., D)``, or Ā h without inputs."""
        right = h + self.half_step * self.applied(h)
        if x is not None:
            right = right + 2 * self.half_step * self.b * x.unsqueeze(-1)
        return self.solved(right)


def hippo_legs(size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return HiPPO-LegS as Λ − P P* with Re Λ = −1/2: Im Λ (real), P and B ``(size / 2,)``, one of each conjugate pair.

    B is real and positive: the phase of an eigenvector is free, and this choice makes the result reproducible.
    """
    n = torch.arange(size, dtype=torch.float64)
    root = torch.sqrt(2 * n + 1)
    skew = -torch.tril(torch.outer(root, root), -1) / 2  # A + p pᵀ + 1/2, which is skew-symmetric
    skew = skew - skew.T
    values, vectors = torch.linalg.eigh(torch.complex(torch.zeros_like(skew), -skew))
    half = size // 2  # eigenvalues ascend and come in pairs ±λ, so that the second half is positive
    p, b = ((vectors.mH @ vector.to(vectors.dtype))[half:] for vector in (torch.sqrt(n + 0.5), root))
    phase = b.abs() / b
    return values[half:], p * phase, b.abs().to(p.dtype)


def unroll(system: System, length: int) -> Unrolled:
    """Return the effect of ``length`` steps, a power of two, by the formulas at the head of this file."""
    pairs = system.p.shape[1]
    basis = torch.eye(pairs, dtype=system.p.dtype, device=system.p.device)
    columns = system.next_state(torch.cat([basis, 1j * basis]).unsqueeze(1))  # (N, D, N/2), one basis vector each
    powers = [real_then_imaginary(columns).permute(1, 2, 0)]
    for _ in range(length.bit_length() - 1):
        powers.append(powers[-1] @ powers[-1])
    rest = torch.eye(2 * pairs, dtype=powers[0].dtype, device=powers[0].device) - powers[-1]  # 1 − Ā^L
    real_c = real_then_imaginary(2 * system.c.conj())  # its product with a state is 2 Re(C h)
    row = (real_c.unsqueeze(1) @ rest).squeeze(1)
    column = (rest @ real_then_imaginary(2 * system.half_step * system.b).unsqueeze(2)).squeeze(2)
    c_powers, b_powers = _resolved(system, row, column, length)
    start = real_then_imaginary(system.solved(2 * system.half_step * system.b))
    return Unrolled((c_powers @ start.unsqueeze(2)).squeeze(2), c_powers, b_powers, powers)


def _resolved(system: System, row: Tensor, column: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Return the time sequences of row · (1 − Āz)⁻¹ ``(D, L, N)`` and of M(z)⁻¹ · column ``(D, N, L)``."""
    # w and 1/e_k at half of the roots of unity, which is enough because the sequences are real
    angle = 2 * math.pi / length * torch.arange(length // 2 + 1, dtype=row.dtype, device=row.device)
    z = torch.complex(torch.cos(angle), -torch.sin(angle))  # (F,)
    weight = system.half_step.unsqueeze(2) * (1 + z)  # (D, 1, F)
    inverse = 1 / ((1 - z) - weight * _both(system.eigenvalues).unsqueeze(2))  # (D, N, F)

    # the resolvent is M(z)⁻¹ (1 − Δ/2 A), and this factor goes to the row, since it commutes with M(z)⁻¹
    p = _both(system.p)
    c = torch.complex(*row.chunk(2, dim=1)).conj() / 2  # whose product with a state is 2 Re(c h)
    c = _both(c - system.half_step * (system.eigenvalues * c - system.p.conj() * inner(system.p.conj(), c)))
    b = _both(torch.complex(*column.chunk(2, dim=1)))

    # only sums over 1/e_k couple the numbers of the state, so that no matrix is inverted
    cauchy = torch.stack([p * p.conj(), c * p, b * p.conj()], dim=1) @ inverse  # (D, 3, F)
    factor = weight / (1 + weight * cauchy[:, :1])
    left = inverse * (c.unsqueeze(2) - p.conj().unsqueeze(2) * (factor * cauchy[:, 1:2]))
    right = inverse * (b.unsqueeze(2) - p.unsqueeze(2) * (factor * cauchy[:, 2:]))

    # the halves belong to conjugate numbers, so that their sums and differences are transforms of real sequences
    first, second = left.chunk(2, dim=1)
    c_powers = torch.fft.irfft(torch.cat([first + second, 1j * (first - second)], dim=1), length)
    first, second = right.chunk(2, dim=1)
    b_powers = torch.fft.irfft(torch.cat([(first + second) / 2, (first - second) / 2j], dim=1), length)
    return c_powers.transpose(1, 2), b_powers


def inner(p: Tensor, h: Tensor) -> Tensor:
    """Return P* h over both halves, a real number: ``(..., N/2)`` to ``(..., 1)``."""
    return 2 * (p.conj() * h).real.sum(-1, keepdim=True)


def _both(half: Tensor) -> Tensor:
    """Return ``(D, N/2)`` followed by its conjugate: ``(D, N)``."""
    return torch.cat([half, half.conj()], dim=1)


def real_then_imaginary(values: Tensor) -> Tensor:
    """Return the real parts, then the imaginary parts ``(..., N)`` of complex ``(..., N/2)``."""
    return torch.cat([values.real, values.imag], dim=-1)
