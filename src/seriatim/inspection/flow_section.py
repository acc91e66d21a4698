"""The section of a page on gradient flow: how far back a model can learn."""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..core.errors import InputError
from ..data.corpus import Corpus
from ..report.page import Plot, Plots, Prose, Table
from .gradient_flow import LAGS, SHARE, WINDOWS, GradientFlow, LayerFlow, gradient_flow, gradient_flow_figure
from .gradient_trend import MIN_LAGS, Trend
from .leaves import BACKWARDS
from .sections import Found
from .subject import Subject, beginning

OTHERS = 15
"""Held-out items whose gradients are averaged with those of a single line."""


class _Texts(NamedTuple):
    """What is measured: the texts, and a phrase that says what they are."""

    texts: list[Any]
    name: str


def flow(subject: Subject) -> Found:
    """How far back the gradient reaches, and how fast it changes, before training and after it."""
    if getattr(subject.run.task, "trainer", None) is not None:
        return [Prose("Not shown: n-gram models are counted, so that there is no gradient.")], []
    measured = _texts(subject)
    result = gradient_flow(subject.run, measured.texts)
    if not result.layers:
        return [Prose(f"Not shown: {measured.name} is too short; nothing comes before its last token.")], []
    if result.lags < MIN_LAGS and subject.run.config.task == "lm" and subject.corpus.ends is None:
        return [Prose(_too_short(subject))], []
    intro = _intro(result, measured)
    rows = [
        [layer.name, *_cells(layer.fresh, layer.fresh_trend), *_cells(layer.trained, layer.trained_trend)]
        for layer in result.layers
    ]
    plots = [
        Plot(
            gradient_flow_figure([layer]),
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
    return [Prose(intro), *tables, Plots(plots)], lines


def _intro(result: GradientFlow, measured: _Texts) -> str:
    intro = (
        "Each curve shows how strongly the loss at the end of a text depends on what a layer passed to its own next "
        "step, k steps earlier: the norm of ∂loss/∂h against k. The solid line is the trained model; the dashed line "
        "is "
        "the same model before training. A curve that falls steeply is a vanishing gradient: this layer cannot learn "
        "from inputs so far back through its own state, although it may still remember them. A curve that rises is an "
        "exploding gradient, which makes training unstable unless gradients are clipped. Gradients that take another "
        f"route, through other layers, are not counted. The curves are means over {result.windows} stretches of "
        f"{measured.name}."
    )
    if any(BACKWARDS in layer.name for layer in result.layers):
        intro += " For a layer that reads backwards, k counts from the beginning of the text, where its reading ends."
    if result.lags < MIN_LAGS:
        intro += (
            f" The texts have at most {result.lags + 1} tokens, which is too short for a statement on reach or rate; "
            "only the curves are shown."
        )
    return intro


def _cells(norms: Sequence[float], trend: Trend | None) -> list[str]:
    return [_rate(norms, trend) or "–", _reach(norms, trend) or "–"]


def _rate(norms: Sequence[float], trend: Trend | None) -> str:
    """The factor per step with its interval, where the numbers support it."""
    if trend is None or trend.kind is None:
        return _overflow(norms)
    return f"×{_factor(trend.factor)} ({_factor(trend.low)} to {_factor(trend.high)}), {trend.kind}"


def _overflow(norms: Sequence[float]) -> str:
    """What can be said of a gradient that is not finite, whose rate is not known; else empty."""
    return "" if all(map(math.isfinite, norms)) else "exploding, beyond the range of floating-point numbers"


def _factor(value: float) -> str:
    if abs(value - 1) < 0.1:
        return f"{value:.3f}"
    return f"{value:.2f}" if 0.1 <= value < 1000 else f"{value:.1g}"


def _reach(norms: Sequence[float], trend: Trend | None) -> str:
    """Steps back until the norm is below `SHARE` of its start; empty where the texts are too short, or it explodes."""
    if len(norms) < MIN_LAGS or _overflow(norms) or (trend is not None and trend.kind == "exploding"):
        return ""
    steps = LayerFlow("", list(norms), []).reach[0]
    return f"more than {len(norms):,}" if steps is None else f"{steps:,}"


def _caption(layer: LayerFlow) -> str:
    parts = [
        f"{when}: {', '.join(text)}."
        for when, text in (
            ("Before training", _phrases(layer.fresh, layer.fresh_trend)),
            ("After training", _phrases(layer.trained, layer.trained_trend)),
        )
        if text
    ]
    return " ".join(parts)


def _phrases(norms: Sequence[float], trend: Trend | None) -> list[str]:
    phrases = []
    if trend is not None and trend.kind is not None:
        interval = f"95 % interval {_factor(trend.low)} to {_factor(trend.high)}"
        phrases.append(f"{trend.kind}, ×{_factor(trend.factor)} per step back ({interval})")
    elif _overflow(norms):
        phrases.append(_overflow(norms))
    steps = _reach(norms, trend)
    if steps:
        phrases.append(f"reach {steps} steps")
    return phrases


def _summary(layer: LayerFlow) -> list[str]:
    after, before = _phrases(layer.trained, layer.trained_trend), _phrases(layer.fresh, layer.fresh_trend)
    if not after:
        return []
    earlier = f" (before training: {', '.join(before)})" if before else ""
    return [f"gradient flow, {layer.name.replace(': ', ' ')}: {', '.join(after)}{earlier}"]


def _texts(subject: Subject) -> _Texts:
    """The texts to measure: the given one where it is long enough, and held-out data otherwise or as well."""
    if not subject.models_text or subject.run.config.data.unit == "line":
        others = _lines(subject) if subject.models_text else _items(subject)
        more = f" and {len(others)} held-out ones" if others else ""
        return _Texts([subject.text, *others], f"text: the given one{more}" if others else "the given text")
    if len(subject.corpus.ids) < 2 * (LAGS + 1):
        text = _held_out(subject, WINDOWS * (LAGS + 1))
        if text is not None:
            name = f"the held-out data {subject.held_out()}, since the given text is too short for this measurement"
            return _Texts([text], name)
    return _Texts([subject.text], "the given text")


def _too_short(subject: Subject) -> str:
    return (
        f"Not shown: the text has {len(subject.corpus.ids):,} tokens, too few to measure how far back gradients reach, "
        "and the run has no longer held-out data to measure it on. Give a longer text with --text-file, or data with "
        "--data."
    )


def _held_out(subject: Subject, tokens: int) -> str | None:
    """The beginning of a language model's held-out data; None where there is none, or it is no longer than the text."""
    corpus = _held_out_corpus(subject, tokens)
    if corpus is None or len(corpus.ids) <= len(subject.corpus.ids):
        return None
    return subject.run.tokenizer.decode(corpus.ids.tolist())


def _lines(subject: Subject) -> list[str]:
    """Some held-out lines of a model whose texts are lines."""
    corpus = _held_out_corpus(subject, OTHERS * (LAGS + 1))
    if corpus is None or corpus.ends is None:
        return []
    ends = corpus.ends.tolist()
    lines = [corpus.ids[start : end - 1] for start, end in itertools.pairwise([0, *ends])]
    return [subject.run.tokenizer.decode(line.tolist()) for line in lines if len(line)][:OTHERS]


def _held_out_corpus(subject: Subject, tokens: int) -> Corpus | None:
    spec, run = subject.held_out(), subject.run
    if spec is None:
        return None
    try:
        subject.check_own_data()
        data: Any = run.task.read(spec, "test", run.vocabulary, file_format=subject.file_format)
    except InputError:  # the section on errors reports it
        return None
    corpus: Corpus = getattr(data, "corpus", data)
    return beginning(corpus, tokens) if len(corpus.ids) else None


def _items(subject: Subject) -> list[Any]:
    """Some held-out items of a task whose texts are lines."""
    task: Any = subject.run.task
    spec = subject.held_out()
    if spec is None:
        return []
    given = (spec, "test", subject.file_format)
    try:
        subject.check_own_data()
        if subject.run.config.task == "classify":
            rows = [row.text for row in itertools.islice(task.rows(*given), OTHERS)]
            return [row for row in rows if row.strip()]
        if subject.run.config.task == "tag":
            return list(itertools.islice(task.sentences(*given), OTHERS))
        pairs = itertools.islice(task.pairs(*given), OTHERS)
        return [(pair.source, pair.target) for pair in pairs if pair.source.strip()]
    except InputError:  # the section on errors reports it
        return []
