"""The selective scan: a diagonal linear recurrence whose every coefficient depends on the input.

A. Gu and T. Dao, "Mamba: Linear-time sequence modeling with selective state spaces", 2023, algorithm 2.

    Ā_t = exp(Δ_t A)                             (channels, state)
    h_t = Ā_t ⊙ h_{t−1} + (Δ_t x_t) B_tᵀ
    y_t = h_t C_t + D ⊙ x_t

x inputs · y outputs · h the state · Δ ``delta`` · A ``a`` · B ``b`` · C ``c`` · D ``skip``. As in the paper, B is
discretised by Euler's rule and only A by the zero-order hold.

`selective_scan_reference` is these equations. `selective_scan` computes the same in chunks of time: what has
(time, batch, state, channels) elements exists for one chunk only, in buffers that stay in the cache and are used again
by the next. For the gradient, the states between chunks are kept and those within a chunk computed again. With
g_t the gradient of h_t, from the last step to the first,

    g_t = dy_t C_tᵀ + Ā_{t+1} ⊙ g_{t+1}
    dC_t = h_tᵀ dy_t,  dB_t = g_tᵀ (Δ_t x_t),  d(Δ_t x_t) = g_t B_t,  d(Δ_t A) = g_t ⊙ Ā_t ⊙ h_{t−1}

Nothing is divided by a product of decays, so no input can make it overflow. States are stored transposed,
(batch, state, channels): the long dimension is the contiguous one.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_ELEMENTS = 2**20
"""About how many elements a buffer of one chunk holds: 4 MiB in float32."""


def selective_scan_reference(
    inputs: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, skip: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The equations, one step after another; arguments and results as `selective_scan`."""
    outputs = []
    for x_t, delta_t, b_t, c_t in zip(inputs.unbind(1), delta.unbind(1), b.unbind(1), c.unbind(1), strict=True):
        decay = torch.exp(delta_t.unsqueeze(1) * a.t())  # (B, N, D)
        state = decay * state + b_t.unsqueeze(2) * (delta_t * x_t).unsqueeze(1)
        outputs.append((c_t.unsqueeze(2) * state).sum(1) + skip * x_t)
    return torch.stack(outputs, dim=1), state


def selective_scan(
    inputs: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, skip: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Runs the recurrence over a sequence of at least one step, in float32 or wider.

    Args:
        inputs: ``(batch, time, channels)``.
        delta: ``(batch, time, channels)``, positive.
        a: ``(channels, state_size)``, negative.
        b: ``(batch, time, state_size)``.
        c: ``(batch, time, state_size)``.
        skip: ``(channels,)``.
        state: ``(batch, state_size, channels)``.

    Returns:
        Outputs ``(batch, time, channels)`` and the state after the last step.
    """
    given = (inputs, delta, a, b, c, skip, state)
    wide = tuple(_at_least_float32(tensor) for tensor in given)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in wide):
        outputs, end = _SelectiveScan.apply(*wide)  # type: ignore[no-untyped-call]
    else:
        outputs, end = _forward(*wide, borders=None)
    return outputs.to(inputs.dtype), end.to(state.dtype)


def _at_least_float32(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _chunk_steps(state: Tensor) -> int:
    """Steps of one chunk: as many as the buffers hold, within bounds."""
    return min(max(CHUNK_ELEMENTS // state.numel(), 8), 64)


class _Chunk:
    """Buffers of one chunk, and its recurrence."""

    def __init__(self, steps: int, a: Tensor, state: Tensor) -> None:
        self.a = a.t().contiguous()  # (N, D)
        self.decay = state.new_empty(steps, *state.shape)  # (S, B, N, D)
        self.states = state.new_empty(steps + 1, *state.shape)  # states[t] comes before step t
        self.decay_of, self.state_of = self.decay.unbind(0), self.states.unbind(0)

    def run(self, start: Tensor, drive: Tensor, delta: Tensor, b: Tensor) -> None:
        """Fills ``decay`` and ``states`` for as many steps as ``delta`` (steps, batch, channels) has."""
        steps = delta.shape[0]
        self.state_of[0].copy_(start)  # first: it may be the last state of the chunk before
        torch.mul(delta.unsqueeze(2), self.a, out=self.decay[:steps]).exp_()
        torch.mul(b.unsqueeze(3), drive.unsqueeze(2), out=self.states[1 : steps + 1])
        for t in range(steps):
            self.state_of[t + 1].addcmul_(self.decay_of[t], self.state_of[t])


def _spans(time: int, steps: int) -> Iterator[slice]:
    return (slice(start, min(start + steps, time)) for start in range(0, time, steps))


def _forward(
    inputs: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, skip: Tensor, state: Tensor, borders: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Fills ``borders`` (chunks, batch, state_size, channels) with the state before each chunk, where it is given."""
    steps = min(_chunk_steps(state), inputs.shape[1])
    chunk = _Chunk(steps, a, state)
    outputs = inputs * skip
    for i, span in enumerate(_spans(inputs.shape[1], steps)):
        if borders is not None:
            borders[i].copy_(state)
        x, step, drive_in, read = (part[:, span].transpose(0, 1) for part in (inputs, delta, b, c))
        chunk.run(state, step * x, step, drive_in)
        count = x.shape[0]
        seen = torch.matmul(read.unsqueeze(2), chunk.states[1 : count + 1]).squeeze(2)  # (S, B, D)
        outputs[:, span] += seen.transpose(0, 1)
        state = chunk.state_of[count]
    return outputs, state.clone()


class _SelectiveScan(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, inputs: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, skip: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        chunks = -(-inputs.shape[1] // _chunk_steps(state))
        borders = state.new_empty(chunks, *state.shape)
        with torch.autocast(inputs.device.type, enabled=False):
            results = _forward(inputs, delta, a, b, c, skip, state, borders)
        ctx.save_for_backward(inputs, delta, a, b, c, skip, borders)
        return results

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, d_outputs: Tensor, d_state: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        with torch.autocast(d_outputs.device.type, enabled=False):
            return _backward(*ctx.saved_tensors, d_outputs, d_state)


def _backward(
    inputs: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, skip: Tensor, borders: Tensor,
    d_outputs: Tensor, d_state: Tensor,
) -> tuple[Tensor, ...]:
    """The gradients of all arguments of `selective_scan`, in their order; see the head of this file."""
    steps = min(_chunk_steps(d_state), inputs.shape[1])
    chunk = _Chunk(steps, a, d_state)
    gradient = torch.empty_like(chunk.decay)
    gradient_of = gradient.unbind(0)
    d_inputs, d_delta = d_outputs * skip, torch.empty_like(delta)
    d_a, d_b, d_c = torch.zeros_like(chunk.a), torch.empty_like(b), torch.empty_like(c)
    tail = d_state.clone()
    for i, span in reversed(list(enumerate(_spans(inputs.shape[1], steps)))):
        x, step, drive_in, read, dy = (p[:, span].transpose(0, 1) for p in (inputs, delta, b, c, d_outputs))
        drive, count = step * x, x.shape[0]
        chunk.run(borders[i], drive, step, drive_in)
        g, decay = gradient[:count], chunk.decay[:count]
        torch.mul(read.unsqueeze(3), dy.unsqueeze(2), out=g)
        gradient_of[count - 1].add_(tail)
        for t in range(count - 1, 0, -1):
            gradient_of[t - 1].addcmul_(chunk.decay_of[t], gradient_of[t])
        torch.mul(chunk.decay_of[0], gradient_of[0], out=tail)
        d_c[:, span] = torch.matmul(chunk.states[1 : count + 1], dy.unsqueeze(3)).squeeze(3).transpose(0, 1)
        d_b[:, span] = torch.matmul(g, drive.unsqueeze(3)).squeeze(3).transpose(0, 1)
        d_drive = torch.matmul(drive_in.unsqueeze(2), g).squeeze(2)
        d_exponent = decay.mul_(g).mul_(chunk.states[:count])
        torch.mul(d_exponent, chunk.a, out=g)
        d_inputs[:, span] += (d_drive * step).transpose(0, 1)
        d_delta[:, span] = g.sum(2).addcmul_(d_drive, x).transpose(0, 1)
        d_a += d_exponent.mul_(step.unsqueeze(2)).sum((0, 1))
    d_skip = (d_outputs * inputs).sum((0, 1))
    return d_inputs, d_delta, d_a.t(), d_b, d_c, d_skip, tail
