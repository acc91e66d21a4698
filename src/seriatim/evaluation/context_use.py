"""How far back a language model uses its context: its loss when only the last k tokens are seen.

U. Khandelwal, H. He, P. Qi and D. Jurafsky, "Sharp nearby, fuzzy far away: how neural language models use context", ACL
2018. The same tokens are predicted after the last 1, 2, 4, … tokens, each time from the initial state, and after the
full context. A context that reaches the beginning of its text starts with the boundary symbol, as in training.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.errors import EmptyError
from ..core.state import State
from ..models.base_models import TextModel
from ..models.probabilities import token_log_probabilities
from .intervals import interval, ratio

MAX_CONTEXT = 512  # largest limited context that is tried
POSITIONS = 256  # largest number of tokens that are predicted
MAX_BATCH_TOKENS, MAX_BATCH_LOGITS = 1 << 14, 1 << 22
"""Limits of a batch: tokens that are read, and logits that are held."""
WINDOW = 256  # tokens of the full context that are read at once
COMPARED = (1, 4, 16, 64)
"""Contexts that are compared with the full one."""
EXCESS_TOKENS, EXCESS_POSITIONS, EXCESS_BLOCKS = 4_000, 1_000, 20
"""Tokens of a text that `excess_losses` reads and predicts at most, and blocks into which it divides running text."""
MIN_BLOCKS = 10
"""Blocks of neighbouring tokens, or lines, without which no interval is given."""


class ContextScore(NamedTuple):
    """How well a number of tokens is predicted with one length of context.

    The loss is the mean of −log P in nats, infinite if any token is ``impossible`` (has probability zero); the accuracy
    is the fraction of the tokens for which the top guess is correct, None if only the loss is known.
    """

    loss: float
    accuracy: float | None = None
    impossible: int = 0
    tokens: int = 0


class ContextUse(NamedTuple):
    """Scores of a text of so many ``tokens`` by the number of tokens seen; None is the full context."""

    scores: dict[int | None, ContextScore]
    tokens: int


class BlockLosses(NamedTuple):
    """Losses of a number of ``tokens`` of a text, with several lengths of context; None is the full context.

    ``sums`` are the sum of the losses and the number of tokens of each block that has any ``(blocks, 2)``.
    """

    sums: dict[int | None, np.ndarray]
    tokens: int


class Excess(NamedTuple):
    """By which fraction the loss with a short context exceeds that with the full context, with its 95 % interval."""

    fraction: float
    low: float
    high: float


class ContextExcess(NamedTuple):
    """The excess of the loss by the number of tokens seen, measured on the same ``tokens``."""

    by_size: dict[int, Excess]
    tokens: int


def context_sizes(tokens: int) -> list[int]:
    """Return 1, 2, 4, … up to half of a text with so many tokens, so that at least its second half can be predicted."""
    return [2**i for i in range(min(MAX_CONTEXT, max(1, tokens // 2)).bit_length())]


def shorter_contexts(tokens: int) -> list[int]:
    """Return 1, 2, 4, … below a number of tokens."""
    return [size for size in context_sizes(2 * tokens) if size < tokens] or [1]


def answer_losses(sizes: Sequence[int], probabilities: Sequence[float] | np.ndarray, tokens: int) -> ContextUse:
    """Return −log P of an answer for each size of context and for the full context, which comes last."""
    with np.errstate(divide="ignore"):
        losses = np.maximum(0.0, -np.log(np.asarray(probabilities, float)))
    keys: list[int | None] = [*sizes, None]
    return ContextUse({key: ContextScore(float(loss)) for key, loss in zip(keys, losses, strict=True)}, tokens)


class ContextPredictions(NamedTuple):
    """Some tokens of a text, predicted with several lengths of context; None is the full context.

    ``positions`` are those of the tokens in the text ``(positions,)``. Of each length of context, ``losses`` are −log P
    of the tokens in nats, and ``hits`` say for which tokens the top guess is correct, both ``(positions,)``.
    """

    positions: np.ndarray
    losses: dict[int | None, np.ndarray]
    hits: dict[int | None, np.ndarray]


def predict_with_contexts(
    model: TextModel,
    ids: np.ndarray,
    sizes: Sequence[int],
    *,
    positions: Sequence[int] | np.ndarray | None = None,
    ends: np.ndarray | None = None,
) -> ContextPredictions:
    """Predict the same tokens when only the last k tokens before them are seen, and after the full context.

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

    # No context reaches beyond the beginning of its line, where lines are texts of their own.
    starts = np.zeros(len(chosen), dtype=np.int64)
    if ends is not None:
        starts = np.concatenate([[0], ends])[np.searchsorted(ends, chosen, side="right")]
    result = ContextPredictions(chosen, {}, {})

    def record(size: int | None, predictions: Iterator[tuple[np.ndarray, Tensor]]) -> None:
        result.losses[size], result.hits[size] = _judge(model, predictions, ids, chosen)

    with torch.inference_mode():
        for size in sizes:
            record(size, _after_windows(model, ids, chosen, np.maximum(starts, chosen - size), starts))
        record(
            None, _after_all(model, ids, chosen) if ends is None else _after_windows(model, ids, chosen, starts, starts)
        )
    return result


def by_context(
    model: TextModel,
    ids: np.ndarray,
    sizes: Sequence[int],
    *,
    positions: Sequence[int] | np.ndarray | None = None,
    ends: np.ndarray | None = None,
) -> dict[int | None, ContextScore]:
    """Measure the mean loss and the accuracy for every k, and for None, the full context.

    The arguments and errors are those of `predict_with_contexts`.
    """
    predicted = predict_with_contexts(model, ids, sizes, positions=positions, ends=ends)
    return {
        size: ContextScore(
            float(losses.mean()), float(predicted.hits[size].mean()), int(np.isposinf(losses).sum()), len(losses)
        )
        for size, losses in predicted.losses.items()
    }


def losses_by_block(
    model: TextModel,
    ids: np.ndarray,
    sizes: Sequence[int],
    *,
    ends: np.ndarray | None = None,
    tokens: int,
    count: int,
    block: int,
) -> BlockLosses:
    """Predict evenly spread tokens of a text with several lengths of context, and sum the losses of each block.

    Args:
        model: as in `predict_with_contexts`, like ``ids``, ``sizes`` and ``ends``.
        ids: tokens of a text.
        sizes: lengths of context.
        ends: ends of lines, which then are the blocks.
        tokens: largest number of tokens that are read, from the beginning of the text.
        count: largest number of tokens that are predicted.
        block: size of a block of running text, in tokens.

    Raises:
        InputError: there is no text, or no whole line in so many tokens.
    """
    ids = ids[:tokens]
    if ends is not None:
        ends = ends[ends <= len(ids)]
        ids = ids[: ends[-1]] if len(ends) else ids[:0]
    first = min(max(sizes), len(ids) // 2) if ends is None else 0
    positions = np.linspace(first, len(ids) - 1, min(count, len(ids) - first)).round()
    predicted = predict_with_contexts(model, ids, sizes, positions=positions, ends=ends)
    starts = np.arange(0, len(ids), block) if ends is None else np.concatenate([[0], ends[:-1]])
    block_of = np.searchsorted(starts, predicted.positions, side="right") - 1
    sums = {size: summed(losses, block_of) for size, losses in predicted.losses.items()}
    return BlockLosses(sums, len(predicted.positions))


def summed(losses: np.ndarray, item_of: np.ndarray) -> np.ndarray:
    """Return the sum and the number of the losses of each item that has any ``(items, 2)``."""
    counts = np.bincount(item_of)
    return np.stack([np.bincount(item_of, losses), counts], axis=1)[counts > 0]


def excess_losses(model: TextModel, ids: np.ndarray, *, ends: np.ndarray | None = None) -> ContextExcess:
    """Compare the loss of shorter contexts with that of the full context, on the same tokens of the same blocks.

    The arguments and errors are those of `losses_by_block`. A size without an interval is left out, as where the text
    is short or a loss is infinite.
    """
    block = max(1, min(len(ids), EXCESS_TOKENS) // EXCESS_BLOCKS)
    measured = losses_by_block(
        model, ids, COMPARED, ends=ends, tokens=EXCESS_TOKENS, count=EXCESS_POSITIONS, block=block
    )
    full, result = measured.sums[None][:, 0], {}
    for size in COMPARED if len(full) >= MIN_BLOCKS else ():
        sums = np.stack([measured.sums[size][:, 0] - full, full], axis=1)
        if np.isfinite(sums).all():
            fraction, low, high = interval(sums, lambda drawn: ratio(drawn[..., 0], drawn[..., 1]))
            if low is not None and high is not None:
                result[size] = Excess(fraction, low, high)
    return ContextExcess(result, measured.tokens)


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
