"""The section of a page on word order: whether the order of the words matters to a model."""

import math

import numpy as np

from ..report.page import Cell, Part, Prose, Sample, Samples, Table
from .subject import Content, Subject
from .word_order import SAME, Mean, OrderEffect, mean_of, order_effect

MAX_CHARACTERS = 400
"""Characters of a text that are shown in both orders."""


def order_section(subject: Subject) -> Content:
    """Write the section on what changes when the same words come in another order."""
    effect = order_effect(subject.run, subject.text, permutations=subject.permutations)
    prediction, count = subject.view.prediction_name, len(effect.changes)
    separator = " " if subject.run.tokenizer.ends_lines else ""
    samples = [
        Sample("As given", separator.join(effect.tokens)[:MAX_CHARACTERS]),
        Sample("In another order", separator.join(effect.shuffled)[:MAX_CHARACTERS]),
    ]
    cut = f" Only the first {len(effect.tokens):,} of {effect.total:,} tokens are read."
    intro = (
        f"The model reads the tokens of the text in {count} other orders. The last token stays in its place, so that "
        f"only the order of the tokens before it changes. Compared is {prediction}."
        f"{cut if effect.total > len(effect.tokens) else ''}"
    )
    sentence = _sentence(effect, prediction)
    parts: list[Part] = [Prose(intro), Samples(samples), Prose(sentence), _measures_table(effect)]
    parts += [_layers_table(effect)] if effect.layers else []
    return Content(parts, [f"word order: {sentence[:1].lower()}{sentence[1:]}"])


def _sentence(effect: OrderEffect, prediction: str) -> str:
    if effect.invariant and effect.without <= SAME:
        return f"The tokens before the last have no effect on {prediction}, whatever their order."
    if effect.invariant:
        return (
            f"The order of the tokens before the last has no effect on {prediction}: the model treats them as a set. "
            f"Without these tokens it changes by {_number(effect.without)} (total variation; 1 is the largest)."
        )
    change = effect.change
    span = (
        ""
        if change.low is None or change.high is None
        else (f" (95 % interval {_number(change.low)} to {_number(change.high)})")
    )
    return (
        f"Another order changes {prediction} by {_number(change.value)}{span} on average (total variation; 1 is the "
        "largest)."
    )


def _cell(mean: Mean) -> str:
    """Return a mean with its interval in brackets."""
    if mean.low is None or mean.high is None or mean.value < SAME:
        return _number(mean.value)
    return f"{_number(mean.value)} [{_number(mean.low)}, {_number(mean.high)}]"


def _number(value: float) -> str:
    return "0" if value < SAME else f"{value:.3f}" if value >= 0.1 else f"{value:.2g}"


def _measures_table(effect: OrderEffect) -> Table:
    count, infinite = len(effect.changes), int(np.isinf(effect.divergences).sum())
    divergence = f"infinite ({infinite} of {count} orders)" if infinite else _cell(mean_of(effect.divergences))
    largest = "infinite" if infinite else _number(max(0.0, float(effect.divergences.max())))
    rows = [
        ["total variation", "0" if effect.invariant else _cell(effect.change), _number(float(effect.changes.max()))],
        ["KL divergence (bits)", "0" if effect.invariant else divergence, largest],
        ["total variation, last token alone", _number(effect.without), ""],
    ]
    caption = (
        f"Change of the prediction over {count} other orders, with the 95 % interval of the mean in brackets; for "
        "comparison, the change when the model reads the last token alone. Values are computed in float64; below 1e-9 "
        "they are rounding and shown as 0."
    )
    return Table(["measure", "mean", "maximum"], rows, caption, {1, 2})


def _layers_table(effect: OrderEffect) -> Table:
    distance = len(effect.tokens) - 1
    rows: list[list[str | Cell]] = [
        [layer.name, _cell(mean_of(layer.last)), _cell(mean_of(layer.every)), _path(layer.path, layer.reach, distance)]
        for layer in effect.layers
    ]
    rows.append(["all layers together", "", "", "none" if effect.path is None else f"{effect.path:,}"])
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
