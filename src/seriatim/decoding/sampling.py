"""Sample one token after another, with any model that has `step`."""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ..core.errors import InputError, shown
from ..core.state import State
from ..data.arguments import check_integer

WINDOW = 64
"""Tokens of a prompt read at once; their logits are held together."""
SEEDS = 1 << 64
"""Number of different seeds of a generator; other integers are reduced modulo this number."""


class NextToken(Protocol):
    """The part of a model that decoding calls: ids ``(batch,)`` and a state to logits and the next state."""

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]: ...  # noqa: D102


@dataclass(frozen=True)
class Sampling:
    """Settings of how the next token is drawn.

    Attributes:
        temperature: divides the logits; 0 takes the likeliest token.
        top_k: only the k likeliest tokens.
        top_p: only the likeliest tokens that together have at least this probability (Holtzman et al. 2020).
        min_p: only tokens with at least this share of the likeliest one's probability (Nguyen et al. 2024).

    Raises:
        InputError: a value outside its range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    def __post_init__(self) -> None:
        if not (_is_number(self.temperature) and math.isfinite(self.temperature) and self.temperature >= 0):
            raise InputError(f"temperature: must be a finite number of at least 0, got {shown(self.temperature)}")
        if self.top_k is not None:
            check_integer("top_k", self.top_k, minimum=1)
        for name, share in (("top_p", self.top_p), ("min_p", self.min_p)):
            if share is not None and not (_is_number(share) and 0 < share <= 1):
                raise InputError(f"{name}: must be a probability above 0 and at most 1, got {shown(share)}")

    def distribution(self, logits: Tensor) -> Tensor:
        """Return the probabilities to draw from, in float64, given logits ``(batch, vocabulary)``."""
        logits = logits.double()
        if self.temperature == 0:
            return torch.zeros_like(logits).scatter_(1, logits.argmax(1, keepdim=True), 1.0)
        relative = logits - logits.amax(1, keepdim=True)  # so that no temperature overflows
        probabilities = torch.softmax(relative / self.temperature, dim=1)
        if self.top_k is not None and self.top_k < logits.shape[1]:
            likeliest = probabilities.topk(self.top_k).indices
            mask = torch.zeros_like(probabilities, dtype=torch.bool).scatter_(1, likeliest, True)
            probabilities = _restrict(probabilities, mask)
        if self.top_p is not None:
            ordered, order = probabilities.sort(dim=1, descending=True)
            before = ordered.cumsum(1) - ordered
            mask = torch.zeros_like(before, dtype=torch.bool).scatter_(1, order, before < self.top_p)
            probabilities = _restrict(probabilities, mask)
        if self.min_p is not None:
            probabilities = _restrict(probabilities, probabilities >= self.min_p * probabilities.amax(1, keepdim=True))
        return probabilities


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


class Drawn(NamedTuple):
    """One more token of every row."""

    tokens: list[int | None]  # None where a row has ended
    logits: Tensor  # for the tokens after them (batch, vocabulary)
    state: State  # after them


@torch.inference_mode()
def read(model: Callable[[Tensor, State], tuple[Tensor, State]], tokens: Tensor, state: State) -> tuple[Tensor, State]:
    """Read tokens ``(batch, time)``, at least one, in windows, and return the last logits and the state."""
    for window in torch.split(tokens, WINDOW, dim=1):
        logits, state = model(window, state)
    return logits[:, -1], state


@torch.inference_mode()
def sample(
    model: NextToken,
    logits: Tensor,
    state: State,
    sampling: Sampling,
    *,
    max_tokens: int,
    seeds: Sequence[int],
    stop: int | None = None,
    banned: Sequence[int] = (),
) -> Iterator[Drawn]:
    """Draw tokens for every row of a batch, each row with its own random generator, until all have ended.

    Args:
        model: in evaluation mode.
        logits: of the first token to draw ``(batch, vocabulary)``.
        state: that goes with them.
        sampling: how to draw.
        max_tokens: largest number of tokens of a row.
        seeds: one a row; the tokens of a row depend on its own seed only.
        stop: the token that ends a row and is not returned; None for rows without end.
        banned: tokens that are never drawn.

    Warns:
        UserWarning: a row ended because every token that may follow has probability 0.
    """
    generators = [torch.Generator().manual_seed(seed % SEEDS) for seed in seeds]
    active = [True] * len(seeds)
    for _ in range(max_tokens):
        if banned:
            logits = logits.index_fill(1, torch.tensor(banned, device=logits.device), -math.inf)
        stuck = logits.amax(1) == -math.inf
        if bool(stuck.any()):
            active = _end_stuck(active, stuck)
            logits = logits.masked_fill(stuck.unsqueeze(1), 0.0)  # drawn from, and the token is discarded
        tokens = _draw(sampling.distribution(logits), generators)
        active = [alive and token != stop for alive, token in zip(active, tokens.tolist(), strict=True)]
        if not any(active):
            return
        logits, state = model.step(tokens, state)
        drawn = [token if alive else None for token, alive in zip(tokens.tolist(), active, strict=True)]
        yield Drawn(drawn, logits, state)


def _end_stuck(active: list[bool], stuck: Tensor) -> list[bool]:
    """Return which rows can continue, and warn if a text is cut off."""
    going_on = [alive and not end for alive, end in zip(active, stuck.tolist(), strict=True)]
    if going_on != active:
        warnings.warn(
            "a text was cut off because every token that may follow has probability 0; an n-gram model with another "
            "model.options.smoothing has none of these",
            stacklevel=4,
        )
    return going_on


def _restrict(probabilities: Tensor, mask: Tensor) -> Tensor:
    probabilities = probabilities * mask
    return probabilities / probabilities.sum(1, keepdim=True)


def _draw(probabilities: Tensor, generators: list[torch.Generator]) -> Tensor:
    """Draw one token per row by inverting the cumulative distribution at a uniform number of the row's generator."""
    uniform = torch.stack([torch.rand(1, dtype=torch.float64, generator=generator) for generator in generators])
    cumulative = probabilities.cumsum(1)
    point = uniform.to(cumulative.device) * cumulative[:, -1:]
    last = probabilities.shape[1] - 1 - (probabilities.flip(1) > 0).long().argmax(1, keepdim=True)
    return torch.minimum(torch.searchsorted(cumulative, point, right=True), last).squeeze(1)
