"""How far back a language model uses its context: its loss when only the last k tokens are seen.

U. Khandelwal, H. He, P. Qi and D. Jurafsky, "Sharp nearby, fuzzy far away: how neural language models use context", ACL
2018. The same tokens are predicted after the last 1, 2, 4, … tokens, each time from the initial state, and after the
full context. A context that reaches the beginning of its text starts with the boundary symbol, as in training.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.errors import EmptyError
from ..core.state import State
from ..data.corpus import Corpus
from ..models.base_models import TextModel
from ..models.probabilities import token_log_probabilities
from .intervals import interval, ratio
from .perplexity import each_loss
from .text_sample import choose_sample

POSITIONS = 256  # largest number of tokens that are predicted
MAX_BATCH_TOKENS, MAX_BATCH_LOGITS = 1 << 14, 1 << 22
"""Limits of a batch: tokens that are read, and logits that are held."""
WINDOW = 256  # tokens of the full context that are read at once
COMPARED = (1, 4, 16, 64)
"""Contexts that are compared with the full one."""
EXCESS_TOKENS, STRETCH, READ = 4_000, 100, 200_000
"""Tokens that `excess_losses` predicts of a text, tokens of a stretch of running text, and tokens that are read."""
DIGITS = 4  # of the difference of two losses in bits; smaller ones are rounding errors of the model
MIN_STRETCHES = 10
"""Stretches of neighbouring tokens, or lines, without which no interval is given."""


class ContextScore(NamedTuple):
    """How well a number of tokens is predicted with one length of context.

    The loss is the mean of −log P in nats, infinite if any token is ``impossible`` (has probability zero); the accuracy
    is the fraction of the tokens for which the top guess is correct.
    """

    loss: float
    accuracy: float
    impossible: int
    tokens: int


class Excess(NamedTuple):
    """By how many bits a token the loss with a short context exceeds that with the full context, with its interval.

    The interval is that of 95 % of the bootstrap over stretches of neighbouring tokens, or over lines.
    """

    bits: float
    low: float
    high: float


class ContextExcess(NamedTuple):
    """The excess of the loss by the number of tokens seen, on the same ``tokens``; ``measured`` says which they are."""

    by_size: dict[int, Excess]
    tokens: int
    measured: str = ""


def by_context(
    model: TextModel,
    ids: np.ndarray,
    sizes: Sequence[int],
    *,
    positions: Sequence[int] | np.ndarray | None = None,
    ends: np.ndarray | None = None,
) -> dict[int | None, ContextScore]:
    """Measure the same tokens for every k, when only the last k tokens before them are seen, and for None, all of them.

    Args:
        model: a language model in evaluation mode.
        ids: tokens of a text ``(tokens,)``, without the boundary symbol in front.
        sizes: the values of k, each at least 1. A token with fewer tokens before it is predicted after those.
        positions: those in ``ids`` of the tokens to predict; None for at most `POSITIONS` evenly spread ones. These
            have the largest k tokens before them, unless the text is too short for that or consists of lines.
        ends: end of each line in ``ids`` ``(lines,)`` if every line is a text of its own; no context extends beyond it.

    Raises:
        InputError: the text is empty, or a context has no token.
    """
    if not len(ids) or min(sizes, default=1) < 1:
        raise EmptyError("text: it is empty, or a context has no token; give at least one token to each")
    ids = np.asarray(ids, dtype=np.int64)
    if positions is None:
        first = max(sizes, default=0) if ends is None else 0
        first = first if first < len(ids) else 0
        positions = np.linspace(first, len(ids) - 1, min(POSITIONS, len(ids) - first)).round()
    chosen = np.unique(np.asarray(positions, dtype=np.int64))

    starts = _line_starts(ends, chosen)  # beyond which no context reaches
    sizes_and_starts = [*((size, np.maximum(starts, chosen - size)) for size in sizes), (None, starts)]
    found: dict[int | None, ContextScore] = {}
    with torch.inference_mode():
        for size, first_read in sizes_and_starts:
            reads_on = size is None and ends is None  # one running text is read once, not once for each token
            windows = (
                _after_all(model, ids, chosen) if reads_on else _after_windows(model, ids, chosen, first_read, starts)
            )
            losses, hits = _judge(model, windows, ids, chosen)
            infinite = int(np.isposinf(losses).sum())
            found[size] = ContextScore(float(losses.mean()), float(hits.mean()), infinite, len(losses))
    return found


def excess_losses(model: TextModel, text: Corpus) -> ContextExcess:
    """Compare the loss of shorter contexts with that of the full context, on the same tokens of a sample of the text.

    The losses with the full context are those of the ordinary evaluation. A size without an interval is left out, as
    where the text is short or a loss is infinite.

    Raises:
        InputError: the text is empty.
    """
    if not len(text.ids):
        raise EmptyError("text: it is empty; give at least one token")
    sample = choose_sample(text, EXCESS_TOKENS, stretch=STRETCH, read=READ)
    ids, stretch_of, result = np.asarray(sample.corpus.ids, dtype=np.int64), sample.stretch_of, dict[int, Excess]()
    if len(sample.ends) < MIN_STRETCHES:
        return ContextExcess(result, len(sample.kept), sample.measured)
    full, starts = each_loss(model, sample.corpus)[sample.kept], _line_starts(sample.corpus.ends, sample.kept)
    for size in COMPARED:
        with torch.inference_mode():
            windows = _after_windows(model, ids, sample.kept, np.maximum(starts, sample.kept - size), starts)
            short, _ = _judge(model, windows, ids, sample.kept)
        if (found := excess_of(short, full, stretch_of)) is not None:
            result[size] = found
    return ContextExcess(result, len(sample.kept), sample.measured)


def excess_of(short: np.ndarray, full: np.ndarray, stretch_of: np.ndarray) -> Excess | None:
    """Return the excess of the losses of the same tokens in nats ``(tokens,)``; None without an interval.

    ``stretch_of`` is the number of the stretch of each token, which is one observation ``(tokens,)``.
    """
    if not (np.isfinite(short).all() and np.isfinite(full).all()):
        return None
    bits = ((short - full) / math.log(2)).round(DIGITS)
    counts = np.bincount(stretch_of)
    sums = np.stack([np.bincount(stretch_of, bits), counts], axis=1)[counts > 0]
    value, low, high = interval(sums, lambda drawn: ratio(drawn[..., 0], drawn[..., 1]))  # no fraction of hits
    return None if low is None or high is None else Excess(value, low, high)


def _line_starts(ends: np.ndarray | None, positions: np.ndarray) -> np.ndarray:
    """Return where the text of each position begins ``(positions,)``: its line, where lines are texts of their own."""
    if ends is None:
        return np.zeros(len(positions), dtype=np.int64)
    return np.concatenate([[0], ends])[np.searchsorted(ends, positions, side="right")]


def _judge(
    model: TextModel, predictions: Iterator[tuple[np.ndarray, Tensor]], ids: np.ndarray, positions: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return −log P of the tokens at all ``positions``, and whether the top guess is correct, both ``(positions,)``.

    The predictions are pairs of some positions and the logits ``(positions, vocabulary)`` for these.
    """
    losses, hits = np.empty(len(positions)), np.empty(len(positions), dtype=bool)
    for some, logits in predictions:
        at, targets = np.searchsorted(positions, some), torch.from_numpy(ids[some]).to(logits.device)
        log_probability = token_log_probabilities(model, logits).gather(1, targets.unsqueeze(1))
        losses[at] = -log_probability.squeeze(1).cpu().numpy()
        hits[at] = (logits.argmax(1) == targets).cpu().numpy()
    return losses, hits


def _after_windows(
    model: TextModel, ids: np.ndarray, positions: np.ndarray, first: np.ndarray, starts: np.ndarray
) -> Iterator[tuple[np.ndarray, Tensor]]:
    """Yield logits for each position after the tokens from ``first`` on, with the boundary symbol before a text."""
    longest = int((positions - first).max()) + 1
    rows = max(1, min(MAX_BATCH_TOKENS // longest, MAX_BATCH_LOGITS // model.vocabulary_size))
    order = np.argsort(positions - first, kind="stable")
    for group in (order[i : i + rows] for i in range(0, len(order), rows)):
        begins = first[group] - (first[group] == starts[group])  # one position further back for the boundary symbol
        lengths = positions[group] - begins
        position = begins[:, None] + np.arange(int(lengths.max()))
        tokens = np.where(position < starts[group][:, None], model.begin, ids[position.clip(0, len(ids) - 1)])
        yield positions[group], last_logits(model, torch.from_numpy(tokens), torch.from_numpy(lengths))


def last_logits(model: TextModel, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Return the logits ``(rows, vocabulary)`` after the last of each row's tokens, from the initial state.

    ``tokens`` are ids ``(rows, time)``, the boundary symbol in front included; ``lengths`` is the number of tokens in
    each row ``(rows,)``, at least 1, or None if every row is full.
    """
    rows, time = tokens.shape
    lengths = torch.full((rows,), time) if lengths is None else lengths
    tokens, state = tokens.to(model.device), model.initial_state(rows)
    last = tokens.gather(1, (lengths - 1).unsqueeze(1).to(model.device)).squeeze(1)
    if time > 1:
        state = model.advance(tokens[:, :-1], state, lengths=lengths - 1)
    return model.step(last, state)[0]


def _after_all(model: TextModel, ids: np.ndarray, positions: np.ndarray) -> Iterator[tuple[np.ndarray, Tensor]]:
    """Yield logits for positions, each after all of the text before it, which is read once, a window at a time."""
    tokens = torch.from_numpy(np.concatenate([[model.begin], ids])).unsqueeze(0).to(model.device)
    state: State | None = None
    for start in range(0, int(positions[-1]) + 1, WINDOW):
        window = positions[(positions >= start) & (positions < start + WINDOW)]
        logits, state = model(tokens[:, start : start + WINDOW], state)
        if len(window):
            yield window, logits[0, torch.from_numpy(window - start).to(logits.device)]
