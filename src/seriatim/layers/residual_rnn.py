"""The recurrent network with a residual connection through time, and no gate.

The step between Elman's network and gated ones, as textbooks print it.

    h̃_t = tanh(W x_t + U h_{t−1} + b)
    h_t = h_{t−1} + h̃_t,  h_0 = 0

x_t inputs · h_t outputs and the state · W, b ``w`` · U ``u``. Nothing is simplified.

The gradient through one step is I + diag(1 − h̃²) U, which any U with eigenvalues to the right of zero makes explode:
a random or an orthogonal one doubles some directions at every step. U therefore starts as −diag(a), with a spread
evenly over (0, 1]. Each unit starts as a sum that leaks at its own rate: the gradient through one step lies between
0 and 1, h stays bounded, and memories last from one step to ``hidden_size`` steps.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from ..core.contract import RecurrentCell
from ..core.state import State


class ResidualRNN(RecurrentCell):
    """A state that is added to, never replaced. It is one vector ``(batch, hidden_size)``.

    Args:
        input_size: width of an input.
        hidden_size: width of the state.
        bias: whether there is a bias.
    """

    keeps = "one vector"
    paper = "after He et al. 2016, through time"
    recurrent_weights: ClassVar[tuple[str, ...]] = ("u.weight",)

    def __init__(self, input_size: int, hidden_size: int, *, bias: bool = True) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, hidden_size
        self.w = nn.Linear(input_size, hidden_size, bias=bias)
        self.u = nn.Linear(hidden_size, hidden_size, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot-uniform input weights, a leak of its own for every unit, zero biases."""
        nn.init.xavier_uniform_(self.w.weight)
        if self.w.bias is not None:
            nn.init.zeros_(self.w.bias)
        self.u.weight.data.copy_(-torch.diag(torch.arange(1, self.output_size + 1) / self.output_size))

    def initial_state(self, batch_size: int) -> Tensor:
        """Zeros ``(batch, hidden_size)``."""
        return self.zeros(batch_size, self.output_size)

    def forward(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """The two equations."""
        assert isinstance(state, Tensor)
        candidate = torch.tanh(self.w(inputs) + self.u(state))
        hidden = state + candidate
        return hidden, hidden
