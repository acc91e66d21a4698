"""Checks of what a user's cell returns, with messages that name the cell and the shapes it should have."""

from typing import Any

import torch
from torch import Tensor

from ..core.state import State


def check_returned(returned: Any, name: str, inputs: Tensor, state: State, output_size: int) -> tuple[Tensor, State]:
    """The outputs and the state that one step has returned.

    Args:
        returned: by the cell.
        name: of the cell's class.
        inputs: of the step, ``(batch, input_size)``.
        state: before it.
        output_size: the width that the cell declares.

    Raises:
        ValueError: not a pair, outputs not of shape ``(batch, output_size)``, or a state of another structure, shape
            or type than the one before the step.
    """
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise ValueError(f"{name}: a step must return a pair (outputs, state); it returns {describe(returned)}")
    outputs, new = returned
    check_outputs(outputs, name, len(inputs), output_size)
    if not same_structure(new, state, types=not torch.is_autocast_enabled(inputs.device.type)):
        raise ValueError(
            f"{name}: a step must return a state of the structure, shape and type it is given: {describe(state)}; "
            f"it returns {describe(new)}"
        )
    return outputs, new


def check_outputs(outputs: Any, name: str, batch: int, output_size: int) -> None:
    """Raises ValueError where the outputs of a step are not ``(batch, output_size)``."""
    if not isinstance(outputs, Tensor):
        raise ValueError(f"{name}: the outputs of a step must be a tensor; it returns {describe(outputs)}")
    if outputs.shape != (batch, output_size):
        found = tuple(outputs.shape)
        if found[:1] != (batch,):
            raise ValueError(
                f"{name}: the outputs of a step must have the batch first, ({batch}, {output_size}); it returns {found}"
            )
        raise ValueError(
            f"{name}: output_size is {output_size}, so the outputs of a step must have shape ({batch}, {output_size}); "
            f"it returns {found}"
        )


def check_initial(state: Any, name: str, batch_size: int) -> None:
    """Raises ValueError where an initial state is not made of tensors with one row for each of the batch."""
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


def same_structure(new: Any, old: State, *, types: bool) -> bool:
    """Whether a state can take the place of another; ``types`` says whether the types of numbers matter."""
    if isinstance(old, Tensor):
        return isinstance(new, Tensor) and new.shape == old.shape and (not types or new.dtype == old.dtype)
    if type(new) is not type(old) or len(new) != len(old):
        return False
    return all(same_structure(part, other, types=types) for part, other in zip(new, old, strict=True))


def describe(value: Any) -> str:
    """Structure, shapes and types, in words."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    if not isinstance(value, tuple | list):
        return type(value).__name__
    return f"{type(value).__name__}({', '.join(map(describe, value))})"
