"""The `forward` of every causal layer that is written over a batch without padding."""

from torch import Tensor

from ..core.contract import SequenceLayer
from ..core.lengths import run_by_length
from ..core.state import State


class UnpaddedLayer(SequenceLayer):
    """A causal layer of which a subclass writes `initial_state` and `dense`; padding and empty batches are seen to."""

    def forward(
        self, inputs: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Runs over ``(batch, time, input_size)``; see `SequenceLayer.forward`."""
        state, lengths = self.admit(inputs, state, lengths)
        if 0 in inputs.shape[:2]:
            return inputs.new_zeros(*inputs.shape[:2], self.output_size), state
        if lengths is not None:
            return run_by_length(self.dense, inputs, state, lengths)
        return self.dense(inputs, state)

    def dense(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """A batch without padding, of at least one row and one input.

        Args:
            inputs: ``(batch, time, input_size)``.
            state: the state before the first of them.

        Returns:
            Outputs ``(batch, time, output_size)`` and the state after the last input.
        """
        raise NotImplementedError
