"""The state of every layer that sees a fixed number of past inputs: these inputs, zeros before the first.

Shared by the feed-forward window, causal convolutions and Mamba.
"""

import torch
from torch import Tensor


def remember(inputs: Tensor, state: Tensor, *, time_dim: int = 1) -> tuple[Tensor, Tensor]:
    """Puts the past in front of the inputs, and keeps the last of both.

    Args:
        inputs: ``(batch, time, width)``.
        state: ``(batch, k, width)``, the k inputs before these, oldest first; k may be 0.
        time_dim: 0 where these, and the results, are ``(time, batch, width)``.

    Returns:
        Past and inputs ``(batch, k + time, width)``, and the last k of them ``(batch, k, width)``.
    """
    extended = torch.cat([state, inputs], dim=time_dim)
    recent = extended.narrow(time_dim, inputs.shape[time_dim], state.shape[time_dim])
    return extended, recent.clone(memory_format=torch.contiguous_format)  # a view would keep the sequence alive
