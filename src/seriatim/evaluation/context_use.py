"""How far back a language model uses its context: its loss when only the last k tokens are seen.

U. Khandelwal, H. He, P. Qi and D. Jurafsky, "Sharp nearby, fuzzy far away: how neural language models use context", ACL
2018. The same tokens are predicted after the last 1, 2, 4, … tokens, each time from the initial state, and after the
full context. A context that reaches the beginning of its text starts with the boundary symbol, as in training.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.errors import EmptyError
from ..data.corpus import Corpus
from ..models.base_models import TextModel
from ..models.probabilities import token_log_probabilities
from .intervals import interval, ratio
from .perplexity import each_loss
from .text_sample import choose_sample

MAX_BATCH_TOKENS, MAX_BATCH_LOGITS = 1 << 14, 1 << 22
"""Limits of a batch: tokens that are read, and logits that are held."""
COMPARED = (1, 4, 16, 64)
"""Contexts that are compared with the full one."""
EXCESS_TOKENS, STRETCH, READ = 4_000, 100, 200_000
"""Tokens that `excess_losses` predicts of a text, tokens of a stretch of running text, and tokens that are read."""
DIGITS = 4  # of the difference of two losses in bits; smaller ones are rounding errors of the model
MIN_STRETCHES = 10
"""Stretches of neighbouring tokens, or lines, without which no interval is given."""


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
    result = dict[int, Excess]()
    if len(sample.ends) < MIN_STRETCHES:
        return ContextExcess(result, len(sample.kept), sample.measured)
    full = each_loss(model, sample.corpus)[sample.kept]
    for size in COMPARED:
        short = losses_after(model, sample.corpus.ids, sample.kept, size, ends=sample.corpus.ends)
        if (found := excess_of(short, full, sample.stretch_of)) is not None:
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


@torch.inference_mode()
def losses_after(
    model: TextModel, ids: np.ndarray, positions: np.ndarray, size: int, *, ends: np.ndarray | None = None
) -> np.ndarray:
    """Return −log P in nats of some tokens ``(positions,)``, when only the last ``size`` tokens before them are seen.

    Args:
        model: a language model in evaluation mode.
        ids: tokens of a text ``(tokens,)``, without the boundary symbol in front.
        positions: those in ``ids`` of the tokens to predict. A token with fewer tokens before it is predicted after
            those, and after the boundary symbol.
        size: at least 1.
        ends: end of each line in ``ids`` ``(lines,)`` if every line is a text of its own; no context extends beyond it.
    """
    ids, starts = np.asarray(ids, dtype=np.int64), np.zeros(len(positions), dtype=np.int64)
    if ends is not None:
        starts = np.concatenate([[0], ends])[np.searchsorted(ends, positions, side="right")]
    first, losses = np.maximum(starts, positions - size), np.empty(len(positions))
    longest = int((positions - first).max()) + 1
    rows = max(1, min(MAX_BATCH_TOKENS // longest, MAX_BATCH_LOGITS // model.vocabulary_size))
    order = np.argsort(positions - first, kind="stable")
    for group in (order[i : i + rows] for i in range(0, len(order), rows)):
        begins = first[group] - (first[group] == starts[group])  # one position further back for the boundary symbol
        lengths = positions[group] - begins
        position = begins[:, None] + np.arange(int(lengths.max()))
        tokens = np.where(position < starts[group][:, None], model.begin, ids[position.clip(0, len(ids) - 1)])
        logits = last_logits(model, torch.from_numpy(tokens), torch.from_numpy(lengths))
        targets = torch.from_numpy(ids[positions[group]]).to(logits.device).unsqueeze(1)
        losses[group] = -token_log_probabilities(model, logits).gather(1, targets).squeeze(1).cpu().numpy()
    return losses


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
