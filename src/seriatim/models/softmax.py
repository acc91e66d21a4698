"""A softmax over a vocabulary and its loss, in chunks: the logits of a whole batch are never held at once.

For every position, −log P(target) = log Σ_v exp(z_v) − z_target with z = W h + b. The gradient of the sum is formed
in the same pass, while a chunk's probabilities p are at hand: ∂z = p − 1[target], ∂h = ∂z W, ∂W = ∂zᵀ h, ∂b = Σ ∂z.

With label smoothing ε the target's distribution is q = (1 − ε) 1[target] + ε/V (C. Szegedy et al., "Rethinking the
Inception architecture for computer vision", CVPR 2016), so that the loss is log Σ_v exp(z_v) − qᵀz and ∂z = p − q.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

CHUNK_ELEMENTS = 1 << 22
"""Logits held at once: 16 MB in float32, below what the allocator returns to the system after every use."""
CHUNK_ROWS = 64
"""Fewer positions than this a chunk would leave the matrix products bound by memory."""
SMALLEST = 1e-30
"""A probability that float32 still holds with all its digits."""


def summed_loss(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, *, label_smoothing: float = 0.0
) -> Tensor:
    """The sum over positions of −log P(target), in nats, differentiable.

    Args:
        hidden: ``(positions, size)``.
        weight: ``(vocabulary, size)``.
        bias: ``(vocabulary,)`` or None.
        targets: ``(positions,)``.
        label_smoothing: ε, the share of every target that is spread over the whole vocabulary.
    """
    if not torch.is_grad_enabled():
        return token_losses(hidden, weight, bias, targets, label_smoothing=label_smoothing).sum()
    total: Tensor = _SummedLoss.apply(hidden, weight, bias, targets, label_smoothing)  # type: ignore[no-untyped-call]
    return total


@torch.no_grad()
def token_losses(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, *, label_smoothing: float = 0.0
) -> Tensor:
    """−log P(target) of each position ``(positions,)``, in nats; shapes as in `summed_loss`, no gradient."""
    losses = []
    for rows in _chunks(len(targets), weight.shape[0]):
        logits = F.linear(hidden[rows], weight, bias).float() if _low() else F.linear(hidden[rows], weight, bias)
        losses.append(F.cross_entropy(logits, targets[rows], reduction="none", label_smoothing=label_smoothing))
    return torch.cat(losses) if losses else hidden.new_zeros(0)


class _SummedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float
    ) -> Tensor:
        dtype = torch.get_autocast_dtype(hidden.device.type) if _low() else weight.dtype
        with torch.autocast(hidden.device.type, enabled=False):
            total, *gradients = _loss_and_gradients(
                hidden.to(dtype), weight, weight.to(dtype), bias, targets, smoothing
            )
        ctx.save_for_backward(*gradients)
        ctx.input_dtype, ctx.has_bias = hidden.dtype, bias is not None
        return total

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        scale = outputs[0]
        hidden, weight, bias = (gradient * scale for gradient in ctx.saved_tensors)
        return hidden.to(ctx.input_dtype), weight, bias if ctx.has_bias else None, None, None


def _loss_and_gradients(
    hidden: Tensor, weight: Tensor, cast: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The summed loss and its gradients for hidden, weight and bias; products in ``cast``'s type, sums in float."""
    vocabulary, wide = weight.shape[0], weight.dtype
    total = torch.zeros((), dtype=wide, device=hidden.device)
    hidden_gradient, weight_gradient = torch.empty_like(hidden), torch.zeros_like(weight)
    bias_gradient = weight.new_zeros(vocabulary)
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
        torch.softmax(logits, dim=1, out=p)
        total += (smoothing * logits.gather(1, target) - _log_probabilities(logits, p, target)).sum()
        p.scatter_add_(1, target, p.new_full(target.shape, smoothing - 1))
        if bias is not None:
            bias_gradient += p.sum(0)
        narrow = p.to(cast.dtype)
        hidden_gradient[rows] = narrow @ cast
        if cast.dtype == wide:
            weight_gradient.addmm_(narrow.t(), h)
        else:
            weight_gradient += narrow.t() @ h
    if smoothing:  # − ε Σ_v z_v / V, linear in what makes z: its gradients need no pass over all logits
        share, sum_h, mean_w = smoothing / vocabulary, hidden.to(wide).sum(0), weight.mean(0)
        total -= smoothing * (sum_h @ mean_w)
        hidden_gradient -= (smoothing * mean_w).to(hidden.dtype)
        weight_gradient -= share * sum_h
        if bias is not None:
            total -= smoothing * len(targets) * bias.mean()
            bias_gradient -= share * len(targets)
    return total, hidden_gradient, weight_gradient, bias_gradient


def _log_probabilities(logits: Tensor, p: Tensor, target: Tensor) -> Tensor:
    """The logarithms of P(target) ``(rows, 1)``, by way of the greatest where the probability is too small a number."""
    wanted = p.gather(1, target)
    found = wanted.log()
    if bool((wanted < SMALLEST).any()):
        greatest, place = logits.max(dim=1, keepdim=True)
        exact = logits.gather(1, target) - greatest + p.gather(1, place).log()
        found = torch.where(wanted < SMALLEST, exact, found)
    return found


def _low() -> bool:
    """Whether a lower precision is asked for around this call."""
    return torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")


def _chunk_rows(vocabulary: int) -> int:
    return max(CHUNK_ROWS, CHUNK_ELEMENTS // vocabulary)


def _chunks(positions: int, vocabulary: int) -> Iterator[slice]:
    size = _chunk_rows(vocabulary)
    for start in range(0, positions, size):
        yield slice(start, start + size)
