"""RWKV-7: a delta rule whose decay, rate of erasing and key of erasing are vectors of their own.

B. Peng et al., "RWKV-7 Goose with expressive dynamic state evolution", arXiv:2503.14456, 2025; for details the authors'
repository `RWKV-LM`.

    x^j = x_t + (x_{t−1} − x_t) ⊙ μ_j, j = r, w, k, v, a, g    token shift, x_0 = 0
    r, k, v = W_r x^r, W_k x^k, W_v x^v
    w   = exp(−e^(−1/2) σ(w_0 + tanh(x^w W_1) W_2))            decay of each row of S
    a   = σ(a_0 + x^a A_1 A_2)                                 rate of erasing
    g   = σ(x^g G_1) G_2                                       gate of the outputs
    k̂   = k ⊙ κ, of length 1 in each head                      key of erasing
    k̃   = k ⊙ (1 + (a − 1) ⊙ α)                                key of writing
    S_t = (diag(w) − (a ⊙ k̂) k̂ᵀ) S_{t−1} + k̃ vᵀ
    y_t = W_o ((γ ⊙ LN(S_tᵀ r) + β + (rᵀ (ρ ⊙ k̃)) v) ⊙ g)      LN over the features of each head

x ``inputs`` · y ``outputs`` · x_{t−1} ``state.recent`` · S ``state.memory`` (K, V), the transpose of the paper's ·
μ ``shift``, in the order above · W_r, W_k, W_v ``r_proj``, ``k_proj``, ``v_proj`` · w_0, W_1, W_2 ``w0``, ``w1``,
``w2``, and so on · κ ``k_k`` · α ``k_a`` · ρ ``r_k`` · γ, β ``norm`` · W_o ``o_proj``. As w is at least 0.54, the rule
of `seriatim.layers.delta_rule` reads k̂ / w.

The paper's initialisation is a part of the model, and is that of its repository for the lowest layer (see
`RWKV7.reset_parameters`): without it, or with that of other layers, this is another model.

Simplified: no layer mixes the values of the lowest layer into its own ("value residual"), since a layer sees nothing
but its inputs; all layers start as the lowest does; and the network after it is that of every other block here, without
a token shift.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .attention import heads as divided
from .delta_rule import delta_scan, delta_step
from .head_norm import HeadLayerNorm
from .matrix_layer import HEAD_SIZE, MatrixLayer, Terms, split_heads
from .option_types import Size
from .path_lengths import direct_paths, joined_paths
from .scan import at_least_float32

SLOWEST = math.exp(-0.5)
"""The largest −log w."""
SHIFT_POWERS = (0.2, 0.9, 0.7, 0.7, 0.9, 0.2)
"""The powers of the feature's position in [0, 1) that μ of r, w, k, v, a and g starts as 1 minus."""


class RWKV7State(NamedTuple):
    """The last input ``recent (batch, input_size)``, and S of every head, ``memory (batch, heads, size, size)``."""

    recent: Tensor
    memory: Tensor


def _scan(
    r: Tensor, k: Tensor, v: Tensor, read: Tensor, erase: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    return delta_scan(r, k, v, read, log_decay, state, erase=erase)


def _step(
    r: Tensor, k: Tensor, v: Tensor, read: Tensor, erase: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    return delta_step(r, k, v, read, log_decay, state, erase=erase)


class RWKV7(MatrixLayer):
    """The time mixing of RWKV-7; in a block by default, as in the paper.

    Args:
        num_heads: None for as many as leave each at least 64 features.
        rank: the width of the low-rank maps of w and a, and half of that of g; None for a multiple of 32 near
            2.5 √width.
        bias: whether the norm of the heads has a bias β.
    """

    keeps = "one matrix per head, and the last input"
    paper = "Peng et al. 2025"
    gate_names = ("decay w", "rate of erasing a", "bottleneck of the output gate g")
    undecayed = ("shift", "r_k")
    state_type = RWKV7State
    scan = staticmethod(_scan)
    one_step = staticmethod(_step)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        num_heads: Size | None = None,
        rank: Size | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        heads = divided(hidden_size, num_heads, least=HEAD_SIZE)
        size = hidden_size // heads
        self.set_sizes(input_size, hidden_size, heads=heads, key_size=size, value_size=size)
        narrow, wide = (
            max(32, 32 * round(factor * hidden_size**0.5 / 32)) if rank is None else times * rank
            for factor, times in ((2.5, 1), (5, 2))
        )
        self.shift = nn.Parameter(torch.empty(len(SHIFT_POWERS), input_size))
        self.r_proj, self.k_proj, self.v_proj = (nn.Linear(input_size, hidden_size, bias=False) for _ in range(3))
        widths = narrow, narrow, wide
        self.w1, self.a1, self.g1 = (nn.Parameter(torch.empty(input_size, width)) for width in widths)
        self.w2, self.a2, self.g2 = (nn.Parameter(torch.empty(width, hidden_size)) for width in widths)
        self.w0, self.a0, self.k_k, self.k_a = (nn.Parameter(torch.empty(hidden_size)) for _ in range(4))
        self.r_k = nn.Parameter(torch.empty(heads, size))
        self.norm = HeadLayerNorm(size, heads, bias=bias, epsilon=64e-5)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialise as RWKV-LM does for the lowest layer: decays that differ between features, W_o = 0."""
        width = self.output_size
        position, line = torch.arange(self.input_size) / self.input_size, torch.linspace(-0.5, 0.5, width)
        zigzag = torch.linspace(-1, 1, self.key_size).repeat(self.num_heads)
        zigzag = zigzag * zigzag.abs()
        for mix, power in zip(self.shift, SHIFT_POWERS, strict=True):
            mix.copy_(1 - position**power)
        self.w0.copy_(6 * line - 2.5 + 2.5 * zigzag)
        self.a0.copy_(-0.19 + 0.3 * zigzag + 0.4 * line)
        self.k_k.copy_(0.71 - 0.1 * line)
        nn.init.constant_(self.k_a, 1.02)
        nn.init.constant_(self.r_k, -0.04)
        for down, up in ((self.w1, self.w2), (self.a1, self.a2), (self.g1, self.g2)):
            nn.init.zeros_(down)
            nn.init.orthogonal_(up, gain=0.1 * max(1.0, up.shape[0] / up.shape[1]) ** 0.5)
        for linear, bound in ((self.r_proj, 0.5), (self.k_proj, 0.05), (self.v_proj, 0.5)):
            nn.init.uniform_(linear.weight, -bound * self.input_size**-0.5, bound * self.input_size**-0.5)
        nn.init.zeros_(self.o_proj.weight)

    def initial_state(self, batch_size: int) -> RWKV7State:
        """Return zeros, of at least float32 for the matrix; see `RWKV7State`."""
        memory = self.zeros(batch_size, self.num_heads, self.key_size, self.value_size)
        return RWKV7State(self.zeros(batch_size, self.input_size), at_least_float32(memory))

    def path_lengths(self, distance: int) -> Tensor:
        """Return the path lengths: the token shift sees the last input directly, the recurrence goes step by step."""
        return joined_paths([direct_paths(distance, 1), super().path_lengths(distance)])

    def terms(self, inputs: Tensor, before: list[Tensor]) -> Terms:
        """Return r, k̃, v, k̂ / w, a ⊙ k̂ and log w; then the bonus and the gate for `outputs`."""
        (previous,), last = before, inputs
        if inputs.dim() == 3:
            previous, last = torch.cat([previous.unsqueeze(1), inputs[:, :-1]], dim=1), inputs[:, -1].clone()
        change = previous - inputs
        of_r, of_w, of_k, of_v, of_a, of_g = (inputs + mix * change for mix in self.shift.unbind())
        r, k, v = self.r_proj(of_r), self.k_proj(of_k), self.v_proj(of_v)
        log_w = -SLOWEST * torch.sigmoid(at_least_float32(self.w0 + torch.tanh(of_w @ self.w1) @ self.w2))
        a = torch.sigmoid(self.a0 + of_a @ self.a1 @ self.a2)
        g = torch.sigmoid(of_g @ self.g1) @ self.g2

        written = k * (1 + (a - 1) * self.k_a)
        r, v, a, log_w, written, erased = (
            split_heads(part, self.key_size) for part in (r, v, a, log_w, written, k * self.k_k)
        )
        erased = at_least_float32(erased)
        erased = erased * torch.rsqrt(erased.square().sum(-1, keepdim=True).clamp(min=1e-24))
        bonus = (r * written * self.r_k).sum(-1, keepdim=True) * v
        return (r, written, v, erased * torch.exp(-log_w), a * erased, log_w), [last], (bonus, g)

    def outputs(self, heads: Tensor, *rest: Tensor) -> Tensor:
        """Normalise, add the bonus, gate and map."""
        bonus, g = rest
        mapped: Tensor = self.o_proj((self.norm(heads) + bonus).flatten(-2).to(g.dtype) * g)
        return mapped
