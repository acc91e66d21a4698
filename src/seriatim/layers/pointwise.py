"""A function of each input alone, as a sequence layer that keeps nothing."""

from torch import Tensor, nn

from ..core.contract import SequenceLayer, refuse_memory
from ..core.lengths import valid_mask
from ..core.state import State
from .paths import direct_paths


class Pointwise(SequenceLayer):
    """Applies a module to every position on its own; the state is the empty tuple.

    Args:
        input_size: width of an input.
        output_size: width of what the module gives.
        module: a function ``(..., input_size)`` to ``(..., output_size)``.
    """

    keeps = "nothing"
    parallel = True

    def __init__(self, input_size: int, output_size: int, *, module: nn.Module) -> None:
        super().__init__()
        self.input_size, self.output_size, self.module = input_size, output_size, module

    def initial_state(
        self, batch_size: int, memory: Tensor | None = None, memory_lengths: Tensor | None = None
    ) -> State:
        """Nothing."""
        refuse_memory(memory)
        return ()

    def forward(
        self, inputs: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Runs the module over the valid positions of ``(batch, time, input_size)``; see `SequenceLayer.forward`."""
        inputs, state, lengths = self.begin(inputs, state, lengths)
        if lengths is None:
            return self.module(inputs), state
        mask = valid_mask(lengths.to(inputs.device), inputs.shape[1])
        valid = self.module(inputs[mask])
        outputs = valid.new_zeros(*inputs.shape[:2], self.output_size)
        return outputs.masked_scatter(mask.unsqueeze(2), valid), state

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """The module, once."""
        self.check_step(inputs, state)
        return self.module(inputs), state

    def path_lengths(self, distance: int) -> Tensor:
        """Only the present input is seen."""
        return direct_paths(distance, 0)
