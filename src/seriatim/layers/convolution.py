"""Causal, dilated, gated convolutions.

A. van den Oord et al., "WaveNet: a generative model for raw audio", 2016; for text: Y. Dauphin, A. Fan, M. Auli and
D. Grangier, "Language modeling with gated convolutional networks", ICML 2017.

    z_t = tanh(Σ_k W_k x_{t−kd}) ⊙ σ(Σ_k V_k x_{t−kd}),    y_t = x_t + U z_t

x ``inputs``, normalised · k = 0 … ``kernel_size`` − 1 · d the dilation, 1, 2, 4, … from one convolution to the next, so
that each convolution doubles the reach · W, V ``conv``, stacked · U ``out_proj``. Simplified: instead of WaveNet's skip
connections to the output, every convolution adds to one sum.
"""

from typing import Annotated, ClassVar

import torch
from annotated_types import Interval
from torch import Tensor, nn

from ..core.contract import SequenceLayer
from ..core.state import State
from .containers import Residual, Stack
from .option_types import Size, check_sizes
from .path_lengths import direct_paths
from .pointwise import Norm, Pointwise, norm_named
from .unpadded_layer import UnpaddedLayer, remember


class GatedConvolution(UnpaddedLayer):
    """One causal convolution and its gate; it sees ``kernel_size`` inputs at a distance of ``dilation``.

    The state is the last ``(kernel_size − 1) · dilation`` inputs.
    """

    gate_names = ("output",)
    grows = False

    def __init__(self, size: int, *, kernel_size: int, dilation: int, bias: bool = True) -> None:
        super().__init__()
        self.input_size = self.output_size = size
        self.kernel_size, self.dilation = kernel_size, dilation
        self.conv = nn.Linear(kernel_size * size, 2 * size, bias=bias)
        self.out_proj = nn.Linear(size, size, bias=bias)

    def initial_state(self, batch_size: int) -> State:
        """Return zeros ``(batch, reach, size)``."""
        return self.zeros(batch_size, (self.kernel_size - 1) * self.dilation, self.input_size)

    def forward_unpadded(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """Concatenate the shifted inputs and compute one matrix product; see `UnpaddedLayer`."""
        assert isinstance(state, Tensor)
        extended, state = remember(inputs, state)
        time = inputs.shape[1]
        shifted = [extended[:, k * self.dilation : k * self.dilation + time] for k in range(self.kernel_size)]
        content, gate = self.conv(torch.cat(shifted, dim=2)).chunk(2, dim=2)
        return self.out_proj(torch.tanh(content) * torch.sigmoid(gate)), state

    def path_lengths(self, distance: int) -> Tensor:
        """Return the path lengths: inputs at multiples of the dilation are seen directly."""
        return direct_paths(distance, (self.kernel_size - 1) * self.dilation, dilation=self.dilation)


class Convolution(Stack):
    """Gated convolutions, each with a norm and a residual connection; the dilation doubles from each to the next.

    Args:
        input_size: width of an input; a linear map comes first where it differs from ``hidden_size``.
        hidden_size: width of an output.
        kernel_size: the number of inputs that each convolution sees.
        depth: the number of convolutions; together they see 1 + (kernel_size − 1)(2^depth − 1) inputs.
        norm: the name of the norm; see `pointwise.NORMS`.
        bias: whether the convolutions have biases.
    """

    keeps = "the last inputs, as many as its filters cover"
    parallel = True
    learning_rates: ClassVar = {"classify": 3e-3}
    paper = "van den Oord et al. 2016; Dauphin et al. 2017"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        kernel_size: Size = 3,
        depth: Annotated[int, Interval(ge=1, le=24)] = 4,
        norm: Norm = "rms",
        bias: bool = True,
    ) -> None:
        check_sizes(kernel_size=kernel_size, depth=depth)
        layers: list[SequenceLayer] = [
            Residual(GatedConvolution(hidden_size, kernel_size=kernel_size, dilation=2**i, bias=bias), norm=norm)
            for i in range(depth)
        ]
        if input_size != hidden_size:
            layers.insert(0, Pointwise(input_size, hidden_size, module=nn.Linear(input_size, hidden_size)))
        super().__init__(layers, norm=norm_named(norm, hidden_size))
