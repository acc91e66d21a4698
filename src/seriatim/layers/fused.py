"""Recurrences for which torch has a fused kernel, behind the contract.

Parameters carry the names and shapes `torch.nn` gives them for one layer (``weight_ih_l0 weight_hh_l0 bias_ih_l0
bias_hh_l0``, gates stacked along dimension 0), so that state dictionaries pass both ways.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from ..layer import SequenceLayer, refuse_memory
from ..lengths import run_by_length
from ..state import State


class FusedRecurrence(SequenceLayer):
    """One layer of a recurrence run by a fused kernel.

    A subclass names its ``torch.nn`` twin, counts its gates and writes `dense`, a sequence without padding, and
    `step`.

    Args:
        input_size: width of an input.
        hidden_size: width of the state, and of an output.
        bias: whether the gates have biases.
    """

    twin: ClassVar[type[nn.RNNBase]]
    gates: ClassVar[int]

    bias_ih_l0: nn.Parameter | None
    bias_hh_l0: nn.Parameter | None

    def __init__(self, input_size: int, hidden_size: int, *, bias: bool = True) -> None:
        super().__init__()
        self.input_size = input_size
        self.output_size = self.hidden_size = hidden_size
        self.weight_ih_l0 = nn.Parameter(torch.empty(self.gates * hidden_size, input_size))
        self.weight_hh_l0 = nn.Parameter(torch.empty(self.gates * hidden_size, hidden_size))
        for name in ("bias_ih_l0", "bias_hh_l0"):
            self.register_parameter(name, nn.Parameter(torch.empty(self.gates * hidden_size)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot-uniform input weights and orthogonal recurrent weights, gate by gate; zero biases."""
        for gate in range(self.gates):
            rows = slice(gate * self.hidden_size, (gate + 1) * self.hidden_size)
            nn.init.xavier_uniform_(self.weight_ih_l0.data[rows])
            nn.init.orthogonal_(self.weight_hh_l0.data[rows])
        for bias in (self.bias_ih_l0, self.bias_hh_l0):
            if bias is not None:
                nn.init.zeros_(bias)

    def initial_state(
        self, batch_size: int, memory: Tensor | None = None, memory_lengths: Tensor | None = None
    ) -> State:
        """Zeros ``(batch, hidden_size)``."""
        refuse_memory(self, memory)
        return self.zeros(batch_size, self.hidden_size)

    def forward(
        self, inputs: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Runs the kernel over ``(batch, time, input_size)``; see `SequenceLayer.forward`."""
        inputs, state, lengths = self.begin(inputs, state, lengths)
        if 0 in inputs.shape[:2]:
            return inputs.new_zeros(*inputs.shape[:2], self.output_size), state
        if lengths is not None:
            return run_by_length(self.dense, inputs, state, lengths)
        return self.dense(inputs, state)

    def dense(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """A batch without padding: ``(batch, time, input_size)`` to ``(batch, time, hidden_size)``."""
        raise NotImplementedError

    def weights(self) -> list[Tensor]:
        """The parameters in the order the kernels take them."""
        found = (self.weight_ih_l0, self.weight_hh_l0, self.bias_ih_l0, self.bias_hh_l0)
        return [weight for weight in found if weight is not None]

    def options(self) -> tuple[bool, int, float, bool, bool, bool]:
        """The kernels' trailing arguments: biases, layers, dropout, training, bidirectional, batch first."""
        return self.bias_ih_l0 is not None, 1, 0.0, self.training, False, True

    def twin_options(self) -> dict[str, object]:
        """What the twin's constructor takes beside sizes."""
        return {"bias": self.bias_ih_l0 is not None, "batch_first": True}

    def extra_repr(self) -> str:
        """Sizes, for ``print``."""
        return f"{self.input_size}, {self.hidden_size}"
