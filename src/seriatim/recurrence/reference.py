"""The reference: a plain loop over time, and checks of what a cell returns. Compiled code is compared with it."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from ..core.lengths import run_by_length
from ..core.state import State, kind_of, state_leaves

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
    """Run one step after another; inputs, state, lengths and results are those of `SequenceLayer.forward`.

    Raises:
        ValueError: a step of the cell ``name`` changes its state in place; also the errors of `check_returned`.
    """
    if lengths is not None:
        run = functools.partial(loop, advance, lengths=None, output_size=output_size, name=name)
        return run_by_length(run, inputs, state, lengths)
    outputs = []
    leaves = state_leaves(state)
    versions = [None if leaf.is_inference() else leaf._version for leaf in leaves]
    for t in range(inputs.shape[1]):
        output, state = check_returned(advance(inputs[:, t], state), name, inputs[:, t], state, output_size)
        outputs.append(output)
        if not t and [None if leaf.is_inference() else leaf._version for leaf in leaves] != versions:
            raise ValueError(f"{name}: a step changes its state in place; return new tensors")
    if not outputs:
        return inputs.new_zeros(inputs.shape[0], 0, output_size), state
    return torch.stack(outputs, dim=1), state


def check_returned(returned: object, name: str, inputs: Tensor, state: State, output_size: int) -> tuple[Tensor, State]:
    """Return the outputs and the state that a step of the cell ``name`` returned for inputs and a state.

    Raises:
        ValueError: the value is not a pair, the outputs are not ``(batch, output_size)``, or the state differs in
            structure, shape or type from the state before the step.
    """
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise ValueError(f"{name}: a step must return a pair (outputs, state); it returns {describe(returned)}")
    outputs, new = returned
    outputs = check_outputs(outputs, name, inputs.shape[0], output_size)
    any_type = torch.is_autocast_enabled(inputs.device.type)  # which changes the types of what a cell computes
    if kind_of(new) != kind_of(state) or not all(
        leaf.shape == before.shape and (any_type or leaf.dtype == before.dtype)
        for leaf, before in zip(state_leaves(new), state_leaves(state), strict=True)
    ):
        raise ValueError(
            f"{name}: a step must return a state of the structure, shape and type it is given: {describe(state)}; "
            f"it returns {describe(new)}"
        )
    return outputs, new


def check_outputs(outputs: object, name: str, batch: int, output_size: int) -> Tensor:
    """Return the outputs of a step; raise ValueError if they are not a tensor ``(batch, output_size)``."""
    if not isinstance(outputs, Tensor):
        raise ValueError(f"{name}: the outputs of a step must be a tensor; it returns {describe(outputs)}")
    shape = tuple(outputs.shape)
    if shape != (batch, output_size):
        problem = "the outputs of a step must have the batch first,"
        if shape[:1] == (batch,):
            problem = f"output_size is {output_size}, so the outputs of a step must have shape"
        raise ValueError(f"{name}: {problem} ({batch}, {output_size}); it returns {shape}")
    return outputs


def check_initial(state: object, name: str, batch_size: int) -> None:
    """Raise ValueError if an initial state does not consist of tensors with one row for each row of the batch."""
    parts = [state]
    while parts:
        part = parts.pop()
        if isinstance(part, tuple):
            parts.extend(part)
        elif not isinstance(part, Tensor) or part.shape[:1] != (batch_size,):
            raise ValueError(
                f"{name}: initial_state({batch_size}) must return tensors whose first dimension is {batch_size}, or "
                f"tuples of them; it returns {describe(state)}"
            )


def describe(value: object) -> str:
    """Return structure, shapes and types in words."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    if not isinstance(value, tuple | list):
        return type(value).__name__
    return f"{type(value).__name__}({', '.join(map(describe, value))})"
