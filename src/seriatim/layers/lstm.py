"""Long short-term memory.

S. Hochreiter and J. Schmidhuber, "Long short-term memory", Neural Computation 9(8), 1997; with the forget gate of
F. Gers, J. Schmidhuber and F. Cummins, "Learning to forget", Neural Computation 12(10), 2000.

    i, f, o = σ(W x_t + U h_{t−1} + b)          input, forget and output gate, each with its own W, U, b
    C̃_t     = tanh(W_C x_t + U_C h_{t−1} + b_C)  candidate
    C_t     = f ⊙ C_{t−1} + i ⊙ C̃_t
    h_t     = o ⊙ tanh(C_t)

x_t inputs · h_t outputs and ``state.hidden`` · C_t ``state.cell`` · W ``weight_ih_l0`` · U ``weight_hh_l0`` ·
b ``bias_ih_l0 + bias_hh_l0`` (two vectors, as in `torch.nn`). Gates are stacked i, f, C̃, o. Nothing is simplified.

With a projection (H. Sak, A. Senior and F. Beaufays, "Long short-term memory recurrent neural network architectures
for large scale acoustic modeling", Interspeech 2014) h is narrower than C: h_t = W_r (o ⊙ tanh(C_t)), W_r
``weight_hr_l0``.
"""

from collections.abc import Sequence
from typing import Annotated, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.state import State
from .fused import FusedRecurrence
from .option_types import Between, GateBias, Rate


class LSTMState(NamedTuple):
    """Both vectors ``(batch, hidden_size)``; with a projection ``hidden`` has its width."""

    hidden: Tensor
    cell: Tensor


class LSTM(FusedRecurrence):
    """One layer of long short-term memory.

    Args:
        input_size: width of an input.
        hidden_size: width of hidden and cell state.
        bias: whether the gates have biases.
        forget_bias: what the forget gate's bias starts at; 1 lets memory last from the first step
            (Jozefowicz et al. 2015).
        weight_dropout: rate at which U is dropped in training, one mask a call; see `FusedRecurrence`.
        zoneout: rate at which values of hidden and cell state stay as they were.
        projection_size: width of the output and the hidden state; 0 for ``hidden_size``.
    """

    keeps = "two vectors: hidden and cell"
    paper = "Hochreiter & Schmidhuber 1997; Gers et al. 2000"
    gate_names = ("forget", "input", "output")
    twin = nn.LSTM
    gates = 4

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        bias: bool = True,
        forget_bias: GateBias = 1.0,
        weight_dropout: Rate = 0.0,
        zoneout: Rate = 0.0,
        projection_size: Annotated[int, Between(0)] = 0,
    ) -> None:
        self.forget_bias = forget_bias
        super().__init__(
            input_size,
            hidden_size,
            bias=bias,
            weight_dropout=weight_dropout,
            zoneout=zoneout,
            projection_size=projection_size,
        )

    def reset_parameters(self) -> None:
        """As every fused recurrence, with the forget gate open."""
        super().reset_parameters()
        if self.bias_ih_l0 is not None:
            nn.init.constant_(self.bias_ih_l0.data[self.hidden_size : 2 * self.hidden_size], self.forget_bias)

    def initial_state(self, batch_size: int) -> LSTMState:
        """Zeros ``(batch, output_size)`` and ``(batch, hidden_size)``."""
        return LSTMState(self.zeros(batch_size, self.output_size), self.zeros(batch_size, self.hidden_size))

    def dense(self, inputs: Tensor, state: State, weights: Sequence[Tensor]) -> tuple[Tensor, State]:
        """The fused kernel over a batch without padding."""
        start = [leaf.unsqueeze(0).contiguous() for leaf in cast(LSTMState, state)]
        outputs, hidden, cell = torch.lstm(inputs, start, list(weights), *self.options())
        return outputs, LSTMState(hidden.squeeze(0), cell.squeeze(0))

    def advance(self, inputs: Tensor, state: State, weights: Sequence[Tensor]) -> tuple[Tensor, State]:
        """The equations, or without gradients and projection the kernel of one step."""
        hidden, cell = cast(LSTMState, state)
        if not self.projection_size and not torch.is_grad_enabled():
            hidden, cell = torch.lstm_cell(inputs, [hidden, cell], *weights)
            return hidden, LSTMState(hidden, cell)
        w, u, *others = weights
        b_w, b_u = others[:2] if self.bias_ih_l0 is not None else (None, None)
        gates = F.linear(inputs, w, b_w) + F.linear(hidden, u, b_u)
        i, f, candidate, o = gates.chunk(4, dim=1)
        cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(candidate)
        hidden = torch.sigmoid(o) * torch.tanh(cell)
        if self.projection_size:
            hidden = F.linear(hidden, others[-1])
        return hidden, LSTMState(hidden, cell)

    def twin_options(self) -> dict[str, object]:
        """Adds the projection."""
        return {**super().twin_options(), "proj_size": self.projection_size}
