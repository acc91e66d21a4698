"""Where an input stands in its sequence.

Added to the inputs, once, below all layers:

    sinusoidal   PE(t, 2i) = sin(t / 10000^{2i/d}),  PE(t, 2i+1) = cos(…)    A. Vaswani et al. 2017
    learned      a vector for each of the first `max_length` positions        J. Gehring et al. 2017

Inside an attention, so that a score depends on the distance t − s alone:

    rotary       the pair (x_i, x_{i+d/2}) of a query or key turned by the angle t / 10000^{2i/d}    J. Su et al. 2021
    alibi        the score lowered by 2^{−8h/H} (t − s) in head h = 1…H           O. Press et al. 2022

An odd last feature of a head is not turned. ALiBi's slopes are one geometric sequence for every number of heads, where
the authors interpolate unless it is a power of two.
"""

from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.contract import SequenceLayer
from ..core.errors import InputError
from ..core.lengths import zero_padding
from ..core.state import State
from .option_types import OneOf, Size
from .path_lengths import direct_paths

ABSOLUTE = ("sinusoidal", "learned")
RELATIVE = ("none", "rotary", "alibi")
Position = Annotated[str, OneOf([*RELATIVE, *ABSOLUTE])]
BASE = 10_000.0
MAX_LENGTH = 1024
"""Learned positions, unless told otherwise."""


class Positions(SequenceLayer):
    """Adds to each input a vector that says where it stands; the state counts the inputs of each row ``(batch,)``.

    Args:
        input_size: width of an input.
        learned: vectors learned, or else sinusoidal.
        max_length: positions there are, where they are learned.
    """

    keeps = "how many inputs there were"
    parallel = True

    def __init__(self, input_size: int, *, learned: bool = False, max_length: Size = MAX_LENGTH) -> None:
        super().__init__()
        if max_length < 1:
            raise InputError(f"max_length must be at least 1; got {max_length}")
        self.input_size = self.output_size = input_size
        self.table = nn.Parameter(0.02 * torch.randn(max_length, input_size)) if learned else None
        self.register_buffer("like", torch.zeros(()), persistent=False)

    def initial_state(self, batch_size: int) -> State:
        """Zero inputs."""
        return self.zeros(batch_size).long()

    def forward(
        self, inputs: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Adds positions to ``(batch, time, input_size)``; see `SequenceLayer.forward`.

        Raises:
            ValueError: a position beyond those learned.
        """
        inputs, state, lengths = self.begin(inputs, state, lengths)
        assert isinstance(state, Tensor)
        position = positions(state, inputs.shape[1])
        end = state + (inputs.shape[1] if lengths is None else lengths.to(state.device))
        if self.table is None:
            vectors = sinusoids(position, self.input_size).to(inputs.dtype)
        else:
            if end.numel() and int(end.max()) > len(self.table):
                raise InputError(
                    f"position {int(end.max())} lies beyond the {len(self.table)} learned; raise max_length, "
                    "or take position rotary, alibi or sinusoidal"
                )
            vectors = F.embedding(position.clamp(max=len(self.table) - 1), self.table)
        return zero_padding(inputs + vectors, lengths), end

    def path_lengths(self, distance: int) -> Tensor:
        """Only the present input is seen."""
        return direct_paths(distance, 0)


def learned_positions(model: nn.Module) -> int | None:
    """How many inputs a model can read at once where positions are learned; None where there is no end to them."""
    tables = (part.table for part in model.modules() if isinstance(part, Positions))
    return min((len(table) for table in tables if table is not None), default=None)


class Rotary:
    """Turns queries and keys by their position. It is no module, so that its angles keep their own precision.

    Args:
        head_size: width of a query.
    """

    def __init__(self, head_size: int) -> None:
        self.frequencies = _frequencies(head_size // 2)

    def __call__(self, vectors: Tensor, position: Tensor, num_heads: int) -> Tensor:
        """Turns the first ``num_heads`` of ``(batch, heads, time, head_size)``.

        Args:
            vectors: queries and keys, and after them what is not turned.
            position: of each, ``(batch or 1, time)``.
            num_heads: how many are queries or keys.
        """
        self.frequencies = _moved(self.frequencies, position.device)
        angles = (position.unsqueeze(-1) * self.frequencies).unsqueeze(1)  # (B, 1, T, D/2)
        cos, sin = angles.cos().to(vectors.dtype), angles.sin().to(vectors.dtype)
        if not torch.is_grad_enabled():
            return _turn(vectors, cos, sin, num_heads)  # `apply` would cost more than the rest, one step at a time
        turned: Tensor = _Turn.apply(vectors, cos, sin, num_heads)  # type: ignore[no-untyped-call]
        return turned


def _turn(vectors: Tensor, cos: Tensor, sin: Tensor, num_heads: int) -> Tensor:
    """The pairs of the first heads turned by an angle, the rest copied."""
    pairs = cos.shape[-1]
    turned = vectors.clone(memory_format=torch.contiguous_format)
    first, second = vectors[:, :num_heads, :, :pairs], vectors[:, :num_heads, :, pairs : 2 * pairs]
    into = turned[:, :num_heads]
    torch.mul(first, cos, out=into[..., :pairs]).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=into[..., pairs : 2 * pairs]).addcmul_(first, sin)
    return turned


class _Turn(torch.autograd.Function):
    """`_turn`, whose gradient is turned back."""

    @staticmethod
    def forward(vectors: Tensor, cos: Tensor, sin: Tensor, num_heads: int) -> Tensor:
        return _turn(vectors, cos, sin, num_heads)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, cos, sin, ctx.num_heads = inputs
        ctx.save_for_backward(cos, sin)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        return _Turn.apply(gradient, cos, -sin, ctx.num_heads), None, None, None  # type: ignore[no-untyped-call]


def slopes(num_heads: int) -> Tensor:
    """ALiBi's slope of each head ``(heads,)``."""
    return torch.pow(2.0, -8.0 * torch.arange(1, num_heads + 1) / num_heads)


def positions(count: Tensor, time: int) -> Tensor:
    """Positions of ``time`` inputs after ``count (batch,)`` others: ``(batch, time)``, or ``(1, time)`` where equal."""
    if time == 1:
        return count.unsqueeze(1)
    if len(count) and bool((count == count[0]).all()):
        count = count[:1]
    return count.unsqueeze(1) + torch.arange(time, device=count.device)


def sinusoids(position: Tensor, size: int) -> Tensor:
    """PE of positions ``(...,)``: ``(..., size)``, sines at even places and cosines at odd ones, in float64."""
    angles = position.unsqueeze(-1) * _moved(_frequencies((size + 1) // 2, size), position.device)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)[..., :size]


def _frequencies(count: int, size: int | None = None) -> Tensor:
    """1 / BASE^{2i/size} for i below ``count``, size being twice the count unless given.

    In float64, whatever the model's type, as positions are large.
    """
    return torch.pow(BASE, -2 * torch.arange(count, dtype=torch.float64) / (size or max(2 * count, 1)))


def _moved(frequencies: Tensor, device: torch.device) -> Tensor:
    """The same on a device, in float32 where it has no float64."""
    return frequencies.to(device, torch.float32 if device.type == "mps" else torch.float64)
