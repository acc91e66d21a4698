"""What gated recurrent cells have in common: stacked maps of the input and of the state, and how these start."""

from typing import ClassVar, NamedTuple

from torch import Tensor, nn

from ..core.contract import RecurrentCell
from ..core.state import State


def initialize_gates(inputs: Tensor, recurrent: Tensor, gates: int) -> None:
    """Initialise input weights Glorot-uniformly and recurrent weights orthogonally, gate by gate, in place.

    X. Glorot and Y. Bengio, 2010; A. Saxe, J. McClelland and S. Ganguli, 2014.

    Args:
        inputs: ``(gates * hidden_size, input_size)``.
        recurrent: ``(gates * hidden_size, hidden_size)``.
        gates: the number of gates that are stacked along dimension 0.
    """
    for w, u in zip(inputs.data.chunk(gates), recurrent.data.chunk(gates), strict=True):
        nn.init.xavier_uniform_(w)
        nn.init.orthogonal_(u)


class LSTMState(NamedTuple):
    """Both vectors ``(batch, hidden_size)``; with a projection ``hidden`` has the width of the projection."""

    hidden: Tensor
    cell: Tensor


class GatedCell(RecurrentCell):
    """A cell with maps W of the input and U of the state, whose gates are stacked along dimension 0.

    The initial state is one vector ``(batch, hidden_size)``.

    Args:
        input_size: width of an input.
        hidden_size: width of the state.
        bias: whether W has a bias.
        recurrent_gates: the number of gates that U computes; None for as many as W.
    """

    gates: ClassVar[int]
    recurrent_weights: ClassVar[tuple[str, ...]] = ("u.weight",)

    def __init__(self, input_size: int, hidden_size: int, *, bias: bool, recurrent_gates: int | None = None) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, hidden_size
        self.w = nn.Linear(input_size, self.gates * hidden_size, bias=bias)
        self.u = nn.Linear(hidden_size, (recurrent_gates or self.gates) * hidden_size, bias=False)

    def reset_parameters(self) -> None:
        """Initialise the weights gate by gate (see `initialize_gates`) and the biases to zero."""
        initialize_gates(self.w.weight, self.u.weight, self.gates)
        if self.w.bias is not None:
            nn.init.zeros_(self.w.bias)

    def initial_state(self, batch_size: int) -> State:
        """Return zeros ``(batch, hidden_size)``."""
        return self.zeros(batch_size, self.output_size)


class GatedLSTM(GatedCell):
    """A variant of the LSTM. Its state is `LSTMState`, and the bias of its forget gate starts above zero.

    Args:
        input_size: width of an input.
        hidden_size: width of the hidden state and of the cell state.
        bias: whether W has a bias.
        forget_bias: initial value of the forget gate's bias.
    """

    forget_gate: ClassVar[int]
    """The place of the forget gate among the gates."""

    def __init__(self, input_size: int, hidden_size: int, *, bias: bool, forget_bias: float) -> None:
        super().__init__(input_size, hidden_size, bias=bias)
        self.forget_bias = forget_bias

    def reset_parameters(self) -> None:
        """Initialise the weights gate by gate and the biases to zero, except for the forget gate's bias."""
        super().reset_parameters()
        self.open_forget_gate(self.w.bias)

    def open_forget_gate(self, bias: Tensor | None) -> None:
        """Set the forget gate's part of a bias ``(gates * hidden_size,)`` to its initial value, in place."""
        if bias is not None:
            nn.init.constant_(bias.data.chunk(self.gates)[self.forget_gate], self.forget_bias)

    def initial_state(self, batch_size: int) -> LSTMState:
        """Return zeros, both ``(batch, hidden_size)``."""
        return LSTMState(self.zeros(batch_size, self.output_size), self.zeros(batch_size, self.output_size))
