"""Recurrences for which torch has a fused kernel, behind the contract.

Their equations run in compiled code as any cell's do (`seriatim.recurrence`), which measures faster; torch's own kernel
runs where nothing can be compiled, on other devices, and on types of numbers that are not compiled.

Parameters carry the names and shapes `torch.nn` gives them for one layer (``weight_ih_l0 weight_hh_l0 bias_ih_l0
bias_hh_l0``, gates stacked along dimension 0), so that state dictionaries pass both ways.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..core.contract import SequenceLayer
from ..core.errors import InputError
from ..core.lengths import run_by_length
from ..core.random_masks import dropout_mask
from ..core.state import State
from ..recurrence.compiled_step import stepped
from ..recurrence.fast_path import sequence
from ..recurrence.reference import loop
from ..recurrence.zoneout import check_rate, hold_back
from .initialization import initialize_gates


class FusedRecurrence(SequenceLayer):
    """One layer of a recurrence run by a fused kernel.

    A subclass names its ``torch.nn`` twin, counts its gates and writes `dense`, a sequence without padding, and
    `advance`, one step.

    Args:
        input_size: width of an input.
        hidden_size: width of the state, and of an output.
        bias: whether the gates have biases.
        weight_dropout: rate at which recurrent weights are dropped in training, one mask a call (S. Merity,
            N. S. Keskar and R. Socher, "Regularizing and optimizing LSTM language models", ICLR 2018).
        zoneout: rate at which values of the state stay as they were (see `seriatim.recurrence.zoneout`); above 0 the
            layer runs as a loop over the kernel of one step.
        projection_size: width of the output and of what the gates see of it, where the twin has such a projection; 0
            for ``hidden_size``.

    Raises:
        ValueError: a rate outside [0, 0.99], or a projection that does not narrow.
    """

    twin: ClassVar[type[nn.RNNBase]]
    gates: ClassVar[int]

    bias_ih_l0: nn.Parameter | None
    bias_hh_l0: nn.Parameter | None
    weight_hr_l0: nn.Parameter | None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        bias: bool = True,
        weight_dropout: float = 0.0,
        zoneout: float = 0.0,
        projection_size: int = 0,
    ) -> None:
        super().__init__()
        self.weight_dropout = check_rate("weight_dropout", weight_dropout)
        self.zoneout = check_rate("zoneout", zoneout)
        if not 0 <= projection_size < hidden_size:
            raise InputError(
                f"model.options.projection_size must lie in 0..{hidden_size - 1}, below hidden_size; "
                f"got {projection_size}"
            )
        self.input_size, self.hidden_size, self.projection_size = input_size, hidden_size, projection_size
        self.output_size = projection_size or hidden_size
        self.weight_ih_l0 = nn.Parameter(torch.empty(self.gates * hidden_size, input_size))
        self.weight_hh_l0 = nn.Parameter(torch.empty(self.gates * hidden_size, self.output_size))
        for name in ("bias_ih_l0", "bias_hh_l0"):
            self.register_parameter(name, nn.Parameter(torch.empty(self.gates * hidden_size)) if bias else None)
        projection = nn.Parameter(torch.empty(projection_size, hidden_size)) if projection_size else None
        self.register_parameter("weight_hr_l0", projection)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot-uniform input weights and orthogonal recurrent weights, gate by gate; zero biases.

        A projection is recurrent, and so orthogonal.
        """
        initialize_gates(self.weight_ih_l0, self.weight_hh_l0, self.gates)
        for bias in (self.bias_ih_l0, self.bias_hh_l0):
            if bias is not None:
                nn.init.zeros_(bias)
        if self.weight_hr_l0 is not None:
            nn.init.orthogonal_(self.weight_hr_l0)

    def initial_state(self, batch_size: int) -> State:
        """Zeros ``(batch, hidden_size)``."""
        return self.zeros(batch_size, self.hidden_size)

    def forward(
        self, inputs: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Runs the kernel over ``(batch, time, input_size)``; see `SequenceLayer.forward`."""
        state, lengths = self.admit(inputs, state, lengths)
        if 0 in inputs.shape[:2]:
            return inputs.new_zeros(*inputs.shape[:2], self.output_size), state
        weights = self.weights()  # once a call: every step sees the same mask
        if inputs.device.type == "cpu" or not self.has_kernel:  # on a GPU that of cuDNN is not known to be slower
            found = sequence(self, self.with_weights, weights, inputs, state, lengths)
            if found is not None:
                return found
        run = self.loop if self.zoneout else self.dense
        if lengths is not None:
            return run_by_length(lambda rows, kept: run(rows, kept, weights), inputs, state, lengths)
        return run(inputs, state, weights)

    def with_weights(self, weights: Sequence[Tensor], inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """One step as a function of its weights, to be traced."""
        return self.zoned(inputs, state, weights)

    @property
    def has_kernel(self) -> bool:
        """Whether torch has a kernel for the layer as it is."""
        return not self.zoneout

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """One step; without gradients and in evaluation mode, in compiled code where that can be."""
        self.check_input(inputs)
        found = stepped(self, inputs, state)
        if found is None:
            self.check_state(state, inputs.shape[0])
            found = self.advance_once(inputs, state)
        return found

    def advance_once(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """The kernel of one step, and zoneout."""
        return self.zoned(inputs, state, self.weights())

    def dense(self, inputs: Tensor, state: State, weights: Sequence[Tensor]) -> tuple[Tensor, State]:
        """A batch without padding: ``(batch, time, input_size)`` to ``(batch, time, output_size)``."""
        raise NotImplementedError

    def advance(self, inputs: Tensor, state: State, weights: Sequence[Tensor]) -> tuple[Tensor, State]:
        """One step: ``(batch, input_size)`` to ``(batch, output_size)``."""
        raise NotImplementedError

    def loop(self, inputs: Tensor, state: State, weights: Sequence[Tensor]) -> tuple[Tensor, State]:
        """What `dense` does, one step after another, with zoneout."""
        return loop(lambda x_t, kept: self.zoned(x_t, kept, weights), inputs, state, None, output_size=self.output_size)

    def zoned(self, inputs: Tensor, state: State, weights: Sequence[Tensor]) -> tuple[Tensor, State]:
        """One step, with part of the state held back where the layer has zoneout."""
        outputs, new = self.advance(inputs, state, weights)
        if not self.zoneout:
            return outputs, new
        return hold_back(outputs, new, state, rate=self.zoneout, training=self.training)

    def weights(self) -> list[Tensor]:
        """The parameters in the order the kernels take them, the recurrent ones under a new mask in training."""
        recurrent: Tensor = self.weight_hh_l0
        if self.training and self.weight_dropout:
            recurrent = recurrent * dropout_mask(tuple(recurrent.shape), self.weight_dropout, recurrent)
        found = (self.weight_ih_l0, recurrent, self.bias_ih_l0, self.bias_hh_l0, self.weight_hr_l0)
        return [weight for weight in found if weight is not None]

    def options(self) -> tuple[bool, int, float, bool, bool, bool]:
        """The kernels' trailing arguments: biases, layers, dropout, training, bidirectional, batch first."""
        return self.bias_ih_l0 is not None, 1, 0.0, self.training, False, True

    def twin_options(self) -> dict[str, object]:
        """What the twin's constructor takes beside sizes.

        Raises:
            ValueError: `torch.nn` knows neither weight dropout nor zoneout.
        """
        if self.weight_dropout or self.zoneout:
            raise ValueError("torch.nn has no weight dropout and no zoneout; give both as 0 to convert")
        return {"bias": self.bias_ih_l0 is not None, "batch_first": True}

    def extra_repr(self) -> str:
        """Sizes, for ``print``."""
        return f"{self.input_size}, {self.hidden_size}"
