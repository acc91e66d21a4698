"""Long short-term memory with coupled gates: the input gate is one minus the forget gate.

K. Greff, R. K. Srivastava, J. Koutník, B. R. Steunebrink and J. Schmidhuber, "LSTM: a search space odyssey", IEEE
Transactions on Neural Networks and Learning Systems 28(10), 2017 (the variant CIFG).

    f_t = σ(W_f x_t + U_f h_{t−1} + b_f)      forget gate; the input gate is 1 − f_t
    C̃_t = tanh(W_C x_t + U_C h_{t−1} + b_C)   candidate
    o_t = σ(W_o x_t + U_o h_{t−1} + b_o)      output gate
    C_t = f_t ⊙ C_{t−1} + (1 − f_t) ⊙ C̃_t
    h_t = o_t ⊙ tanh(C_t)

x_t inputs · h_t outputs and ``state.hidden`` · C_t ``state.cell`` · W, b ``w`` · U ``u``. Gates are stacked f, C̃, o.
Simplified: the paper's variant also has peepholes.
"""

from typing import cast

import torch
from torch import Tensor

from ..core.contract import UnitUpdate
from ..core.state import State
from .gated_cell import GatedLSTM, LSTMState


class CoupledLSTMState(LSTMState):
    """The state of a `CoupledLSTM`."""


class CoupledLSTM(GatedLSTM):
    """Long short-term memory with one gate for input and forgetting; see `GatedLSTM` for the arguments."""

    paper = "Greff et al. 2017"
    gate_names = ("forget", "output")
    unit_update = UnitUpdate(("f", "g", "o", "tanh c"), ("h", "c"), ("c = f · c′ + (1 − f) · g", "h = o · tanh c"))
    gates = 3
    state_type = CoupledLSTMState
    forget_gate = 0

    def forward(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """Compute the five equations."""
        hidden, cell = cast(CoupledLSTMState, state)
        f, candidate, o = (self.w(inputs) + self.u(hidden)).chunk(3, dim=1)
        f = torch.sigmoid(f)
        cell = f * cell + (1 - f) * torch.tanh(candidate)
        hidden = torch.sigmoid(o) * torch.tanh(cell)
        return hidden, CoupledLSTMState(hidden, cell)
