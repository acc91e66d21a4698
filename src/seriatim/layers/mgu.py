"""The minimal gated unit: one gate decides between the old state and the new.

G.-B. Zhou, J. Wu, C.-L. Zhang and Z.-H. Zhou, "Minimal gated unit for recurrent neural networks", International
Journal of Automation and Computing 13(3), 2016.

    z_t = σ(W_z x_t + U_z h_{t−1} + b_z)   update gate
    h̃_t = tanh(W x_t + U h_{t−1} + b)      candidate
    h_t = (1 − z_t) ⊙ h_{t−1} + z_t ⊙ h̃_t

x_t inputs · h_t outputs and the state · W, b ``w`` · U ``u``. Gates are stacked z, h̃.

Simplified, as in textbooks: the paper's candidate sees z_t ⊙ h_{t−1}, so that z both resets and updates.
"""

import torch
from torch import Tensor

from ..core.contract import UnitUpdate
from ..core.state import State
from .gated_cell import GatedCell


class MGU(GatedCell):
    """A recurrence with one gate; see `GatedCell` for the arguments."""

    paper = "Zhou et al. 2016, candidate without the gate"
    gate_names = ("update (takes)",)
    unit_update = UnitUpdate(("z", "h̃"), ("h",), ("h = (1 − z) · h′ + z · h̃",))
    gates = 2

    def forward(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """Compute the three equations."""
        assert isinstance(state, Tensor)
        z, candidate = (self.w(inputs) + self.u(state)).chunk(2, dim=1)
        z = torch.sigmoid(z)
        hidden = (1 - z) * state + z * torch.tanh(candidate)
        return hidden, hidden
