"""The obvious loop over time: the reference that the fast path is compared with."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..core.lengths import run_by_length
from ..core.state import State, state_leaves
from .step_checks import check_returned

Advance = Callable[[Tensor, State], tuple[Tensor, State]]
"""One step: inputs ``(batch, input_size)`` and state to outputs ``(batch, output_size)`` and the next state."""


def loop(
    advance: Advance,
    inputs: Tensor,
    state: State,
    lengths: Tensor | None,
    *,
    output_size: int,
    name: str = "the cell",
) -> tuple[Tensor, State]:
    """Runs one step after another; see `seriatim.recurrence.unroll`. ``name`` is the cell's, for messages.

    Raises:
        ValueError: a step changes its state in place, or returns something else than outputs ``(batch, output_size)``
            and a state of the structure, shapes and types it is given.
    """
    if lengths is not None:
        return run_by_length(
            lambda rows, kept: loop(advance, rows, kept, None, output_size=output_size, name=name),
            inputs,
            state,
            lengths,
        )
    outputs = []
    leaves = state_leaves(state)
    versions = [None if leaf.is_inference() else leaf._version for leaf in leaves]
    for t in range(inputs.shape[1]):
        output, state = check_returned(advance(inputs[:, t], state), name, inputs[:, t], state, output_size)
        outputs.append(output)
        if not t and [None if leaf.is_inference() else leaf._version for leaf in leaves] != versions:
            raise ValueError(f"{name}: a step changes the state it is given in place; it must make a new one")
    if not outputs:
        return inputs.new_zeros(inputs.shape[0], 0, output_size), state
    return torch.stack(outputs, dim=1), state
