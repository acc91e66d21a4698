"""Causal layers that are written over a batch without padding."""

import torch
from torch import Tensor

from ..core.contract import SequenceLayer
from ..core.lengths import run_by_length
from ..core.state import State


class UnpaddedLayer(SequenceLayer):
    """A causal layer whose subclass writes `initial_state` and `dense`; `forward` handles padding and empty batches."""

    def forward(
        self, inputs: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Run over ``(batch, time, input_size)``; see `SequenceLayer.forward`."""
        state, lengths = self.admit(inputs, state, lengths)
        if 0 in inputs.shape[:2]:
            return inputs.new_zeros(*inputs.shape[:2], self.output_size), state
        if lengths is not None:
            return run_by_length(self.dense, inputs, state, lengths)
        return self.dense(inputs, state)

    def dense(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """Run over a batch without padding, of at least one row and one input.

        Args:
            inputs: ``(batch, time, input_size)``.
            state: the state before the first of them.

        Returns:
            Outputs ``(batch, time, output_size)`` and the state after the last input.
        """
        raise NotImplementedError


def remember(inputs: Tensor, state: Tensor, *, time_dim: int = 1) -> tuple[Tensor, Tensor]:
    """Join the last k inputs with the next ones; every layer that sees a fixed number of inputs has this state.

    Args:
        inputs: ``(batch, time, width)``.
        state: ``(batch, k, width)``, the k inputs before these, oldest first, zeros before the first; k may be 0.
        time_dim: 0 where inputs, state and results are ``(time, batch, width)``.

    Returns:
        Old and new inputs ``(batch, k + time, width)``, and the last k of them ``(batch, k, width)``.
    """
    extended = torch.cat([state, inputs], dim=time_dim)
    recent = extended.narrow(time_dim, inputs.shape[time_dim], state.shape[time_dim])
    return extended, recent.clone(memory_format=torch.contiguous_format)  # a view would keep the sequence in memory
