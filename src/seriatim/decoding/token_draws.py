"""How the next token is drawn: the settings, the penalties, and a fast draw from the distribution that they define.

`Sampling.distribution` is the reference, which computes the distribution in the obvious way. `draw` draws from the same
distribution without its passes over the vocabulary in float64.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import LARGEST, check_integer, check_number
from ..models.probabilities import NotFiniteError

FINITE, POSITIVE = f"a number from {-LARGEST:.2g} to {LARGEST:.2g}", f"from {1 / LARGEST:.2g} to {LARGEST:.2g}"
PROBABILITY: tuple[str, Callable[[float], bool]] = ("a probability above 0 and at most 1", lambda x: 0 < x <= 1)
RANGES: dict[str, tuple[str, Callable[[float], bool]]] = {
    "temperature": (f"0, or a number {POSITIVE}", lambda x: x == 0 or x >= 1 / LARGEST),
    **dict.fromkeys(("top_p", "min_p", "typical"), PROBABILITY),
    "repetition_penalty": (f"a number {POSITIVE}", lambda x: x >= 1 / LARGEST),
    **dict.fromkeys(("frequency_penalty", "presence_penalty"), (FINITE, lambda _: True)),
}
"""What each setting must be, as messages say it, and whether a finite number is that."""


@dataclass(frozen=True)
class Sampling:
    """Settings of how the next token is drawn.

    The settings apply in this order: ``repetition_penalty``, ``frequency_penalty`` and ``presence_penalty`` change the
    logits (see `Penalties`), ``temperature`` divides them, and ``top_k``, ``top_p``, ``min_p`` and ``typical`` remove
    tokens. Each of these filters applies to the probabilities that the one before it left, scaled to a sum of 1.

    Attributes:
        temperature: divides the logits; 0 takes the likeliest token.
        top_k: only the k likeliest tokens.
        top_p: only the likeliest tokens that together have at least this probability (Holtzman et al. 2020).
        min_p: only tokens with at least this fraction of the likeliest one's probability (Nguyen et al. 2024).
        typical: only the tokens whose information −log p is closest to the entropy, as many as together have at least
            this probability (locally typical sampling, Meister et al. 2023).
        repetition_penalty: divides positive logits, and multiplies negative ones, of the tokens that occur in the text
            so far, the prompt included (Keskar et al. 2019); 1 changes nothing.
        frequency_penalty: is subtracted from the logit of a token once for each time it was generated.
        presence_penalty: is subtracted once from the logit of each token that was generated.

    Raises:
        InputError: a value outside its range, or one that float32, in which logits are, cannot hold or divide by.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical: float | None = None
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0

    def __post_init__(self) -> None:
        if self.top_k is not None:
            object.__setattr__(self, "top_k", check_integer("top_k", self.top_k, minimum=1))
        for name, (kind, fits) in RANGES.items():
            value = getattr(self, name)
            if value is not None or getattr(Sampling, name) is not None:  # tensors take no integer above 2^63
                object.__setattr__(self, name, check_number(name, value, kind, fits))

    @property
    def penalties(self) -> list[str]:
        """The names of the penalties for tokens of the text so far, without those that change nothing."""
        names = ("repetition_penalty", "frequency_penalty", "presence_penalty")
        return [name for name in names if getattr(self, name) != getattr(Sampling, name)]

    @property
    def penalizes(self) -> bool:
        """Whether tokens of the text so far are penalized."""
        return bool(self.penalties)

    @property
    def filters(self) -> bool:
        """Whether tokens may be removed, at a temperature above 0."""
        return (self.top_k, self.top_p, self.min_p, self.typical) != (None,) * 4

    @property
    def is_plain(self) -> bool:
        """Whether tokens are drawn from the distribution of the model itself."""
        return self.temperature == 1 and not self.filters and not self.penalizes

    def distribution(self, logits: Tensor) -> Tensor:
        """Return the probabilities to draw from, in float64, given penalized logits ``(batch, vocabulary)``."""
        logits = logits.double()
        if self.temperature == 0:
            return torch.zeros_like(logits).scatter_(1, logits.argmax(1, keepdim=True), 1.0)
        relative = logits - logits.amax(1, keepdim=True)  # so that no temperature overflows
        probabilities = torch.softmax(relative / self.temperature, dim=1)
        if self.top_k is not None and self.top_k < logits.shape[1]:
            likeliest = probabilities.topk(self.top_k).indices
            mask = torch.zeros_like(probabilities, dtype=torch.bool).scatter_(1, likeliest, True)
            probabilities = restrict(probabilities, mask)
        return self.filtered(probabilities)

    def filtered(self, probabilities: Tensor) -> Tensor:
        """Apply ``top_p``, ``min_p`` and ``typical`` to probabilities ``(batch, tokens)``.

        Unlikely tokens may be left out if ``top_p`` or ``min_p`` removes them anyway; the sum is then below 1.
        """
        if self.top_p is not None:
            probabilities = restrict(probabilities, smallest_set(probabilities, probabilities, self.top_p))
        if self.min_p is not None:
            probabilities = restrict(probabilities, probabilities >= self.min_p * probabilities.amax(1, keepdim=True))
        if self.typical is not None:
            probabilities = probabilities / probabilities.sum(1, keepdim=True)
            entropy = torch.special.entr(probabilities).sum(1, keepdim=True)
            distance = (probabilities.log() + entropy).abs()
            probabilities = restrict(probabilities, smallest_set(-distance, probabilities, self.typical))
        return probabilities


def smallest_set(keys: Tensor, probabilities: Tensor, mass: float) -> Tensor:
    """Return a mask of the tokens with the largest keys, as few as together have the probability ``mass``."""
    order = keys.argsort(dim=1, descending=True)
    ordered = probabilities.gather(1, order)
    before = ordered.cumsum(1) - ordered
    return torch.zeros_like(before, dtype=torch.bool).scatter_(1, order, before < mass)


def restrict(probabilities: Tensor, mask: Tensor) -> Tensor:
    """Return the probabilities of the tokens in a mask, scaled to a sum of 1, and 0 for the others."""
    probabilities = probabilities * mask
    return probabilities / probabilities.sum(1, keepdim=True)


class Penalties:
    """The penalized tokens of one text, and biases of single tokens.

    The logit l of a token becomes, in this order:

    1. l / r if l > 0, else l · r, for tokens in the text so far, the prompt included; r is the repetition penalty;
    2. l − f · c − p · [c > 0] for a token generated c times; f is the frequency penalty and p the presence penalty;
    3. l + b, where b is the bias of the token.

    Only the tokens concerned are changed; there is no arithmetic on the whole vocabulary. N. Keskar et al., "CTRL: a
    conditional transformer language model for controllable generation", 2019 (the repetition penalty).

    Args:
        sampling: the penalties.
        biases: numbers added to the logits of tokens.
        read: the tokens of the text before the first generated one, for the repetition penalty.
        device: of the logits.
    """

    def __init__(
        self, sampling: Sampling, biases: Mapping[int, float], read: Sequence[int], device: torch.device
    ) -> None:
        self.sampling, self.changes = sampling, bool(biases) or sampling.penalizes
        self.bias_tokens = torch.tensor(list(biases), dtype=torch.long, device=device)
        self.bias_values = torch.tensor(list(biases.values()), device=device)
        known = list(dict.fromkeys(read)) if sampling.repetition_penalty != 1 else []
        # Slot i has a token, whether it is in use, and how often the token was generated.
        self.slots = {token: slot for slot, token in enumerate(known)}
        self.tokens = torch.tensor(known, dtype=torch.long, device=device)
        self.used = torch.ones(len(known), dtype=torch.bool, device=device)
        self.counts = torch.zeros(len(known), device=device)

    def apply(self, logits: Tensor) -> Tensor:
        """Return the changed logits ``(1, vocabulary)``; those given are not modified.

        Raises:
            NotFiniteError: penalties and biases make logits infinite that were finite before.
        """
        if not self.changes:
            return logits
        # The whole vocabulary is copied, but arithmetic is done on the tokens of the text alone.
        given, logits = logits, logits.clone() if logits.dtype.itemsize >= 4 else logits.float()
        if len(self.tokens):
            before = logits[0, self.tokens]
            factor, counts = self.sampling.repetition_penalty, self.counts.to(logits.dtype)
            after = torch.where(before > 0, before / factor, before * factor) if factor != 1 else before
            after = after - self.sampling.frequency_penalty * counts
            after = after - self.sampling.presence_penalty * (counts > 0)
            change = torch.where(self.used & before.isfinite(), after - before, 0.0)
            logits[0].scatter_add_(0, self.tokens, change)
        if len(self.bias_tokens):
            logits.index_add_(1, self.bias_tokens, self.bias_values.to(logits.dtype).unsqueeze(0))

        # Finite settings can be too large together; a model's own NaN and infinities are reported where it is drawn.
        if not bool(logits.amax().isfinite()) and bool(given.amax().isfinite()):
            names = [*self.sampling.penalties, *(["logit_bias"] if len(self.bias_tokens) else [])]
            raise NotFiniteError(f"give values of {', '.join(names)} that are nearer to the defaults")
        return logits

    def add(self, token: int) -> None:
        """Count one more generated token."""
        if not self.sampling.penalizes:
            return
        slot = self.slots.setdefault(token, len(self.slots))
        if slot >= len(self.tokens):  # the memory doubles, so that a token costs the same at any length
            more = max(16, len(self.tokens))
            self.tokens, self.used, self.counts = (
                torch.cat([values, values.new_zeros(more)]) for values in (self.tokens, self.used, self.counts)
            )
        self.tokens[slot], self.used[slot] = token, True
        self.counts[slot] += 1


# The fast draw. Filters look at a few candidates only: the tokens with the largest logits (for ``typical`` alone, those
# closest to the entropy). Their exact selection needs one cheap pass: the k largest of all values are among the k
# blocks with the largest maxima. Without a filter, a token is drawn in two stages: first a block of the vocabulary,
# then one of its tokens. The probabilities agree with the reference up to the rounding of float32.

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
    end = values.shape[1] // BLOCK * BLOCK
    return values[:, :end].view(len(values), -1, BLOCK), values[:, end:]


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
