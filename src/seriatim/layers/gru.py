"""Gated recurrent unit, in the form of cuDNN and `torch.nn.GRU`.

K. Cho et al., "Learning phrase representations using RNN encoder-decoder for statistical machine translation",
EMNLP 2014.

    r_t = σ(W_r x_t + U_r h_{t−1} + b_r)                    reset gate
    z_t = σ(W_z x_t + U_z h_{t−1} + b_z)                    update gate
    n_t = tanh(W_n x_t + b_n + r_t ⊙ (U_n h_{t−1} + c_n))   candidate
    h_t = (1 − z_t) ⊙ n_t + z_t ⊙ h_{t−1}

x_t inputs · h_t outputs and the state · W ``weight_ih_l0`` · U ``weight_hh_l0`` · b, c ``bias_ih_l0``,
``bias_hh_l0``. Gates are stacked r, z, n. Nothing is simplified.

In textbooks (``gru-original``, `seriatim.layers.gru_original`) the reset gate acts before the recurrent product, and z
takes the new state.
"""

import torch
from torch import Tensor, nn

from ..core.contract import UnitUpdate
from ..core.state import State
from .gated_cell import Kernels, TorchCell


class GRU(TorchCell):
    """Gated recurrent unit; see `TorchCell` for the arguments."""

    paper = "Cho et al. 2014, reset gate after the product as in cuDNN"
    gate_names = ("reset", "update (keeps)")
    unit_update = UnitUpdate(("r", "z", "n"), ("h",), ("h = (1 − z) · n + z · h′",))
    torch_module = nn.GRU
    gates = 3

    def forward(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """Compute the four equations."""
        assert isinstance(state, Tensor)
        (r_x, z_x, n_x), (r_h, z_h, n_h) = self.w(inputs).chunk(3, dim=1), self.u(state).chunk(3, dim=1)
        r, z = torch.sigmoid(r_x + r_h), torch.sigmoid(z_x + z_h)
        hidden = (1 - z) * torch.tanh(n_x + r * n_h) + z * state
        return hidden, hidden

    def kernels(self) -> Kernels:
        """Return PyTorch's kernels."""
        return torch.gru, torch.gru_cell
