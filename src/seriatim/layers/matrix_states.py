"""Recurrences whose state is a matrix that decays: one step, and the same in chunks of time as matrix products.

S. Yang et al., "Gated linear attention transformers with hardware-efficient training", 2024, and T. Dao and A. Gu,
"Transformers are SSMs", 2024. For each head:

    S_t = diag(α_t) S_{t−1} + k_t v_tᵀ,    o_t = S_tᵀ q_t

S the state (K, V) · q, k queries and keys (K) · v values (V) · α the decay of each row of S, one number for all of them,
or 1; g = log α is given, which is at most 0.

`matrix_step` computes this equation. `matrix_scan` computes C steps at once. With G the sums of g since the beginning of
a chunk, and S the state there,

    P_ij = Σ_d q_id k_jd e^(G_id − G_jd) for i ≥ j, else 0
    O = (Q ⊙ e^G) S + P V,    S ← e^(G_C) ⊙ S + (K ⊙ e^(G_C − G))ᵀ V

No number is divided by a decay, and every exponent is at most 0, so that no gate causes an overflow. Where each row has a
decay of its own, P is computed from differences of G to the middle of blocks: rows i of the second half of a block meet
columns j of the first half in the product of q e^(G_i − G_m) and k e^(G_m − G_j), for m the last step of the first half;
then each half is divided in the same way. `seriatim.layers.delta_rule` is built of the same parts.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from .scan import Context, at_least_float32

CHUNK = 64
"""The steps of a chunk, a power of 2 (measured on a CPU)."""
LEAST = -50.0
"""The logarithm of a decay is taken as at least this: e^−50 is lost beside 1 in float64, and small sums are precise."""


def matrix_step(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, state: Tensor) -> tuple[Tensor, Tensor]:
    """Compute one step of `matrix_scan`; sequences have no time dimension."""
    q, k, v = (at_least_float32(x) for x in (q, k, v))
    q, k = same_heads(v, q, k)
    after = decayed(state, log_decay) + k.unsqueeze(3) * v.unsqueeze(2)  # (B, H, K, V)
    return (q.unsqueeze(3) * after).sum(2), after.to(state.dtype)


def matrix_scan(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, state: Tensor) -> tuple[Tensor, Tensor]:
    """Run the recurrence over a sequence of at least one step, in float32 or wider.

    Args:
        q: queries ``(batch, time, heads, K)``, or with a divisor of the number of heads, which then share them.
        k: keys of the same shape.
        v: values ``(batch, time, heads, V)``.
        log_decay: g ``(batch, time, heads)`` or ``(batch, time, heads, K)``; None where nothing decays.
        state: S ``(batch, heads, K, V)``.

    Returns:
        Outputs ``(batch, time, heads, V)`` and the state after the last step.
    """
    with torch.autocast(v.device.type, enabled=False):
        chunks = Chunks(log_decay, v)
        q, k = same_heads(v, q, k)
        q, k, v = map(chunks.split, (q, k, v))  # (N, B * H, C, K or V)
        ((scores,),) = chunks.products((q,), (k,))
        starts, end = chunks.states(chunks.until_end(k).mT @ v, state)
        outputs = chunks.since_start(q) @ starts + scores @ v
        return chunks.join(outputs), end


def decayed(state: Tensor, log_decay: Tensor | None) -> Tensor:
    """Return a state ``(batch, heads, K, V)`` times its decays, in float32 or wider."""
    state = at_least_float32(state)
    if log_decay is None:
        return state
    decay = torch.exp(at_least_float32(log_decay))
    return state * (decay.unsqueeze(3) if decay.dim() == 3 else decay.unsqueeze(2).unsqueeze(3))


def same_heads(v: Tensor, *others: Tensor) -> list[Tensor]:
    """Return queries or keys ``(..., groups, K)`` for each head of the values ``(..., heads, V)``."""
    heads = v.shape[-2]
    return [x if x.shape[-2] == heads else x.repeat_interleave(heads // x.shape[-2], dim=-2) for x in others]


class Chunks:
    """Sequences ``(batch, time, heads, ...)`` in chunks ``(N, batch · heads, C, ...)``, and the decays in each.

    The last chunk is filled with zeros, which change no state and whose decay is 1.

    Args:
        log_decay: as in `matrix_scan`.
        like: a sequence with the sizes and the type of all others.
    """

    def __init__(self, log_decay: Tensor | None, like: Tensor) -> None:
        self.batch, self.time, self.heads = like.shape[:3]
        self.size = min(CHUNK, 1 << (self.time - 1).bit_length())
        self.dtype = torch.promote_types(like.dtype, torch.float32)
        self.sums: Tensor | None = None  # G (N, B * H, C, 1 or K)
        self.by_row = log_decay is not None and log_decay.dim() == 4
        if log_decay is not None:
            log_decay = log_decay.clamp(min=LEAST)
            if not self.by_row:  # few numbers, which float64 keeps precise where a gate has closed
                log_decay = log_decay.unsqueeze(3)
                self.dtype, narrow = torch.float32 if like.device.type == "mps" else torch.float64, self.dtype
                self.sums = self.split(log_decay).cumsum(2)
                self.dtype = narrow
            else:
                self.sums = self.split(log_decay).cumsum(2)

    def split(self, x: Tensor) -> Tensor:
        """Return a sequence ``(batch, time, heads, D)`` as ``(N, batch · heads, C, D)``, in the type of all."""
        if padding := -self.time % self.size:
            x = F.pad(x, (0, 0, 0, 0, 0, padding))
        x = x.to(self.dtype).unflatten(1, (-1, self.size))  # (B, N, C, H, D)
        return x.permute(1, 0, 3, 2, 4).flatten(1, 2).contiguous()

    def join(self, x: Tensor) -> Tensor:
        """Undo `split`."""
        x = x.unflatten(1, (self.batch, self.heads)).permute(1, 0, 3, 2, 4)  # (B, N, C, H, D)
        return x.flatten(1, 2)[:, : self.time]

    def since_start(self, x: Tensor) -> Tensor:
        """Return x ⊙ e^G."""
        return x if self.sums is None else x * self.sums.exp().to(x.dtype)

    def until_end(self, x: Tensor) -> Tensor:
        """Return x ⊙ e^(G_C − G)."""
        return x if self.sums is None else x * (self.sums[:, :, -1:] - self.sums).exp().to(x.dtype)

    def products(self, rows: Sequence[Tensor], columns: Sequence[Tensor]) -> list[list[Tensor]]:
        """Return P of each of several q with each of several k, ``(N, batch · heads, C, C)``."""
        if self.sums is not None and self.by_row:
            made = _DecayedProducts.apply(self.sums, len(rows), *rows, *columns)  # type: ignore[no-untyped-call]
            return [list(made[i : i + len(columns)]) for i in range(0, len(made), len(columns))]
        if self.sums is None:
            return [[(row @ column.mT).tril() for column in columns] for row in rows]
        differences = self.sums - self.sums.mT
        future = torch.ones(self.size, self.size, dtype=torch.bool, device=differences.device).triu(1)
        decays = differences.masked_fill(future, -torch.inf).to(self.dtype).exp()
        return [[(row @ column.mT) * decays for column in columns] for row in rows]

    def totals(self) -> Sequence[Tensor] | None:
        """Return e^(G_C) of each chunk ``(batch · heads, 1 or K, 1)``."""
        return None if self.sums is None else self.sums[:, :, -1].exp().to(self.dtype).unsqueeze(3).unbind(0)

    def states(self, updates: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the states before the chunks ``(N, batch · heads, K, V)``, and the state after the last.

        Args:
            updates: what each chunk adds to its decayed state, ``(N, batch · heads, K, V)``.
            state: before the first chunk, ``(batch, heads, K, V)``.
        """
        totals, current = self.totals(), state.to(self.dtype).flatten(0, 1)
        starts = []
        for n, update in enumerate(updates.unbind(0)):
            starts.append(current)
            current = update + current if totals is None else torch.addcmul(update, totals[n], current)
        return torch.stack(starts), current.view(state.shape).to(state.dtype)


class _DecayedProducts(torch.autograd.Function):
    """P of every pair of rows and columns, where each of the K features has its own decay; see the head of this file.

    The gradient of P, times P summed over the columns, is q ⊙ dq, and summed over the rows k ⊙ dk, so that
    dG = q ⊙ dq − k ⊙ dk.
    """

    @staticmethod
    def forward(ctx: Context, sums: Tensor, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.count = count
        ctx.save_for_backward(sums, *tensors)
        rows, columns = tensors[:count], tensors[count:]
        products = [sums.new_zeros(*sums.shape[:3], sums.shape[2]) for _ in rows for _ in columns]
        for p, (row, column) in zip(products, ((r, c) for r in rows for c in columns), strict=True):
            p.diagonal(dim1=2, dim2=3).copy_((row * column).sum(3))
        for half, later, earlier in _levels(sums):
            after = [_halves(row, half)[1] * later for row in rows]
            before = [(_halves(column, half)[0] * earlier).mT for column in columns]
            for p, (row, column) in zip(products, ((r, c) for r in after for c in before), strict=True):
                _lower(p, half).copy_(row @ column)
        return tuple(products)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        sums, *tensors = ctx.saved_tensors
        rows, columns = tensors[: ctx.count], tensors[ctx.count :]
        table = [gradients[i : i + len(columns)] for i in range(0, len(gradients), len(columns))]
        d_rows, d_columns = [torch.zeros_like(x) for x in rows], [torch.zeros_like(x) for x in columns]
        d_sums = torch.zeros_like(sums)
        for half, later, earlier in _levels(sums):
            after = [_halves(row, half)[1] * later for row in rows]
            before = [_halves(column, half)[0] * earlier for column in columns]
            for i, line in enumerate(table):
                for j, gradient in enumerate(line):
                    d_block = _lower(gradient, half).contiguous()
                    _halves(d_rows[i], half)[1].addcmul_(d_block @ before[j], later)
                    _halves(d_columns[j], half)[0].addcmul_(d_block.mT @ after[i], earlier)
        for row, d_row in zip(rows, d_rows, strict=True):
            d_sums.addcmul_(row, d_row)
        for column, d_column in zip(columns, d_columns, strict=True):
            d_sums.addcmul_(column, d_column, value=-1)

        # the diagonal does not depend on decays
        for i, line in enumerate(table):
            for j, gradient in enumerate(line):
                diagonal = gradient.diagonal(dim1=2, dim2=3).unsqueeze(3)
                d_rows[i].addcmul_(diagonal, columns[j])
                d_columns[j].addcmul_(diagonal, rows[i])
        return d_sums, None, *d_rows, *d_columns


def _levels(sums: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield, for blocks of C, C / 2, …, 2 steps, half their size, e^(G_i − G_m) and e^(G_m − G_j) of all blocks."""
    half = sums.shape[2] // 2
    while half:
        first, second = _halves(sums, half)
        middle = first[:, :, :, -1:]
        yield half, (second - middle).exp_(), (middle - first).exp_()
        half //= 2


def _halves(x: Tensor, half: int) -> tuple[Tensor, Tensor]:
    """Return the first and second halves of all blocks of ``(N, M, C, K)``, ``(N, M, blocks, half, K)`` each."""
    first, second = x.unflatten(2, (-1, 2, half)).unbind(3)
    return first, second


def _lower(p: Tensor, half: int) -> Tensor:
    """Return the rows of second halves and the columns of first halves, ``(N, M, blocks, half, half)``."""
    blocks = p.unflatten(3, (-1, 2, half)).unflatten(2, (-1, 2, half))  # (N, M, blocks, 2, half, blocks, 2, half)
    return blocks.diagonal(dim1=2, dim2=5)[:, :, 1, :, 0].permute(0, 1, 4, 2, 3)
