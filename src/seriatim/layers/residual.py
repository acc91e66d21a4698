"""A residual connection and a norm around a layer.

K. He et al., "Deep residual learning for image recognition", CVPR 2016; where the norm stands: R. Xiong et al., "On
layer normalization in the transformer architecture", ICML 2020.

    norm first:  y = x + layer(norm(x))
    norm last:   y = norm(x + layer(x))
"""

import torch
from torch import Tensor

from ..core.contract import SequenceLayer
from ..core.errors import InputError
from ..core.lengths import within, zero_padding
from ..core.state import State
from .dropout import dropout as make_dropout
from .norms import norm as norm_named
from .paths import direct_paths


class Residual(SequenceLayer):
    """Adds what went into a layer to what comes out of it; the state is the layer's.

    Args:
        layer: gives as many features as it takes.
        norm: by name; see `norms`.
        norm_first: before the layer, or else after the sum.
        dropout: rate on what the layer gives.
        variational: one dropout mask a sequence instead of one a step.

    Raises:
        ValueError: the layer changes the width.
    """

    def __init__(
        self,
        layer: SequenceLayer,
        *,
        norm: str = "rms",
        norm_first: bool = True,
        dropout: float = 0.0,
        variational: bool = False,
    ) -> None:
        super().__init__()
        if layer.input_size != layer.output_size:
            raise InputError(
                f"a residual connection needs equal widths; this layer takes {layer.input_size} features "
                f"and gives {layer.output_size}"
            )
        self.norm = norm_named(norm, layer.input_size)
        self.norm_first = norm_first
        self.layer = layer
        self.dropout = make_dropout(dropout, variational=variational)
        self.input_size, self.output_size = layer.input_size, layer.output_size
        self.causal, self.takes_memory = layer.causal, layer.takes_memory

    def initial_state(
        self, batch_size: int, memory: Tensor | None = None, memory_lengths: Tensor | None = None
    ) -> State:
        """The layer's."""
        return self.layer.initial_state(batch_size, memory, memory_lengths)

    def forward(
        self, inputs: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Runs the layer over ``(batch, time, input_size)``; see `SequenceLayer.forward`."""
        inputs, state, lengths = self.begin(inputs, state, lengths)
        outputs, state = self.layer(self.before(inputs), state, lengths=within(lengths))
        return zero_padding(self.after(inputs, outputs), lengths), state

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """One step of the layer."""
        self.check_input(inputs)
        outputs, state = self.layer.step(self.before(inputs), state)
        return self.after(inputs, outputs), state

    def path_lengths(self, distance: int) -> Tensor:
        """The layer's; the residual connection passes the present input on."""
        return torch.minimum(self.layer.path_lengths(distance), direct_paths(distance, 0))

    def before(self, inputs: Tensor) -> Tensor:
        """What the layer reads."""
        if self.norm_first:
            inputs = self.norm(inputs)
        return inputs

    def after(self, inputs: Tensor, outputs: Tensor) -> Tensor:
        """The sum, normalised where the norm comes last."""
        total: Tensor = inputs + self.dropout(outputs)
        if not self.norm_first:
            total = self.norm(total)
        return total
