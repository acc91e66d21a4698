"""Gated recurrent unit, as in the paper and in textbooks.

K. Cho et al., "Learning phrase representations using RNN encoder-decoder for statistical machine translation",
EMNLP 2014.

    r_t = σ(W_r x_t + U_r h_{t−1} + b_r)            reset gate
    z_t = σ(W_z x_t + U_z h_{t−1} + b_z)            update gate
    h̃_t = tanh(W_h x_t + U_h (r_t ⊙ h_{t−1}) + b_h)  candidate
    h_t = (1 − z_t) ⊙ h_{t−1} + z_t ⊙ h̃_t

x_t inputs · h_t outputs and the state · W, b ``w``, stacked r, z, h̃ · U_r, U_z ``u``, stacked r, z · U_h
``u_candidate``. Biases are added unless ``bias`` is false; the paper has none. Nothing is simplified.

The reset gate acts before the recurrent product, and z takes the new state. (In the EMNLP paper itself z keeps the old
state; textbooks exchanged the two.) The registered ``gru`` (`seriatim.layers.gru`) differs in both, as cuDNN does.
"""

import torch
from torch import Tensor, nn

from ..core.contract import RecurrentCell, UnitUpdate
from ..core.state import State
from .gated_cell import initialize_gates


class OriginalGRU(RecurrentCell):
    """A gated recurrent unit whose reset gate acts before the product. The state is one vector.

    Args:
        bias: whether there is a bias.
    """

    keeps = "one vector"
    paper = "Cho et al. 2014, reset gate before the product as in the paper"
    gate_names = ("reset", "update (takes)")
    unit_update = UnitUpdate(("r", "z", "h̃"), ("h",), ("h = (1 − z) · h′ + z · h̃",))
    recurrent_weights = ("u.weight", "u_candidate.weight")

    def __init__(self, input_size: int, hidden_size: int, *, bias: bool = True) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, hidden_size
        self.w = nn.Linear(input_size, 3 * hidden_size, bias=bias)
        self.u = nn.Linear(hidden_size, 2 * hidden_size, bias=False)
        self.u_candidate = nn.Linear(hidden_size, hidden_size, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the weights gate by gate (see `initialize_gates`) and the biases to zero."""
        candidate = 2 * self.output_size
        initialize_gates(self.w.weight[:candidate], self.u.weight, gates=2)
        initialize_gates(self.w.weight[candidate:], self.u_candidate.weight, gates=1)
        if self.w.bias is not None:
            nn.init.zeros_(self.w.bias)

    def initial_state(self, batch_size: int) -> State:
        """Return zeros ``(batch, hidden_size)``."""
        return self.zeros(batch_size, self.output_size)

    def forward(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """Compute the four equations."""
        assert isinstance(state, Tensor)
        x_r, x_z, x_h = self.w(inputs).chunk(3, dim=1)
        u_r, u_z = self.u(state).chunk(2, dim=1)
        r, z = torch.sigmoid(x_r + u_r), torch.sigmoid(x_z + u_z)
        candidate = torch.tanh(x_h + self.u_candidate(r * state))
        hidden = (1 - z) * state + z * candidate
        return hidden, hidden
