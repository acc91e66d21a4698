"""Positions of inputs in their sequence.

Two kinds are added to the inputs once, below all layers:

    sinusoidal   PE(t, 2i) = sin(t / 10000^{2i/d}),  PE(t, 2i+1) = cos(…)     A. Vaswani et al. 2017
    learned      a vector for each of the first `max_length` positions        J. Gehring et al. 2017

Two kinds act inside attention, so that a score depends on the distance t − s only:

    rotary       rotates the pair (x_i, x_{i+d/2}) of a query or key by t / 10000^{2i/d}      J. Su et al. 2021
    alibi        subtracts 2^{−8h/H} (t − s) from the score in head h = 1…H                   O. Press et al. 2022

Simplified: an odd last feature of a head is not rotated. ALiBi's slopes are one geometric sequence for every number of
heads; the authors interpolate unless this number is a power of two.
"""

import functools
from dataclasses import dataclass
from typing import Annotated, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.contract import SequenceLayer
from ..core.errors import SizeError
from ..core.exporting import exporting
from ..core.lengths import zero_padding
from ..core.state import OutputsAndState, State
from ..core.step_operators import tracing_step
from .option_types import OneOf, Size, check_sizes
from .path_lengths import direct_paths
from .scan import Context

ABSOLUTE = ("sinusoidal", "learned")
RELATIVE = ("none", "rotary", "alibi")
Position = Annotated[str, OneOf([*RELATIVE, *ABSOLUTE])]
BASE = 10_000.0
MAX_LENGTH = 1024
"""The default number of learned positions."""


class Positions(SequenceLayer):
    """Adds a vector for its position to each input; the state is the number of inputs read by each row ``(batch,)``.

    Args:
        learned: use learned vectors instead of sinusoidal ones.
        max_length: the number of learned positions.
    """

    keeps = "how many inputs there were"
    parallel = True

    def __init__(self, input_size: int, *, learned: bool = False, max_length: Size = MAX_LENGTH) -> None:
        super().__init__()
        check_sizes(max_length=max_length)
        self.input_size = self.output_size = input_size
        self.table = nn.Parameter(0.02 * torch.randn(max_length, input_size)) if learned else None
        self.register_buffer("like", torch.zeros(()), persistent=False)

    def initial_state(self, batch_size: int) -> State:
        """Return zeros: no inputs were read."""
        return self.zeros(batch_size).long()

    def forward(self, inputs: Tensor, state: State | None = None, *, lengths: Tensor | None = None) -> OutputsAndState:
        """Add positions to ``(batch, time, input_size)``; raise InputError for one beyond the learned positions."""
        inputs, state, lengths = self.begin(inputs, state, lengths)
        assert isinstance(state, Tensor)
        if tracing_step():
            vectors = self.vectors(state, inputs.squeeze(1))
            return inputs + vectors.unsqueeze(1), state + 1
        position = positions(state, inputs.shape[1])
        end = state + (inputs.shape[1] if lengths is None else lengths.to(state.device))
        if self.table is None:
            vectors = sinusoids(position, self.input_size).to(inputs.dtype)
        else:
            # an exported model cannot raise errors: beyond the table it repeats the last position
            if not exporting() and end.numel() and int(end.max()) > len(self.table):
                raise SizeError(
                    f"position {int(end.max())} lies beyond the {len(self.table)} learned; give a shorter text, or "
                    "train a model with a larger max_length, or with position rotary, alibi or sinusoidal"
                )
            vectors = F.embedding(position.clamp(max=len(self.table) - 1), self.table)
        return zero_padding(inputs + vectors, lengths), end

    def vectors(self, position: Tensor, like: Tensor) -> Tensor:
        """Return the vectors of a single step; the compiled step tests whether positions lie within the table."""
        if self.table is None:
            return cast(Tensor, torch.ops.seriatim.sinusoids(position, like, BASE))
        return F.embedding(position, self.table)

    def path_lengths(self, distance: int) -> Tensor:
        """Return the path lengths: an output depends on the present input only."""
        return direct_paths(distance, 0)


def learned_positions(model: nn.Module) -> int | None:
    """Return the number of inputs that a model with learned positions can read at once; None for no limit."""
    tables = (module.table for module in model.modules() if isinstance(module, Positions))
    return min((len(table) for table in tables if table is not None), default=None)


@dataclass(frozen=True)
class Rotary:
    """Rotates queries and keys by their position. It is not a module, so that its angles keep their own precision.

    ``pairs`` is half the number of features that are rotated, the first ones, and ``base`` the 10000 of the equation.
    """

    pairs: int
    base: float = BASE

    def __call__(self, vectors: Tensor, position: Tensor, num_heads: int) -> Tensor:
        """Rotate the first ``num_heads`` of ``(batch, heads, time, head_size)`` by positions ``(batch or 1, time)``."""
        size = vectors.shape[3]
        if tracing_step():  # the operator rotates whole vectors
            if size // 2 > self.pairs:
                turned, rest = torch.split(vectors, [2 * self.pairs, size - 2 * self.pairs], dim=3)
                return torch.cat([self(turned, position, num_heads), rest], dim=3)
            rotated = torch.ops.seriatim.rotate(vectors.squeeze(2), position.squeeze(1), self.base, num_heads)
            return cast(Tensor, rotated).unsqueeze(2)
        frequencies = _frequencies(self.pairs, position.device, base=self.base)
        angles = (position.unsqueeze(-1) * frequencies).unsqueeze(1)  # (B, 1, T, D/2)
        cos, sin = angles.cos().to(vectors.dtype), angles.sin().to(vectors.dtype)
        if not torch.is_grad_enabled() or exporting():
            return _rotate(vectors, cos, sin, num_heads)  # in one step, `apply` takes longer than the rotation
        return cast(Tensor, _Rotation.apply(vectors, cos, sin, num_heads))  # type: ignore[no-untyped-call]


def _rotate(vectors: Tensor, cos: Tensor, sin: Tensor, num_heads: int) -> Tensor:
    """Rotate the pairs of the first heads by an angle and copy the other heads."""
    pairs = cos.shape[-1]
    rotated = vectors.clone(memory_format=torch.contiguous_format)
    first, second = vectors[:, :num_heads, :, :pairs], vectors[:, :num_heads, :, pairs : 2 * pairs]
    target = rotated[:, :num_heads]
    torch.mul(first, cos, out=target[..., :pairs]).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=target[..., pairs : 2 * pairs]).addcmul_(first, sin)
    return rotated


class _Rotation(torch.autograd.Function):
    """`_rotate`; the gradient is rotated by the opposite angle."""

    @staticmethod
    def forward(vectors: Tensor, cos: Tensor, sin: Tensor, num_heads: int) -> Tensor:
        return _rotate(vectors, cos, sin, num_heads)

    @staticmethod
    def setup_context(ctx: Context, inputs: tuple[Tensor, Tensor, Tensor, int], output: Tensor) -> None:
        _, cos, sin, ctx.num_heads = inputs
        ctx.save_for_backward(cos, sin)

    @staticmethod
    def backward(ctx: Context, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        return _Rotation.apply(gradient, cos, -sin, ctx.num_heads), None, None, None  # type: ignore[no-untyped-call]


def slopes(num_heads: int) -> Tensor:
    """Return ALiBi's slope of each head ``(heads,)``."""
    return torch.pow(2.0, -8.0 * torch.arange(1, num_heads + 1) / num_heads)


def positions(count: Tensor, time: int) -> Tensor:
    """Return the positions of ``time`` inputs after ``count (batch,)`` others: ``(batch, time)``, or ``(1, time)``."""
    if time == 1:
        return count.unsqueeze(1)
    if not exporting() and len(count) and bool((count == count[0]).all()):
        count = count[:1]
    return count.unsqueeze(1) + torch.arange(time, device=count.device)


def sinusoids(position: Tensor, size: int) -> Tensor:
    """Return PE of positions ``(...,)`` as float64 ``(..., size)``: sines at even indices and cosines at odd ones."""
    angles = position.unsqueeze(-1) * _frequencies((size + 1) // 2, position.device, size)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)[..., :size]


def _frequencies(count: int, device: torch.device, size: int | None = None, *, base: float = BASE) -> Tensor:
    """Return 1 / base^{2i/size} for i below ``count``: in float64, because positions are large."""
    make = _computed_frequencies.__wrapped__ if exporting() else _computed_frequencies
    return make(count, device, size, base)


@functools.lru_cache(maxsize=64)
def _computed_frequencies(count: int, device: torch.device, size: int | None, base: float) -> Tensor:
    with torch.inference_mode(False):
        frequencies = torch.pow(base, -2 * torch.arange(count, dtype=torch.float64) / (size or max(2 * count, 1)))
        return frequencies.to(device, torch.float32 if device.type == "mps" else torch.float64)
