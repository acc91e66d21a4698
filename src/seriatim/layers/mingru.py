"""The minimal gated recurrent unit that trains in parallel over time.

L. Feng, F. Tung, M. O. Ahmed, Y. Bengio and H. Hajimirsadeghi, "Were RNNs all we needed?", arXiv:2410.01201, 2024.

    z_t = σ(W_z x_t + b_z)    update gate
    h̃_t = W_h x_t + b_h       candidate
    h_t = (1 − z_t) ⊙ h_{t−1} + z_t ⊙ h̃_t

x_t inputs · h_t outputs and the state · W, b ``w``, stacked z, h̃. Gate and candidate do not see the state, so that the
recurrence is linear in the state and can be trained by a scan (`seriatim.layers.scan`).

Simplified: the paper also has a form that keeps h positive, for a scan with logarithms; here h may be negative.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from ..core.state import State
from .scan import linear_scan
from .unpadded_layer import UnpaddedLayer


class MinGRU(UnpaddedLayer):
    """A gated average of candidates computed from the inputs. The state is one vector ``(batch, hidden_size)``.

    Args:
        bias: whether there is a bias.
    """

    parallel = True
    keeps = "one vector"
    paper = "Feng et al. 2024"
    gate_names: ClassVar[tuple[str, ...]] = ("update (takes)",)
    maps: ClassVar[int] = 2
    """The number of maps of the input, the last of which gives the candidate."""

    def __init__(self, input_size: int, hidden_size: int, *, bias: bool = True) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, hidden_size
        self.w = nn.Linear(input_size, self.maps * hidden_size, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise weights Glorot-uniformly, map by map, and biases to zero."""
        for weight in self.w.weight.data.chunk(self.maps):
            nn.init.xavier_uniform_(weight)
        if self.w.bias is not None:
            nn.init.zeros_(self.w.bias)

    def initial_state(self, batch_size: int) -> Tensor:
        """Return zeros ``(batch, hidden_size)``."""
        return self.zeros(batch_size, self.output_size)

    def forward_unpadded(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """Run over a batch without padding; see `UnpaddedLayer`."""
        assert isinstance(state, Tensor)
        outputs = linear_scan(*self.terms(inputs, state), state)
        return outputs, outputs[:, -1].clone()  # a view would keep all outputs in memory

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """Compute the equations once."""
        self.check_step(inputs, state)
        assert isinstance(state, Tensor)
        kept, added = self.terms(inputs, state)
        hidden = kept * state + added
        return hidden, hidden

    def terms(self, inputs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return 1 − z, by which the state is multiplied, and z ⊙ h̃, which is added to it."""
        z, candidate = self.mapped(inputs, state)
        z = torch.sigmoid(z)
        return 1 - z, z * candidate

    def mapped(self, inputs: Tensor, state: Tensor) -> tuple[Tensor, ...]:
        """Return the maps of the inputs in the state's type, which autocast does not change."""
        maps: Tensor = self.w(inputs).to(state.dtype)
        return maps.chunk(self.maps, dim=-1)
