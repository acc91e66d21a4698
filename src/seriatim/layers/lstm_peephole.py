"""Long short-term memory whose gates see the cell state.

F. Gers and J. Schmidhuber, "Recurrent nets that time and count", IJCNN 2000.

    i_t = σ(W_i x_t + U_i h_{t−1} + p_i ⊙ C_{t−1} + b_i)   input gate
    f_t = σ(W_f x_t + U_f h_{t−1} + p_f ⊙ C_{t−1} + b_f)   forget gate
    C̃_t = tanh(W_C x_t + U_C h_{t−1} + b_C)                candidate
    C_t = f_t ⊙ C_{t−1} + i_t ⊙ C̃_t
    o_t = σ(W_o x_t + U_o h_{t−1} + p_o ⊙ C_t + b_o)       output gate
    h_t = o_t ⊙ tanh(C_t)

The paper's peepholes are diagonal: the gates of a unit see its own cell state. With ``peephole="full"`` the p are
matrices, and p_i C_{t−1} is a matrix product, as textbooks print it: σ(W [C; h; x] + b).

x_t inputs · h_t outputs and ``state.hidden`` · C_t ``state.cell`` · W, b ``w`` · U ``u`` · p ``peepholes``. Gates are
stacked i, f, C̃, o in ``w`` and ``u`` as in `torch.nn.LSTM`, and i, f, o in ``peepholes``. Simplified: peepholes
start at zero, so that the cell starts as an ordinary LSTM.
"""

from typing import Annotated, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.contract import UnitUpdate
from ..core.errors import require_known
from ..core.state import State
from .gated_cell import GatedLSTM, LSTMState
from .option_types import GateBias, OneOf

PEEPHOLES = ("diagonal", "full")
Peephole = Annotated[str, OneOf(PEEPHOLES)]


class PeepholeLSTMState(LSTMState):
    """The state of a `PeepholeLSTM`."""


class PeepholeLSTM(GatedLSTM):
    """Long short-term memory with peepholes; see `GatedLSTM` for the other arguments.

    Args:
        peephole: `diagonal`, one number for each unit and gate, or `full`, one matrix for each gate.
    """

    paper = "Gers & Schmidhuber 2000"
    gate_names = ("input", "forget", "output")
    unit_update = UnitUpdate(("i", "f", "g", "o", "tanh c"), ("h", "c"), ("c = f · c′ + i · g", "h = o · tanh c"))
    undecayed = ("peepholes",)
    gates = 4
    state_type = PeepholeLSTMState
    forget_gate = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        peephole: Peephole = "diagonal",
        bias: bool = True,
        forget_bias: GateBias = 1.0,
    ) -> None:
        super().__init__(input_size, hidden_size, bias=bias, forget_bias=forget_bias)
        self.full = require_known("peephole", peephole, PEEPHOLES) == "full"
        self.peepholes = nn.Parameter(torch.zeros(3, *[hidden_size] * (1 + self.full)))

    def forward(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """Compute the six equations."""
        hidden, cell = cast(PeepholeLSTMState, state)
        i, f, candidate, o = (self.w(inputs) + self.u(hidden)).chunk(4, dim=1)
        p_i, p_f, p_o = self.peepholes.unbind()
        i, f = torch.sigmoid(i + self.peep(p_i, cell)), torch.sigmoid(f + self.peep(p_f, cell))
        cell = f * cell + i * torch.tanh(candidate)
        hidden = torch.sigmoid(o + self.peep(p_o, cell)) * torch.tanh(cell)
        return hidden, PeepholeLSTMState(hidden, cell)

    def peep(self, p: Tensor, cell: Tensor) -> Tensor:
        """Return p ⊙ C, or p C for full peepholes."""
        return F.linear(cell, p) if self.full else p * cell
