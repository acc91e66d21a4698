"""Recurrences whose state is a matrix that decays: one step, and the same in chunks of time as matrix products.

S. Yang et al., "Gated linear attention transformers with hardware-efficient training", 2024, and T. Dao and A. Gu,
"Transformers are SSMs", 2024. For each head:

    S_t = diag(α_t) S_{t−1} + k_t v_tᵀ,    o_t = S_tᵀ q_t

S the state (K, V) · q, k queries and keys (K) · v values (V) · α the decay of each row of S, or one number for all
rows, or 1. What is given is g = log α, which is at most 0.

`matrix_step` computes this equation. `matrix_scan` computes C steps at once. With G the sums of g since the beginning
of a chunk, and S the state there,

    P_ij = Σ_d q_id k_jd e^(G_id − G_jd) for i ≥ j, else 0
    O = (Q ⊙ e^G) S + P V,    S ← e^(G_C) ⊙ S + (K ⊙ e^(G_C − G))ᵀ V

Nothing is divided by a decay, and every exponent is at most 0, so that no gate causes an overflow. Where each row has a
decay of its own, P is computed in blocks: for rows i in the second half of a block and columns j in its first half,
whose last step is m, P is the product of q_i e^(G_i − G_m) and k_j e^(G_m − G_j). Each half is a block again, down to
single steps. `seriatim.layers.delta_rule` is built of the same parts.
"""

import functools
from collections.abc import Iterable, Iterator, Sequence

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
    return [
        x if x.shape[-2] == heads else x.unsqueeze(-2).expand(*x.shape[:-1], heads // x.shape[-2], -1).flatten(-3, -2)
        for x in others
    ]


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
        if log_decay is not None:
            by_row = log_decay.dim() == 4
            # one number for each step and head costs little in float64, which stays precise where a gate has closed
            dtype = self.dtype if by_row or like.device.type == "mps" else torch.float64
            log_decay = (log_decay if by_row else log_decay.unsqueeze(3)).to(dtype).clamp(min=LEAST)
            self.sums = self._split(log_decay).cumsum(2)

    def split(self, x: Tensor) -> Tensor:
        """Return a sequence ``(batch, time, heads, D)`` as ``(N, batch · heads, C, D)``, in the type of all."""
        return self._split(x.to(self.dtype))

    def _split(self, x: Tensor) -> Tensor:
        if padding := -self.time % self.size:
            x = F.pad(x, (0, 0, 0, 0, 0, padding))
        x = torch.unflatten(x, 1, (-1, self.size))  # (B, N, C, H, D)
        return x.permute(1, 0, 3, 2, 4).flatten(1, 2).contiguous()

    def join(self, x: Tensor) -> Tensor:
        """Undo `split`."""
        x = torch.unflatten(x, 1, (self.batch, self.heads)).permute(1, 0, 3, 2, 4)  # (B, N, C, H, D)
        return x.flatten(1, 2)[:, : self.time]

    def since_start(self, x: Tensor) -> Tensor:
        """Return x ⊙ e^G."""
        return x if self.sums is None else x * self.sums.exp().to(x.dtype)

    def until_end(self, x: Tensor) -> Tensor:
        """Return x ⊙ e^(G_C − G)."""
        return x if self.sums is None else x * (self.sums[:, :, -1:] - self.sums).exp().to(x.dtype)

    def products(self, rows: Sequence[Tensor], columns: Sequence[Tensor]) -> list[list[Tensor]]:
        """Return P of each of several q with each of several k, ``(N, batch · heads, C, C)``."""
        if self.sums is None:
            return [[(row @ column.mT).tril() for column in columns] for row in rows]
        made = _DecayedProducts.apply(self.sums, len(rows), *rows, *columns)  # type: ignore[no-untyped-call]
        return _table(made, len(columns))

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


def _table(products: Sequence[Tensor], columns: int) -> list[list[Tensor]]:
    return [list(products[i : i + columns]) for i in range(0, len(products), columns)]


class _DecayedProducts(torch.autograd.Function):
    """P of every pair of ``count`` queries and the keys after them, where there are decays; see the head of this file.

    P_ij depends on G through e^(G_i − G_j) alone, so that dG = Σ q ⊙ dq − Σ k ⊙ dk.
    """

    @staticmethod
    def forward(ctx: Context, sums: Tensor, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        rows, columns = tensors[:count], tensors[count:]
        ctx.count = count
        if sums.shape[3] == 1:
            decays = _pair_decays(sums, rows[0].dtype)
            ctx.save_for_backward(sums, decays, *tensors)
            return tuple((row @ column.mT).mul_(decays) for row in rows for column in columns)
        ctx.save_for_backward(sums, None, *tensors)
        products = [sums.new_zeros(*sums.shape[:3], sums.shape[2]) for _ in rows for _ in columns]
        table = _table(products, len(columns))
        for half, later, earlier in _levels(sums):
            after = [_halves(row, half)[1] * later for row in rows]
            before = [(_halves(column, half)[0] * earlier).mT for column in columns]
            for line, row in zip(table, after, strict=True):
                for product, column in zip(line, before, strict=True):
                    _lower(product, half).copy_(row @ column)
        for line, row in zip(table, rows, strict=True):
            for product, column in zip(line, columns, strict=True):
                product.diagonal(dim1=2, dim2=3).copy_((row * column).sum(3))
        return tuple(products)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        sums, decays, *tensors = ctx.saved_tensors
        rows, columns = tensors[: ctx.count], tensors[ctx.count :]
        table = _table(gradients, len(columns))
        if decays is None:
            d_rows, d_columns = _by_row_gradients(sums, rows, columns, table)
        else:
            table = [[gradient * decays for gradient in line] for line in table]
            d_rows = [sum_of(x @ column for x, column in zip(line, columns, strict=True)) for line in table]
            d_columns = [
                sum_of(line[j].mT @ row for line, row in zip(table, rows, strict=True)) for j in range(len(columns))
            ]
        d_sums = torch.zeros_like(rows[0])
        for x, gradient in zip(rows, d_rows, strict=True):
            d_sums.addcmul_(x, gradient)
        for x, gradient in zip(columns, d_columns, strict=True):
            d_sums.addcmul_(x, gradient, value=-1)
        if decays is not None:
            d_sums = d_sums.sum(3, keepdim=True).to(sums.dtype)
        return d_sums, None, *d_rows, *d_columns


def sum_of(tensors: Iterable[Tensor]) -> Tensor:
    """Return the sum of one or more tensors."""
    return functools.reduce(Tensor.add_, tensors)


def _pair_decays(sums: Tensor, dtype: torch.dtype) -> Tensor:
    """Return e^(G_i − G_j) for i ≥ j, else 0, ``(N, M, C, C)`` for G ``(N, M, C, 1)``."""
    size = sums.shape[2]
    future = torch.ones(size, size, dtype=torch.bool, device=sums.device).triu_(1)
    return (sums - sums.mT).to(dtype).masked_fill_(future, -torch.inf).exp_()


def _by_row_gradients(
    sums: Tensor, rows: Sequence[Tensor], columns: Sequence[Tensor], table: Sequence[Sequence[Tensor]]
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the gradients of rows and columns, where each of the K features has a decay of its own."""
    diagonals = [[gradient.diagonal(dim1=2, dim2=3).unsqueeze(3) for gradient in line] for line in table]
    d_rows = [sum_of(x * column for x, column in zip(line, columns, strict=True)) for line in diagonals]
    d_columns = [sum_of(line[j] * row for line, row in zip(diagonals, rows, strict=True)) for j in range(len(columns))]
    for half, later, earlier in _levels(sums):
        after = [_halves(row, half)[1] * later for row in rows]
        before = [_halves(column, half)[0] * earlier for column in columns]
        for i, line in enumerate(table):
            for j, gradient in enumerate(line):
                block = _lower(gradient, half)
                _halves(d_rows[i], half)[1].addcmul_(block @ before[j], later)
                _halves(d_columns[j], half)[0].addcmul_(block.mT @ after[i], earlier)
    return d_rows, d_columns


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
    first, second = torch.unflatten(x, 2, (-1, 2, half)).unbind(3)
    return first, second


def _lower(p: Tensor, half: int) -> Tensor:
    """Return the rows of second halves and the columns of first halves, ``(N, M, blocks, half, half)``."""
    blocks = torch.unflatten(
        torch.unflatten(p, 3, (-1, 2, half)), 2, (-1, 2, half)
    )  # (N, M, blocks, 2, half, blocks, 2, half)
    return blocks.diagonal(dim1=2, dim2=5)[:, :, 1, :, 0].permute(0, 1, 4, 2, 3)
