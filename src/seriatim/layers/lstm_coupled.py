"""Long short-term memory with coupled gates: what is forgotten is what is written.

K. Greff, R. K. Srivastava, J. Koutník, B. R. Steunebrink and J. Schmidhuber, "LSTM: a search space odyssey", IEEE
Transactions on Neural Networks and Learning Systems 28(10), 2017 (the variant CIFG).

    f_t = σ(W_f x_t + U_f h_{t−1} + b_f)      forget gate; the input gate is 1 − f_t
    C̃_t = tanh(W_C x_t + U_C h_{t−1} + b_C)   candidate
    o_t = σ(W_o x_t + U_o h_{t−1} + b_o)      output gate
    C_t = f_t ⊙ C_{t−1} + (1 − f_t) ⊙ C̃_t
    h_t = o_t ⊙ tanh(C_t)

x_t inputs · h_t outputs and ``state.hidden`` · C_t ``state.cell`` · W, b ``w`` · U ``u``. Gates are stacked f, C̃, o.
Simplified: the paper's variant has peepholes besides.
"""

from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from ..core.contract import RecurrentCell
from ..core.state import State
from .initialization import initialize_gates
from .lstm import LSTMState
from .option_types import GateBias


class CoupledLSTM(RecurrentCell):
    """Long short-term memory with one gate for input and forgetting.

    The state is hidden and cell, both ``(batch, hidden_size)``.

    Args:
        input_size: width of an input.
        hidden_size: width of hidden and cell state.
        bias: whether gates and candidate have biases.
        forget_bias: what the forget gate's bias starts at, where there is one.
    """

    keeps = "two vectors: hidden and cell"
    paper = "Greff et al. 2017"
    gate_names = ("forget", "output")
    recurrent_weights: ClassVar[tuple[str, ...]] = ("u.weight",)

    def __init__(self, input_size: int, hidden_size: int, *, bias: bool = True, forget_bias: GateBias = 1.0) -> None:
        super().__init__()
        self.input_size, self.output_size, self.forget_bias = input_size, hidden_size, forget_bias
        self.w = nn.Linear(input_size, 3 * hidden_size, bias=bias)
        self.u = nn.Linear(hidden_size, 3 * hidden_size, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot-uniform and orthogonal, gate by gate; zero biases but for the forget gate's."""
        initialize_gates(self.w.weight, self.u.weight, gates=3)
        if self.w.bias is not None:
            nn.init.zeros_(self.w.bias)
            nn.init.constant_(self.w.bias.data.chunk(3)[0], self.forget_bias)

    def initial_state(self, batch_size: int) -> LSTMState:
        """Zeros, both ``(batch, hidden_size)``."""
        return LSTMState(self.zeros(batch_size, self.output_size), self.zeros(batch_size, self.output_size))

    def forward(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """The five equations."""
        hidden, cell = cast(LSTMState, state)
        f, candidate, o = (self.w(inputs) + self.u(hidden)).chunk(3, dim=1)
        f = torch.sigmoid(f)
        cell = f * cell + (1 - f) * torch.tanh(candidate)
        hidden = torch.sigmoid(o) * torch.tanh(cell)
        return hidden, LSTMState(hidden, cell)
