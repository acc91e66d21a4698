"""Long short-term memory with layer normalisation.

J. L. Ba, J. R. Kiros and G. E. Hinton, "Layer normalization", arXiv:1607.06450, 2016.

    [i; f; C̃; o] = LN(W x_t; γ_x) + LN(U h_{t−1}; γ_h) + b
    C_t = σ(f) ⊙ C_{t−1} + σ(i) ⊙ tanh(C̃)
    h_t = σ(o) ⊙ tanh(LN(C_t; γ_C, β_C))

LN(v; γ, β) = γ ⊙ (v − mean(v)) / √(variance(v) + ε) + β, over all features of a row: the four gates are normalised
together, as in the paper.

x_t inputs · h_t outputs and ``state.hidden`` · C_t ``state.cell`` · W ``w`` · U ``u`` · γ_x, b ``norm_inputs`` ·
γ_h ``norm_hidden`` · γ_C, β_C ``norm_cell``. Gates are stacked i, f, C̃, o. Simplified: the paper's b and the two
shifts of LN(W x) and LN(U h) occur only as their sum, which is the one vector b.
"""

from typing import cast

import torch
from torch import Tensor, nn

from ..core.contract import UnitUpdate
from ..core.state import State
from .gated_cell import GatedLSTM, LSTMState, fill_gate
from .option_types import GateBias


class LayerNormLSTMState(LSTMState):
    """The state of a `LayerNormLSTM`."""


class LayerNormLSTM(GatedLSTM):
    """Long short-term memory with layer normalisation; see `GatedLSTM` for the other arguments.

    Args:
        bias: whether there are the shifts b and β_C.
    """

    paper = "Ba, Kiros & Hinton 2016"
    gate_names = ("forget", "input", "output")
    unit_update = UnitUpdate(
        ("f", "i", "g", "o", "tanh LN(c)"), ("h", "c"), ("c = f · c′ + i · g", "h = o · tanh LN(c)")
    )
    gates = 4
    state_type = LayerNormLSTMState
    forget_gate = 1

    def __init__(self, input_size: int, hidden_size: int, *, bias: bool = True, forget_bias: GateBias = 1.0) -> None:
        super().__init__(input_size, hidden_size, bias=False, forget_bias=forget_bias)
        self.norm_inputs = nn.LayerNorm(4 * hidden_size, bias=bias)
        self.norm_hidden = nn.LayerNorm(4 * hidden_size, bias=False)
        self.norm_cell = nn.LayerNorm(hidden_size, bias=bias)
        fill_gate(self.norm_inputs.bias, self.gates, self.forget_gate, forget_bias)

    def reset_parameters(self) -> None:
        """Initialise the weights gate by gate, and the norms to γ = 1 and no shift, except for the forget gate's."""
        super().reset_parameters()
        norms = [child for child in self.children() if isinstance(child, nn.LayerNorm)]
        for norm in norms:
            norm.reset_parameters()
        if norms:  # the base class calls this method before there are norms
            fill_gate(self.norm_inputs.bias, self.gates, self.forget_gate, self.forget_bias)

    def forward(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """Compute the three equations."""
        hidden, cell = cast(LayerNormLSTMState, state)
        i, f, candidate, o = (self.norm_inputs(self.w(inputs)) + self.norm_hidden(self.u(hidden))).chunk(4, dim=1)
        cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(candidate)
        hidden = torch.sigmoid(o) * torch.tanh(self.norm_cell(cell))
        return hidden, LayerNormLSTMState(hidden, cell)
