"""What surrounds a layer: norms, residual connections, attention to a memory and a feed-forward network.

K. He et al., "Deep residual learning for image recognition", CVPR 2016. The position of the norm: R. Xiong et al., "On
layer normalization in the transformer architecture", ICML 2020. The block: A. Vaswani et al., "Attention is all you
need", NeurIPS 2017; any sequence layer can take the place of attention, see W. Yu et al., "MetaFormer is actually what
you need for vision", CVPR 2022.

    norm first:  y = x + layer(norm(x))
    norm last:   y = norm(x + layer(x))

    u = x + layer(norm(x))
    v = u + CrossAttention(norm(u), memory)      in a block with a memory
    y = v + FeedForward(norm(v))                 in a whole block
"""

from typing import Any

import torch
from torch import Tensor

from ..core.contract import MemoryLayer, SequenceLayer, begin_state
from ..core.errors import InputError
from ..core.lengths import padding_cleared, zero_padding
from ..core.state import OutputsAndState, State
from .path_lengths import direct_paths
from .pointwise import EPSILON, Epsilon, Norm, make_dropout, norm_named
from .stack import check_parts


class Residual(SequenceLayer):
    """A layer with a norm and a residual connection; the state is that of the layer.

    Args:
        layer: a layer whose outputs have the width of its inputs.
        norm: the name of the norm; see `pointwise.NORMS`.
        norm_first: apply the norm before each part instead of after each sum.
        norm_epsilon: is added to the variance or mean square of what is normalized.
        dropout: rate on the outputs of the layer.
        variational: use one dropout mask for a sequence instead of one for each step.

    Raises:
        InputError: the layer changes the width, or attends to a memory (see `MemoryResidual`).
    """

    def __init__(
        self,
        layer: SequenceLayer,
        *,
        norm: Norm = "rms",
        norm_first: bool = True,
        norm_epsilon: Epsilon = EPSILON,
        dropout: float = 0.0,
        variational: bool = False,
    ) -> None:
        super().__init__()
        check_parts(self, [layer])
        if layer.input_size != layer.output_size:
            raise InputError(
                f"a residual connection needs equal widths; this layer takes {layer.input_size} features "
                f"and gives {layer.output_size}"
            )
        self.norm = norm_named(norm, layer.input_size, epsilon=norm_epsilon)
        self.norm_first = norm_first
        self.layer = layer
        self.dropout = make_dropout(dropout, variational=variational)
        self.input_size, self.output_size, self.causal = layer.input_size, layer.output_size, layer.causal

    def initial_state(self, batch_size: int, *memory: Any, **named: Any) -> State:
        """Return the initial state of the layer; the arguments are those of `begin_state`."""
        return begin_state(self.layer, batch_size, *memory, **named)

    def forward(self, inputs: Tensor, state: State | None = None, *, lengths: Tensor | None = None) -> OutputsAndState:
        """Run the layer over ``(batch, time, input_size)``; see `SequenceLayer.forward`."""
        inputs, state, lengths = self.begin(inputs, state, lengths)
        with padding_cleared(lengths):
            outputs, state = self.layer(self.before(inputs), state, lengths=lengths)
        return zero_padding(self.after(inputs, outputs), lengths), state

    def step(self, inputs: Tensor, state: State) -> OutputsAndState:
        """Compute one step of the layer."""
        self.check_input(inputs)
        outputs, state = self.layer.step(self.before(inputs), state)
        return self.after(inputs, outputs), state

    def path_lengths(self, distance: int) -> Tensor:
        """Return the path lengths of the layer; the residual connection passes on the present input."""
        return torch.minimum(self.layer.path_lengths(distance), direct_paths(distance, 0))

    def before(self, inputs: Tensor) -> Tensor:
        """Return the inputs of the layer, normalised where the norm comes first."""
        return self.norm(inputs) if self.norm_first else inputs

    def after(self, inputs: Tensor, outputs: Tensor) -> Tensor:
        """Return the sum, normalised where the norm comes last."""
        total: Tensor = inputs + self.dropout(outputs)
        return total if self.norm_first else self.norm(total)


class MemoryResidual(Residual, MemoryLayer):
    """A `Residual` around a layer that attends to a memory."""


def with_residual(layer: SequenceLayer, **options: Any) -> Residual:
    """Return a `Residual`, or a `MemoryResidual` where the layer attends to a memory; options as for `Residual`."""
    return (MemoryResidual if isinstance(layer, MemoryLayer) else Residual)(layer, **options)
