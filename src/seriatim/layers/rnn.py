"""The simple recurrent network.

J. L. Elman, "Finding structure in time", Cognitive Science 14(2), 1990.

    h_t = g(W x_t + U h_{t−1} + b),  h_0 = 0

x_t inputs · h_t outputs and the state · g ``activation`` · W ``weight_ih_l0`` · U ``weight_hh_l0`` ·
b ``bias_ih_l0 + bias_hh_l0`` (two vectors, as in `torch.nn.RNN`). Nothing is simplified.
"""

import torch
from torch import Tensor, nn

from ..core.state import State
from .gated_cell import Kernels, TorchCell
from .pointwise import Activation, activation_named

KERNELS: dict[str, Kernels] = {
    "tanh": (torch.rnn_tanh, torch.rnn_tanh_cell),
    "relu": (torch.rnn_relu, torch.rnn_relu_cell),
}


class RNN(TorchCell):
    """Elman's network; see `TorchCell` for the other arguments.

    Args:
        activation: the name of g; PyTorch has kernels for `tanh` and `relu`.
        bias: whether there is a bias.
    """

    paper = "Elman 1990"
    torch_module = nn.RNN
    gates = 1

    def __init__(
        self, input_size: int, hidden_size: int, *, activation: Activation = "tanh", bias: bool = True
    ) -> None:
        super().__init__(input_size, hidden_size, bias=bias)
        self.activation = activation
        self.g = activation_named(activation)

    def forward(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """Compute the equation."""
        assert isinstance(state, Tensor)
        hidden = self.g(self.w(inputs) + self.u(state))
        return hidden, hidden

    def kernels(self) -> Kernels | None:
        """Return the kernels for `tanh` or `relu`; None for other activations."""
        return KERNELS.get(self.activation)

    def torch_options(self) -> dict[str, object]:
        """Return the options of `torch.nn.RNN`, or raise ValueError if it does not have the activation."""
        if self.activation not in KERNELS:
            raise ValueError(f"torch.nn.RNN has no activation {self.activation!r}; it knows tanh and relu")
        return {**super().torch_options(), "nonlinearity": self.activation}
