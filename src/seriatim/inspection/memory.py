"""How far back a language model uses its context: its loss where only the last k tokens are seen.

U. Khandelwal, H. He, P. Qi and D. Jurafsky, "Sharp nearby, fuzzy far away: how neural language models use context", ACL
2018. The same tokens are predicted after 1, 2, 4, … tokens of their past, each time from the initial state, and after
all of it. Where the curve goes flat, what lies further back says nothing to the model. A context that reaches the
beginning of its text also has the boundary symbol in front, as the model has when it is trained and measured.
"""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.state import State
from ..data.tokenizers import END
from ..models.base_models import TextModel
from ..models.language_model import LanguageModel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LONGEST = 512
"""Tokens of the longest context that is tried beside the full one."""
POSITIONS = 256
"""Tokens that are predicted, at most."""
TOKENS_TOGETHER, ELEMENTS_TOGETHER = 1 << 14, 1 << 22
"""Tokens that are read at once, and numbers of logits that are held at once."""
AHEAD = 256
"""Tokens of a full context that are read at once."""


class Seen(NamedTuple):
    """How well the tokens are predicted with one length of context.

    Attributes:
        loss: mean of −log P in nats; infinite if any token has probability zero.
        accuracy: share of the tokens for which the top guess is correct.
        impossible: number of tokens with probability zero.
        tokens: number of tokens predicted.
    """

    loss: float
    accuracy: float
    impossible: int = 0
    tokens: int = 0


def context_sizes(tokens: int, *, longest: int = LONGEST) -> list[int]:
    """1, 2, 4, … as far as a text of so many tokens has twice as many, so that the longer half can be predicted."""
    return [size for size in (2**i for i in range(longest.bit_length())) if size <= min(longest, max(1, tokens // 2))]


def by_context(
    model: TextModel,
    ids: np.ndarray,
    sizes: Sequence[int],
    *,
    positions: Sequence[int] | np.ndarray | None = None,
    ends: np.ndarray | None = None,
) -> dict[int | None, Seen]:
    """Loss and accuracy of the same tokens when only the last k tokens before them are seen.

    Args:
        model: a language model, in evaluation mode.
        ids: tokens of a text ``(tokens,)``, without the boundary in front of it.
        sizes: the k to try, each at least 1. A token with fewer before it is predicted after those.
        positions: which tokens of ``ids`` to predict; None for `POSITIONS` of them, evenly spread over those that have
            the largest k before them, or over all of them where the text is too short or made of lines.
        ends: where each line ends in ``ids`` ``(lines,)`` where every line is a text of its own, as in a `Corpus`; no
            context goes beyond its line.

    Returns:
        A `Seen` for every k, and one for None, which is the full context.

    Raises:
        InputError: no tokens, or a k below 1.
    """
    if not len(ids) or min(sizes, default=1) < 1:
        raise InputError("by_context: contexts have at least one token, and so have texts; give some")
    ids = np.asarray(ids, dtype=np.int64)
    chosen = _spread(len(ids), 0 if ends is not None else max(sizes, default=0)) if positions is None else positions
    places = np.unique(np.asarray(chosen, dtype=np.int64))
    starts = np.zeros(len(places), dtype=np.int64)
    if ends is not None:
        starts = np.concatenate([[0], ends])[np.searchsorted(ends, places, side="right")]
    found: dict[int | None, Seen] = {}
    with torch.inference_mode():
        for size in sizes:
            found[size] = _measure(_after_windows(model, ids, places, np.maximum(starts, places - size), starts), ids)
        whole = _after_all(model, ids, places) if ends is None else _after_windows(model, ids, places, starts, starts)
        found[None] = _measure(whole, ids)
    return found


def _spread(tokens: int, first: int) -> np.ndarray:
    """At most `POSITIONS` places among those from ``first`` on, or among all where none are left."""
    first = first if first < tokens else 0
    return np.linspace(first, tokens - 1, min(POSITIONS, tokens - first)).round().astype(np.int64)


def _measure(predictions: Iterator[tuple[np.ndarray, Tensor]], ids: np.ndarray) -> Seen:
    """Summarises predictions: pairs of places and the logits ``(places, vocabulary)`` at those places."""
    loss, hits, impossible, count = 0.0, 0, 0, 0
    for places, logits in predictions:
        targets = torch.from_numpy(ids[places]).to(logits.device)
        log_probability = torch.log_softmax(logits.double(), dim=1).gather(1, targets.unsqueeze(1))
        loss -= log_probability.sum().item()
        impossible += int(log_probability.isneginf().sum())
        hits += int((logits.argmax(1) == targets).sum())
        count += len(places)
    return Seen(loss / count, hits / count, impossible, count)


def _after_windows(
    model: TextModel, ids: np.ndarray, places: np.ndarray, first: np.ndarray, starts: np.ndarray
) -> Iterator[tuple[np.ndarray, Tensor]]:
    """Logits of each place after the tokens from ``first`` on alone, and the boundary where a text starts there."""
    longest = int((places - first).max()) + 1
    rows = max(1, min(TOKENS_TOGETHER // longest, ELEMENTS_TOGETHER // model.vocabulary_size))
    order = np.argsort(places - first, kind="stable")
    for group in (order[i : i + rows] for i in range(0, len(order), rows)):
        begins = first[group] - (first[group] == starts[group])  # one further, where the boundary stands
        lengths = places[group] - begins
        position = begins[:, None] + np.arange(int(lengths.max()))
        tokens = np.where(position < starts[group][:, None], END, ids[position.clip(0, len(ids) - 1)])
        yield places[group], _last_logits(model, torch.from_numpy(tokens), torch.from_numpy(lengths))


def _last_logits(model: TextModel, tokens: Tensor, lengths: Tensor) -> Tensor:
    """Logits ``(rows, vocabulary)`` after the last of each row's ``lengths`` tokens, at least one."""
    last = tokens.gather(1, (lengths - 1).unsqueeze(1)).squeeze(1).to(model.device)
    state = model.initial_state(len(tokens))
    if tokens.shape[1] > 1:
        state = read_on(model, tokens[:, :-1].to(model.device), state, lengths=lengths - 1)
    return model.step(last, state)[0]


def _after_all(model: TextModel, ids: np.ndarray, places: np.ndarray) -> Iterator[tuple[np.ndarray, Tensor]]:
    """Logits of each place after all of the text before it, which is read once."""
    tokens = torch.from_numpy(np.concatenate([[END], ids])).unsqueeze(0).to(model.device)
    state, read = model.initial_state(1), 0
    for place in places.tolist():
        for start in range(read, place, AHEAD):
            state = read_on(model, tokens[:, start : min(start + AHEAD, place)], state)
        logits, state = model.step(tokens[:, place], state)
        read = place + 1
        yield np.array([place]), logits


def read_on(model: TextModel, tokens: Tensor, state: State, *, lengths: Tensor | None = None) -> State:
    """The state after ``tokens`` ``(batch, time)``, without what would be said of each; ``lengths`` ``(batch,)``."""
    if isinstance(model, LanguageModel):
        return model.features(tokens, state, lengths)[1]
    return model.token_losses(tokens, tokens, state, lengths=lengths)[1]


def loss_figure(found: dict[int | None, Seen], *, names: tuple[str, str] = ("loss (nats per token)", "")) -> "Figure":
    """Loss against the number of tokens seen, as `by_context` gives it; a line shows that of the full context.

    Args:
        found: by context.
        names: what the vertical axis shows, and what the curve is called where that is to be said.
    """
    return _curve({size: seen.loss for size, seen in found.items()}, *names)


def accuracy_figure(found: dict[int | None, Seen]) -> "Figure":
    """The share of tokens that are held likeliest against the number of tokens seen, as `by_context` gives it."""
    return _curve({size: seen.accuracy for size, seen in found.items()}, "accuracy", "")


def _curve(values: dict[int | None, float], name: str, label: str) -> "Figure":
    from ..report.theme import new_figure, style

    figure, axes = new_figure()
    plot = axes[0, 0]
    sizes = sorted(size for size in values if size is not None)
    shown = [values[size] if math.isfinite(values[size]) else math.nan for size in sizes]
    plot.plot(sizes, shown, label=label or "last k tokens", **style(0))
    if None in values and math.isfinite(values[None]):
        plot.axhline(values[None], label="full context", **{**style(1), "marker": ""})
        plot.legend()
    plot.set_xscale("log", base=2)
    plot.set_xticks(sizes, [f"{size:,}" for size in sizes])
    plot.set_xticks([], minor=True)
    plot.set(xlabel="k, last tokens seen", ylabel=name)
    return figure
