"""The selective scan: a diagonal linear recurrence in which every coefficient depends on the input.

A. Gu and T. Dao, "Mamba: Linear-time sequence modeling with selective state spaces", 2023, algorithm 2.

    Ā_t = exp(Δ_t A)                             (channels, state)
    h_t = Ā_t ⊙ h_{t−1} + (Δ_t x_t) B_tᵀ
    y_t = h_t C_t + D ⊙ x_t

x inputs · y outputs · h the state · Δ ``delta`` · A ``a`` · B ``b`` · C ``c`` · D ``skip``. As in the paper, B is
discretised by Euler's rule and only A by the zero-order hold.

`selective_step` computes these equations. `selective_scan` computes the same in chunks of time: tensors of
(time, batch, state, channels) elements exist for one chunk only, in buffers that stay in the processor's cache and that
the next chunk uses again. For the gradient, the states between chunks are stored, and those within a chunk are computed
again. With g_t the gradient of h_t, from the last step to the first,

    g_t = dy_t C_tᵀ + Ā_{t+1} ⊙ g_{t+1}
    dC_t = h_tᵀ dy_t,  dB_t = g_tᵀ (Δ_t x_t),  d(Δ_t x_t) = g_t B_t,  d(Δ_t A) = g_t ⊙ Ā_t ⊙ h_{t−1}

There are no divisions by products of decays, so that no input causes an overflow. States are stored transposed,
(batch, state, channels), so that the long dimension is contiguous.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .scan import Context, at_least_float32

CHUNK_ELEMENTS = 2**19
"""The approximate number of elements of each of three buffers: 2 MiB in float32 (measured on a CPU)."""


def init_step_bias(bias: Tensor, dt_min: float, dt_max: float) -> None:
    """Fill a bias b so that softplus(b), a size of steps, is log-uniform in [dt_min, dt_max]."""
    with torch.no_grad():
        delta = torch.empty_like(bias).uniform_(math.log(dt_min), math.log(dt_max)).exp()
        bias.copy_(delta + torch.log(-torch.expm1(-delta)))  # the inverse of softplus


def selective_step(
    inputs: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, skip: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute one step of `selective_scan`; sequences have no time dimension."""
    decay = torch.exp(delta.unsqueeze(1) * a.t())  # (B, N, D)
    after = torch.addcmul(decay * state, b.unsqueeze(2), (delta * inputs).unsqueeze(1))
    outputs = (c.unsqueeze(2) * after).sum(1) + skip * inputs
    return outputs.to(inputs.dtype), after.to(state.dtype)


def selective_scan(
    inputs: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, skip: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Run the recurrence over a sequence of at least one step, in float32 or wider.

    The computation is time-major: batch-first views of sequences that are stored time-major are not copied. Inputs,
    delta (positive) and outputs are ``(batch, time, channels)``, a (negative) is ``(channels, state_size)``, b and c
    are ``(batch, time, state_size)``, skip is ``(channels,)`` and the state ``(batch, state_size, channels)``.
    """
    arguments = tuple(map(at_least_float32, (inputs, delta, a, b, c, skip, state)))
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in arguments):
        outputs, end = _SelectiveScan.apply(*arguments)  # type: ignore[no-untyped-call]
    else:
        outputs, end, _ = _forward(*arguments, keep=False)
    return outputs.to(inputs.dtype), end.to(state.dtype)


def _time_major(*sequences: Tensor) -> list[Tensor]:
    """Return each ``(batch, time, width)`` as ``(time, batch, width)``, contiguous."""
    return [sequence.transpose(0, 1).contiguous() for sequence in sequences]


class _Chunks:
    """Chunks of time, and the buffers that all chunks use in turn.

    Within a chunk of S steps, ``decay[t]`` is Ā of step t, and ``states[t]`` the state before it.
    """

    def __init__(self, time: int, a: Tensor, state: Tensor) -> None:
        self.steps = min(max(CHUNK_ELEMENTS // max(state.numel(), 1), 8), 64, time)
        self.count = -(-time // self.steps)
        self.a = a.t().contiguous()  # (N, D)
        self.decay = state.new_empty(self.steps, *state.shape)  # (S, B, N, D)
        self.states = state.new_empty(self.steps + 1, *state.shape)
        self.decay_of, self.state_of = self.decay.unbind(0), self.states.unbind(0)

    def split(self, *sequences: Tensor) -> list[tuple[Tensor, ...]]:
        """Return, for every chunk, its steps of each sequence ``(time, batch, width)``."""
        return list(zip(*(torch.split(sequence, self.steps) for sequence in sequences), strict=True))

    def run(self, start: Tensor, delta: Tensor, drive: Tensor, b: Tensor) -> int:
        """Fill ``decay`` and ``states`` over one chunk; return its number of steps."""
        steps = delta.shape[0]
        self.state_of[0].copy_(start)  # first: it may be the last state of the chunk before
        torch.mul(delta.unsqueeze(2), self.a, out=self.decay[:steps]).exp_()
        torch.mul(b.unsqueeze(3), drive.unsqueeze(2), out=self.states[1 : steps + 1])
        for t in range(steps):
            self.state_of[t + 1].addcmul_(self.decay_of[t], self.state_of[t])
        return steps


def _forward(
    inputs: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, skip: Tensor, state: Tensor, *, keep: bool
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return outputs, the last state and, where ``keep``, the states before each chunk."""
    chunks = _Chunks(inputs.shape[1], a, state)
    borders = []
    with torch.autocast(inputs.device.type, enabled=False):
        inputs, delta, b, c = _time_major(inputs, delta, b, c)
        drive = delta * inputs
        outputs = torch.empty_like(inputs)
        for delta_k, drive_k, b_k, c_k, outputs_k in chunks.split(delta, drive, b, c, outputs):
            if keep:
                borders.append(state.clone())
            steps = chunks.run(state, delta_k, drive_k, b_k)
            _row_products(c_k, chunks.states[1 : steps + 1], outputs_k)
            state = chunks.state_of[steps]
        outputs.addcmul_(inputs, skip)
    return outputs.transpose(0, 1), state.clone(), borders


def _row_products(rows: Tensor, matrices: Tensor, out: Tensor) -> None:
    """Compute out_tb = rows_tb · matrices_tb for every step t and row b of the batch."""
    torch.bmm(rows.flatten(0, 1).unsqueeze(1), matrices.flatten(0, 1), out=out.flatten(0, 1).unsqueeze(1))


class _SelectiveScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, *arguments: Tensor) -> tuple[Tensor, Tensor]:
        outputs, end, borders = _forward(*arguments, keep=True)
        ctx.save_for_backward(*arguments[:-1], *borders)
        return outputs, end

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, d_outputs: Tensor, d_end: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast(d_outputs.device.type, enabled=False):
            return _backward(ctx.saved_tensors, d_outputs, d_end)


def _backward(saved: Sequence[Tensor], d_outputs: Tensor, d_end: Tensor) -> tuple[Tensor, ...]:
    """Return the gradients of all arguments of `selective_scan`, in order; see the head of this file."""
    inputs, delta, a, b, c, skip, *borders = saved
    chunks = _Chunks(inputs.shape[1], a, borders[0])
    gradient = torch.empty_like(chunks.decay)  # g of every step of a chunk, (S, B, N, D)
    gradient_of, tail = gradient.unbind(0), d_end.clone()  # tail: Ā_{t+1} ⊙ g_{t+1} of the chunk after, (B, N, D)
    inputs, delta, b, c, d_outputs = _time_major(inputs, delta, b, c, d_outputs)
    drive = delta * inputs
    d_drive, d_delta, d_b, d_c = (torch.empty_like(sequence) for sequence in (drive, delta, b, c))
    d_a, d_a_k = torch.zeros_like(chunks.a), torch.empty_like(chunks.a)
    by_chunk = chunks.split(delta, drive, b, c, d_outputs, d_drive, d_delta, d_b, d_c)
    for border, of_chunk in zip(reversed(borders), reversed(by_chunk), strict=True):
        # the states within the chunk were not kept: they are computed again, into the buffers of every chunk
        delta_k, drive_k, b_k, c_k, d_outputs_k, d_drive_k, d_delta_k, d_b_k, d_c_k = of_chunk
        steps = chunks.run(border, delta_k, drive_k, b_k)
        g, decay = gradient[:steps], chunks.decay[:steps]

        # g_t from the last step to the first; `tail` is read before it is replaced for the chunk before
        torch.mul(c_k.unsqueeze(3), d_outputs_k.unsqueeze(2), out=g)
        gradient_of[steps - 1].add_(tail)
        for t in range(steps - 1, 0, -1):
            gradient_of[t - 1].addcmul_(chunks.decay_of[t], gradient_of[t])
        torch.mul(chunks.decay_of[0], gradient_of[0], out=tail)

        _row_products(d_outputs_k, chunks.states[1 : steps + 1].transpose(2, 3), d_c_k)
        _row_products(drive_k, g.transpose(2, 3), d_b_k)
        _row_products(b_k, g, d_drive_k)

        # d(Δ_t A) takes the place of Ā, which nothing reads from here on; then its product with A takes that of g
        d_exponent = decay.mul_(g).mul_(chunks.states[:steps])  # (S, B, N, D)
        torch.sum(torch.mul(d_exponent, chunks.a, out=g), 2, out=d_delta_k)
        d_a += torch.sum(d_exponent.mul_(delta_k.unsqueeze(2)), (0, 1), out=d_a_k)

    # x acts through Δ x and, past the state, through D; Δ also acts through Δ x
    d_inputs = (d_outputs * skip).addcmul_(d_drive, delta)
    d_delta.addcmul_(d_drive, inputs)
    d_skip = (d_outputs * inputs).sum((0, 1))
    d_inputs, d_delta, d_b, d_c = (sequence.transpose(0, 1) for sequence in (d_inputs, d_delta, d_b, d_c))
    return d_inputs, d_delta, d_a.t(), d_b, d_c, d_skip, tail
