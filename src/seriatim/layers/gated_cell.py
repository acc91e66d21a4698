"""What gated recurrent cells have in common: their parameters, how these start, and the kernels that PyTorch has.

A `TorchCell` has the parameters of one layer of `torch.nn` (``weight_ih_l0 weight_hh_l0 bias_ih_l0 bias_hh_l0``, gates
stacked along dimension 0), so that state dictionaries can be exchanged with it. PyTorch's kernels (cuDNN's on a GPU)
compute what such a cell writes in `forward`. They run on GPUs and where the equations cannot be compiled (see
`seriatim.recurrence`). A `GatedCell` has a linear map of the input and one of the state, and no such kernel.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.contract import RecurrentCell, VendorKernel
from ..core.errors import RangeError
from ..core.state import State, state_leaves, with_leaves
from .option_types import GateBias

Kernels: TypeAlias = tuple[Callable[..., Sequence[Tensor]], Callable[..., Tensor | Sequence[Tensor]] | None]
"""PyTorch's functions for a sequence and for one step; None for the latter to use the equations."""


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


class TorchCell(RecurrentCell):
    """A cell with the parameters of a `torch.nn` recurrence.

    A subclass names the ``torch.nn`` module, its number of gates and the two kernels, and writes `forward`. The state
    is one vector ``(batch, hidden_size)``.

    Args:
        input_size: width of an input.
        hidden_size: width of the state, and of an output without a projection.
        bias: whether the gates have biases.
    """

    keeps = "one vector"
    recurrent_weights: ClassVar[tuple[str, ...]] = ("weight_hh_l0",)
    torch_module: ClassVar[type[nn.RNNBase]]
    """The module of `torch.nn` that computes the same."""
    gates: ClassVar[int]
    projection_size: int = 0
    """Width of a projection of the outputs, 0 for none; a subclass sets it before it calls ``super().__init__``."""

    bias_ih_l0: nn.Parameter | None
    bias_hh_l0: nn.Parameter | None
    weight_hr_l0: nn.Parameter | None

    def __init__(self, input_size: int, hidden_size: int, *, bias: bool = True) -> None:
        super().__init__()
        width = self.projection_size
        if not 0 <= width < hidden_size:
            raise RangeError(f"model.options.projection_size: {width} is out of range; give 0 to {hidden_size - 1}")
        self.input_size, self.hidden_size, self.output_size = input_size, hidden_size, width or hidden_size
        self.weight_ih_l0 = nn.Parameter(torch.empty(self.gates * hidden_size, input_size))
        self.weight_hh_l0 = nn.Parameter(torch.empty(self.gates * hidden_size, self.output_size))
        for name in ("bias_ih_l0", "bias_hh_l0"):
            self.register_parameter(name, nn.Parameter(torch.empty(self.gates * hidden_size)) if bias else None)
        self.register_parameter("weight_hr_l0", nn.Parameter(torch.empty(width, hidden_size)) if width else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise weights as `initialize_gates`, biases to zero and the projection orthogonally."""
        initialize_gates(self.weight_ih_l0, self.weight_hh_l0, self.gates)
        for bias in (self.bias_ih_l0, self.bias_hh_l0):
            if bias is not None:
                nn.init.zeros_(bias)
        if self.weight_hr_l0 is not None:
            nn.init.orthogonal_(self.weight_hr_l0)

    def initial_state(self, batch_size: int) -> State:
        """Return zeros ``(batch, hidden_size)``."""
        return self.zeros(batch_size, self.hidden_size)

    def w(self, inputs: Tensor) -> Tensor:
        """Return W x + b for inputs ``(batch, input_size)``: ``(batch, gates * hidden_size)``."""
        return F.linear(inputs, self.weight_ih_l0, self.bias_ih_l0)

    def u(self, hidden: Tensor) -> Tensor:
        """Return U h + c for hidden states ``(batch, output_size)``: ``(batch, gates * hidden_size)``."""
        return F.linear(hidden, self.weight_hh_l0, self.bias_hh_l0)

    def kernels(self) -> Kernels | None:
        """Return PyTorch's functions, or None where it has none for the cell's options."""
        raise NotImplementedError

    def vendor_kernel(self) -> VendorKernel | None:
        """Return the kernels for sequences and steps."""
        kernels = self.kernels()
        if kernels is None or (self.weight_ih_l0.device.type == "cpu" and torch.is_autocast_enabled("cpu")):
            # Under autocast, oneDNN's recurrence fails on processors that have no instructions for bfloat16.
            return None
        for_sequence, for_step = kernels

        def sequence(inputs: Tensor, state: State, replaced: Mapping[str, Tensor]) -> tuple[Tensor, State]:
            start = [leaf.unsqueeze(0).contiguous() for leaf in state_leaves(state)]
            # biases, one layer, no dropout, training mode, one direction, batch first
            options = (self.bias_ih_l0 is not None, 1, 0.0, self.training, False, True)
            weights = self._weights(replaced)
            outputs, *ends = for_sequence(inputs, start if len(start) > 1 else start[0], weights, *options)
            return outputs, with_leaves(state, [end.squeeze(0) for end in ends])

        def step(inputs: Tensor, state: State, replaced: Mapping[str, Tensor]) -> tuple[Tensor, State]:
            assert for_step is not None
            before = state_leaves(state)
            after = for_step(inputs, before if len(before) > 1 else before[0], *self._weights(replaced))
            leaves = [after] if isinstance(after, Tensor) else after
            return leaves[0], with_leaves(state, leaves)

        return VendorKernel(sequence, step if for_step else None)

    def _weights(self, replaced: Mapping[str, Tensor]) -> list[Tensor]:
        """Return the parameters in the order that the kernels take them."""
        return [replaced.get(name, parameter) for name, parameter in self.named_parameters()]

    def torch_options(self) -> dict[str, object]:
        """Return the options of the ``torch.nn`` module, or raise ValueError if it cannot compute the same."""
        return {"bias": self.bias_ih_l0 is not None, "batch_first": True}

    def extra_repr(self) -> str:
        """Return the sizes, for ``print``."""
        return f"{self.input_size}, {self.hidden_size}"


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
    """The index of the forget gate among the gates."""
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
