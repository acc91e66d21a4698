"""The obvious loop over time: the reference that the fast path is compared with."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..lengths import run_by_length
from ..state import State, state_leaves

Advance = Callable[[Tensor, State], tuple[Tensor, State]]
"""One step: inputs ``(batch, input_size)`` and state to outputs ``(batch, output_size)`` and the next state."""


def loop(
    advance: Advance, inputs: Tensor, state: State, lengths: Tensor | None, *, output_size: int
) -> tuple[Tensor, State]:
    """Runs one step after another; see `seriatim.unroll.unroll`.

    Raises:
        ValueError: the step changes its state in place, or returns a state of another structure, shape or type.
    """
    if lengths is not None:
        return run_by_length(
            lambda rows, kept: loop(advance, rows, kept, None, output_size=output_size), inputs, state, lengths
        )
    outputs = []
    for t in range(inputs.shape[1]):
        if t:
            output, state = advance(inputs[:, t], state)
        else:
            output, state = _first(advance, inputs[:, 0], state)
        outputs.append(output)
    if not outputs:
        return inputs.new_zeros(inputs.shape[0], 0, output_size), state
    return torch.stack(outputs, dim=1), state


def _first(advance: Advance, inputs: Tensor, state: State) -> tuple[Tensor, State]:
    """The first step, and what every step must keep to."""
    leaves = state_leaves(state)
    versions = [None if leaf.is_inference() else leaf._version for leaf in leaves]
    output, new = advance(inputs, state)
    if [None if leaf.is_inference() else leaf._version for leaf in leaves] != versions:
        raise ValueError("a step changes the state it is given in place; it must make a new one")
    if _described(new) != _described(state) and not torch.is_autocast_enabled(inputs.device.type):
        raise ValueError(
            f"a step must return a state of the structure, shape and type it is given: {_described(state)}; it returns "
            f"{_described(new)}"
        )
    if output.shape[:1] != inputs.shape[:1]:
        found = tuple(output.shape)
        raise ValueError(
            f"the outputs of a step must have the batch first: ({inputs.shape[0]}, ...); it returns {found}"
        )
    return output, new


def _described(state: State) -> str:
    """Structure, shapes and types, in words."""
    if isinstance(state, Tensor):
        return f"{str(state.dtype).removeprefix('torch.')} {tuple(state.shape)}"
    if not isinstance(state, tuple):
        return type(state).__name__
    return f"{type(state).__name__}({', '.join(map(_described, state))})"
