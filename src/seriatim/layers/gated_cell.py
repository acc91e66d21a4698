"""What gated recurrent cells have in common: stacked maps of the input and of the state, and how these start."""

from typing import ClassVar, NamedTuple

from torch import Tensor, nn

from ..core.contract import RecurrentCell
from ..core.state import State
from .option_types import GateBias


def initialize_gates(inputs: Tensor, recurrent: Tensor, gates: int) -> None:
    """Initialise input weights Glorot-uniformly and recurrent weights orthogonally, gate by gate, in place.

    X. Glorot and Y. Bengio, 2010; A. Saxe, J. McClelland and S. Ganguli, 2014. Gates are stacked along dimension 0.
    """
    for w, u in zip(inputs.data.chunk(gates), recurrent.data.chunk(gates), strict=True):
        nn.init.xavier_uniform_(w)
        nn.init.orthogonal_(u)


def fill_gate(bias: Tensor | None, gates: int, gate: int, value: float) -> None:
    """Set the part of one gate in a bias ``(gates * hidden_size,)`` to a value, in place; nothing without a bias."""
    if bias is not None:
        nn.init.constant_(bias.data.chunk(gates)[gate], value)


class LSTMState(NamedTuple):
    """Both vectors ``(batch, hidden_size)``; with a projection ``hidden`` has the width of the projection."""

    hidden: Tensor
    cell: Tensor


class GatedCell(RecurrentCell):
    """A cell with maps W of the input and U of the state, whose gates are stacked along dimension 0.

    The state is one vector ``(batch, hidden_size)``. A subclass that adds parameters initialises them after
    ``super().__init__``.

    Args:
        input_size: width of an input.
        hidden_size: width of the state.
        bias: whether there is a bias.
    """

    keeps = "one vector"
    gates: ClassVar[int]
    recurrent_weights: ClassVar[tuple[str, ...]] = ("u.weight",)

    def __init__(self, input_size: int, hidden_size: int, *, bias: bool = True) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, hidden_size
        self.w = nn.Linear(input_size, self.gates * hidden_size, bias=bias)
        self.u = nn.Linear(hidden_size, self.gates * hidden_size, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the weights gate by gate (see `initialize_gates`) and the biases to zero."""
        initialize_gates(self.w.weight, self.u.weight, self.gates)
        if self.w.bias is not None:
            nn.init.zeros_(self.w.bias)

    def initial_state(self, batch_size: int) -> State:
        """Return zeros ``(batch, hidden_size)``."""
        return self.zeros(batch_size, self.output_size)


class GatedLSTM(GatedCell):
    """A variant of the LSTM. Its state is an `LSTMState` of its own type, with two vectors of width ``hidden_size``.

    Args:
        bias: whether gates and candidate have biases.
        forget_bias: initial value of the forget gate's bias.
    """

    keeps = "two vectors: hidden and cell"
    forget_gate: ClassVar[int]
    """The place of the forget gate among the gates."""
    state_type: ClassVar[type[LSTMState]]

    def __init__(self, input_size: int, hidden_size: int, *, bias: bool = True, forget_bias: GateBias = 1.0) -> None:
        self.forget_bias = forget_bias  # first: the base class initialises the parameters
        super().__init__(input_size, hidden_size, bias=bias)

    def reset_parameters(self) -> None:
        """Initialise the weights gate by gate and the biases to zero, except for the forget gate's bias."""
        super().reset_parameters()
        fill_gate(self.w.bias, self.gates, self.forget_gate, self.forget_bias)

    def initial_state(self, batch_size: int) -> LSTMState:
        """Return zeros, both ``(batch, hidden_size)``."""
        return self.state_type(self.zeros(batch_size, self.output_size), self.zeros(batch_size, self.output_size))
