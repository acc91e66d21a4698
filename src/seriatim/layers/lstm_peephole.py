"""Long short-term memory whose gates see the cell.

F. Gers and J. Schmidhuber, "Recurrent nets that time and count", IJCNN 2000.

    i_t = σ(W_i x_t + U_i h_{t−1} + p_i ⊙ C_{t−1} + b_i)   input gate
    f_t = σ(W_f x_t + U_f h_{t−1} + p_f ⊙ C_{t−1} + b_f)   forget gate
    C̃_t = tanh(W_C x_t + U_C h_{t−1} + b_C)                candidate
    C_t = f_t ⊙ C_{t−1} + i_t ⊙ C̃_t
    o_t = σ(W_o x_t + U_o h_{t−1} + p_o ⊙ C_t + b_o)       output gate
    h_t = o_t ⊙ tanh(C_t)

The paper's peepholes are diagonal: each cell is seen by its own gates. With ``peephole="full"`` the p are matrices and
the products with them ordinary ones, p_i C_{t−1}: the form in which textbooks print them, σ(W [C; h; x] + b).

x_t inputs · h_t outputs and ``state.hidden`` · C_t ``state.cell`` · W, b ``w`` · U ``u`` · p ``peepholes``. Gates are
stacked i, f, C̃, o in ``w`` and ``u`` as in `torch.nn.LSTM`, and i, f, o in ``peepholes``. Simplified: peepholes
start at zero, so that the cell starts as an ordinary LSTM.
"""

from typing import Annotated, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.contract import RecurrentCell
from ..core.errors import InputError, nearest
from ..core.state import State
from .initialization import initialize_gates
from .lstm import LSTMState
from .option_types import GateBias, OneOf

PEEPHOLES = ("diagonal", "full")
Peephole = Annotated[str, OneOf(PEEPHOLES)]


class PeepholeLSTM(RecurrentCell):
    """Long short-term memory with peepholes. The state is hidden and cell, both ``(batch, hidden_size)``.

    Args:
        input_size: width of an input.
        hidden_size: width of hidden and cell state.
        peephole: `diagonal`, one number a cell and gate, or `full`, one matrix a gate.
        bias: whether gates and candidate have biases.
        forget_bias: what the forget gate's bias starts at, where there is one.
    """

    keeps = "two vectors: hidden and cell"
    paper = "Gers & Schmidhuber 2000"
    gate_names = ("input", "forget", "output")
    recurrent_weights: ClassVar[tuple[str, ...]] = ("u.weight",)
    undecayed = ("peepholes",)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        peephole: Peephole = "diagonal",
        bias: bool = True,
        forget_bias: GateBias = 1.0,
    ) -> None:
        super().__init__()
        if peephole not in PEEPHOLES:
            raise InputError(f"unknown peephole {peephole!r}; {nearest(peephole, list(PEEPHOLES))}")
        self.input_size, self.output_size, self.forget_bias = input_size, hidden_size, forget_bias
        self.w = nn.Linear(input_size, 4 * hidden_size, bias=bias)
        self.u = nn.Linear(hidden_size, 4 * hidden_size, bias=False)
        self.full = peephole == "full"
        self.peepholes = nn.Parameter(torch.empty(3, *[hidden_size] * (1 + self.full)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot-uniform and orthogonal, gate by gate; zero biases but for the forget gate's, and no peepholes yet."""
        initialize_gates(self.w.weight, self.u.weight, gates=4)
        if self.w.bias is not None:
            nn.init.zeros_(self.w.bias)
            nn.init.constant_(self.w.bias.data.chunk(4)[1], self.forget_bias)
        nn.init.zeros_(self.peepholes)

    def initial_state(self, batch_size: int) -> LSTMState:
        """Zeros, both ``(batch, hidden_size)``."""
        return LSTMState(self.zeros(batch_size, self.output_size), self.zeros(batch_size, self.output_size))

    def forward(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """The six equations."""
        hidden, cell = cast(LSTMState, state)
        i, f, candidate, o = (self.w(inputs) + self.u(hidden)).chunk(4, dim=1)
        p_i, p_f, p_o = self.peepholes.unbind()
        i, f = torch.sigmoid(i + self.seen(cell, p_i)), torch.sigmoid(f + self.seen(cell, p_f))
        cell = f * cell + i * torch.tanh(candidate)
        hidden = torch.sigmoid(o + self.seen(cell, p_o)) * torch.tanh(cell)
        return hidden, LSTMState(hidden, cell)

    def seen(self, cell: Tensor, peephole: Tensor) -> Tensor:
        """What a gate sees of the cell."""
        return F.linear(cell, peephole) if self.full else peephole * cell
