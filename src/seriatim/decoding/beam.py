"""Beam search: find the most likely sequences, with any model that has `step`.

At every step the search keeps the k most likely continuations of a row's unfinished hypotheses, where k is the width of
the beam minus the number of hypotheses that have ended. A beam of 1 is therefore greedy search, and a beam as wide as
the number of sequences finds the best one. I. Sutskever, O. Vinyals and Q. Le, NeurIPS 2014.

Ended hypotheses are ranked by log P(Y) / lp(Y), lp(Y) = ((5 + |Y|) / 6)^α (Y. Wu et al., "Google's neural machine
translation system", 2016); |Y| counts the symbol that ends Y.

A row stops early when n of its hypotheses have ended and no unfinished one can be among its n best. Every log
probability is at most 0, so an unfinished hypothesis can only become less likely, and lp grows with |Y|: the score of
every continuation is at most log P / lp(longest allowed).
"""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.errors import InputError
from ..core.state import State, map_state, state_leaves
from ..data.arguments import check_integer
from ..recurrence.obstacles import uncompiled

BLOCK = 64
"""Number of values of a block; only the blocks with the greatest maxima are sorted."""
WIDEST = 1000
"""Largest width of a beam; every hypothesis holds a state of the model, and beams wider than about 50 rarely help."""
STRONGEST = 10
"""Largest length penalty for which the penalty of the longest answer is a finite number."""


class Stepper(Protocol):
    """The part of a model that beam search calls, in evaluation mode."""

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]: ...  # noqa: D102


@dataclass(frozen=True)
class Hypothesis:
    """A sequence that has ended.

    Attributes:
        tokens: without the one that ends it.
        score: log probability over length penalty; hypotheses are ranked by it.
        log_probability: log P(tokens and the end), in nats.
    """

    tokens: tuple[int, ...]
    score: float
    log_probability: float


@dataclass(frozen=True)
class Beam:
    """Settings of a search.

    Attributes:
        width: number of hypotheses per row, including those that have ended; 1 to 1,000.
        length_penalty: α, 0 to 10; 0 ranks by log probability, larger values favour longer sequences.
        n_best: number of hypotheses to return for each row, at most ``width``.
        min_length: smallest number of tokens of a sequence.
        stop: the token that ends a sequence.
        banned: tokens that are never chosen. Their probability is not given to other tokens.

    Raises:
        InputError: a value outside its range.
    """

    width: int
    length_penalty: float = 0.0
    n_best: int = 1
    min_length: int = 0
    stop: int = 0
    banned: Sequence[int] = ()

    def __post_init__(self) -> None:
        check_integer("beam", self.width)
        check_integer("n_best", self.n_best)
        check_integer("min_length", self.min_length, minimum=0)
        if not 1 <= self.width <= WIDEST:
            raise InputError(f"beam: must be between 1 and {WIDEST:,}, got {self.width}")
        if not 0 <= self.length_penalty <= STRONGEST:
            raise InputError(f"length_penalty: must be between 0 and {STRONGEST}, got {self.length_penalty}")
        if not 1 <= self.n_best <= self.width:
            raise InputError(f"n_best: {self.n_best} does not lie in 1..{self.width}, the beam")
        if self.stop in self.banned:
            raise InputError(f"banned: without token {self.stop}, which ends a sequence, none ends")

    def penalty(self, length: int) -> float:
        """Return the divisor of the log probability of a sequence of ``length`` symbols."""
        return math.pow((5 + length) / 6, self.length_penalty)


@torch.inference_mode()
def beam_search(
    model: Stepper,
    state: State,
    *,
    beam: int,
    max_length: int | Tensor,
    length_penalty: float = 0.0,
    min_length: int = 0,
    n_best: int = 1,
    stop: int = 0,
    banned: Sequence[int] = (),
    start: int = 0,
) -> list[list[Hypothesis]]:
    """Return the best sequences that beam search finds for each row of a state.

    Args:
        model: in evaluation mode.
        state: the state before ``start``, for instance the encoder's; one row per sequence to find.
        beam: number of hypotheses per row, including those that have ended; 1 is greedy search.
        max_length: largest number of tokens of a sequence, without the one that ends it; one number, or one per row
            ``(batch,)``, which takes precedence over ``min_length``. A sequence of this length must end next.
        length_penalty: α; 0 for none. See `Beam`, also for the next arguments.
        min_length: smallest number of tokens of a sequence.
        n_best: number of sequences to return for each row.
        stop: the token that ends a sequence.
        banned: tokens that are never chosen.
        start: the token that is read first.

    Returns:
        For every row at most ``n_best`` hypotheses, the best first. Of two with the same score, the one that ended
        earlier comes first; of two that ended at the same step, the one with the better prefix or the lower token.

    Raises:
        InputError: a value outside its range.
    """
    how = Beam(beam, length_penalty, n_best, min_length, stop, banned)
    leaf = state_leaves(state)[0]
    limits = torch.as_tensor(max_length, device=leaf.device).long().expand(leaf.shape[0])
    if len(limits) and int(limits.min()) < 0:
        raise InputError(f"max_length: {int(limits.min())} is negative; at least 0")
    if isinstance(max_length, int) and max_length < min_length:
        raise InputError(f"min_length: {min_length} is more than max_length, {max_length}")
    search = _Search(how, _Carried(state), limits)
    tokens = torch.full_like(limits, start)
    # A compiled step packs its weights for one number of rows, and here rows leave at almost every step.
    with uncompiled() if len(limits) > 1 else nullcontext():
        while len(search.rows):
            logits = search.carried.step(model, tokens)
            tokens = search.advance(logits)
    return [sorted(ended, key=lambda one: -one.score)[:n_best] for ended in search.ended]


class _Search:
    """The state of the search: W hypotheses of each of the R unfinished rows, with dead hypotheses last.

    Attributes:
        rows: indices of the rows in the batch ``(R,)``.
        limits: largest number of tokens of each row ``(R,)``.
        room: places in the beam without an ended hypothesis ``(R,)``.
        worst: score of the n-th best ended hypothesis, −∞ where there are fewer ``(R,)``.
        totals: log probabilities, −∞ for dead hypotheses ``(R, W)``.
        written: tokens ``(R, W, length)``.
        ended: the ended hypotheses of every row of the batch.
    """

    def __init__(self, how: Beam, carried: "_Carried", limits: Tensor) -> None:
        self.how, self.carried, self.limits = how, carried, limits
        count = len(limits)
        self.rows = torch.arange(count, device=limits.device)
        self.room = torch.full_like(limits, how.width)
        self.worst = torch.full((count,), -math.inf, dtype=torch.float64, device=limits.device)
        self.totals = torch.zeros(count, 1, dtype=torch.float64, device=limits.device)
        self.written = limits.new_zeros(count, 1, 0)
        self.ended: list[list[Hypothesis]] = [[] for _ in range(count)]

    def advance(self, logits: Tensor) -> Tensor:
        """From logits ``(R · W, vocabulary)`` to the next tokens of those that go on."""
        vocabulary, width = logits.shape[1], self.totals.shape[1]
        log_p = self.allowed(logits).view(-1, width, vocabulary)
        values = (log_p + self.totals.to(log_p).unsqueeze(2)).flatten(1)
        values, places = best(values, min(self.how.width, width * vocabulary))
        parents, tokens = places // vocabulary, places % vocabulary
        totals = self.totals.gather(1, parents) + log_p.flatten(1).gather(1, places)
        alive = values.isfinite() & (torch.arange(places.shape[1], device=places.device) < self.room.unsqueeze(1))
        ending = alive & (tokens == self.how.stop)
        self.end(ending, parents, totals)
        return self.go_on(alive & ~ending, parents, tokens, totals)

    def allowed(self, logits: Tensor) -> Tensor:
        """Log probabilities ``(R · W, vocabulary)``, −∞ for what may not be written next."""
        log_p = torch.log_softmax(logits, 1, dtype=torch.promote_types(logits.dtype, torch.float32))
        if self.how.banned:
            log_p[:, list(self.how.banned)] = -math.inf
        length, stop = self.written.shape[2], self.how.stop
        full = (self.limits == length).repeat_interleave(self.totals.shape[1])
        if length < self.how.min_length:
            log_p[~full, stop] = -math.inf
        if bool(full.any()):
            last = log_p[full, stop]
            log_p[full] = -math.inf
            log_p[full, stop] = last
        return log_p

    def end(self, ending: Tensor, parents: Tensor, totals: Tensor) -> None:
        """Remove the hypotheses that end ``(R, k)`` from the beam."""
        length = self.written.shape[2]
        penalty = self.how.penalty(length + 1)
        for row, rank in ending.nonzero().tolist():
            log_probability = float(totals[row, rank])
            tokens = tuple(self.written[row, parents[row, rank]].tolist())
            ended = self.ended[int(self.rows[row])]
            ended.append(Hypothesis(tokens, log_probability / penalty, log_probability))
            if len(ended) >= self.how.n_best:
                self.worst[row] = sorted(one.score for one in ended)[-self.how.n_best]
        self.room = self.room - ending.sum(1)

    def go_on(self, alive: Tensor, parents: Tensor, tokens: Tensor, totals: Tensor) -> Tensor:
        """Keep the hypotheses that continue ``(R, k)`` in undecided rows and return their tokens ``(R · W,)``."""
        totals = totals.masked_fill(~alive, -math.inf)
        bound = totals.amax(1) / ((6 + self.limits).double() / 6) ** self.how.length_penalty
        rows = (bound > self.worst).nonzero().squeeze(1)
        width = int(alive[rows].sum(1).max()) if len(rows) else 0
        ranks = torch.argsort(~alive[rows], dim=1, stable=True)[:, :width]
        parents, tokens, totals = (x[rows].gather(1, ranks) for x in (parents, tokens, totals))
        self.carried.choose(rows, parents, self.totals.shape)
        written = self.written[rows.unsqueeze(1), parents]
        self.written, self.totals = torch.cat([written, tokens.unsqueeze(2)], dim=2), totals
        self.rows, self.limits, self.room, self.worst = (
            x[rows] for x in (self.rows, self.limits, self.room, self.worst)
        )
        return tokens.flatten()


class _Carried:
    """The model's state of every hypothesis; constant parts of the state are not copied.

    All hypotheses of a row start with the same state. A part of the state that `step` has always returned unchanged,
    such as an encoder's memory, is therefore equal for all of them and does not need to be reordered.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.constant = [True] * len(state_leaves(state))

    def step(self, model: Stepper, tokens: Tensor) -> Tensor:
        """One step of every hypothesis: logits."""
        before = state_leaves(self.state)
        logits, self.state = model.step(tokens, self.state)
        after = state_leaves(self.state)
        self.constant = [kept and old is new for kept, old, new in zip(self.constant, before, after, strict=True)]
        return logits

    def choose(self, rows: Tensor, parents: Tensor, shape: Sequence[int]) -> None:
        """Keep some rows, and of each row the hypotheses ``parents (rows, width)``.

        ``shape`` is (rows, width) before the selection.
        """
        index = (rows.unsqueeze(1) * shape[1] + parents).flatten()
        same_sizes = parents.shape == shape
        if same_sizes and torch.equal(index, torch.arange(len(index), device=index.device)):
            return
        constant = iter(self.constant)
        self.state = map_state(lambda leaf: leaf if next(constant) and same_sizes else leaf[index], self.state)


def best(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the largest values of each row ``(rows, values)`` and their places, largest first, in a stable order.

    The k greatest lie in the k blocks with the greatest maxima, so that no more than these need to be sorted.
    """
    blocks = F.pad(values, (0, -values.shape[1] % BLOCK), value=-math.inf).reshape(len(values), -1, BLOCK)
    maxima = blocks.amax(2)
    chosen = maxima.topk(min(count, maxima.shape[1]), dim=1).indices
    among = blocks.gather(1, chosen.unsqueeze(2).expand(-1, -1, BLOCK)).flatten(1)
    top, places = among.topk(count, dim=1)
    places = chosen.gather(1, places // BLOCK) * BLOCK + places % BLOCK
    least = top[:, -1:]
    more = ((maxima >= least).sum(1) > count) | ((among >= least).sum(1) > count)
    tied = more & least.squeeze(1).isfinite()  # topk takes any of those equal to the last
    if bool(tied.any()):
        ordered, order = values[tied].sort(dim=1, descending=True, stable=True)
        top[tied], places[tied] = ordered[:, :count], order[:, :count]
    places, order = places.sort(dim=1)
    top, again = top.gather(1, order).sort(dim=1, descending=True, stable=True)
    return top, places.gather(1, again).clamp(max=values.shape[1] - 1)  # where nothing is left, what was added
