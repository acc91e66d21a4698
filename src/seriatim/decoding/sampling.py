"""Sample one token after another, with any model that has `step`."""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeGuard, runtime_checkable

import torch
from torch import Tensor

from ..core.state import State
from ..models.base_models import TextModel
from ..models.probabilities import NotFiniteError, gives_log_probabilities
from .penalties import Penalties
from .sampling_settings import Sampling
from .token_draws import draw

WINDOW = 512
"""Tokens of a prompt that are read at once: about as fast as a whole sequence, in bounded memory."""
SEEDS = 1 << 64
"""Number of different seeds of a generator; other integers are reduced modulo this number."""
CUT_OFF = (
    "a text was cut off because every token that may follow has probability 0; an n-gram model with another "
    "model.options.smoothing has none of these"
)
"""The warning about a text that ends because nothing can follow."""
MANY = 4096
"""For a smaller vocabulary, drawing from the logits of a batch is faster than `DrawsNext`."""


class NextToken(Protocol):
    """The part of a model that decoding calls: ids ``(batch,)`` and a state to logits and the next state."""

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]: ...  # noqa: D102


@runtime_checkable
class DrawsNext(Protocol):
    """A model that can draw from its own distribution at less cost than from logits; used without other settings.

    ``draw_next`` takes a state, a uniform number of each row ``(batch,)`` and the banned tokens. It returns tokens
    ``(batch,)``, none of which is banned or has probability 0, and −1 for rows that must be drawn from the logits.
    """

    def draw_next(self, state: State, uniform: Tensor, banned: Sequence[int]) -> Tensor: ...  # noqa: D102

    def advance(self, tokens: Tensor, state: State) -> State: ...  # noqa: D102  (ids (batch, time))

    def next_logits(self, state: State) -> Tensor: ...  # noqa: D102  ((batch, vocabulary))


class Drawn(NamedTuple):
    """One more token of every row."""

    tokens: list[int | None]  # None where a row has ended
    logits: Tensor | None  # for the tokens after them (batch, vocabulary); None: `DrawsNext.next_logits` has them
    state: State  # after them


@torch.inference_mode()
def read(model: TextModel, tokens: Tensor, state: State) -> tuple[Tensor, State]:
    """Read tokens ``(batch, time)``, at least one, in windows, and return the last logits and the state."""
    *windows, last = torch.split(tokens, WINDOW, dim=1)
    for window in windows:
        state = model.advance(window, state)
    return model.read(last, state)


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
    biases: Mapping[int, float] | None = None,
    read_before: Sequence[int] = (),
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
        biases: numbers that are added to the logits of tokens.
        read_before: the tokens of the text so far, for the repetition penalty; the same for all rows.

    Warns:
        UserWarning: a row ended because every token that may follow has probability 0.
    """
    generators = [torch.Generator().manual_seed(seed % SEEDS) for seed in seeds]
    active = [True] * len(seeds)
    penalties = Penalties(sampling, biases or {}, len(seeds), read_before, logits.device)
    excluded = torch.tensor(banned, dtype=torch.long, device=logits.device)
    own = model if draws_itself(model, sampling, logits.shape[1]) and not penalties.changes else None
    for _ in range(max_tokens):
        adjusted = penalties.apply(logits) if own is None else None
        tokens, stuck = draw_tokens(model, state, adjusted, sampling, excluded, uniform_numbers(generators))
        if any(alive and is_stuck for alive, is_stuck in zip(active, stuck.tolist(), strict=True)):
            warnings.warn(CUT_OFF, stacklevel=3)
        ends = (stuck | (tokens == (-1 if stop is None else stop))).tolist()
        active = [alive and not end for alive, end in zip(active, ends, strict=True)]
        if not any(active):
            return
        if own is None:
            logits, state = model.step(tokens, state)
        else:
            state = own.advance(tokens.unsqueeze(1), state)
        drawn = [token if alive else None for token, alive in zip(tokens.tolist(), active, strict=True)]
        penalties.add(drawn)
        yield Drawn(drawn, logits if own is None else None, state)


def draws_itself(model: NextToken, sampling: Sampling, vocabulary_size: int) -> TypeGuard[DrawsNext]:
    """Return whether a model draws tokens without logits, and this is faster."""
    return sampling.is_plain and isinstance(model, DrawsNext) and vocabulary_size >= MANY


def draw_tokens(
    model: NextToken, state: State, logits: Tensor | None, sampling: Sampling, excluded: Tensor, uniform: Tensor
) -> tuple[Tensor, Tensor]:
    """Draw a token of each row, from logits ``(batch, vocabulary)`` or, if they are None, by `DrawsNext`.

    Args:
        model: with the method `DrawsNext.draw_next` if there are no logits.
        state: before the tokens.
        logits: of the tokens.
        sampling: how to draw.
        excluded: tokens that are never drawn.
        uniform: a random number of each row ``(batch,)``, as `uniform_numbers` returns them.

    Returns:
        Tokens ``(batch,)``, and which rows are stuck: nothing can follow, and the token is meaningless.
    """
    if logits is not None:
        return draw_from_logits(model, sampling, logits, excluded, uniform)
    assert isinstance(model, DrawsNext)
    tokens, stuck = model.draw_next(state, uniform, excluded.tolist()), torch.zeros(len(uniform), dtype=torch.bool)
    rows = (tokens < 0).nonzero().squeeze(1)
    if len(rows):
        some = model.next_logits(state)[rows]
        tokens[rows], stuck[rows] = draw_from_logits(model, sampling, some, excluded, uniform[rows])
    return tokens, stuck


def draw_from_logits(
    model: NextToken, sampling: Sampling, logits: Tensor, excluded: Tensor, uniform: Tensor
) -> tuple[Tensor, Tensor]:
    """Draw a token of each row, and return which rows are stuck; see `draw_tokens`."""
    logits, peak, stuck = choosable(model, logits, excluded)
    return draw(sampling, logits, peak, uniform), stuck


def choosable(model: NextToken, logits: Tensor, excluded: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Prepare logits ``(batch, vocabulary)``, to which penalties and biases have been added, for the choice of a token.

    Returns:
        Logits, −∞ for the excluded tokens, in float32 at least; the largest of each row ``(batch, 1)``; and which rows
        are stuck ``(batch,)``: nothing can follow, and their logits are zeros.

    Raises:
        NotFiniteError: a logit is NaN or +∞, or a network finds every token impossible.
    """
    given = logits
    if logits.dtype.itemsize < 4:
        logits = logits.float()
    if len(excluded):
        logits = logits.index_fill(1, excluded, -math.inf)
    peak = logits.amax(1, keepdim=True)  # NaN if any logit is
    stuck = (peak == -math.inf).squeeze(1)
    if not math.isfinite(peak.sum().item()):
        has_failed = ~(peak.squeeze(1) < math.inf)
        if not gives_log_probabilities(model):
            has_failed |= given.amax(1) == -math.inf
        if bool(has_failed.any()):
            raise NotFiniteError
        logits, peak = logits.masked_fill(stuck.unsqueeze(1), 0.0), peak.masked_fill(stuck.unsqueeze(1), 0.0)
    return logits, peak, stuck


def uniform_numbers(generators: Sequence[torch.Generator]) -> Tensor:
    """Return one number of each generator ``(generators,)``, in float64, at least 0 and below 1."""
    return torch.cat([torch.rand(1, dtype=torch.float64, generator=generator) for generator in generators])
