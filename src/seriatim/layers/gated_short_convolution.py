"""The gated short convolution: a convolution over a few inputs between two gates that are linear maps of the input.

Liquid AI, "LFM2 technical report", arXiv:2511.23404, 2025; details as in the code of LFM2 in `transformers`.

    B_t, C_t, x_t = W_in u_t
    z_t           = Σ_k w_k ⊙ (B ⊙ x)_{t−K+1+k}      causal, each channel on its own
    y_t           = W_out (C_t ⊙ z_t)

u inputs · y outputs · the last K − 1 of B ⊙ x the state · W_in ``in_proj`` · w ``conv_weight`` · W_out ``out_proj``.
With ``bias``, both maps and the convolution have biases. This is the layer alone: `seriatim.layer` puts it into a block
by default. Nothing is simplified.
"""

import torch
from torch import Tensor, nn

from ..core.state import State
from .option_types import Size, check_sizes
from .path_lengths import direct_paths
from .short_convolution import short_convolution, short_convolution_step
from .unpadded_layer import UnpaddedLayer


class GatedShortConvolution(UnpaddedLayer):
    """One gated short convolution. The state is the last gated inputs ``(batch, kernel_size − 1, hidden_size)``.

    Args:
        kernel_size: K, the number of inputs that the convolution sees.
        bias: whether the maps and the convolution have biases.
    """

    keeps = "the last inputs of a short convolution"
    paper = "Liquid AI 2025"
    parallel = True
    wrap = "block"
    grows = False
    undecayed = ("conv_weight",)
    conv_bias: nn.Parameter | None

    def __init__(self, input_size: int, hidden_size: int, *, kernel_size: Size = 3, bias: bool = False) -> None:
        super().__init__()
        check_sizes(kernel_size=kernel_size)
        self.input_size, self.output_size, self.kernel_size = input_size, hidden_size, kernel_size
        self.in_proj = nn.Linear(input_size, 3 * hidden_size, bias=bias)
        bound = kernel_size**-0.5
        self.conv_weight = nn.Parameter(torch.empty(kernel_size, hidden_size).uniform_(-bound, bound))
        self.register_parameter("conv_bias", nn.Parameter(torch.zeros(hidden_size)) if bias else None)
        self.out_proj = nn.Linear(hidden_size, hidden_size, bias=bias)

    def initial_state(self, batch_size: int) -> State:
        """Return zeros ``(batch, kernel_size − 1, hidden_size)``."""
        return self.zeros(batch_size, self.kernel_size - 1, self.output_size)

    def path_lengths(self, distance: int) -> Tensor:
        """Return the path lengths: the inputs of the convolution are seen directly."""
        return direct_paths(distance, self.kernel_size - 1)

    def forward_unpadded(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """Run over a batch without padding; see `UnpaddedLayer`."""
        assert isinstance(state, Tensor)
        b, c, x = self.in_proj(inputs).chunk(3, dim=2)  # (B, T, D) each
        z, state = short_convolution(b * x, state, self.conv_weight, self.conv_bias)
        return self.out_proj(c * z), state

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """Compute the equations once."""
        self.check_step(inputs, state)
        assert isinstance(state, Tensor)
        b, c, x = self.in_proj(inputs).chunk(3, dim=-1)
        z, state = short_convolution_step(b * x, state, self.conv_weight, self.conv_bias)
        return self.out_proj(c * z), state
