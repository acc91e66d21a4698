"""The section of a page on memory: how much context a model uses, and what its state costs."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.errors import InputError
from ..report.page import Part, Plot, Plots, Prose, Table
from .answers import answer_by_context
from .memory import Seen, accuracy_figure, by_context, context_sizes, loss_figure
from .sections import Found
from .state_costs import Cost, memory_tokens, state_costs, state_figure
from .subject import Subject

NEAR = 0.01
"""Share by which a loss may exceed that of the full context and still count as equal to it."""
SMALL = 1e-3
"""Nats by which it may exceed it as well: for an answer that is almost certain, a share means nothing."""
MIN_TOKENS = 32
"""Tokens a running text must have before anything is said about the context that a model needs."""


def memory(subject: Subject) -> Found:
    """How much of its context a model uses, and what its state costs."""
    parts, lines = _context(subject) if subject.run.config.task == "lm" else _own_context(subject)
    try:
        costs = state_costs(subject.run.model)
    except InputError as error:
        return [*parts, Prose(f"The size of the state is not shown: {error}.")], lines
    return [*parts, *_costs(costs, subject.run.model)], lines


def _context(subject: Subject) -> Found:
    corpus = subject.corpus
    sizes = context_sizes(len(corpus.ids))
    measured = by_context(subject.run.model, corpus.ids, sizes, ends=corpus.ends)
    full = measured[None]
    accuracy = Plot(
        accuracy_figure(measured),
        "Accuracy when only the last k tokens are seen",
        f"Share of {full.tokens:,} tokens for which the top guess is correct; the same tokens for every k.",
        f"Accuracy for k from 1 to {sizes[-1]}.",
    )
    infinite = _infinite(full)
    if infinite:
        return [Prose(infinite), Plots([accuracy])], [f"memory: {infinite[:1].lower()}{infinite[1:]}"]
    enough = len(corpus.ids) >= MIN_TOKENS
    sentence = _needed_sentence({size: seen.loss for size, seen in measured.items()}) if enough else ""
    loss = Plot(
        loss_figure(measured),
        "Loss when only the last k tokens are seen",
        f"Mean over the same {full.tokens:,} tokens for every k. {sentence}{_gaps(measured)}".strip(),
        f"Loss in nats per token for k from 1 to {sizes[-1]}; the full context gives {full.loss:.3f}.",
    )
    parts: list[Part] = [Plots([loss, accuracy])]
    if not enough:
        parts.insert(
            0, Prose(f"The text has {len(corpus.ids)} tokens, too few to say how much context the model needs.")
        )
    return parts, [f"memory: {sentence}"] if sentence else []


def _infinite(full: Seen) -> str:
    """Why losses cannot be compared, where that of the full context is not finite; else empty."""
    if full.impossible:
        return (
            f"The model gives probability zero to {full.impossible:,} of {full.tokens:,} predicted tokens, so that its "
            "loss is infinite and the loss of shorter contexts cannot be compared with it."
        )
    if not math.isfinite(full.loss):
        return "The model's loss is not a number, so that contexts cannot be compared."
    return ""


def _gaps(measured: Mapping[int | None, Seen]) -> str:
    """A sentence on the contexts for which the loss is infinite and the curve has no point."""
    sizes = [size for size, seen in measured.items() if size is not None and not math.isfinite(seen.loss)]
    if not sizes:
        return ""
    return f" The loss is infinite for k = {', '.join(map(str, sizes))}: some tokens have probability zero there."


def _own_context(subject: Subject) -> Found:
    task = subject.run.config.task
    if task == "mlm":
        return [Prose("A masked model reads from both sides, so that there are no last k tokens before a gap.")], []
    words = subject.text.split() if task == "tag" else subject.run.tokenizer.encode(subject.text)
    count = len(words)
    sizes = [size for size in context_sizes(2 * count) if size < count] or [1]
    losses = answer_by_context(subject.run, subject.text, sizes)
    figure = loss_figure({size: Seen(loss, 0.0) for size, loss in losses.items()}, names=("−log P (nats)", ""))
    what = {"classify": "the label", "tag": "the tag of the last word", "seq2seq": "each token of the answer"}[task]
    caption = (
        f"−log P of the model's own answer ({what}) when only the last k tokens of the text are seen. "
        f"{_needed_sentence(losses) if count > 1 else ''}"
    )
    return [
        Plots(
            [Plot(figure, "The answer with only the last k tokens", caption.strip(), "−log P of the answer against k.")]
        )
    ], []


def _needed(losses: Mapping[int | None, float]) -> int | None:
    """The smallest k from which on the loss is as good as that of the full context."""
    sizes = sorted(size for size in losses if size is not None)
    enough = [losses[size] <= losses[None] * (1 + NEAR) + SMALL for size in sizes]
    return next((size for i, size in enumerate(sizes) if all(enough[i:])), None)


def _needed_sentence(losses: Mapping[int | None, float]) -> str:
    """How many tokens of context are enough; empty where the loss of the full context is not finite."""
    if not math.isfinite(losses[None]):
        return ""
    needed = _needed(losses)
    if needed is None:
        return f"No k that was tried comes within {NEAR:.0%} of the loss of the full context: the model uses more."
    return f"With the last {needed:,} tokens or more, the loss is within {NEAR:.0%} of that of the full context."


def _costs(costs: Sequence[Cost], model: Any) -> list[Part]:
    sizes = list(costs[0].sizes)
    rows = [[cost.name or "state", *(f"{cost.sizes[size]:,}" for size in sizes), cost.growth] for cost in costs]
    rows.append(["all", *(f"{sum(cost.sizes[size] for cost in costs):,}" for size in sizes), ""])
    decodes = hasattr(model, "encode")
    text = f"the answer to a source of {memory_tokens(model)} tokens" if decodes else "a text"
    caption = f"Size of the state in bytes after so many tokens of {text}, for each part by its path in the state."
    table = Table(["part", *(f"{size:,}" for size in sizes), "size"], rows, caption, set(range(1, len(sizes) + 1)))
    growing = ", ".join(cost.name for cost in costs if cost.growth != "constant")
    if not growing:
        longer = " A decoder with attention keeps more of a longer source." if decodes else ""
        what = "answer" if decodes else "text"
        return [table, Prose(f"The state has one size, however long the {what} is.{longer}")]
    bound = "" if any(cost.growth == "grows" for cost in costs) else ", up to a bound"
    plot = Plot(
        state_figure(costs),
        "Size of the state",
        f"Parts that grow: {growing}{bound}.",
        "Bytes kept against tokens read.",
    )
    return [table, plot]
