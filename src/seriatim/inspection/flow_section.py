"""The section of a page on gradient flow: how far back a model can learn."""

import math
from collections.abc import Iterator, Sequence

from ..core.errors import InputError
from ..evaluation.intervals import supported_digits
from ..report.number_formats import percent
from ..report.page import Plot, Plots, Prose, Table
from .gradient_flow import (
    LAGS,
    SMALLEST,
    WINDOWS,
    GradientFlow,
    LayerFlow,
    gradient_flow,
    gradient_flow_figure,
    leaves_frame,
)
from .gradient_trend import MIN_LAGS, SHARE, Trend, reach
from .leaves import BACKWARDS, leaves
from .subject import Content, Subject

CANDIDATES = 200
"""Held-out texts of which the longest are measured."""
GIVEN = "the given text"
STEPS = (
    "Each curve shows how strongly the loss at the end of a text depends on what a layer passed to its own next step, "
    "k steps earlier: the norm of ∂loss/∂h against k. A curve that falls steeply is a vanishing gradient: this layer "
    "cannot learn from inputs so far back through its own state, although it may still remember them. A curve that "
    "rises steadily is an exploding gradient, which makes training unstable unless gradients are clipped. Gradients "
    "that take another route, through other layers, are not counted. "
)
WHOLE = (
    "Each curve shows how strongly the loss of the answer to a whole text depends on what a layer passed to its own "
    "next step, k steps before its last: the norm of ∂loss/∂h against k. If the answer pools the outputs of all steps, "
    "h also counts through the outputs of all later steps, so that a curve which hardly falls does not mean that h is "
    "remembered until the end. A curve that rises steadily is an exploding gradient, which makes training unstable "
    "unless gradients are clipped. "
)
INPUTS = (
    "A layer that sees all places at once passes nothing from step to step: for it, h is its input k places before the "
    "last one, and its curve shows how strongly the loss depends on that input. "
)


def flow_section(subject: Subject) -> Content:
    """Write the section on how far back the gradient reaches and how fast it changes, before and after training."""
    if not leaves(subject.run.model):
        raise InputError("this model has no layers, so that there is no gradient")
    items, name = _measured(subject)
    result = gradient_flow(subject.run, items)
    if not result.layers:
        if name != GIVEN:
            raise InputError(f"all texts of {name} are too short")
        tokens = subject.explainer.chosen_excerpts().token_count(subject.text)
        raise InputError(
            f"the text has {tokens:,} tokens, too few to measure how far back gradients reach, and the run has no "
            "held-out data; give a longer text with --text-file, or some --data"
        )
    rows = []
    for layer in result.layers:
        curves = (layer.fresh, layer.fresh_trend), (layer.trained, layer.trained_trend)
        rows.append([layer.name, *(measure(*curve) or "–" for curve in curves for measure in (_rate, _reach))])
    plots = [
        Plot(
            gradient_flow_figure([layer], architecture=subject.layer),
            f"Gradient flow of {layer.name}",
            _caption(layer),
            f"Norm of the gradient against steps back, up to {len(layer.trained)}, on a logarithmic scale.",
        )
        for layer in result.layers
    ]
    headings = ["layer", "before training: per step", "reach", "after training: per step", "reach"]
    caption = (
        "Per step: the factor by which one more step back multiplies the norm, up to the reach, with its 95 % interval "
        f"over the windows. Reach: steps back from which on the norm is below {percent(SHARE)} of its value at k = 1. "
        "A dash means that the measurement does not support a statement."
    )
    lines = [line for layer in result.layers for line in _summary(layer)]
    supported = any(cell != "–" for row in rows for cell in row[1:])
    tables = [Table(headings, rows, caption, {1, 2, 3, 4})] if supported else []
    return Content([Prose(_meaning(subject, result) + _intro(result, name)), *tables, Plots(plots)], lines)


def _meaning(subject: Subject, result: GradientFlow) -> str:
    """Return what a curve is, for each kind of layer that was measured."""
    measured = {layer.name for layer in result.layers}
    causal = {leaf.layer.causal for leaf in leaves(subject.run.model) if leaf.name in measured}
    steps = WHOLE if subject.inputs.predicts == "sequence" else STEPS
    return (steps if True in causal else "") + (INPUTS if False in causal else "")


def _intro(result: GradientFlow, name: str) -> str:
    intro = "The solid line is the trained model; the dashed line is the same model before training. "
    if result.windows > 1:
        intro += (
            f"The curves are means over {result.windows} windows of {result.length:,} tokens each, from {name}: "
            f"{result.cut}. The bands are the 95 % intervals of the means over the windows."
        )
    else:
        intro += f"The curves are those of a single window of {result.length:,} tokens, from {name}."
    if any(BACKWARDS in layer.name for layer in result.layers):
        intro += " For a layer that reads backwards, k counts from the beginning of the text, where its reading ends."
    if result.lags < MIN_LAGS:
        intro += " Such windows are too short for a statement on reach or rate; only the curves are shown."
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
    """Return the lag from which on the norm is below `SHARE` of its start; empty for short texts, or if it explodes."""
    if len(norms) < MIN_LAGS or _overflow(norms) or (trend is not None and trend.kind == "exploding"):
        return ""
    steps = reach(norms)
    return f"more than {len(norms):,}" if steps is None else f"{steps:,}"


def _caption(layer: LayerFlow) -> str:
    before, after = _phrases(layer.fresh, layer.fresh_trend), _phrases(layer.trained, layer.trained_trend)
    parts = (("Before training", before), ("After training", after))
    sentences = [f"{when}: {', '.join(phrases)}." for when, phrases in parts if phrases]
    after_end, before_end = leaves_frame(layer)
    ends = [
        f"the curve {when} leaves the frame at k = {lag:,}"
        for when, lag in (("before training", before_end), ("after training", after_end))
        if lag is not None
    ]
    if ends:
        sentences.append(f"Norms below 1/{1 / SMALLEST:,.0f} of that at k = 1 are not drawn: {' and '.join(ends)}.")
    return " ".join([*sentences, *_jacobians(layer)])


def _jacobians(layer: LayerFlow) -> Iterator[str]:
    """Yield sentences on the product of the layer's Jacobians and on its recurrent matrix, where they are known."""
    if layer.trained_product is not None:
        windows = layer.trained_product.windows
        along = f"{windows} of these windows (means)" if windows > 1 else "one of these windows"
        yield (
            "The thin lines are the largest singular value of the exact product of the layer's own Jacobians, each of "
            f"a state with respect to the one before, along {along}, times the norm at k = 1. A gradient that flows "
            "through this state alone cannot be larger."
        )
    if layer.trained_radius is not None and layer.fresh_radius is not None:
        sentence = (
            f"The spectral radius of the recurrent matrix is {layer.trained_radius:.3g} after training and "
            f"{layer.fresh_radius:.3g} before it"
        )
        measured = layer.trained_trend
        if measured is not None and measured.kind is not None:
            factor, low, high = _factors(measured)
            sentence += f"; the measured factor after training is {factor} ({low} to {high})"
        yield f"{sentence}."


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
    place, _, kind = layer.name.partition(": ")
    line = f"gradient flow, {place}{f' ({kind})' if kind else ''}: {', '.join(after)}"
    if not after:
        return []
    if after == before and reach(layer.trained) is None and not any("per step" in phrase for phrase in after):
        return []  # neither curve falls within the windows
    if after == before:
        return [f"{line}, before and after training"]
    return [f"{line} (before training: {', '.join(before)})" if before else line]


def _measured(subject: Subject) -> tuple[list[object], str]:
    """Return the items to measure and their name: held-out data if the run has some, or else the given text."""
    items = subject.held_out_items(WINDOWS if subject.inputs.running_text else CANDIDATES, LAGS + 1)
    if not items:
        return [subject.item], GIVEN
    return items, f"the held-out data ({subject.held_out_name})"
