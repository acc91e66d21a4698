"""Long short-term memory.

S. Hochreiter and J. Schmidhuber, "Long short-term memory", Neural Computation 9(8), 1997; with the forget gate of
F. Gers, J. Schmidhuber and F. Cummins, "Learning to forget", Neural Computation 12(10), 2000.

    i, f, o = σ(W x_t + U h_{t−1} + b)          input, forget and output gate, each with its own W, U, b
    C̃_t     = tanh(W_C x_t + U_C h_{t−1} + b_C)  candidate
    C_t     = f ⊙ C_{t−1} + i ⊙ C̃_t
    h_t     = o ⊙ tanh(C_t)

x_t inputs · h_t outputs and ``state.hidden`` · C_t ``state.cell`` · W ``weight_ih_l0`` · U ``weight_hh_l0`` ·
b ``bias_ih_l0 + bias_hh_l0`` (two vectors, as in `torch.nn.LSTM`). Gates are stacked i, f, C̃, o. Nothing is simplified.

With a projection (H. Sak, A. Senior and F. Beaufays, "Long short-term memory recurrent neural network architectures
for large scale acoustic modeling", Interspeech 2014) h is narrower than C: h_t = W_r (o ⊙ tanh(C_t)), W_r
``weight_hr_l0``.
"""

from typing import Annotated, cast

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.contract import UnitUpdate
from ..core.state import State
from .gated_cell import Kernels, LSTMState, TorchCell, fill_gate
from .option_types import GateBias


class LSTM(TorchCell):
    """Long short-term memory. The state is `LSTMState`: hidden and cell. See `TorchCell` for the other arguments.

    Args:
        forget_bias: initial value of the forget gate's bias; with 1, memory lasts from the first step on
            (R. Jozefowicz, W. Zaremba and I. Sutskever 2015).
        projection_size: width of the output and of the hidden state where outputs are projected; 0 for no projection.
    """

    keeps = "two vectors: hidden and cell"
    paper = "Hochreiter & Schmidhuber 1997; Gers et al. 2000"
    gate_names = ("forget", "input", "output")
    unit_update = UnitUpdate(("f", "i", "g", "o", "tanh c"), ("h", "c"), ("c = f · c′ + i · g", "h = o · tanh c"))
    torch_module = nn.LSTM
    gates = 4

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        bias: bool = True,
        forget_bias: GateBias = 1.0,
        projection_size: Annotated[int, Ge(0)] = 0,
    ) -> None:
        self.forget_bias, self.projection_size = forget_bias, projection_size  # first: the base class reads them
        super().__init__(input_size, hidden_size, bias=bias)

    def reset_parameters(self) -> None:
        """Initialise as `TorchCell` does, except for the forget gate's bias."""
        super().reset_parameters()
        fill_gate(self.bias_ih_l0, 4, 1, self.forget_bias)

    def forward(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """Compute the equations, and the projection where there is one."""
        hidden, cell = cast(LSTMState, state)
        i, f, candidate, o = (self.w(inputs) + self.u(hidden)).chunk(4, dim=1)
        cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(candidate)
        hidden = torch.sigmoid(o) * torch.tanh(cell)
        if self.weight_hr_l0 is not None:
            hidden = F.linear(hidden, self.weight_hr_l0)
        return hidden, LSTMState(hidden, cell)

    def initial_state(self, batch_size: int) -> LSTMState:
        """Return zeros ``(batch, output_size)`` and ``(batch, hidden_size)``."""
        hidden = self.zeros(batch_size, self.output_size)
        return LSTMState(hidden, hidden.new_zeros(batch_size, self.hidden_size))

    def kernels(self) -> Kernels:
        """Return PyTorch's kernels; there is none for one step with a projection."""
        return torch.lstm, None if self.projection_size else torch.lstm_cell

    def torch_options(self) -> dict[str, object]:
        """Return the options of `torch.nn.LSTM`."""
        return {**super().torch_options(), "proj_size": self.projection_size}
