"""The section of a page on memory: how much context a model uses, and the size of its state."""

import math
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from ..core.errors import InputError
from ..evaluation.context_use import ContextScore, ContextUse
from ..layers.positions import learned_positions
from ..report.page import Part, Plot, Plots, Prose, Table
from ..report.theme import new_figure, style
from ..training.task_view import StateReader
from .state_costs import Cost, state_costs, state_figure
from .subject import Content, Subject

TOLERANCE = 0.01
"""Share by which a loss may exceed that of the full context and still count as equal to it."""
MIN_DIFFERENCE = 1e-3
"""Nats by which it may exceed it as well, since a share of an almost certain answer's loss means nothing."""
MIN_TOKENS = 32
"""Tokens that a text needs before anything is said about the context that the model needs."""

Scores = Mapping[int | None, ContextScore]


def memory_section(subject: Subject) -> Content:
    """Write the section on the use of context and the size of the state."""
    try:
        result = subject.view.context_use(subject.text)
        full = result.scores[None]
        content = _answer_content(subject, result) if full.accuracy is None else _text_content(result)
    except InputError as error:
        content = Content([Prose(f"Not shown: {str(error).rstrip('.')}.")])
    try:
        reader = subject.view.state_reader()
        costs = state_costs(reader, positions=learned_positions(subject.run.model))
    except InputError as error:
        return Content([*content.parts, Prose(f"The size of the state is not shown: {error}.")], content.summary)
    return Content([*content.parts, *_cost_parts(costs, reader)], content.summary)


def _text_content(result: ContextUse) -> Content:
    """Return loss and accuracy of the tokens of a text."""
    scores, full = result.scores, result.scores[None]
    largest = max(size for size in scores if size is not None)
    accuracy = Plot(
        accuracy_figure(scores),
        "Accuracy when only the last k tokens are seen",
        f"Share of {full.tokens:,} tokens for which the top guess is correct; the same tokens for every k.",
        f"Accuracy for k from 1 to {largest}.",
    )
    if reason := _not_comparable(full):
        return Content([Prose(reason), Plots([accuracy])], [f"memory: {reason[:1].lower()}{reason[1:]}"])
    enough = result.tokens >= MIN_TOKENS
    sentence = needed_sentence({size: score.loss for size, score in scores.items()}) if enough else ""
    loss = Plot(
        loss_figure(scores),
        "Loss when only the last k tokens are seen",
        f"Mean over the same {full.tokens:,} tokens for every k. {sentence}{_infinite_sizes(scores)}".strip(),
        f"Loss in nats per token for k from 1 to {largest}; the full context gives {full.loss:.3f}.",
    )
    plots = Plots([loss, accuracy])
    if enough:
        return Content([plots], [f"memory: {sentence}"] if sentence else [])
    return Content(
        [Prose(f"The text has {result.tokens} tokens, too few to say how much context the model needs."), plots]
    )


def _answer_content(subject: Subject, result: ContextUse) -> Content:
    """Return −log P of the model's own answer."""
    losses = {size: score.loss for size, score in result.scores.items()}
    needed = needed_sentence(losses) if result.tokens > 1 else ""
    caption = (
        f"−log P of the model's own answer ({subject.view.context_name}) when only the last k tokens of the text are "
        f"seen. {needed}"
    )
    figure = loss_figure(result.scores, name="−log P (nats)")
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
    """Return a sentence on the contexts whose loss is infinite, for which the curve has no point."""
    sizes = [size for size, score in scores.items() if size is not None and not math.isfinite(score.loss)]
    if not sizes:
        return ""
    return f" The loss is infinite for k = {', '.join(map(str, sizes))}: some tokens have probability zero there."


def needed_sentence(losses: Mapping[int | None, float]) -> str:
    """Return how many tokens of context are enough; empty if the loss of the full context is not finite.

    Args:
        losses: loss for each number of tokens seen, and for None, the full context.
    """
    if not math.isfinite(losses[None]):
        return ""
    sizes = sorted(size for size in losses if size is not None)
    enough = [losses[size] <= losses[None] * (1 + TOLERANCE) + MIN_DIFFERENCE for size in sizes]
    needed = next((size for i, size in enumerate(sizes) if all(enough[i:])), None)
    if needed is None:
        return f"No k that was tried comes within {TOLERANCE:.0%} of the loss of the full context: the model uses more."
    return f"With the last {needed:,} tokens or more, the loss is within {TOLERANCE:.0%} of that of the full context."


def _cost_parts(costs: Sequence[Cost], reader: StateReader) -> list[Part]:
    """Return a table of the size of the state, and a plot of it or a sentence that it is constant."""
    sizes = list(costs[0].sizes)
    rows = [[cost.name or "state", *(f"{cost.sizes[size]:,}" for size in sizes), cost.growth] for cost in costs]
    rows.append(["all", *(f"{sum(cost.sizes[size] for cost in costs):,}" for size in sizes), ""])
    caption = (
        f"Size of the state in bytes after so many tokens of {reader.text}, for each part by its path in the state."
    )
    table = Table(["part", *(f"{size:,}" for size in sizes), "size"], rows, caption, set(range(1, len(sizes) + 1)))
    growing = ", ".join(cost.name for cost in costs if cost.growth != "constant")
    if not growing:
        longer = " A decoder with attention keeps more of a longer source." if reader.source else ""
        unit = "answer" if reader.source else "text"
        return [table, Prose(f"The state has one size, however long the {unit} is.{longer}")]
    bound = "" if any(cost.growth == "grows" for cost in costs) else ", up to a bound"
    caption = f"Parts that grow: {growing}{bound}."
    return [table, Plot(state_figure(costs), "Size of the state", caption, "Bytes kept against tokens read.")]


def loss_figure(scores: Scores, *, name: str = "loss (nats per token)") -> Figure:
    """Draw the loss against the number of tokens seen, with a line for the full context.

    Args:
        scores: as returned by `seriatim.evaluation.context_use.by_context`.
        name: label of the vertical axis.
    """
    return _curve({size: score.loss for size, score in scores.items()}, name)


def accuracy_figure(scores: Scores) -> Figure:
    """Draw the accuracy of the top guess against the number of tokens seen; see `loss_figure`."""
    return _curve({size: score.accuracy or 0.0 for size, score in scores.items()}, "accuracy")


def _curve(values: Mapping[int | None, float], name: str) -> Figure:
    figure, axes = new_figure()
    plot = axes[0, 0]
    sizes = sorted(size for size in values if size is not None)
    points = [values[size] if math.isfinite(values[size]) else math.nan for size in sizes]
    plot.plot(sizes, points, label="last k tokens", **style(0))
    if None in values and math.isfinite(values[None]):
        plot.axhline(values[None], label="full context", **{**style(1), "marker": ""})
        plot.legend()
    plot.set_xscale("log", base=2)
    plot.set_xticks(sizes, [f"{size:,}" for size in sizes])
    plot.set_xticks([], minor=True)
    plot.set(xlabel="k, last tokens seen", ylabel=name)
    return figure
