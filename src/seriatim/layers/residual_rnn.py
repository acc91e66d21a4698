"""The recurrent network with a residual connection through time and no gate.

As textbooks print it, after K. He et al., "Deep residual learning for image recognition", CVPR 2016.

    h̃_t = tanh(W x_t + U h_{t−1} + b)
    h_t = h_{t−1} + h̃_t,  h_0 = 0

x_t inputs · h_t outputs and the state · W, b ``w`` · U ``u``. Nothing is simplified.

The gradient through one step is I + diag(1 − h̃²) U, which explodes where U has eigenvalues with a positive real part. U
therefore starts as −diag(a), with a spread evenly over (0, 1]: each unit leaks at its own rate, h stays bounded, and
memories last from one step to ``hidden_size`` steps.
"""

import torch
from torch import Tensor, nn

from ..core.contract import UnitUpdate
from ..core.state import State
from .gated_cell import GatedCell


class ResidualRNN(GatedCell):
    """A state to which every step adds; see `GatedCell` for the arguments."""

    paper = "after He et al. 2016, through time"
    unit_update = UnitUpdate(("n",), ("h",), ("h = h′ + n",))
    gates = 1

    def reset_parameters(self) -> None:
        """Initialise input weights Glorot-uniformly, the leak of every unit as described above, biases to zero."""
        nn.init.xavier_uniform_(self.w.weight)
        if self.w.bias is not None:
            nn.init.zeros_(self.w.bias)
        self.u.weight.data.copy_(-torch.diag(torch.arange(1, self.output_size + 1) / self.output_size))

    def forward(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """Compute the two equations."""
        assert isinstance(state, Tensor)
        hidden = state + torch.tanh(self.w(inputs) + self.u(state))
        return hidden, hidden
