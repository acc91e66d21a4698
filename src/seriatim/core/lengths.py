"""Sequences of different lengths in one batch: padding is on the right and described by ``lengths``."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from .state import State, join_states, select_state


def check_lengths(lengths: Tensor | list[int] | None, batch_size: int, time: int) -> Tensor | None:
    """Returns ``lengths`` as an integer tensor ``(batch,)``, or None where no row is padded.

    Raises:
        ValueError: not one length a row, negative, or longer than the sequence.
    """
    if lengths is None or _trusted(lengths):
        return lengths  # type: ignore[return-value]
    lengths = torch.as_tensor(lengths)
    if lengths.shape != (batch_size,) or lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise ValueError(
            f"lengths must hold {batch_size} integers, one a row; got {lengths.dtype} of shape {tuple(lengths.shape)}"
        )
    if batch_size == 0:
        return None
    shortest, longest = int(lengths.min()), int(lengths.max())
    if shortest < 0 or longest > time:
        raise ValueError(f"lengths must lie in 0..{time}, the length of the sequence; got {shortest}..{longest}")
    return None if shortest == time else lengths.long()


def within(lengths: Tensor | None) -> Tensor | None:
    """Lengths for the layers inside a layer that has checked them and clears padding on its own entry and exit.

    `check_lengths` and `zero_padding` trust them: what padding holds inside is finite, and whatever passes from one
    position to another goes by the lengths.
    """
    if lengths is None:
        return None
    trusted = lengths.view_as(lengths)
    trusted.padding_is_finite = True  # type: ignore[attr-defined]
    return trusted


def _trusted(lengths: object) -> bool:
    return getattr(lengths, "padding_is_finite", False)


def valid_mask(lengths: Tensor, time: int) -> Tensor:
    """True where a position holds a real input: ``(batch,)`` to ``(batch, time)``."""
    return torch.arange(time, device=lengths.device) < lengths.unsqueeze(1)


def zero_padding(inputs: Tensor, lengths: Tensor | None) -> Tensor:
    """Sets padded positions of ``(batch, time, ...)`` to zero, NaN included, in value and in gradient."""
    if lengths is None or _trusted(lengths):
        return inputs
    mask = valid_mask(lengths.to(inputs.device), inputs.shape[1])
    return inputs.masked_fill(~mask.view(*mask.shape, *[1] * (inputs.dim() - 2)), 0)


def reverse(inputs: Tensor, lengths: Tensor | None) -> Tensor:
    """Reverses every row of ``(batch, time, ...)`` within its length; padding stays on the right."""
    if lengths is None:
        return inputs.flip(1)
    time = inputs.shape[1]
    position = torch.arange(time, device=inputs.device).expand(inputs.shape[0], time)
    mirrored = lengths.to(inputs.device).unsqueeze(1) - 1 - position
    place = torch.where(mirrored >= 0, mirrored, position)
    place = place + time * torch.arange(len(inputs), device=inputs.device).unsqueeze(1)
    return inputs.flatten(0, 1).index_select(0, place.flatten()).view_as(inputs)  # whole rows at a time


def run_by_length(
    run: Callable[[Tensor, State], tuple[Tensor, State]], inputs: Tensor, state: State, lengths: Tensor
) -> tuple[Tensor, State]:
    """Runs a causal sequence function without computing any padding.

    Rows are sorted by length. Between one length and the next, the rows still going run as one dense batch;
    then the rows that have ended leave with their state. A batch bucketed by length takes one or two calls.

    Args:
        run: a dense function ``(rows, time, input_size), state -> (rows, time, output_size), state``.
        inputs: ``(batch, time, input_size)``.
        state: the state before the first input.
        lengths: ``(batch,)``, not all equal to ``time``.

    Returns:
        Outputs ``(batch, time, output_size)``, zero on padding, and each row's state at its own end.
    """
    order = torch.argsort(lengths, descending=True, stable=True).to(inputs.device)
    sorted_lengths = lengths[order.to(lengths.device)].tolist()
    rows, inputs, state = len(sorted_lengths), inputs[order], select_state(state, order)
    outputs, ended, start = [], [], 0
    for end in sorted({length for length in sorted_lengths if length > 0}):
        going = sum(length >= end for length in sorted_lengths)
        if going < rows:
            ended.append(select_state(state, torch.arange(going, rows, device=inputs.device)))
            state = select_state(state, torch.arange(going, device=inputs.device))
            rows = going
        piece, state = run(inputs[:going, start:end], state)
        outputs.append(F.pad(piece, (0, 0, 0, 0, 0, len(sorted_lengths) - going)))
        start = end
    if not outputs:  # every row is empty: one zero step gives the outputs their width
        piece, _ = run(torch.zeros_like(inputs[:, :1]), state)
        outputs.append(torch.zeros_like(piece[:, :0]))
    back = torch.argsort(order)
    whole = F.pad(torch.cat(outputs, dim=1), (0, 0, 0, inputs.shape[1] - start))
    return whole[back], select_state(join_states([state, *reversed(ended)]), back)
