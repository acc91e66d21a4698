"""The section of a page on gradient flow: how far back a model can learn."""

import math
from collections.abc import Sequence

from ..evaluation.intervals import supported_digits
from ..report.page import Plot, Plots, Prose, Table
from .gradient_flow import LAGS, SHARE, WINDOWS, GradientFlow, LayerFlow, gradient_flow, gradient_flow_figure, reach
from .gradient_trend import MIN_LAGS, Trend
from .leaves import BACKWARDS, leaves
from .subject import Content, Subject

OTHERS = 15
"""Held-out items whose gradients are averaged with those of a single line."""
GIVEN = "the given text"


def flow_section(subject: Subject) -> Content:
    """Write the section on how far back the gradient reaches and how fast it changes, before and after training."""
    if not leaves(subject.run.model):
        return Content([Prose("Not shown: this model has no layers, so that there is no gradient.")])
    items, name = _measured(subject)
    result = gradient_flow(subject.run, items)
    if not result.layers:
        return Content([Prose(f"Not shown: {name} is too short; nothing comes before its last token.")])
    if result.lags < MIN_LAGS and subject.view.running_text and not subject.view.two_ends and name == GIVEN:
        sentence = (
            f"Not shown: the text has {subject.view.token_count(subject.text):,} tokens, too few to measure how far "
            "back gradients reach, and the run has no longer held-out data to measure it on. Give a longer text with "
            "--text-file, or data with --data."
        )
        return Content([Prose(sentence)])
    rows = []
    for layer in result.layers:
        curves = (layer.fresh, layer.fresh_trend), (layer.trained, layer.trained_trend)
        rows.append([layer.name, *(measure(*curve) or "–" for curve in curves for measure in (_rate, _reach))])
    plots = [
        Plot(
            gradient_flow_figure([layer], architecture=subject.layer),
            f"Gradient flow of {layer.name}",
            _caption(layer),
            f"Norm of the gradient against steps back, up to {len(layer.trained)}.",
        )
        for layer in result.layers
    ]
    headings = ["layer", "before training: per step", "reach", "after training: per step", "reach"]
    caption = (
        "Per step: the factor by which one more step back multiplies the norm, with its 95 % interval over the "
        f"stretches of text. Reach: steps back until the norm is below {SHARE:.0%} of its value at k = 1. A dash means "
        "that the measurement does not support a statement."
    )
    lines = [line for layer in result.layers for line in _summary(layer)]
    supported = any(cell != "–" for row in rows for cell in row[1:])
    tables = [Table(headings, rows, caption, {1, 2, 3, 4})] if supported else []
    return Content([Prose(_intro(result, name)), *tables, Plots(plots)], lines)


def _intro(result: GradientFlow, name: str) -> str:
    intro = (
        "Each curve shows how strongly the loss at the end of a text depends on what a layer passed to its own next "
        "step, k steps earlier: the norm of ∂loss/∂h against k. The solid line is the trained model; the dashed line "
        "is the same model before training. A curve that falls steeply is a vanishing gradient: this layer cannot "
        "learn from inputs so far back through its own state, although it may still remember them. A curve that rises "
        "is an exploding gradient, which makes training unstable unless gradients are clipped. Gradients that take "
        "another route, through other layers, are not counted. The curves are means over "
        f"{result.windows} stretches of {name}."
    )
    if any(BACKWARDS in layer.name for layer in result.layers):
        intro += " For a layer that reads backwards, k counts from the beginning of the text, where its reading ends."
    if result.lags < MIN_LAGS:
        intro += (
            f" The texts have at most {result.lags + 1} tokens, which is too short for a statement on reach or rate; "
            "only the curves are shown."
        )
    return intro


def _rate(norms: Sequence[float], trend: Trend | None) -> str:
    """Return the factor per step with its interval, if the numbers support it; else an empty string."""
    if trend is None or trend.kind is None:
        return _overflow(norms)
    factor, low, high = _factors(trend)
    return f"×{factor} ({low} to {high}), {trend.kind}"


def _overflow(norms: Sequence[float]) -> str:
    """Return a phrase for a gradient that is not finite, whose rate is unknown; else an empty string."""
    return "" if all(map(math.isfinite, norms)) else "exploding, beyond the range of floating-point numbers"


def _factors(trend: Trend) -> tuple[str, str, str]:
    """Return the factor and its interval, with the digits that the interval supports."""
    form = ".1g"
    if 0.1 <= trend.factor < 1000:
        form = f".{max(2, supported_digits(trend.low, trend.high, 4))}f"
    return format(trend.factor, form), format(trend.low, form), format(trend.high, form)


def _reach(norms: Sequence[float], trend: Trend | None) -> str:
    """Return the steps back until the norm is below `SHARE` of its start; empty for short texts, or if it explodes."""
    if len(norms) < MIN_LAGS or _overflow(norms) or (trend is not None and trend.kind == "exploding"):
        return ""
    steps = reach(norms)
    return f"more than {len(norms):,}" if steps is None else f"{steps:,}"


def _caption(layer: LayerFlow) -> str:
    before, after = _phrases(layer.fresh, layer.fresh_trend), _phrases(layer.trained, layer.trained_trend)
    parts = (("Before training", before), ("After training", after))
    return " ".join(f"{when}: {', '.join(phrases)}." for when, phrases in parts if phrases)


def _phrases(norms: Sequence[float], trend: Trend | None) -> list[str]:
    phrases = []
    if trend is not None and trend.kind is not None:
        factor, low, high = _factors(trend)
        phrases.append(f"{trend.kind}, ×{factor} per step back (95 % interval {low} to {high})")
    elif _overflow(norms):
        phrases.append(_overflow(norms))
    if steps := _reach(norms, trend):
        phrases.append(f"reach {steps} steps")
    return phrases


def _summary(layer: LayerFlow) -> list[str]:
    after, before = _phrases(layer.trained, layer.trained_trend), _phrases(layer.fresh, layer.fresh_trend)
    if not after:
        return []
    earlier = f" (before training: {', '.join(before)})" if before else ""
    return [f"gradient flow, {layer.name.replace(': ', ' ')}: {', '.join(after)}{earlier}"]


def _measured(subject: Subject) -> tuple[list[object], str]:
    """Return the items to measure and their name: the given text if it is long enough, or (also) held-out data."""
    if not subject.view.running_text:
        others = subject.held_out_items(OTHERS, LAGS + 1)
        return [subject.text, *others], f"text: the given one and {len(others)} held-out ones" if others else GIVEN
    tokens = subject.view.token_count(subject.text)
    if tokens < 2 * (LAGS + 1):
        items = subject.held_out_items(WINDOWS, LAGS + 1)
        if items and len(subject.run.tokenizer.encode(str(items[0]))) > tokens:
            data = subject.run.task.name_of(subject.held_out())
            return items, f"the held-out data {data}, since the given text is too short for this measurement"
    return [subject.text], GIVEN
