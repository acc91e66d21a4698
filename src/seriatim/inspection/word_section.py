"""The sections of a page on words: whether their order matters, and which words are alike to the model."""

import math

import numpy as np

from ..report.page import Cell, Part, Plot, Prose, Sample, Samples, Table
from .embeddings import Embeddings, embeddings, map_figure
from .predictions import isolated
from .sections import Found
from .subject import Subject
from .word_order import SAME, Mean, OrderEffect, mean_of, order_effect

PREDICTION = {
    "lm": "the distribution of the next token",
    "mlm": "the distribution of the last token, masked",
    "classify": "the distribution of the label",
    "tag": "the distribution of the last word's tag",
    "seq2seq": "the distribution of each token of the answer",
}
SHOWN = 400
"""Characters of a text that are shown in both orders."""


def order(subject: Subject) -> Found:
    """What changes when the same words come in another order."""
    effect = order_effect(subject.run, subject.text, permutations=subject.permutations)
    what, count = PREDICTION[subject.run.config.task], len(effect.changes)
    joint = " " if subject.run.tokenizer.ends_lines else ""
    samples = [
        Sample("As given", joint.join(effect.tokens)[:SHOWN]),
        Sample("In another order", joint.join(effect.shuffled)[:SHOWN]),
    ]
    cut = f" Only the first {len(effect.tokens):,} of {effect.total:,} tokens are read."
    intro = (
        f"The model reads the tokens of the text in {count} other orders. The last token stays in its place, so that "
        f"only the order of the tokens before it changes. Compared is {what}."
        f"{cut if effect.total > len(effect.tokens) else ''}"
    )
    sentence = _sentence(effect, what)
    parts: list[Part] = [Prose(intro), Samples(samples), Prose(sentence), _measures(effect)]
    parts += [_layers(effect)] if effect.layers else []
    return parts, [f"word order: {sentence[:1].lower()}{sentence[1:]}"]


def _sentence(effect: OrderEffect, what: str) -> str:
    if effect.invariant and effect.without <= SAME:
        return f"The tokens before the last have no effect on {what}, whatever their order."
    if effect.invariant:
        return (
            f"The order of the tokens before the last has no effect on {what}: the model treats them as a set. Without "
            f"these tokens it changes by {_number(effect.without)} (total variation; 1 is the largest)."
        )
    return f"Another order changes {what} by {_mean(effect.change)} on average (total variation; 1 is the largest)."


def _mean(mean: Mean) -> str:
    if mean.low is None or mean.high is None:
        return _number(mean.value)
    return f"{_number(mean.value)} (95 % interval {_number(mean.low)} to {_number(mean.high)})"


def _cell(mean: Mean) -> str:
    """A mean with its interval in brackets."""
    if mean.low is None or mean.high is None or mean.value < SAME:
        return _number(mean.value)
    return f"{_number(mean.value)} [{_number(mean.low)}, {_number(mean.high)}]"


def _number(value: float) -> str:
    return "0" if value < SAME else f"{value:.3f}" if value >= 0.1 else f"{value:.2g}"


def _measures(effect: OrderEffect) -> Table:
    same, infinite = effect.invariant, int(np.isinf(effect.divergences).sum())
    mean = f"infinite ({infinite} of {len(effect.changes)} orders)" if infinite else _cell(mean_of(effect.divergences))
    rows = [
        ["total variation", "0" if same else _cell(effect.change), _number(float(effect.changes.max()))],
        [
            "KL divergence (bits)",
            "0" if same else mean,
            "infinite" if infinite else _number(max(0.0, float(effect.divergences.max()))),
        ],
        ["total variation, last token alone", _number(effect.without), ""],
    ]
    caption = (
        f"Change of the prediction over {len(effect.changes)} other orders, with the 95 % interval of the mean in "
        "brackets; for comparison, the change when the model reads the last token alone. Values are computed in "
        "float64; "
        "below 1e-9 they are rounding and shown as 0."
    )
    return Table(["measure", "mean", "maximum"], rows, caption, {1, 2})


def _layers(effect: OrderEffect) -> Table:
    distance = len(effect.tokens) - 1
    rows: list[list[str | Cell]] = [
        [layer.name, _cell(mean_of(layer.last)), _cell(mean_of(layer.every)), _path(layer.path, layer.reach, distance)]
        for layer in effect.layers
    ]
    whole = "none" if effect.path is None else f"{effect.path:,}"
    rows.append(["all layers together", "", "", whole])
    caption = (
        "Relative change of each layer's output, at the last token and on average over all tokens (each compared with "
        f"itself at its new place), and the path length from the first token to the last, {distance:,} steps later: "
        "operations along time that follow one another. A recurrence takes one for every step, attention one in all; a "
        "window reaches only its own inputs."
    )
    return Table(["layer", "last token", "all tokens", "path length"], rows, caption, {1, 2, 3})


def _path(path: int | None, reach: int, distance: int) -> str:
    if path is not None:
        return f"{path:,}"
    return f"none ({math.ceil(distance / reach):,} such layers would reach)" if reach else "none"


def alike(subject: Subject) -> Found:
    """Neighbours of the tokens of the text among the embeddings, and a map."""
    found = embeddings(subject.run, subject.text)
    rows: list[list[str | Cell]] = [
        [one.token, ", ".join(f"{isolated(near.token)} {near.similarity:.2f}" for near in one.nearest)]
        for one in found.neighbours
    ]
    frequent = "most frequent " if found.by_frequency else ""
    caption = (
        f"Tokens of the text with the nearest of the {found.candidates:,} {frequent}tokens of the vocabulary, by the "
        "cosine of their embeddings. With each dimension of the embeddings shuffled, 99 % of nearest neighbours have a "
        f"similarity below {found.chance:.2f}; similarities that are not above it may be chance."
    )
    plot = Plot(
        map_figure(found),
        "Map of the embeddings",
        f"{_mapped(found)} The axes are the first two principal components of these tokens; together they show "
        f"{sum(found.variance):.0%} of the variance, so that tokens that are close here may be far apart in other "
        "directions.",
        f"{len(found.mapped)} tokens in the plane of the two directions in which they differ most.",
    )
    return [
        Prose(
            "Tokens that are used alike get similar embeddings, and what the model learns about one carries over to "
            "the "
            "others. An n-gram model cannot do this: to its counts, all tokens are equally different."
        ),
        Table(["token", "nearest tokens"], rows, caption, stacked=False),
        plot,
    ], _alike_lines(found)


def _mapped(found: Embeddings) -> str:
    others = len(found.mapped) - found.of_text
    rest = f" and {others} others" if others else ""
    return f"{found.of_text} tokens of the text (filled){rest} (open); labels that would overlap are left out."


def _alike_lines(found: Embeddings) -> list[str]:
    best = [(one.nearest[0].similarity, one.token, one.nearest[0].token) for one in found.neighbours if one.nearest]
    best = [pair for pair in best if pair[0] > max(found.chance, 0.0) and np.isfinite(pair[0])]
    if not best:
        return []
    similarity, token, near = max(best)
    return [f"embeddings: the most similar pair is {token!r} and {near!r} (cosine {similarity:.2f})"]
