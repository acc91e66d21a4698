"""How the next token is drawn: the settings, and the distribution that they define, computed in the obvious way.

`Sampling.distribution` is the reference; `token_draws.draw` draws from the same distribution at less cost.
"""

import math
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor

from ..core.errors import InputError, shown
from ..data.arguments import check_integer


@dataclass(frozen=True)
class Sampling:
    """Settings of how the next token is drawn.

    The settings apply in this order: ``repetition_penalty``, ``frequency_penalty`` and ``presence_penalty`` change the
    logits (see `penalties`), ``temperature`` divides them, and ``top_k``, ``top_p``, ``min_p`` and ``typical`` remove
    tokens. Each of these filters applies to the probabilities that the one before it left, scaled to a sum of 1.

    Attributes:
        temperature: divides the logits; 0 takes the likeliest token.
        top_k: only the k likeliest tokens.
        top_p: only the likeliest tokens that together have at least this probability (Holtzman et al. 2020).
        min_p: only tokens with at least this share of the likeliest one's probability (Nguyen et al. 2024).
        typical: only the tokens whose information −log p is closest to the entropy, as many as together have at least
            this probability (locally typical sampling, Meister et al. 2023).
        repetition_penalty: divides positive logits, and multiplies negative ones, of the tokens that occur in the text
            so far, the prompt included (Keskar et al. 2019); 1 changes nothing.
        frequency_penalty: is subtracted from the logit of a token once for each time it was generated.
        presence_penalty: is subtracted once from the logit of each token that was generated.

    Raises:
        InputError: a value outside its range.
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
        if not (is_finite_number(self.temperature) and self.temperature >= 0):
            raise InputError(f"temperature: must be a finite number of at least 0, got {shown(self.temperature)}")
        if self.top_k is not None:
            check_integer("top_k", self.top_k, minimum=1)
        for name in ("top_p", "min_p", "typical"):
            share = getattr(self, name)
            if share is not None and not (is_finite_number(share) and 0 < share <= 1):
                raise InputError(f"{name}: must be a probability above 0 and at most 1, got {shown(share)}")
        if not (is_finite_number(self.repetition_penalty) and self.repetition_penalty > 0):
            value = shown(self.repetition_penalty)
            raise InputError(f"repetition_penalty: must be a finite number above 0, got {value}")
        for name in ("frequency_penalty", "presence_penalty"):
            if not is_finite_number(getattr(self, name)):
                raise InputError(f"{name}: must be a finite number, got {shown(getattr(self, name))}")

    @property
    def penalizes(self) -> bool:
        """Whether tokens of the text so far are penalized."""
        return (self.repetition_penalty, self.frequency_penalty, self.presence_penalty) != (1, 0, 0)

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


def is_finite_number(value: object) -> bool:
    """Return whether a value is a number, and neither NaN nor infinite."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def smallest_set(keys: Tensor, probabilities: Tensor, share: float) -> Tensor:
    """Return a mask of the tokens with the largest keys, as few as together have the probability ``share``."""
    order = keys.argsort(dim=1, descending=True)
    ordered = probabilities.gather(1, order)
    before = ordered.cumsum(1) - ordered
    return torch.zeros_like(before, dtype=torch.bool).scatter_(1, order, before < share)


def restrict(probabilities: Tensor, mask: Tensor) -> Tensor:
    """Return the probabilities of the tokens in a mask, scaled to a sum of 1, and 0 for the others."""
    probabilities = probabilities * mask
    return probabilities / probabilities.sum(1, keepdim=True)
