"""Sequences of different lengths in one batch: padding is on the right and is described by ``lengths``."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar

import torch
from torch import Tensor
from torch.nn import functional as F

from .context_values import temporarily
from .errors import MismatchError, RangeError, shown
from .exporting import exporting
from .state import State, join_states, select_state

_cleared: ContextVar[Tensor | None] = ContextVar("cleared", default=None)
"""The lengths of the sequences whose padding an outer layer has already checked and set to zero."""


def require_dense(name: str, values: Tensor) -> None:
    """Raise InputError for a tensor whose values do not all lie in memory one after another, such as a sparse one."""
    if values.layout != torch.strided or values.is_nested:
        kind = "nested" if values.is_nested else str(values.layout).removeprefix("torch.")
        raise RangeError(f"{name}: a {kind} tensor is not supported; convert it, as with {name}.to_dense()")


def check_lengths(lengths: Tensor | list[int] | None, batch_size: int, time: int) -> Tensor | None:
    """Return ``lengths`` as an integer tensor ``(batch,)``, None where no row is padded, or raise InputError."""
    if lengths is None:
        return None
    if isinstance(lengths, Tensor) and lengths is _cleared.get():
        return lengths

    # Type and shape are known for every tensor, so they are checked first.
    try:
        lengths = torch.as_tensor(lengths)
    except (TypeError, ValueError, RuntimeError):  # not numbers
        raise RangeError(f"lengths: got {shown(lengths)}; give {batch_size} integers, one a row") from None
    require_dense("lengths", lengths)
    kind = lengths.dtype
    if lengths.shape != (batch_size,) or kind.is_floating_point or kind.is_complex or kind == torch.bool:
        raise MismatchError(
            f"lengths: got {kind} of shape {tuple(lengths.shape)}; give {batch_size} integers, one a row"
        )

    # The values are compared only where there are some: not on the device meta, and not while a program is exported.
    if lengths.is_meta and not exporting():
        raise RangeError("lengths: the tensor is on the device meta, which has no values; give one with values")
    if exporting():
        return lengths.long()
    if batch_size == 0:
        return None
    numbers = lengths.tolist()  # for few rows faster than operators
    shortest, longest = min(numbers), max(numbers)
    if shortest < 0 or longest > time:
        raise RangeError(f"lengths: got {shortest} to {longest}; give 0 to {time}, the length of the sequence")
    return None if shortest == time else lengths.long()


def padding_cleared(lengths: Tensor | None) -> AbstractContextManager[Tensor | None]:
    """Let `check_lengths` and `zero_padding` do nothing for this very tensor of lengths inside the ``with`` block.

    A layer made of other layers checks the lengths and sets padding to zero in its own inputs and outputs.
    """
    return temporarily(_cleared, lengths)


def valid_mask(lengths: Tensor, time: int) -> Tensor:
    """Return a mask ``(batch, time)``, True at valid positions, for lengths ``(batch,)``."""
    return torch.arange(time, device=lengths.device) < lengths.unsqueeze(1)


def zero_padding(inputs: Tensor, lengths: Tensor | None) -> Tensor:
    """Set padded positions of ``(batch, time, ...)`` to zero, NaN included, in value and in gradient."""
    if lengths is None or lengths is _cleared.get():
        return inputs
    mask = valid_mask(lengths.to(inputs.device), inputs.shape[1])
    return inputs.masked_fill(~mask.view(*mask.shape, *[1] * (inputs.dim() - 2)), 0)


def reverse(inputs: Tensor, lengths: Tensor | None) -> Tensor:
    """Reverse every row of ``(batch, time, ...)`` within its length; padding stays on the right."""
    if lengths is None:
        return inputs.flip(1)
    time = inputs.shape[1]
    position = torch.arange(time, device=inputs.device).expand(inputs.shape[0], time)
    mirrored = lengths.to(inputs.device).unsqueeze(1) - 1 - position
    source = torch.where(mirrored >= 0, mirrored, position)
    source = source + time * torch.arange(inputs.shape[0], device=inputs.device).unsqueeze(1)
    return inputs.flatten(0, 1).index_select(0, source.flatten()).view_as(inputs)  # whole rows at a time


def run_by_length(
    run: Callable[[Tensor, State], tuple[Tensor, State]], inputs: Tensor, state: State, lengths: Tensor
) -> tuple[Tensor, State]:
    """Run a causal sequence function without computing any padding.

    Rows are sorted by length. Between one length and the next, the rows that have not ended run as one dense batch;
    then the rows that have ended leave with their state. A batch bucketed by length takes one or two calls.
    """
    order = torch.argsort(lengths, descending=True, stable=True).to(inputs.device)
    sorted_lengths = lengths[order.to(lengths.device)].tolist()
    rows, inputs, state = len(sorted_lengths), inputs[order], select_state(state, order)

    # after the step at which rows end, they leave with their states; as rows are sorted, they are the last ones
    outputs, ended, start = [], [], 0
    for end in sorted({length for length in sorted_lengths if length > 0}):
        running = sum(length >= end for length in sorted_lengths)
        if running < rows:
            ended.append(select_state(state, torch.arange(running, rows, device=inputs.device)))
            state = select_state(state, torch.arange(running, device=inputs.device))
            rows = running
        block, state = run(inputs[:running, start:end], state)  # (running, end − start, D)
        outputs.append(F.pad(block, (0, 0, 0, 0, 0, len(sorted_lengths) - running)))
        start = end

    if not outputs:  # every row is empty: a step on zeros tells the width of the outputs
        step, _ = run(torch.zeros_like(inputs[:, :1]), state)
        outputs.append(torch.zeros_like(step[:, :0]))

    # the rows return to their order; those that ran longest come first among the states, as they do in `order`
    back = torch.argsort(order)
    padded = F.pad(torch.cat(outputs, dim=1), (0, 0, 0, inputs.shape[1] - start))
    return padded[back], select_state(join_states([state, *reversed(ended)]), back)
