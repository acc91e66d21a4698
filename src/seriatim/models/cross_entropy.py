"""Cross-entropy of a softmax over a vocabulary, computed in chunks: the logits of a batch are never held at once.

For every position, −log P(target) = log Σ_v exp(z_v) − z_target with z = W h + b. The gradient of the sum is computed
in the same pass from the probabilities p of a chunk: ∂z = p − 1[target], ∂h = ∂z W, ∂W = ∂zᵀ h, ∂b = Σ ∂z.

With label smoothing ε the target's distribution is q = (1 − ε) 1[target] + ε/V (C. Szegedy et al., "Rethinking the
Inception architecture for computer vision", CVPR 2016), so that the loss is log Σ_v exp(z_v) − qᵀz and ∂z = p − q.

With a cap c, z = c tanh((W h + b) / c) lies between −c and c (Gemma team, "Gemma 2", arXiv:2408.00118, 2024), and the
gradient of W h + b is that of z times 1 − (z/c)². A cap and label smoothing are not used together.
"""

from collections.abc import Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .probabilities import checked_losses

CHUNK_ELEMENTS = 1 << 22
"""Logits held at once: 16 MB in float32; the allocator returns larger blocks to the system after every use."""
CHUNK_ROWS = 64
"""Positions in a chunk, at least; with fewer the matrix products would be limited by the memory bandwidth."""
SMALLEST = 1e-30  # a probability that float32 represents with full precision
Context: TypeAlias = Any
"""The context of a `torch.autograd.Function`."""


def capped(logits: Tensor, cap: float | None) -> Tensor:
    """Return c tanh(logits / c) for a cap c; the logits themselves without one."""
    return logits if cap is None else cap * torch.tanh(logits / cap)


class CappedLinear(nn.Linear):
    """The output layer W h + b, whose results a ``cap`` may bound."""

    cap: float | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        """Map ``(..., size)`` to logits ``(..., vocabulary)``."""
        return capped(super().forward(inputs), self.cap)


def summed_loss(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    *,
    label_smoothing: float = 0.0,
    cap: float | None = None,
) -> Tensor:
    """Return the sum over positions of −log P(target), in nats; differentiable.

    h is ``hidden`` ``(positions, size)``, W ``weight`` ``(vocabulary, size)``, b ``bias`` ``(vocabulary,)`` or None.
    """
    if not torch.is_grad_enabled():
        return token_losses(hidden, weight, bias, targets, label_smoothing=label_smoothing, cap=cap).sum()
    total: Tensor = _SummedLoss.apply(hidden, weight, bias, targets, label_smoothing, cap)  # type: ignore[no-untyped-call]
    return total


@torch.no_grad()
def token_losses(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    *,
    label_smoothing: float = 0.0,
    cap: float | None = None,
) -> Tensor:
    """Return −log P(target) of each position ``(positions,)``, in nats, without gradient; see `summed_loss`.

    They have the type of the logits, or float64 where one exceeds that.

    Raises:
        NotFiniteError: logits are NaN or infinite.
    """
    chunks = []
    for logits, target in chunked_logits(hidden, weight, bias, targets):
        logits = capped(logits, cap)
        losses = F.cross_entropy(logits, target, reduction="none", label_smoothing=label_smoothing)
        if bool(losses.isposinf().any()):  # the difference of two finite logits can exceed float32
            losses = F.cross_entropy(logits.double(), target, reduction="none", label_smoothing=label_smoothing)
        chunks.append(losses)
    return checked_losses(torch.cat(chunks))


def chunked_logits(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield logits ``(rows, vocabulary)``, in float32 under autocast, and their targets, for at least one chunk."""
    for rows in _chunks(len(targets), len(weight)):
        logits = F.linear(hidden[rows], weight, bias)
        yield (logits.float() if _has_autocast() else logits), targets[rows]


class _SummedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Context,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        smoothing: float,
        cap: float | None,
    ) -> Tensor:
        dtype = torch.get_autocast_dtype(hidden.device.type) if _has_autocast() else weight.dtype
        with torch.autocast(hidden.device.type, enabled=False):
            total, *gradients = _loss_and_gradients(
                hidden.to(dtype), weight, weight.to(dtype), bias, targets, smoothing, cap
            )
        ctx.save_for_backward(*gradients)
        ctx.input_dtype, ctx.has_bias = hidden.dtype, bias is not None
        return total

    @staticmethod
    def backward(ctx: Context, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        scale = outputs[0]
        hidden, weight, bias = (gradient * scale for gradient in ctx.saved_tensors)
        return hidden.to(ctx.input_dtype), weight, bias if ctx.has_bias else None, None, None, None


def _loss_and_gradients(
    hidden: Tensor,
    weight: Tensor,
    cast: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    smoothing: float,
    cap: float | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the summed loss and the gradients of hidden, weight and bias; products are in the type of ``cast``."""
    vocabulary, wide = weight.shape[0], weight.dtype
    total = torch.zeros((), dtype=wide, device=hidden.device)
    hidden_gradient, weight_gradient = torch.empty_like(hidden), torch.zeros_like(weight)
    bias_gradient = weight.new_zeros(vocabulary)

    # Two buffers serve all chunks, since fresh memory for each would be requested from the system every time.
    longest = min(_chunk_rows(vocabulary), len(targets))
    buffers = [torch.empty(longest, vocabulary, dtype=wide, device=hidden.device) for _ in range(2)]
    for rows in _chunks(len(targets), vocabulary):
        h, target = hidden[rows], targets[rows].unsqueeze(1)
        logits, p = (buffer[: len(h)] for buffer in buffers)
        if cast.dtype == wide:
            torch.mm(h, cast.t(), out=logits)
        else:
            logits.copy_(h @ cast.t())
        if bias is not None:
            logits += bias
        if cap is not None:
            logits.div_(cap).tanh_().mul_(cap)

        # From here p is the gradient of the logits, p − q without the term ε/V of q, and replaces the probabilities.
        torch.softmax(logits, dim=1, out=p)
        total += (smoothing * logits.gather(1, target) - _log_probabilities(logits, p, target)).sum()
        p.scatter_add_(1, target, p.new_full(target.shape, smoothing - 1))
        if cap is not None:
            p.mul_(1 - logits.div_(cap).square_())
        if bias is not None:
            bias_gradient += p.sum(0)

        # Products are in the type of autocast; the sums over chunks stay in the type of the weights.
        narrow = p.to(cast.dtype)
        hidden_gradient[rows] = narrow @ cast
        if cast.dtype == wide:
            weight_gradient.addmm_(narrow.t(), h)
        else:
            weight_gradient += narrow.t() @ h
    if smoothing:  # − ε Σ_v z_v / V is linear in h, W and b: its gradients need no pass over all logits
        per_token, sum_h, mean_w = smoothing / vocabulary, hidden.to(wide).sum(0), weight.mean(0)
        total -= smoothing * (sum_h @ mean_w)
        hidden_gradient -= (smoothing * mean_w).to(hidden.dtype)
        weight_gradient -= per_token * sum_h
        if bias is not None:
            total -= smoothing * len(targets) * bias.mean()
            bias_gradient -= per_token * len(targets)
    return total, hidden_gradient, weight_gradient, bias_gradient


def _log_probabilities(logits: Tensor, p: Tensor, target: Tensor) -> Tensor:
    """Return log P(target) ``(rows, 1)``, from the largest logit if the probability is too small for its type."""
    probabilities = p.gather(1, target)
    logarithms = probabilities.log()
    if bool((probabilities < SMALLEST).any()):
        largest, index = logits.max(dim=1, keepdim=True)
        exact = logits.gather(1, target) - largest + p.gather(1, index).log()
        logarithms = torch.where(probabilities < SMALLEST, exact, logarithms)
    return logarithms


def _has_autocast() -> bool:
    return torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")


def _chunk_rows(vocabulary: int) -> int:
    return max(CHUNK_ROWS, CHUNK_ELEMENTS // vocabulary)


def _chunks(positions: int, vocabulary: int) -> Iterator[slice]:
    """Yield the positions in chunks, one empty chunk if there are none."""
    size = _chunk_rows(vocabulary)
    for start in range(0, max(1, positions), size):
        yield slice(start, start + size)
