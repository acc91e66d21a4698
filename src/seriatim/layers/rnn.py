"""The simple recurrent network.

J. L. Elman, "Finding structure in time", Cognitive Science 14(2), 1990.

    h_t = g(W_x x_t + W_h h_{t−1} + b),  h_0 = 0

x_t inputs · h_t outputs and the state · g ``activation`` · W_x ``weight_ih_l0`` · W_h ``weight_hh_l0`` ·
b ``bias_ih_l0 + bias_hh_l0`` (two vectors, as in `torch.nn`). Nothing is simplified.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.state import State
from .fused import FusedRecurrence
from .option_types import Rate
from .pointwise import Activation
from .pointwise import activation as activation_named

FUSED = {"tanh": torch.rnn_tanh, "relu": torch.rnn_relu}


class RNN(FusedRecurrence):
    """One layer of Elman's network. The state is one vector ``(batch, hidden_size)``.

    Args:
        input_size: width of an input.
        hidden_size: width of the state.
        activation: g, by name; `tanh` and `relu` have fused kernels, any other runs as a loop.
        bias: whether there is a bias.
        weight_dropout: rate at which W_h is dropped in training, one mask a call; see `FusedRecurrence`.
        zoneout: rate at which values of the state stay as they were.
    """

    keeps = "one vector"
    paper = "Elman 1990"
    twin = nn.RNN
    gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        activation: Activation = "tanh",
        bias: bool = True,
        weight_dropout: Rate = 0.0,
        zoneout: Rate = 0.0,
    ) -> None:
        self.activation = activation
        self.g = activation_named(activation)
        super().__init__(input_size, hidden_size, bias=bias, weight_dropout=weight_dropout, zoneout=zoneout)

    @property
    def has_kernel(self) -> bool:
        """There is one for two activations."""
        return super().has_kernel and self.activation in FUSED

    def dense(self, inputs: Tensor, state: State, weights: Sequence[Tensor]) -> tuple[Tensor, State]:
        """The fused kernel where g has one; else a loop."""
        assert isinstance(state, Tensor)
        if self.activation in FUSED:
            kernel = FUSED[self.activation]
            fused, hidden = kernel(inputs, state.unsqueeze(0).contiguous(), list(weights), *self.options())
            return fused, hidden.squeeze(0)
        return self.loop(inputs, state, weights)

    def advance(self, inputs: Tensor, state: State, weights: Sequence[Tensor]) -> tuple[Tensor, State]:
        """The equation, once."""
        assert isinstance(state, Tensor)
        w_x, w_h, *biases = weights
        b_x, b_h = biases or (None, None)
        hidden = self.g(F.linear(inputs, w_x, b_x) + F.linear(state, w_h, b_h))
        return hidden, hidden

    def twin_options(self) -> dict[str, object]:
        """Adds the activation.

        Raises:
            ValueError: `torch.nn.RNN` knows only tanh and relu.
        """
        if self.activation not in FUSED:
            raise ValueError(f"torch.nn.RNN has no activation {self.activation!r}; it knows tanh and relu")
        return {**super().twin_options(), "nonlinearity": self.activation}
