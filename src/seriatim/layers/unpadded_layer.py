"""Causal layers that are written over a batch without padding."""

import torch
from torch import Tensor

from ..core.contract import SequenceLayer
from ..core.lengths import run_by_length
from ..core.state import OutputsAndState, State


class UnpaddedLayer(SequenceLayer):
    """A subclass writes `initial_state` and `forward_unpadded`; `forward` handles padding and empty batches."""

    def forward(self, inputs: Tensor, state: State | None = None, *, lengths: Tensor | None = None) -> OutputsAndState:
        """Run over ``(batch, time, input_size)``; see `SequenceLayer.forward`."""
        state, lengths = self.validate_inputs(inputs, state, lengths)
        if 0 in inputs.shape[:2]:
            return inputs.new_zeros(*inputs.shape[:2], self.output_size), state
        if lengths is not None:
            return run_by_length(self.forward_unpadded, inputs, state, lengths)
        return self.forward_unpadded(inputs, state)

    def forward_unpadded(self, inputs: Tensor, state: State) -> OutputsAndState:
        """Run over ``(batch, time, input_size)`` without padding, of at least one row and one input."""
        raise NotImplementedError


def remember(inputs: Tensor, state: Tensor, *, time_dim: int = 1) -> tuple[Tensor, Tensor]:
    """Join the last k inputs with the next ones, for a layer that sees a fixed number of inputs.

    Inputs are ``(batch, time, width)``, the state the k inputs before these ``(batch, k, width)``, oldest first; k may
    be 0. Where ``time_dim`` is 0, time is the first dimension of these and of the results, which are old and new inputs
    ``(batch, k + time, width)``, and the last k of them.
    """
    extended = torch.cat([state, inputs], dim=time_dim)
    recent = extended.narrow(time_dim, inputs.shape[time_dim], state.shape[time_dim])
    return extended, recent.clone(memory_format=torch.contiguous_format)  # a view would keep the sequence in memory
