"""How the next token is drawn: the settings, and the distribution that they define, computed in the obvious way.

`Sampling.distribution` is the reference; `token_draws.draw` draws from the same distribution at less cost.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import LARGEST, check_integer, check_number

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
    logits (see `penalties`), ``temperature`` divides them, and ``top_k``, ``top_p``, ``min_p`` and ``typical`` remove
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
