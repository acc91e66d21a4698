"""Find the most likely sequences: by beam search with any model that has `step`, or among alignments (CTC).

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
from collections import defaultdict
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.errors import ConflictError, RangeError, check_integer, check_number, shown
from ..core.state import State, map_state, state_leaves
from ..models.probabilities import NotFiniteError, gives_log_probabilities, log_softmax
from ..recurrence import uncompiled
from .sampling import NextToken

BLOCK = 64
"""Number of values of a block; only the blocks with the greatest maxima are sorted."""
MAX_WIDTH = 1000
"""Largest width of a beam; every hypothesis holds a state of the model, and beams wider than about 50 rarely help."""
MAX_PENALTY = 10
"""Largest length penalty for which the penalty of the longest answer is a finite number."""


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
        width: number of hypotheses per row, including those that have ended, 1 to 1,000; 1 is greedy search.
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
        penalty = f"between 0 and {MAX_PENALTY}"
        checked = {
            "width": check_integer("beam", self.width),
            "n_best": check_integer("n_best", self.n_best),
            "min_length": check_integer("min_length", self.min_length, minimum=0),
            "length_penalty": check_number(
                "length_penalty", self.length_penalty, penalty, lambda x: 0 <= x <= MAX_PENALTY
            ),
        }

        # A frozen class is filled in this way: numbers are kept in the type in which they were checked.
        for name, value in checked.items():
            object.__setattr__(self, name, value)

        # Each hypothesis holds a state, so that the width is bounded; the other bounds follow from the width.
        if not 1 <= self.width <= MAX_WIDTH:
            raise RangeError(f"beam: {shown(self.width)} is out of range; give a number from 1 to {MAX_WIDTH:,}")
        if not 1 <= self.n_best <= self.width:
            raise RangeError(f"n_best: {shown(self.n_best)} is out of range; give 1 to {self.width}, the beam")
        if self.stop in self.banned:
            raise RangeError(f"banned: token {self.stop} ends answers, and without it none could end; do not ban it")


@torch.inference_mode()
def beam_search(model: NextToken, state: State, settings: Beam, *, max_length: int | Tensor) -> list[list[Hypothesis]]:
    """Return the best sequences that beam search finds for each row of a state.

    Args:
        model: in evaluation mode.
        state: the state before the boundary symbol, for instance the encoder's; one row per sequence to find.
        settings: of the search.
        max_length: largest number of tokens of a sequence, without the one that ends it; one number, or one per row
            ``(batch,)``, which takes precedence over ``min_length``. A sequence of this length must end next.

    Returns:
        For every row at most ``n_best`` hypotheses, the best first. Of two with the same score, the one that ended
        earlier comes first; of two that ended at the same step, the one with the better prefix or the lower token.

    Raises:
        InputError: ``max_length`` is negative or less than ``min_length``.
        NotFiniteError: logits are NaN or infinite, or every sequence of a row has probability 0, unless the model is an
            n-gram model without smoothing: then such a row has no hypotheses.
    """
    leaf = state_leaves(state)[0]
    limits = torch.as_tensor(max_length, device=leaf.device).long().expand(leaf.shape[0])
    if len(limits) and int(limits.min()) < 0:
        raise RangeError(f"max_length: {int(limits.min())} is negative; give 0 or more")
    if isinstance(max_length, int) and max_length < settings.min_length:
        raise ConflictError(f"min_length: {settings.min_length} is more than max_length, {max_length}; lower it")
    search = _Search(settings, _States(state), limits)
    tokens = torch.zeros_like(limits)  # the boundary symbol
    # A compiled step packs its weights for one number of rows, and here rows leave at almost every step.
    with uncompiled() if len(limits) > 1 else nullcontext():
        while len(search.rows):
            logits = search.states.step(model, tokens)
            tokens = search.advance(logits)
    if not all(search.ended) and not gives_log_probabilities(model):
        raise NotFiniteError
    return [sorted(ended, key=lambda one: -one.score)[: settings.n_best] for ended in search.ended]


class _Search:
    """The state of the search: W hypotheses of each of the R unfinished rows, with dead hypotheses last."""

    def __init__(self, settings: Beam, states: "_States", limits: Tensor) -> None:
        self.settings, self.states = settings, states
        self.limits = limits  # largest number of tokens of each row (R,)
        count = len(limits)
        self.rows = torch.arange(count, device=limits.device)  # indices in the batch (R,)
        self.open_slots = torch.full_like(limits, settings.width)  # of the beam, without an ended hypothesis (R,)
        self.totals = torch.zeros(count, 1, dtype=torch.float64, device=limits.device)  # log P, −∞ for dead ones (R, W)
        self.worst = torch.full_like(self.totals[:, 0], -math.inf)  # score of the n-th best ended one, or −∞ (R,)
        self.written = limits.new_zeros(count, 1, 0)  # tokens (R, W, length)
        self.ended: list[list[Hypothesis]] = [[] for _ in range(count)]  # of every row of the batch

    def advance(self, logits: Tensor) -> Tensor:
        """Return the next tokens of the hypotheses that continue, given logits ``(R · W, vocabulary)``."""
        # The W · V continuations of a row compete in one list, whose k best may have any of its hypotheses as parents.
        vocabulary, width = logits.shape[1], self.totals.shape[1]
        log_p = self.allowed(logits).view(-1, width, vocabulary)  # (R, W, V)
        values = (log_p + self.totals.to(log_p).unsqueeze(2)).flatten(1)  # (R, W · V)
        values, positions = best(values, min(self.settings.width, width * vocabulary))  # (R, k)
        parents, tokens = positions // vocabulary, positions % vocabulary  # (R, k)

        # Candidates are ranked in the precision of the logits; sums over a long sequence are kept in float64.
        totals = self.totals.gather(1, parents) + log_p.flatten(1).gather(1, positions)  # (R, k)

        # Hypotheses that have ended still take up the beam, so that only the first ``open_slots`` candidates are kept.
        ranks = torch.arange(positions.shape[1], device=positions.device)
        alive = values.isfinite() & (ranks < self.open_slots.unsqueeze(1))
        ending = alive & (tokens == self.settings.stop)
        self.end(ending, parents, totals)
        return self.go_on(alive & ~ending, parents, tokens, totals)

    def allowed(self, logits: Tensor) -> Tensor:
        """Return log probabilities ``(R · W, vocabulary)``, −∞ for tokens that may not come next."""
        log_p = log_softmax(logits, torch.promote_types(logits.dtype, torch.float32))
        if self.settings.banned:
            log_p[:, list(self.settings.banned)] = -math.inf

        # A row at its largest length must end, also where that is before the smallest length of the settings.
        length, stop = self.written.shape[2], self.settings.stop
        full = (self.limits == length).repeat_interleave(self.totals.shape[1])  # (R · W,)
        if length < self.settings.min_length:
            log_p[~full, stop] = -math.inf
        if bool(full.any()):
            last = log_p[full, stop]
            log_p[full] = -math.inf
            log_p[full, stop] = last
        return log_p

    def end(self, ending: Tensor, parents: Tensor, totals: Tensor) -> None:
        """Move the hypotheses that end ``(R, k)`` from the beam to `ended`."""
        length = self.written.shape[2]
        penalty = math.pow((6 + length) / 6, self.settings.length_penalty)
        for row, rank in ending.nonzero().tolist():
            log_probability = float(totals[row, rank])
            tokens = tuple(self.written[row, parents[row, rank]].tolist())
            ended = self.ended[int(self.rows[row])]
            ended.append(Hypothesis(tokens, log_probability / penalty, log_probability))
            if len(ended) >= self.settings.n_best:
                self.worst[row] = sorted(one.score for one in ended)[-self.settings.n_best]
        self.open_slots = self.open_slots - ending.sum(1)

    def go_on(self, alive: Tensor, parents: Tensor, tokens: Tensor, totals: Tensor) -> Tensor:
        """Keep the hypotheses that continue ``(R, k)`` in undecided rows and return their tokens ``(R · W,)``."""
        # A row is decided if even the best score that a continuation can reach is not above its n-th best ended one.
        totals = totals.masked_fill(~alive, -math.inf)
        bound = totals.amax(1) / ((6 + self.limits).double() / 6) ** self.settings.length_penalty  # (R,)
        rows = (bound > self.worst).nonzero().squeeze(1)  # (R',)

        # The beam is as wide as the row with the most hypotheses needs; the others have dead ones at their end.
        width = int(alive[rows].sum(1).max()) if len(rows) else 0
        ranks = torch.argsort(~alive[rows], dim=1, stable=True)[:, :width]  # (R', W')
        parents, tokens, totals = (values[rows].gather(1, ranks) for values in (parents, tokens, totals))  # (R', W')
        self.states.choose(rows, parents, self.totals.shape)
        written = self.written[rows.unsqueeze(1), parents]  # (R', W', length)
        self.written, self.totals = torch.cat([written, tokens.unsqueeze(2)], dim=2), totals
        self.rows, self.limits, self.open_slots, self.worst = (
            values[rows] for values in (self.rows, self.limits, self.open_slots, self.worst)
        )
        return tokens.flatten()  # (R' · W',)


class _States:
    """The model's state of every hypothesis; constant leaves of the state are not copied.

    All hypotheses of a row start with the same state. A leaf of the state that `step` has always returned unchanged,
    such as an encoder's memory, is therefore equal for all of them and does not need to be reordered.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.is_constant = [True] * len(state_leaves(state))

    def step(self, model: NextToken, tokens: Tensor) -> Tensor:
        """Return the logits after one step of every hypothesis."""
        before = state_leaves(self.state)
        logits, self.state = model.step(tokens, self.state)
        after = state_leaves(self.state)
        same = [old is new for old, new in zip(before, after, strict=True)]
        self.is_constant = [all(flags) for flags in zip(self.is_constant, same, strict=True)]
        return logits

    def choose(self, rows: Tensor, parents: Tensor, shape: Sequence[int]) -> None:
        """Keep some rows, and of each row the hypotheses ``parents (rows, width)``; ``shape`` is their shape before."""
        index = (rows.unsqueeze(1) * shape[1] + parents).flatten()
        same_sizes = parents.shape == shape
        if same_sizes and torch.equal(index, torch.arange(len(index), device=index.device)):
            return
        is_constant = iter(self.is_constant)
        self.state = map_state(lambda leaf: leaf if next(is_constant) and same_sizes else leaf[index], self.state)


def best(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the largest values of each row ``(rows, values)`` and their positions, largest first, in a stable order.

    The k greatest lie in the k blocks with the greatest maxima, so that no more than these need to be sorted.
    """
    # Sorting a few blocks is much cheaper than one list of beams times vocabulary.
    blocks = F.pad(values, (0, -values.shape[1] % BLOCK), value=-math.inf).reshape(len(values), -1, BLOCK)
    maxima = blocks.amax(2)  # (rows, blocks)
    chosen = maxima.topk(min(count, maxima.shape[1]), dim=1).indices  # (rows, chosen)
    among = blocks.gather(1, chosen.unsqueeze(2).expand(-1, -1, BLOCK)).flatten(1)  # (rows, chosen · BLOCK)
    top, positions = among.topk(count, dim=1)  # (rows, count)
    positions = chosen.gather(1, positions // BLOCK) * BLOCK + positions % BLOCK

    # Of values equal to the last one, topk takes any; these rows are sorted, so that no result depends on the device.
    least = top[:, -1:]
    more = ((maxima >= least).sum(1) > count) | ((among >= least).sum(1) > count)
    tied = more & least.squeeze(1).isfinite()
    if bool(tied.any()):
        ordered, order = values[tied].sort(dim=1, descending=True, stable=True)
        top[tied], positions[tied] = ordered[:, :count], order[:, :count]

    # Equal values come in the order of their positions. Where a row has no candidates left, padding was chosen.
    positions, order = positions.sort(dim=1)
    top, again = top.gather(1, order).sort(dim=1, descending=True, stable=True)
    return top, positions.gather(1, again).clamp(max=values.shape[1] - 1)


# Answers given log probabilities at every position: by the best alignment, or by a search over answers.
#
# A. Graves et al., "Connectionist temporal classification", ICML 2006: many alignments give one answer, so the answer
# of the best alignment need not be the best answer. The search keeps the most probable prefixes of answers, each with
# the summed probability of its alignments that end in a blank and of those that do not.

BLANK = 0
CANDIDATES = 32
"""Number of most probable tokens that are considered at a position; all others have almost no probability."""


def best_alignments(log_p: Tensor, lengths: Tensor) -> list[Hypothesis]:
    """Return the answer of each row's most probable alignment, with the log probability of the alignment.

    Args:
        log_p: ``(batch, positions, vocabulary)``.
        lengths: of each row ``(batch,)``.
    """
    values, tokens = log_p.max(dim=2)
    hypotheses = []
    for row, count in enumerate(lengths.tolist()):
        merged = torch.unique_consecutive(tokens[row, :count]).tolist()
        total = float(values[row, :count].sum())
        hypotheses.append(Hypothesis(tuple(token for token in merged if token != BLANK), total, total))
    return hypotheses


def search_alignments(log_p: Tensor, *, beam: int, n_best: int = 1) -> list[Hypothesis]:
    """Return the most probable answers of one row, the best first.

    The log probability of an answer is that of those of its alignments that the search met.

    Args:
        log_p: ``(positions, vocabulary)``.
        beam: number of prefixes that are kept at every position.
        n_best: number of answers to return.
    """
    prefixes: dict[tuple[int, ...], tuple[float, ...]] = {(): (0.0, -math.inf)}
    values, tokens = log_p.topk(min(CANDIDATES, log_p.shape[1]), dim=1)
    blanks = log_p[:, BLANK].tolist()
    for position, (scores, candidates) in enumerate(zip(values.tolist(), tokens.tolist(), strict=True)):
        extended: dict[tuple[int, ...], list[float]] = defaultdict(lambda: [-math.inf, -math.inf])
        likely = dict(zip(candidates, scores, strict=True))
        for prefix, (in_blank, in_token) in prefixes.items():
            # The answer stays the same with a blank, and with its last token again, which alignments merge.
            total = _sum(in_blank, in_token)
            stay = extended[prefix]
            stay[0] = _sum(stay[0], total + blanks[position])
            last = prefix[-1] if prefix else None
            if last in likely:
                stay[1] = _sum(stay[1], in_token + likely[last])

            # A token that equals the last one is a new one only after a blank.
            for token, score in likely.items():
                if token != BLANK:
                    longer = extended[(*prefix, token)]
                    longer[1] = _sum(longer[1], score + (in_blank if token == last else total))
        ranked = sorted(extended.items(), key=lambda item: (-_sum(*item[1]), item[0]))
        prefixes = {prefix: tuple(sums) for prefix, sums in ranked[:beam]}
    totals = [(prefix, _sum(*sums)) for prefix, sums in prefixes.items()]
    return [Hypothesis(prefix, total, total) for prefix, total in totals[:n_best]]


def _sum(a: float, b: float) -> float:
    """Return log(e^a + e^b)."""
    high, low = (a, b) if a > b else (b, a)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))
