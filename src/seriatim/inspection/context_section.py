"""The section of a page on memory: how much context a model uses, and the size of its state."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional as F

from ..core.errors import InputError
from ..core.state import State, map_state, state_to_dict
from ..evaluation.context_use import ContextScore, ContextUse
from ..layers.positions import learned_positions
from ..report.layer_styles import model_style
from ..report.number_formats import percent
from ..report.page import Part, Plot, Plots, Prose, Table
from ..report.theme import SOFT, new_figure, style
from ..training.view_types import StateReader
from .subject import Content, Subject

TOLERANCE = 0.01
"""Share by which a loss may exceed that of the full context and still count as equal to it."""
MIN_DIFFERENCE = 1e-3
"""Nats by which it may exceed it in any case, since a share of an almost certain answer's loss means nothing."""
MIN_TOKENS = 32
"""Tokens that a text needs before anything is said about the context that the model needs."""

Scores = Mapping[int | None, ContextScore]
TOKENS = (1, 10, 100, 1_000, 10_000)
MAX_READ = 1_000
"""Tokens that are actually read; larger sizes follow from the contract of states."""
Growth = Literal["constant", "bounded", "grows"]


class Cost(NamedTuple):
    """A part of a state by its path (see `seriatim.core.state.state_to_dict`), and its bytes by the tokens read.

    ``growth`` is ``constant`` from the first token on, ``bounded`` (grows up to some size), or ``grows``.
    """

    name: str
    sizes: dict[int, int]
    growth: Growth


def memory_section(subject: Subject) -> Content:
    """Write the section on the use of context and the size of the state."""
    try:
        result = subject.view.context_use(subject.item)
        full = result.scores[None]
        content = _answer_content(subject, result) if full.accuracy is None else _text_content(result, subject.layer)
    except InputError as error:
        content = Content([Prose(f"Not shown: {str(error).rstrip('.')}.")])
    try:
        reader = subject.view.state_reader()
        parts = _cost_parts(state_costs(reader, positions=learned_positions(subject.run.model)), reader)
    except InputError as error:
        parts = [Prose(f"The size of the state is not shown: {error}.")]
    return Content([*content.parts, *parts], content.summary)


def _text_content(result: ContextUse, layer: str) -> Content:
    scores, full = result.scores, result.scores[None]
    largest = max(size for size in scores if size is not None)
    accuracy = Plot(
        _curve({size: score.accuracy or 0.0 for size, score in scores.items()}, "accuracy", layer),
        "Accuracy when only the last k tokens are seen",
        f"Share of {full.tokens:,} tokens for which the top guess is correct; the same tokens for every k.",
        f"Accuracy for k from 1 to {largest}.",
    )
    if reason := _not_comparable(full):
        return Content([Prose(reason), Plots([accuracy])], [f"memory: {reason[:1].lower()}{reason[1:]}"])
    enough = result.tokens >= MIN_TOKENS
    sentence = needed_sentence({size: score.loss for size, score in scores.items()}) if enough else ""
    loss = Plot(
        loss_figure(scores, layer=layer),
        "Loss when only the last k tokens are seen",
        f"Mean over the same {full.tokens:,} tokens for every k. {sentence}{_infinite_sizes(scores)}".strip(),
        f"Loss in nats per token for k from 1 to {largest}; the full context gives {full.loss:.3f}.",
    )
    few = Prose(f"The text has {result.tokens} tokens, too few to say how much context the model needs.")
    plots = Plots([loss, accuracy])
    return Content(
        [plots] if enough else [few, plots], [f"memory: {sentence[:1].lower()}{sentence[1:]}"] if sentence else []
    )


def _answer_content(subject: Subject, result: ContextUse) -> Content:
    losses = {size: score.loss for size, score in result.scores.items()}
    needed = needed_sentence(losses) if result.tokens > 1 else ""
    caption = (
        f"−log P of the model's own answer ({subject.view.context_name}) when only the last k tokens of the text are "
        f"seen. {needed}"
    )
    figure = loss_figure(result.scores, name="−log P (nats)", layer=subject.layer)
    plot = Plot(figure, "The answer with only the last k tokens", caption.strip(), "−log P of the answer against k.")
    return Content([Plots([plot])])


def _not_comparable(full: ContextScore) -> str:
    """Return why losses cannot be compared if that of the full context is not finite; else an empty string."""
    if full.impossible:
        return (
            f"The model gives probability zero to {full.impossible:,} of {full.tokens:,} predicted tokens, so that its "
            "loss is infinite and the loss of shorter contexts cannot be compared with it."
        )
    if not math.isfinite(full.loss):
        return "The model's loss is not a number, so that contexts cannot be compared."
    return ""


def _infinite_sizes(scores: Scores) -> str:
    sizes = [str(size) for size, score in scores.items() if size is not None and not math.isfinite(score.loss)]
    return (
        f" The loss is infinite for k = {', '.join(sizes)}: some tokens have probability zero there." if sizes else ""
    )


def needed_sentence(losses: Mapping[int | None, float]) -> str:
    """Return how many tokens of context are enough, given losses by tokens seen; empty if that of all is not finite."""
    if not math.isfinite(losses[None]):
        return ""
    sizes = sorted(size for size in losses if size is not None)
    share = TOLERANCE * losses[None]
    enough = [losses[size] <= losses[None] + max(share, MIN_DIFFERENCE) for size in sizes]
    needed = next((size for i, size in enumerate(sizes) if all(enough[i:])), None)
    tolerance = percent(TOLERANCE) if share >= MIN_DIFFERENCE else f"{MIN_DIFFERENCE:g} nats"
    if needed is None:
        return f"No k that was tried comes within {tolerance} of the loss of the full context: the model uses more."
    return f"With the last {needed:,} tokens or more, the loss is within {tolerance} of that of the full context."


def _cost_parts(costs: Sequence[Cost], reader: StateReader) -> list[Part]:
    sizes = list(costs[0].sizes)
    rows = [[cost.name or "state", *(f"{cost.sizes[size]:,}" for size in sizes), cost.growth] for cost in costs]
    rows.append(["all", *(f"{sum(cost.sizes[size] for cost in costs):,}" for size in sizes), ""])
    caption = (
        f"Size of the state in bytes after so many tokens of {reader.text}, for each part by its path in the state."
    )
    table = Table(["part", *(f"{size:,}" for size in sizes), "growth"], rows, caption, set(range(1, len(sizes) + 1)))
    growing = ", ".join(cost.name for cost in costs if cost.growth != "constant")
    if not growing:
        unit = "answer" if reader.source else "text"
        longer = " A decoder with attention keeps more of a longer source." if reader.source else ""
        return [table, Prose(f"The state has one size, however long the {unit} is.{longer}")]
    bound = "" if any(cost.growth == "grows" for cost in costs) else ", up to a bound"
    caption = f"Parts that grow: {growing}{bound}."
    return [table, Plot(state_figure(costs), "Size of the state", caption, "Bytes kept against tokens read.")]


def loss_figure(scores: Scores, *, name: str = "loss (nats per token)", layer: str = "") -> Figure:
    """Draw the losses that `by_context` returns against the number of tokens seen, with a line for the full context.

    The curve has the style of ``layer``, if one is named.
    """
    return _curve({size: score.loss for size, score in scores.items()}, name, layer)


def _curve(values: Mapping[int | None, float], name: str, layer: str) -> Figure:
    figure, [[plot]] = new_figure()
    sizes = sorted(size for size in values if size is not None)
    points = [values[size] if math.isfinite(values[size]) else math.nan for size in sizes]
    plot.plot(sizes, points, label="last k tokens", **model_style(layer))
    if None in values and math.isfinite(values[None]):
        plot.axhline(values[None], label="full context", color=SOFT, linestyle="--", linewidth=1.2)
        plot.legend()
    plot.set_xscale("log", base=2)
    plot.set_xticks(sizes, [f"{size:,}" for size in sizes])
    plot.set_xticks([], minor=True)
    plot.set(xlabel="k, last tokens seen", ylabel=name)
    return figure


@torch.inference_mode()
def state_costs(reader: StateReader, *, positions: int | None = None, sizes: Sequence[int] = TOKENS) -> list[Cost]:
    """Return the size of each part of a state for one text, in the precision of the model.

    ``sizes`` are numbers of tokens, in ascending order; those above the number of learned ``positions`` are left out.
    """
    limit, state, count = positions or max(sizes), reader.initial, 0
    bytes_at: dict[int, dict[str, int]] = {}
    for size in [size for size in sizes if size <= min(limit, MAX_READ)]:
        state, count = reader.read(size - count, state), size
        bytes_at[size] = _bytes(state)
    before, growing = state, set[str]()
    if count < limit:
        state, count = reader.read(1, state), count + 1
        growing = {name for name, size in _bytes(state).items() if size > _bytes(before)[name]}
    for size in [size for size in sizes if MAX_READ < size <= limit]:
        bytes_at[size] = _bytes(reader.read(1, _extrapolated(before, state, size - count)))
    costs = []
    for name in state_to_dict(reader.initial):
        sizes_of = {size: parts[name] for size, parts in bytes_at.items()}
        bounded: Growth = "bounded" if len(set(sizes_of.values())) > 1 else "constant"
        costs.append(Cost(name, sizes_of, "grows" if name in growing else bounded))
    return costs


def _bytes(state: State) -> dict[str, int]:
    return {name: leaf.numel() * leaf.element_size() for name, leaf in state_to_dict(state).items()}


def _extrapolated(before: State, after: State, tokens: int) -> State:
    """Return the state ``tokens`` after ``before``, as to its size; ``after`` is the state after one token.

    It is padded with zeros at the front, which is how a row that is shorter than the longest of its batch looks. Parts
    of bounded size are cut again by the step that follows.
    """

    def widened(old: Tensor, new: Tensor) -> Tensor:
        more = [(b - a) * (tokens - 1) for a, b in zip(old.shape, new.shape, strict=True)]
        return F.pad(new, [n for size in reversed(more) for n in (size, 0)]) if any(more) else new

    return map_state(widened, before, after)


def state_figure(costs: Sequence[Cost]) -> Figure:
    """Draw the bytes of the parts that grow, and of the parts of constant size, against the tokens read."""
    figure, [[plot]] = new_figure()
    constant = [cost for cost in costs if cost.growth == "constant"]
    growing = [cost for cost in costs if cost.growth != "constant"]
    for i, (name, parts) in enumerate((("parts that grow", growing), ("parts of constant size", constant))):
        if any(max(cost.sizes.values()) for cost in parts):
            sizes = list(parts[0].sizes)
            plot.plot(sizes, [sum(cost.sizes[size] for cost in parts) for size in sizes], label=name, **style(i))
    plot.set(xscale="log", yscale="log", xlabel="tokens read", ylabel="bytes kept")
    if plot.lines:
        plot.legend()
    return figure
