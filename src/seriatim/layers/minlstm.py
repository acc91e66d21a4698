"""The minimal long short-term memory that trains in parallel over time.

L. Feng, F. Tung, M. O. Ahmed, Y. Bengio and H. Hajimirsadeghi, "Were RNNs all we needed?", arXiv:2410.01201, 2024.

    f_t = σ(W_f x_t + b_f),  i_t = σ(W_i x_t + b_i),  h̃_t = W_h x_t + b_h
    f'_t = f_t / (f_t + i_t),  i'_t = i_t / (f_t + i_t)
    h_t = f'_t ⊙ h_{t−1} + i'_t ⊙ h̃_t

x_t inputs · h_t outputs and the state · W, b ``w``, stacked f, i, h̃. Here f' = σ(log f − log i) and i' = σ(log i −
log f), so that nothing is divided by a sum that may be 0. All else, also what is simplified, is as in
`seriatim.layers.mingru`.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from .mingru import MinGRU


class MinLSTM(MinGRU):
    """A gated average with gates to forget and to take in. The state is one vector ``(batch, hidden_size)``.

    Args:
        bias: whether there is a bias.
    """

    gate_names = ("forget (keeps)", "input (takes)")
    maps = 3

    def terms(self, inputs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return f' and i' ⊙ h̃; see `MinGRU.terms`."""
        forget, take, candidate = self.mapped(inputs, state)
        difference = F.logsigmoid(forget) - F.logsigmoid(take)
        return torch.sigmoid(difference), torch.sigmoid(-difference) * candidate
