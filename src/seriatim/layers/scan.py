"""Linear recurrences over time, h_t = a_t ⊙ h_{t−1} + b_t, with a gradient derived by hand.

λ_t is the gradient with respect to h_t including all later uses, and g_t its part from the output at t alone:

    λ_T = g_T,  λ_t = g_t + ā_{t+1} ⊙ λ_{t+1}
    ∂a_t = λ_t ⊙ h̄_{t−1},  ∂b_t = λ_t,  ∂h_0 = ā_1 ⊙ λ_1

The bar is the complex conjugate. This is the same recurrence, run backwards. There are no divisions by products of
decays and no logarithms, so that decays may be zero, negative or complex.
"""

import math
from typing import Any, TypeAlias

import torch
from torch import Tensor

Context: TypeAlias = Any
"""The context of a `torch.autograd.Function`; PyTorch does not declare its attributes."""


WIDE = 8192
"""The elements of a step from which a loop over single steps is as fast as one over chunks (measured on a CPU)."""


def at_least_float32(tensor: Tensor) -> Tensor:
    """Return a tensor in float32 or wider."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def linear_scan(decays: Tensor, inputs: Tensor, start: Tensor) -> Tensor:
    """Return the states h_1 to h_T ``(batch, time, ...)``; the gradient can be taken once, not twice.

    Args:
        decays: a, ``(batch, time, ...)``.
        inputs: b, of the same shape and type.
        start: h_0, ``(batch, ...)``.
    """
    if decays.shape != inputs.shape or start.shape != (inputs.shape[0], *inputs.shape[2:]):
        raise ValueError(
            "a scan takes decays and inputs (batch, time, ...) and a start (batch, ...); got "
            f"{tuple(decays.shape)}, {tuple(inputs.shape)} and {tuple(start.shape)}"
        )
    states: Tensor = _LinearScan.apply(decays, inputs, start)  # type: ignore[no-untyped-call]
    return states


class _LinearScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, decays: Tensor, inputs: Tensor, start: Tensor) -> Tensor:
        states = inputs.new_empty(inputs.shape)
        _scan(decays, inputs, start, states)
        ctx.save_for_backward(decays, start, states)
        return states

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Context, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        decays, start, states = ctx.saved_tensors
        if not states.numel():
            return torch.zeros_like(states), torch.zeros_like(states), torch.zeros_like(start)
        decays = decays.conj().resolve_conj()
        d_inputs, d_decays = torch.empty_like(states), torch.empty_like(states)
        d_inputs[:, -1] = gradient[:, -1]
        _scan(decays[:, 1:], gradient[:, :-1], gradient[:, -1], d_inputs[:, :-1], backwards=True)
        torch.mul(d_inputs[:, 0], start.conj(), out=d_decays[:, 0])
        torch.mul(d_inputs[:, 1:], states[:, :-1].conj(), out=d_decays[:, 1:])
        return d_decays, d_inputs, decays[:, 0] * d_inputs[:, 0]


def _scan(a: Tensor, b: Tensor, h: Tensor, states: Tensor, *, backwards: bool = False) -> None:
    """Fill ``states``: in single steps where these are wide, otherwise in about √time chunks side by side."""
    time = a.shape[1]
    chunks = math.isqrt(time) if h.numel() < WIDE else 1
    rest = time if chunks < 2 else time % chunks
    head, body = slice(0, rest), slice(rest, time)
    if backwards:
        head, body = slice(time - rest, time), slice(0, time - rest)
    h = _in_steps(a[:, head], b[:, head], h, states[:, head], backwards)
    if rest < time:
        # (batch, chunks * length, ...) as (batch, length, chunks, ...)
        a, b, states = (torch.unflatten(x[:, body], 1, (chunks, -1)).transpose(1, 2) for x in (a, b, states))
        _in_chunks(a, b, h, states, backwards)


def _in_steps(a: Tensor, b: Tensor, h: Tensor, states: Tensor, backwards: bool) -> Tensor:
    """Fill ``states``, one step after another, and return the last."""
    steps = list(zip(a.unbind(1), b.unbind(1), states.unbind(1), strict=True))
    for a_t, b_t, state in reversed(steps) if backwards else steps:
        h = torch.addcmul(b_t, a_t, h, out=state)
    return h


def _in_chunks(a: Tensor, b: Tensor, h: Tensor, states: Tensor, backwards: bool) -> None:
    """Fill ``states`` ``(batch, length, chunks, ...)`` in two passes over the length, all chunks side by side.

    The first pass computes the last state of each chunk from a start of zero and the product of its decays, which
    together give the start of the next chunk. The second pass runs all chunks from their starts.
    """
    steps = list(zip(a.unbind(1), b.unbind(1), strict=True))
    (decay, end), *later = reversed(steps) if backwards else steps
    for a_t, b_t in later:
        decay, end = decay * a_t, torch.addcmul(b_t, a_t, end)
    starts = torch.empty_like(end)
    first, earlier, later_ = (-1, slice(1, None), slice(0, -1)) if backwards else (0, slice(0, -1), slice(1, None))
    starts[:, first] = h
    _in_steps(decay[:, earlier], end[:, earlier], h, starts[:, later_], backwards)
    _in_steps(a, b, starts, states, backwards)
