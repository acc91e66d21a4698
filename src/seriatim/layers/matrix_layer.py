"""What layers with a matrix state have in common: heads, the short convolution before them, and the map after them.

    u           = the inputs, projected and, in some layers, convolved (`seriatim.layers.short_convolution`)
    q, k, v, …  = functions of u, for each head
    o_t, S_t    = one step of the recurrence of `seriatim.layers.matrix_states` or `seriatim.layers.delta_rule`
    y           = W_o (the heads of o, normalised and gated)

A sequence is computed in chunks of time, and a step by its equation; everything else is the same code for both. So the
file of an architecture holds its projections and gates, and functions of the last dimensions alone.
"""

from collections.abc import Callable
from typing import ClassVar, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.contract import Wrap
from ..core.state import State
from .head_norm import HeadNorm
from .matrix_states import matrix_scan, matrix_step
from .path_lengths import direct_paths, joined_paths
from .pointwise import EPSILON
from .scan import at_least_float32
from .short_convolution import init_convolution, short_convolution, short_convolution_step
from .unpadded_layer import UnpaddedLayer

HEAD_SIZE = 64
"""The least width of a head where the number of heads is not given."""

Recurrence: TypeAlias = Callable[..., tuple[Tensor, Tensor]]
Terms: TypeAlias = tuple[tuple[Tensor | None, ...], list[Tensor], tuple[Tensor, ...]]


class MatrixState(NamedTuple):
    """S of every head, ``memory (batch, heads, key_size, value_size)``."""

    memory: Tensor


class ConvolvedState(NamedTuple):
    """The last inputs of the convolution, ``recent (batch, kernel_size − 1, channels)``, and S of every head.

    ``memory`` is ``(batch, heads, key_size, value_size)``.
    """

    recent: Tensor
    memory: Tensor


class MatrixLayer(UnpaddedLayer):
    """A subclass writes `terms`; the state is a ``NamedTuple`` of its own, the matrix last.

    It calls `set_sizes` in its constructor, and `add_convolution` and `add_outputs` where it has these.
    """

    parallel = True
    grows = False
    wrap: ClassVar[Wrap] = "block"  # as in the papers, where the layer takes the place of attention
    undecayed: ClassVar[tuple[str, ...]] = ("conv_weight",)
    state_type: ClassVar[Callable[..., State]]
    scan: ClassVar[Recurrence] = staticmethod(matrix_scan)
    one_step: ClassVar[Recurrence] = staticmethod(matrix_step)
    conv_weight: nn.Parameter | None
    conv_bias: nn.Parameter | None
    widths: list[int]  # of all queries, keys and values
    qkv_proj: nn.Module

    def set_sizes(self, input_size: int, hidden_size: int, *, heads: int, key_size: int, value_size: int) -> None:
        """Set the sizes of the layer, and of its state ``(batch, heads, key_size, value_size)``."""
        self.input_size, self.output_size = input_size, hidden_size
        self.num_heads, self.key_size, self.value_size = heads, key_size, value_size
        self.register_parameter("conv_weight", None)
        self.register_parameter("conv_bias", None)

    def add_convolution(self, channels: int, kernel_size: int, *, bias: bool = False) -> None:
        """Add a short convolution that sees ``kernel_size`` inputs."""
        self.conv_weight = nn.Parameter(torch.empty(kernel_size, channels))
        self.conv_bias = nn.Parameter(torch.empty(channels)) if bias else None
        init_convolution(self.conv_weight, self.conv_bias)

    def add_outputs(self, *, gain: bool = True, epsilon: float = EPSILON, bias: bool = False) -> None:
        """Add the norm of each head and the map of all; see `outputs`."""
        self.o_norm = HeadNorm(self.value_size, gain=gain, epsilon=epsilon)
        self.o_proj = nn.Linear(self.num_heads * self.value_size, self.output_size, bias=bias)

    def initial_state(self, batch_size: int) -> State:
        """Return zeros, of at least float32 for the matrix; see the type of the state."""
        memory = at_least_float32(self.zeros(batch_size, self.num_heads, self.key_size, self.value_size))
        if self.conv_weight is None:
            return self.state_type(memory)
        kernel_size, channels = self.conv_weight.shape
        return self.state_type(self.zeros(batch_size, kernel_size - 1, channels), memory)

    def forward_unpadded(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """Run over a batch without padding; see `UnpaddedLayer`."""
        return self.run(inputs, state, self.scan)

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """Compute the equations once."""
        self.check_step(inputs, state)
        return self.run(inputs, state, self.one_step)

    def run(self, inputs: Tensor, state: State, recurrence: Recurrence) -> tuple[Tensor, State]:
        """Compute a sequence ``(batch, time, input_size)``, or one step ``(batch, input_size)``."""
        *before, memory = cast(tuple[Tensor, ...], state)
        terms, after, rest = self.terms(inputs, before)
        heads, memory = recurrence(*terms, memory)
        return self.outputs(heads, *rest), self.state_type(*after, memory)

    def terms(self, inputs: Tensor, before: list[Tensor]) -> Terms:
        """Return what the recurrence reads, the other parts of the next state, and what `outputs` reads.

        Args:
            inputs: ``(batch, time, input_size)``, or of one step ``(batch, input_size)``.
            before: the other parts of the state before.
        """
        raise NotImplementedError

    def outputs(self, heads: Tensor, *rest: Tensor) -> Tensor:
        """Normalise, gate and map the heads ``(..., heads, value_size)`` to outputs ``(..., output_size)``."""
        normed = self.o_norm(heads).flatten(-2).to(self.o_proj.weight.dtype)
        mapped: Tensor = self.o_proj(normed * rest[0] if rest else normed)
        return mapped

    def convolved(self, inputs: Tensor, before: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return SiLU of the convolution of inputs ``(..., channels)``, and the last of them."""
        run = short_convolution_step if inputs.dim() == 2 else short_convolution
        convolved, recent = run(inputs, before[0], cast(Tensor, self.conv_weight), self.conv_bias)
        return F.silu(convolved), [recent]

    def path_lengths(self, distance: int) -> Tensor:
        """Return the path lengths: the convolution sees its inputs directly, the recurrence proceeds step by step."""
        lengths = super().path_lengths(distance)
        if self.conv_weight is None:
            return lengths
        return joined_paths([direct_paths(distance, len(self.conv_weight) - 1), lengths])


def split_heads(x: Tensor, size: int) -> Tensor:
    """Return ``(..., heads · size)`` as ``(..., heads, size)``."""
    return torch.unflatten(x, -1, (-1, size))
