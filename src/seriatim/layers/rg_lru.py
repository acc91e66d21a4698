"""The recurrent block of Griffin: a gated branch beside a short convolution and a real-gated linear recurrent unit.

S. De et al., "Griffin: mixing gated linear recurrences with local attention for efficient language models",
arXiv:2402.19427, 2024, figure 2 and section 2.4; details as in RecurrentGemma: A. Botev et al., arXiv:2404.07839, 2024.

    y_t     = GELU(W_y u_t + b_y)
    x_t     = b + Σ_k w_k ⊙ (W_x u + b_x)_{t−K+1+k}    short causal convolution, each channel on its own
    r_t     = σ(W_r x_t + b_r),  i_t = σ(W_i x_t + b_i)  gates of recurrence and input, maps within each head
    log a_t = −8 r_t softplus(Λ)
    h_t     = a_t ⊙ h_{t−1} + √(1 − a_t²) ⊙ i_t ⊙ x_t  the square root is 1 for the first input
    o_t     = W_o (y_t ⊙ h_t) + b_o

u inputs · o outputs · the last K − 1 of W_x u + b_x ``state.recent`` · h ``state.memory`` · whether there was an input
``state.started`` · W_y, b_y ``y_proj`` · W_x, b_x ``x_proj`` · w ``conv_weight`` · b ``conv_bias`` · W_r, b_r of all
heads ``recurrence_gate_weight``, ``recurrence_gate_bias`` · W_i, b_i likewise ``input_gate_…`` · Λ ``a_param`` · W_o,
b_o ``out_proj``. As in RecurrentGemma, the gradient of the square root is at most 1000, and GELU is computed by tanh.
Nothing is simplified.
"""

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from ..core.state import State
from .attention import heads
from .option_types import Size, check_sizes
from .path_lengths import direct_paths, joined_paths
from .pointwise import per_head
from .scan import Context, at_least_float32, linear_scan
from .short_convolution import short_convolution, short_convolution_step
from .unpadded_layer import UnpaddedLayer

SHARPNESS = 8.0
MAX_GRADIENT = 1000.0
"""The largest gradient of the square root."""


class RGLRUState(NamedTuple):
    """``recent (batch, kernel_size − 1, inner)``, ``memory (batch, inner)`` and ``started (batch, 1)``, 0 or 1."""

    recent: Tensor
    memory: Tensor
    started: Tensor


class RGLRU(UnpaddedLayer):
    """One recurrent block of Griffin.

    Args:
        inner_size: width of both branches; None for the width of the outputs.
        num_heads: parts of the width within which the gates are computed; None for as many as leave each at least 32
            features.
        kernel_size: K, the number of inputs that the short convolution sees.
        bias: whether the maps, the gates and the convolution have biases.
    """

    keeps = "one vector, and the last inputs of a short convolution"
    paper = "De et al. 2024"
    gate_names = ("recurrence", "input")
    parallel = True
    wrap = "block"
    grows = False
    undecayed = ("conv_weight", "recurrence_gate_bias", "input_gate_bias")

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        inner_size: Size | None = None,
        num_heads: Size | None = None,
        kernel_size: Size = 4,
        bias: bool = True,
    ) -> None:
        super().__init__()
        inner = hidden_size if inner_size is None else inner_size
        check_sizes(inner_size=inner, kernel_size=kernel_size)
        count = heads(inner, num_heads)
        self.input_size, self.output_size, self.inner_size = input_size, hidden_size, inner
        self.num_heads, self.kernel_size = count, kernel_size
        self.y_proj, self.x_proj = (nn.Linear(input_size, inner, bias=bias) for _ in range(2))
        self.conv_weight = nn.Parameter(torch.empty(kernel_size, inner))
        self.conv_bias = nn.Parameter(torch.empty(inner)) if bias else None
        size = inner // count
        self.recurrence_gate_weight, self.input_gate_weight = (
            nn.Parameter(torch.empty(count, size, size)) for _ in range(2)
        )
        self.recurrence_gate_bias, self.input_gate_bias = (
            nn.Parameter(torch.empty(count, size)) if bias else None for _ in range(2)
        )
        self.a_param = nn.Parameter(torch.empty(inner))
        self.out_proj = nn.Linear(inner, hidden_size, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise Λ so that a is 0.9^8 to 0.999^8 where r = 1, the gates with variance 1 / size, and biases to 0."""
        bound, size = self.kernel_size**-0.5, self.inner_size // self.num_heads
        nn.init.uniform_(self.conv_weight, -bound, bound)
        for weight in (self.recurrence_gate_weight, self.input_gate_weight):
            nn.init.normal_(weight, std=size**-0.5)
        biases = (self.conv_bias, self.y_proj.bias, self.x_proj.bias, self.out_proj.bias)
        for bias in (self.recurrence_gate_bias, self.input_gate_bias, *biases):
            if bias is not None:
                nn.init.zeros_(bias)
        with torch.no_grad():  # softplus(Λ) is −log of the eighth root of a
            root = torch.empty(self.inner_size).uniform_(0.9**2, 0.999**2).sqrt()
            self.a_param.copy_((1 / root - 1).log())

    def initial_state(self, batch_size: int) -> RGLRUState:
        """Return zeros; see `RGLRUState`."""
        recent = self.zeros(batch_size, self.kernel_size - 1, self.inner_size)
        return RGLRUState(recent, self.zeros(batch_size, self.inner_size), self.zeros(batch_size, 1))

    def path_lengths(self, distance: int) -> Tensor:
        """Return the path lengths: the convolution sees its inputs directly, the recurrence proceeds step by step."""
        return joined_paths([direct_paths(distance, self.kernel_size - 1), super().path_lengths(distance)])

    def forward_unpadded(self, inputs: Tensor, state: State) -> tuple[Tensor, RGLRUState]:
        """Run over a batch without padding; see `UnpaddedLayer`."""
        recent, memory, started = cast(RGLRUState, state)
        y, x = F.gelu(self.y_proj(inputs), approximate="tanh"), self.x_proj(inputs)  # (B, T, inner) each
        x, recent = short_convolution(x, recent, self.conv_weight, self.conv_bias)

        # before every input but the first of the sequence there was another one
        before = torch.ones_like(started).unsqueeze(1)  # (B, 1, 1)
        before = torch.cat([started.unsqueeze(1), before.expand(-1, inputs.shape[1] - 1, -1)], dim=1)
        hidden = linear_scan(*self.terms(x, before), at_least_float32(memory))
        last = hidden[:, -1].to(memory.dtype, copy=True)  # a view would keep all of them in memory
        return self.out_proj(hidden.to(y.dtype) * y), RGLRUState(recent, last, torch.ones_like(started))

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, RGLRUState]:
        """Compute the equations once."""
        self.check_step(inputs, state)
        recent, memory, started = cast(RGLRUState, state)
        y, x = F.gelu(self.y_proj(inputs), approximate="tanh"), self.x_proj(inputs)
        x, recent = short_convolution_step(x, recent, self.conv_weight, self.conv_bias)
        decay, added = self.terms(x, started)
        memory = (decay * memory + added).to(memory.dtype)
        return self.out_proj(memory.to(y.dtype) * y), RGLRUState(recent, memory, torch.ones_like(started))

    def terms(self, x: Tensor, started: Tensor) -> tuple[Tensor, Tensor]:
        """Return a and √(1 − a²) ⊙ i ⊙ x of inputs ``(..., inner)``; the root is 1 where ``started (..., 1)`` is 0."""
        in_heads = torch.unflatten(x, -1, (self.num_heads, -1))  # (..., H, inner / H)
        r = _gate(in_heads, self.recurrence_gate_weight, self.recurrence_gate_bias)
        i = _gate(in_heads, self.input_gate_weight, self.input_gate_bias)
        log_a = SHARPNESS * at_least_float32(r) * F.logsigmoid(-at_least_float32(self.a_param))
        square = 1 - started - started * torch.expm1(2 * log_a)  # 1 − a², or 1
        root = _BoundedSqrt.apply(square) if torch.is_grad_enabled() else torch.sqrt(square)  # type: ignore[no-untyped-call]
        return torch.exp(log_a), root * (i * x)


def _gate(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return σ(W x + b) of all heads ``(..., inner)`` for ``(..., heads, size)``."""
    mapped = per_head(rows, weight)
    return torch.sigmoid((mapped if bias is None else mapped + bias).flatten(-2))


class _BoundedSqrt(torch.autograd.Function):
    """The square root, with a gradient of at most `MAX_GRADIENT`: that of the root of 0 is infinite."""

    @staticmethod
    def forward(ctx: Context, square: Tensor) -> Tensor:
        root = torch.sqrt(square)
        ctx.save_for_backward(root)
        return root

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, gradient: Tensor) -> Tensor:
        (root,) = ctx.saved_tensors
        return cast(Tensor, gradient / (2 * root).clamp(min=1 / MAX_GRADIENT))
