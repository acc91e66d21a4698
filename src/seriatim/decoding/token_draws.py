"""Draw tokens from the distribution of `Sampling.distribution`, without its passes over the vocabulary in float64.

Filters look at a few candidates only: the tokens with the largest logits (for ``typical`` alone, those closest to the
entropy). Their exact selection needs one cheap pass: the k largest of all values are among the k blocks with the
largest maxima. Without a filter, a token is drawn in two stages: first a block of the vocabulary, then one of its
tokens. The probabilities agree with the reference up to the rounding of float32.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .sampling_settings import Sampling, smallest_set

SMALL = 1024
"""Up to this size of a vocabulary the reference is as fast."""
BLOCK = 128
"""Tokens of a block."""
FEW_BLOCKS = 16_384
"""Up to this number of weights, blocks do not make a draw cheaper."""
NUM_CANDIDATES = (64, 512)
"""Numbers of candidates that are tried in turn; if even the last is not enough, the whole vocabulary is searched."""
NUM_BINS, BINNED = 4096, 40.0
"""Bins of `_smallest_set_of_many`, and the range of keys, in nats, that they divide."""
EXTREME = 1e30
"""Stands for ∞ in a mean of log probabilities: a token of probability 0 has the weight 0, and 0 · ∞ would be NaN."""
BELOW_ONE = 1 - 2**-53
"""The largest number below 1 in float64."""

Rows = Tensor | slice


def draw(sampling: Sampling, logits: Tensor, peak: Tensor, uniform: Tensor) -> Tensor:
    """Draw one token per row.

    Args:
        sampling: temperature and filters.
        logits: ``(batch, vocabulary)``, at least one in each row above −∞.
        peak: the largest logit of each row ``(batch, 1)``.
        uniform: a random number of each row ``(batch,)``, in float64, at least 0 and below 1.

    Returns:
        Tokens ``(batch,)``, none of which has probability 0.
    """
    if sampling.temperature == 0:
        return _argmax(logits)

    # The reference is fast enough for few tokens, and with top_k only the likeliest matter.
    if logits.shape[1] <= SMALL:
        return _pick(sampling.distribution(logits), uniform)[0]
    if sampling.top_k is not None and sampling.top_k < logits.shape[1]:
        values, tokens = largest(logits, sampling.top_k)
        return _pick_of(tokens, sampling.distribution(values), uniform)

    # Of the other settings, each needs log p up to a constant, and its exponential, over the whole vocabulary.
    relative = logits - peak
    if sampling.temperature != 1:
        relative *= 1 / sampling.temperature  # now log p, up to a constant of the row
    if sampling.min_p is not None or _below_one(sampling.top_p):
        return _draw_likely(sampling, relative, uniform)
    weights = relative.exp() if _below_one(sampling.typical) else relative.exp_()
    if _below_one(sampling.typical):
        return _draw_typical(sampling, relative, weights, uniform)
    return _pick_in_blocks(weights, uniform)


def largest(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the same as ``values.topk(k)`` for ``(batch, many)``, faster for small k."""
    blocks, tail = _in_blocks(values)
    if 2 * k > blocks.shape[1]:
        return tuple(values.topk(k))  # type: ignore[return-value]  # a pair with names
    offsets = torch.arange(BLOCK, device=values.device)
    chosen = blocks.amax(2).topk(k, sorted=False).indices * BLOCK
    positions = (chosen.unsqueeze(2) + offsets).flatten(1)
    if tail.shape[1]:
        rest = torch.arange(values.shape[1] - tail.shape[1], values.shape[1], device=values.device)
        positions = torch.cat([positions, rest.expand(len(values), -1)], dim=1)
    found, index = values.gather(1, positions).topk(k)
    return found, positions.gather(1, index)


def _draw_likely(sampling: Sampling, relative: Tensor, uniform: Tensor) -> Tensor:
    """Draw with ``min_p`` or ``top_p``, and perhaps ``typical``, given log p up to a constant ``(batch, tokens)``."""
    lowest = -math.inf if sampling.min_p is None else math.log(sampling.min_p)
    mass = sampling.top_p if sampling.top_p is not None and sampling.top_p < 1 else None
    weights = None if mass is None else relative.exp()
    total = torch.full_like(relative[:, :1], math.nan).double() if weights is None else _total(weights)

    # Candidates are enough if the first token without one would be filtered out anyway.
    def draw_few(rows: Rows, values: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        probabilities = values.double().exp()
        is_enough = values[:, -1] < lowest
        if mass is None:
            probabilities /= probabilities.sum(1, keepdim=True)
        else:
            probabilities /= total[rows]
            is_enough |= probabilities.sum(1) >= mass
        return is_enough, _pick_of(tokens, sampling.filtered(probabilities), uniform[rows])

    # A flat distribution needs so many candidates that masks over the vocabulary are cheaper than sorting them.
    def draw_many(rows: Rows) -> Tensor:
        keys = relative[rows]
        kept = keys.exp() if weights is None else weights[rows]
        if mass is not None:
            kept *= _smallest_set_of_many(keys, kept, total[rows] * mass)
        if sampling.min_p is not None:
            kept.masked_fill_(keys < lowest, 0.0)
        if not _below_one(sampling.typical):
            return _pick_in_blocks(kept, uniform[rows])
        return _draw_typical(sampling, keys.masked_fill_(kept == 0, -math.inf), kept, uniform[rows])

    return _draw_from_candidates(relative, draw_few, draw_many)


def _draw_typical(sampling: Sampling, relative: Tensor, weights: Tensor, uniform: Tensor) -> Tensor:
    """Draw with ``typical``, given log p up to a constant and its exponential ``(batch, tokens)``."""
    mass, total = sampling.typical, _total(weights)
    assert mass is not None
    mean = (weights * relative.clamp_min(-EXTREME)).sum(1, keepdim=True, dtype=torch.float64) / total
    keys = (relative - mean.to(relative.dtype)).abs_().neg_()  # −|log p + entropy|

    def draw_few(rows: Rows, values: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        probabilities = weights[rows].gather(1, tokens).double() / total[rows]
        kept = probabilities * smallest_set(values, probabilities, mass)
        return probabilities.sum(1) >= mass, _pick_of(tokens, kept, uniform[rows])

    def draw_many(rows: Rows) -> Tensor:
        kept = weights[rows]
        return _pick_in_blocks(kept * _smallest_set_of_many(keys[rows], kept, total[rows] * mass), uniform[rows])

    return _draw_from_candidates(keys, draw_few, draw_many)


def _draw_from_candidates(
    keys: Tensor,
    draw_few: Callable[[Rows, Tensor, Tensor], tuple[Tensor, Tensor]],
    draw_many: Callable[[Rows], Tensor],
) -> Tensor:
    """Draw from as few candidates as each row needs, so that no row depends on what others need.

    Args:
        keys: of all tokens ``(batch, tokens)``; those with the largest keys are the candidates.
        draw_few: from rows, and the keys and the tokens of their candidates, to whether these are enough, and tokens.
        draw_many: from the rows for which no number of candidates is enough to tokens.
    """
    result = torch.zeros(len(keys), dtype=torch.long, device=keys.device)
    rows: Rows = slice(None)  # without copies, as long as all rows are left
    for k in NUM_CANDIDATES:
        if 2 * k > keys.shape[1]:
            break
        is_enough, tokens = draw_few(rows, *largest(keys[rows], k))
        if bool(is_enough.all()):
            result[rows] = tokens
            return result
        if bool(is_enough.any()):
            left = torch.arange(len(keys), device=keys.device)[rows]
            result[left[is_enough]] = tokens[is_enough]
            rows = left[~is_enough]
    result[rows] = draw_many(rows)
    return result


def _below_one(mass: float | None) -> bool:
    """Return whether a probability mass leaves out any token."""
    return mass is not None and mass < 1


def _smallest_set_of_many(keys: Tensor, weights: Tensor, mass: Tensor) -> Tensor:
    """Return a mask of the tokens with the largest keys, as few as together have the mass ``(batch, 1)``.

    Keys are divided into bins, and only the keys in the bin that reaches the mass are sorted.
    """
    mask = torch.empty_like(keys, dtype=torch.bool)
    for row in range(len(keys)):
        distance = keys[row].amax() - keys[row]
        bins = (distance * (NUM_BINS / BINNED)).clamp_(max=NUM_BINS).long().clamp_(min=0)  # NaN is no integer
        masses = torch.bincount(bins, weights[row].double(), minlength=NUM_BINS + 1)
        cumulative = masses.cumsum(0)
        crossing = min(int(torch.searchsorted(cumulative, mass[row])), NUM_BINS)
        torch.lt(bins, crossing, out=mask[row])
        inside = (bins == crossing).nonzero().squeeze(1)
        inside = inside[keys[row, inside].argsort(descending=True)]
        chosen = weights[row, inside].double()
        before = chosen.cumsum(0) - chosen + cumulative[crossing] - masses[crossing]
        mask[row, inside] = before < mass[row]
    return mask


def _in_blocks(values: Tensor) -> tuple[Tensor, Tensor]:
    """Split ``(batch, tokens)`` into ``(batch, blocks, BLOCK)`` and the tokens after the last whole block."""
    whole = values.shape[1] // BLOCK * BLOCK
    return values[:, :whole].view(len(values), -1, BLOCK), values[:, whole:]


def _total(weights: Tensor) -> Tensor:
    """Return the sum of each row ``(batch, 1)`` in float64, of sums of blocks."""
    blocks, tail = _in_blocks(weights)
    return blocks.sum(2).sum(1, keepdim=True, dtype=torch.float64) + tail.sum(1, keepdim=True, dtype=torch.float64)


def _argmax(values: Tensor) -> Tensor:
    """Return the first index of the largest value of each row; NumPy finds it many times faster than PyTorch."""
    if values.device.type != "cpu":
        return values.argmax(1)
    return torch.from_numpy(values.detach().numpy().argmax(1))


def _positions(block: Tensor, size: int) -> Tensor:
    """Return the tokens of a block of each row ``(batch, BLOCK)``; the last token stands for those after the end."""
    return (block.unsqueeze(1) * BLOCK + torch.arange(BLOCK, device=block.device)).clamp_(max=size - 1)


def _pick_in_blocks(weights: Tensor, uniform: Tensor) -> Tensor:
    """Draw an index of each row ``(batch, many)`` with probabilities proportional to the weights."""
    if weights.shape[1] <= FEW_BLOCKS:
        return _pick(weights, uniform)[0]
    blocks, tail = _in_blocks(weights)
    sums = blocks.sum(2)
    if tail.shape[1]:
        sums = torch.cat([sums, tail.sum(1, keepdim=True)], dim=1)
    block, uniform = _pick(sums, uniform)
    positions = _positions(block, weights.shape[1])
    inside = weights.gather(1, positions)
    inside[:, 1:].masked_fill_(positions[:, 1:] == positions[:, :-1], 0.0)  # after the end
    return _pick_of(positions, inside, uniform)


def _pick_of(tokens: Tensor, weights: Tensor, uniform: Tensor) -> Tensor:
    """Draw one of the tokens of each row with probabilities proportional to their weights."""
    return tokens.gather(1, _pick(weights, uniform)[0].unsqueeze(1)).squeeze(1)


def _pick(weights: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Draw an index of each row by inverting the cumulative distribution at a uniform number.

    Returns:
        The indices, and what is left of the uniform numbers for a second draw: where they fall within their interval,
        again between 0 and 1. Both have shape ``(batch,)``.
    """
    weights = weights.double()
    cumulative = weights.cumsum(1)
    point = uniform.to(weights.device).unsqueeze(1) * cumulative[:, -1:]
    # The point is below the total, because uniform numbers are below 1; the first sum above it has a weight above 0.
    index = torch.searchsorted(cumulative, point, right=True).clamp_(max=weights.shape[1] - 1)
    weight = weights.gather(1, index)
    rest = (point - cumulative.gather(1, index) + weight) / weight
    return index.squeeze(1), rest.clamp(0.0, BELOW_ONE).squeeze(1)
