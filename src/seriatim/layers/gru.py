"""Gated recurrent unit, in the form of cuDNN and `torch.nn.GRU`.

K. Cho et al., "Learning phrase representations using RNN encoder-decoder for statistical machine translation",
EMNLP 2014. The fused kernels differ from what textbooks print twice: the reset gate acts after the recurrent product,
and z keeps the old state where the textbook's z takes the new one. The textbook's form is registered as
``gru-original`` (`seriatim.layers.gru_original`).

    r_t = σ(W_r x_t + U_r h_{t−1} + b_r)                    reset gate
    z_t = σ(W_z x_t + U_z h_{t−1} + b_z)                    update gate
    n_t = tanh(W_n x_t + b_n + r_t ⊙ (U_n h_{t−1} + c_n))   candidate
    h_t = (1 − z_t) ⊙ n_t + z_t ⊙ h_{t−1}

x_t inputs · h_t outputs and the state · W ``weight_ih_l0`` · U ``weight_hh_l0`` · b, c ``bias_ih_l0``,
``bias_hh_l0``. Gates are stacked r, z, n.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.state import State
from .fused import FusedRecurrence
from .option_types import Rate


class GRU(FusedRecurrence):
    """One layer of gated recurrent units. The state is one vector ``(batch, hidden_size)``.

    Args:
        input_size: width of an input.
        hidden_size: width of the state.
        bias: whether the gates have biases.
        weight_dropout: rate at which U is dropped in training, one mask a call; see `FusedRecurrence`.
        zoneout: rate at which values of the state stay as they were.
    """

    keeps = "one vector"
    paper = "Cho et al. 2014, reset gate after the product as in cuDNN"
    gate_names = ("reset", "update (keeps)")
    twin = nn.GRU
    gates = 3

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        bias: bool = True,
        weight_dropout: Rate = 0.0,
        zoneout: Rate = 0.0,
    ) -> None:
        super().__init__(input_size, hidden_size, bias=bias, weight_dropout=weight_dropout, zoneout=zoneout)

    def dense(self, inputs: Tensor, state: State, weights: Sequence[Tensor]) -> tuple[Tensor, State]:
        """The fused kernel over a batch without padding."""
        assert isinstance(state, Tensor)
        outputs, hidden = torch.gru(inputs, state.unsqueeze(0).contiguous(), list(weights), *self.options())
        return outputs, hidden.squeeze(0)

    def advance(self, inputs: Tensor, state: State, weights: Sequence[Tensor]) -> tuple[Tensor, State]:
        """The equations, or without gradients the kernel of one step."""
        assert isinstance(state, Tensor)
        if not torch.is_grad_enabled():
            hidden = torch.gru_cell(inputs, state, *weights)
            return hidden, hidden
        w, u, *biases = weights
        b_w, b_u = biases or (None, None)
        (r_x, z_x, n_x), (r_h, z_h, n_h) = F.linear(inputs, w, b_w).chunk(3, 1), F.linear(state, u, b_u).chunk(3, 1)
        r, z = torch.sigmoid(r_x + r_h), torch.sigmoid(z_x + z_h)
        hidden = (1 - z) * torch.tanh(n_x + r * n_h) + z * state
        return hidden, hidden
