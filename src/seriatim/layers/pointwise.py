"""Functions of each position alone: activations, norms, dropout, products of heads, and the layer of a module.

Layer norm: J. L. Ba, J. R. Kiros and G. E. Hinton, "Layer normalization", 2016. RMS norm: B. Zhang and R. Sennrich,
"Root mean square layer normalization", NeurIPS 2019. Variational dropout: Y. Gal and Z. Ghahramani, "A theoretically
grounded application of dropout in recurrent neural networks", NeurIPS 2016.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated

import torch
from annotated_types import Interval
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.contract import SequenceLayer, check_batch_size
from ..core.errors import require_known
from ..core.lengths import valid_mask
from ..core.random_masks import dropout_mask
from ..core.state import OutputsAndState, State
from ..core.step_operators import tracing_step
from .option_types import OneOf, Rate, check_value
from .path_lengths import direct_paths

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "softplus": F.softplus,
    "softsign": F.softsign,
    "elu": F.elu,
    "selu": F.selu,
    "leaky-relu": F.leaky_relu,
    "hardtanh": F.hardtanh,
    "sin": torch.sin,
    "identity": lambda x: x,
}
Activation = Annotated[str, OneOf(ACTIVATIONS)]


def activation_named(name: str) -> Callable[[Tensor], Tensor]:
    """Return the activation with a name, or raise InputError."""
    return ACTIVATIONS[require_known("activation", name, ACTIVATIONS)]


class LayerNorm(nn.LayerNorm):
    """`torch.nn.LayerNorm`, computed in the type of its weights also where autocast makes the inputs narrower."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise ``(..., size)``."""
        return super().forward(inputs.to(self.weight.dtype))


class RMSNorm(nn.RMSNorm):
    """`torch.nn.RMSNorm` with the same change."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise ``(..., size)``."""
        return super().forward(inputs.to(self.weight.dtype))


EPSILON = 1e-5
Epsilon = Annotated[float, Interval(gt=0, le=1)]
NORMS: dict[str, type[LayerNorm] | type[RMSNorm]] = {"layer": LayerNorm, "rms": RMSNorm}
Norm = Annotated[str, OneOf(NORMS)]


def norm_named(name: str, size: int, *, epsilon: float = EPSILON) -> nn.Module:
    """Return a norm over the last dimension, of width ``size``, or raise InputError for an unknown name."""
    return NORMS[require_known("norm", name, NORMS)](size, eps=epsilon)


class Dropout(nn.Module):
    """Dropout of single values."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, inputs: Tensor) -> Tensor:
        """Drop values of a tensor of any shape."""
        return inputs * dropout_mask(tuple(inputs.shape), self.p, inputs) if self.training else inputs

    def extra_repr(self) -> str:
        """Return the rate, for ``print``."""
        return f"p={self.p}"


class VariationalDropout(Dropout):
    """Dropout of whole features: one mask for each row, the same at every time step of a call.

    A sequence that is run in windows draws a new mask for each window.
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """Drop features of ``(batch, time, size)``, or of one step ``(batch, size)``."""
        if not self.training:
            return inputs
        return inputs * dropout_mask((inputs.shape[0], *[1] * (inputs.dim() - 2), inputs.shape[-1]), self.p, inputs)


def make_dropout(p: float, *, variational: bool = False) -> nn.Module:
    """Return dropout at rate ``p`` in [0, 0.99], of single values or, where ``variational``, of whole features."""
    check_value("dropout", p, Rate)
    if p == 0:
        return nn.Identity()
    return VariationalDropout(p) if variational else Dropout(p)


def per_head(rows: Tensor, matrices: Tensor) -> Tensor:
    """Return the products of rows ``(..., heads, size)`` with a matrix for each head ``(heads, size, width)``."""
    if tracing_step():  # a compiled step multiplies rows ``(batch, size)`` by one matrix after another
        return torch.stack([row @ matrix for row, matrix in zip(rows.unbind(1), matrices.unbind(), strict=True)], dim=1)
    return torch.einsum("...hd,hde->...he", rows, matrices)


class Pointwise(SequenceLayer):
    """A layer that applies a module to every position; its state is the empty tuple.

    Args:
        input_size: width of an input.
        output_size: width of the module's output.
        module: a function ``(..., input_size)`` to ``(..., output_size)``.
    """

    keeps = "nothing"
    parallel = True

    def __init__(self, input_size: int, output_size: int, *, module: nn.Module) -> None:
        super().__init__()
        self.input_size, self.output_size, self.module = input_size, output_size, module

    def initial_state(self, batch_size: int) -> State:
        """Return the empty tuple."""
        check_batch_size(batch_size)
        return ()

    def forward(self, inputs: Tensor, state: State | None = None, *, lengths: Tensor | None = None) -> OutputsAndState:
        """Run the module over the valid positions of ``(batch, time, input_size)``; see `SequenceLayer.forward`."""
        inputs, state, lengths = self.begin(inputs, state, lengths)
        if lengths is None:
            return self.module(inputs), state
        mask = valid_mask(lengths.to(inputs.device), inputs.shape[1])
        valid = self.module(inputs[mask])
        outputs = valid.new_zeros(*inputs.shape[:2], self.output_size)
        return outputs.masked_scatter(mask.unsqueeze(2), valid), state

    def step(self, inputs: Tensor, state: State) -> OutputsAndState:
        """Run the module once."""
        self.check_step(inputs, state)
        return self.module(inputs), state

    def path_lengths(self, distance: int) -> Tensor:
        """Return the path lengths: an output depends on the present input only."""
        return direct_paths(distance, 0)
