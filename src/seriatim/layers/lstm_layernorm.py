"""Long short-term memory with layer normalisation.

J. L. Ba, J. R. Kiros and G. E. Hinton, "Layer normalization", arXiv:1607.06450, 2016.

    [i; f; C̃; o] = LN(W x_t; γ_x) + LN(U h_{t−1}; γ_h) + b
    C_t = σ(f) ⊙ C_{t−1} + σ(i) ⊙ tanh(C̃)
    h_t = σ(o) ⊙ tanh(LN(C_t; γ_C, β_C))

LN(v; γ, β) = γ ⊙ (v − mean(v)) / √(variance(v) + ε) + β, over all features of a row: the four gates are normalised
together, as in the paper.

x_t inputs · h_t outputs and ``state.hidden`` · C_t ``state.cell`` · W ``w`` · U ``u`` · γ_x, b ``norm_inputs`` ·
γ_h ``norm_hidden`` · γ_C, β_C ``norm_cell`` · gates are stacked i, f, C̃, o. Simplified: the paper's b and the two
shifts of LN(W x) and LN(U h) only ever appear as their sum, which is kept as the one vector b.
"""

from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from ..core.contract import RecurrentCell
from ..core.state import State
from .initialization import initialize_gates
from .lstm import LSTMState
from .option_types import GateBias


class LayerNormLSTM(RecurrentCell):
    """Long short-term memory with layer normalisation. The state is hidden and cell, both ``(batch, hidden_size)``.

    Args:
        input_size: width of an input.
        hidden_size: width of hidden and cell state.
        bias: whether there are the shifts b and β_C.
        forget_bias: what the forget gate's bias starts at, where there is one.
    """

    keeps = "two vectors: hidden and cell"
    paper = "Ba, Kiros & Hinton 2016"
    gate_names = ("forget", "input", "output")
    recurrent_weights: ClassVar[tuple[str, ...]] = ("u.weight",)

    def __init__(self, input_size: int, hidden_size: int, *, bias: bool = True, forget_bias: GateBias = 1.0) -> None:
        super().__init__()
        self.input_size, self.output_size, self.forget_bias = input_size, hidden_size, forget_bias
        self.w = nn.Linear(input_size, 4 * hidden_size, bias=False)
        self.u = nn.Linear(hidden_size, 4 * hidden_size, bias=False)
        self.norm_inputs = nn.LayerNorm(4 * hidden_size, bias=bias)
        self.norm_hidden = nn.LayerNorm(4 * hidden_size, bias=False)
        self.norm_cell = nn.LayerNorm(hidden_size, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot-uniform and orthogonal, gate by gate; unit gains; zero biases but for the forget gate's."""
        initialize_gates(self.w.weight, self.u.weight, gates=4)
        for norm in (self.norm_inputs, self.norm_hidden, self.norm_cell):
            norm.reset_parameters()
        if self.norm_inputs.bias is not None:
            nn.init.constant_(self.norm_inputs.bias.data.chunk(4)[1], self.forget_bias)

    def initial_state(self, batch_size: int) -> LSTMState:
        """Zeros, both ``(batch, hidden_size)``."""
        return LSTMState(self.zeros(batch_size, self.output_size), self.zeros(batch_size, self.output_size))

    def forward(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """The three equations."""
        hidden, cell = cast(LSTMState, state)
        i, f, candidate, o = (self.norm_inputs(self.w(inputs)) + self.norm_hidden(self.u(hidden))).chunk(4, dim=1)
        cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(candidate)
        hidden = torch.sigmoid(o) * torch.tanh(self.norm_cell(cell))
        return hidden, LSTMState(hidden, cell)
