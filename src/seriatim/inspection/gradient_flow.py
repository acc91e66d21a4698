"""Gradient flow: the norm of ∂loss_t/∂h_{t−k} against k, which shows how far back a loss reaches.

Y. Bengio, P. Simard and P. Frasconi, "Learning long-term dependencies with gradient descent is difficult", IEEE Trans.
Neural Networks 5(2), 1994; R. Pascanu, T. Mikolov and Y. Bengio, "On the difficulty of training recurrent neural
networks", ICML 2013.

h_{t−k} is what a layer passes from step t − k to the next step: the whole state if its size is constant, or the entry
of step t − k if the state grows (keys and values). Lag 1 is the state before step t. The path through the output of
step t − k is not counted. A layer that is not causal has no state; for it, h_{t−k} is its input t − k. One backward
pass computes all lags at once, for every layer and every window of a batch.
"""

import functools
import itertools
import math
import operator
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from ..core.contract import MemoryLayer
from ..core.errors import EmptyError, NotSupportedError
from ..core.state import state_leaves
from ..evaluation.intervals import supported_digits
from ..layers.positions import learned_positions
from ..pages.page import Plot, Plots, Prose, Table
from ..pages.palette import COLOURS, INK
from ..pages.theme import layer_style, new_figure, plain
from ..pages.wording import percent
from ..runs.run import Run
from ..tasks.explainer import Example, Examples, Explainer
from .gradient_trend import MIN_LAGS, MIN_WINDOWS, REACH_FRACTION, Trend, band, lag_below, reach, trend
from .inspected_run import InspectedRun, SectionBody, explainer_of
from .jacobians import JacobianProduct, jacobian_products, spectral_radii
from .recording import BACKWARDS, Steps, primitive_layers, unrolled

LAGS, WINDOWS = 255, 16
"""Largest lag, and largest number of windows over which the norms are averaged."""
BATCH, GROWING_BATCH = 16, 2
"""Windows differentiated at once; fewer if states grow, since the states of all steps are held until then."""
SMALLEST = 1e-9
"""Share of the norm at lag 1 below which norms are not drawn."""
WIDENED = 1e4
"""Largest factor by which the range of norms is widened for products of Jacobians, which can be much larger."""
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
SEQUENCE = (
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


# The windows. All have one length, so that every lag is averaged over the same windows: otherwise a curve would change
# at a lag only because fewer windows reach so far.


class EqualWindows(NamedTuple):
    """Windows with ``length`` tokens each, and how they were cut from ``sequences`` texts, in words."""

    examples: list[Example]
    length: int
    cut: str


def equal_windows(inputs: Examples, items: Sequence[object], *, length: int, count: int) -> EqualWindows:
    """Return at most ``count`` windows of one length, at most ``length``.

    A running text is cut into stretches that do not overlap. Of single texts, those that are long enough are used, with
    their last tokens; of a source with its target, the first tokens of both. The length is the largest one for which
    there are ``count`` windows; if that is too short for a statement, the largest one for a few windows; and if that
    is too short as well, the largest one for a few texts, or for one: a short text is not cut.
    """
    sequences = [example for item in items for example in inputs.read(item) if example.inputs]
    positions = learned_positions(inputs.model)
    if positions is not None and sequences:
        length = min(length, positions // max(1, sequences[0].copies))
    sizes = np.array([_size(example) for example in sequences])
    width = _width(sizes, length, count, divisible=inputs.is_divisible)
    if not width:
        return EqualWindows([], 0, "")
    if inputs.is_divisible:
        starts = [(i, start) for i, size in enumerate(sizes) for start in range(0, size - width + 1, width)]
    else:
        starts = [(i, max(0, size - width)) for i, size in enumerate(sizes) if size >= width]
    chosen = np.unique(np.linspace(0, len(starts) - 1, min(count, len(starts))).round().astype(int)).tolist()
    examples = [_window(sequences[i], start, width) for i, start in (starts[index] for index in chosen)]
    return EqualWindows(examples, width, _cut_in_words(inputs, sequences))


def _size(example: Example) -> int:
    return min(len(example.inputs), len(example.decoded)) if example.decoded else len(example.inputs)


def _width(sizes: np.ndarray, length: int, count: int, *, divisible: bool) -> int:
    """Return the length of the windows; 0 if there are no two tokens in any text."""
    longest = min(length, int(sizes.max(initial=0)))
    for windows, least in ((count, MIN_LAGS + 1), (MIN_WINDOWS, MIN_LAGS + 1), (MIN_WINDOWS, 2), (1, 2)):
        for width in range(longest, least - 1, -1):
            is_cut = divisible and least > 2
            if (sizes // width if is_cut else sizes >= width).sum() >= windows:
                return width
    return 0


def _window(example: Example, start: int, width: int) -> Example:
    return example.beginning(width) if example.decoded else example.at(range(start, start + width))


def _cut_in_words(inputs: Examples, sequences: Sequence[Example]) -> str:
    if sequences[0].decoded:
        return "the first tokens of sources and targets that are long enough"
    if inputs.is_divisible:
        return "stretches that do not overlap"
    return "the last tokens of texts that are long enough"


# The measurement


@dataclass(frozen=True)
class FlowCurve:
    """The norms of one layer from lag 1 on, as means over windows.

    Attributes:
        trend: the rate at which they change; None if the windows are too few or too short.
        band: the 95 % intervals of the means, as lists of lower and upper bounds; None for a single window.
        product: that of the Jacobians of the layer's own state; see `jacobians`.
        radius: the spectral radius of its recurrent matrix.
    """

    norms: list[float]
    trend: Trend | None = None
    band: tuple[list[float], list[float]] | None = None
    product: JacobianProduct | None = None
    radius: float | None = None

    @property
    def overflow(self) -> str:
        """A phrase for a gradient that is not finite, whose rate is unknown; else an empty string."""
        return "" if all(map(math.isfinite, self.norms)) else "exploding, beyond the range of floating-point numbers"

    @property
    def reach(self) -> str:
        """The steps of `reach`, in words; empty for short texts, or if the gradient explodes."""
        if len(self.norms) < MIN_LAGS or self.overflow or (self.trend is not None and self.trend.kind == "exploding"):
            return ""
        steps = reach(self.norms)
        return f"more than {len(self.norms):,}" if steps is None else f"{steps:,}"

    @property
    def phrases(self) -> list[str]:
        """What the numbers support of the rate, with its interval, and of the reach."""
        phrases = [self.overflow] if self.overflow else []
        if self.trend is not None and self.trend.kind is not None:
            factor, low, high = _factors(self.trend)
            phrases = [f"{self.trend.kind}, ×{factor} per step back (95 % interval {low} to {high})"]
        return phrases + ([f"reach {self.reach} steps"] if self.reach else [])


@dataclass(frozen=True)
class LayerFlow:
    """The curves of one layer after training and before it (fresh)."""

    name: str
    trained: FlowCurve
    fresh: FlowCurve

    @property
    def reach(self) -> tuple[int | None, int | None]:
        """Reach in the trained model and in the fresh model, in steps; see `gradient_trend.reach`."""
        return reach(self.trained.norms), reach(self.fresh.norms)

    @property
    def trained_trend(self) -> Trend | None:
        """The rate at which the norms of the trained model change."""
        return self.trained.trend


@dataclass(frozen=True)
class GradientFlow:
    """Result of `gradient_flow`: the layers, the number of windows, the largest number of lags, and how they were cut.

    All windows have ``length`` tokens.
    """

    layers: list[LayerFlow]
    windows: int
    lags: int
    length: int = 0
    cut: str = ""


def gradient_flow(run: Run, texts: object, *, lags: int = LAGS, max_windows: int = WINDOWS) -> GradientFlow:
    """Measure how far back the loss at the end of a text reaches, in every layer with memory.

    The loss is that of the last token or word, or of the label for a classifier. Without known targets, the target is
    the trained model's prediction, also for the fresh model. ``texts`` is a text, or a list of items that
    `Examples.read` reads, of which at most ``max_windows`` windows of one length are used; see `equal_windows`.

    Raises:
        InputError: there is nothing to read in the texts.
    """
    if not primitive_layers(run.model):
        return GradientFlow([], 0, 0)

    # Lag k needs k + 1 tokens: the loss is taken at the last one.
    explainer = explainer_of(run)
    inputs = explainer.require(explainer.inputs)
    items = texts if isinstance(texts, list) else [texts]
    found = equal_windows(inputs, items, length=lags + 1, count=max_windows)
    if not found.examples:
        if not any(inputs.read(item) for item in items):
            raise EmptyError("text: nothing in it to read; give a few words")
        return GradientFlow([], 0, 0)

    # The same windows are measured before training, since only the difference shows what the training changed.
    trained, fresh = (_curves(each, found.examples, lags) for each in (explainer, fresh_explainer(run)))
    layers = [LayerFlow(name, curve, fresh[name]) for name, curve in trained.items()]
    most = max((len(layer.trained.norms) for layer in layers), default=0)
    return GradientFlow(layers, len(found.examples), most, found.length, found.cut)


def _curves(explainer: Explainer, examples: Sequence[Example], lags: int) -> dict[str, FlowCurve]:
    """Return the curve of each layer that has norms."""
    norms, radii = _norms(explainer, examples, lags), spectral_radii(explainer.model)
    products = jacobian_products(explainer.model, explainer.require(explainer.losses).forward, examples)
    return {
        name: FlowCurve(
            torch.stack(rows).mean(0).tolist(), trend(rows), band(rows), products.get(name), radii.get(name)
        )
        for name, rows in norms.items()
        if rows
    }


def fresh_explainer(run: Run) -> Explainer:
    """Return what can be shown of the run's model before training (without `training.init`), in evaluation mode."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(run.config.training.seed)  # does not seed other devices
        model = run.task.builder.build(run.vocabulary).to(run.device).eval()
    return run.task.explainer(model, run.vocabulary)


def _norms(explainer: Explainer, examples: Sequence[Example], lags: int) -> dict[str, list[Tensor]]:
    """Return the norms ``(lags,)`` of every window that has any, for each layer."""
    losses, inputs = explainer.require(explainer.losses), explainer.require(explainer.inputs)
    backwards = {primitive.name for primitive in primitive_layers(explainer.model) if primitive.backwards}
    rows: dict[str, list[Tensor]] = defaultdict(list)
    for batch in _batches(examples, GROWING_BATCH if _grows(explainer.model) else BATCH):
        last, first = ([inputs.end_place(each, at_start=start) for each in batch] for start in (False, True))
        norms = norms_by_lag(explainer.model, functools.partial(losses.place_losses, batch, last))
        if inputs.predicts == "each token" and backwards:  # a layer that reads backwards ends at the first token
            at_start = norms_by_lag(explainer.model, functools.partial(losses.place_losses, batch, first))
            norms |= {name: at_start[name] for name in backwards & at_start.keys()}
        for name, values in norms.items():
            rows[name] += [row for row in values[:, :lags] if len(row)]
    return rows


def norms_by_lag(model: nn.Module, loss: Callable[[], Tensor]) -> dict[str, Tensor]:
    """Return the norms ``(batch, lags)`` of each layer, in float64, for a function that returns losses ``(batch,)``."""
    with torch.enable_grad(), unrolled(model, watch=nullcontext[None]) as recorded:
        losses = loss()
    states = {steps.primitive.name: list(_passed_on(steps)) for steps in recorded}
    tensors = [leaf.tensor for leaves in states.values() for leaf in leaves]
    gradients = iter(torch.autograd.grad(losses.sum(), tensors, allow_unused=True) if tensors else ())
    return {
        name: _squares([(leaf, next(gradients)) for leaf in leaves], len(losses)).sqrt()
        for name, leaves in states.items()
    }


class StateLeaf(NamedTuple):
    """A leaf of a state, ``lag`` steps before the loss; lag 0 stands for all inputs of a layer without steps.

    If the leaf grows along a dimension, ``growing``, only its newest entry belongs to its step.
    """

    lag: int
    tensor: Tensor
    growing: int | None = None


def _squares(leaves: Sequence[tuple[StateLeaf, Tensor | None]], rows: int) -> Tensor:
    """Return the squared norms ``(batch, lags)`` of the gradients of the leaves."""
    squares = torch.zeros(rows, max((leaf.lag for leaf, _ in leaves), default=0), dtype=torch.float64)
    for leaf, gradient in leaves:
        if gradient is None:
            continue
        gradient = gradient.double().cpu()
        if not leaf.lag:
            return gradient.square().sum(2)[:, :-1].flip(1)
        entry = gradient if leaf.growing is None else gradient.select(leaf.growing, -1)
        squares[:, leaf.lag - 1] += entry.flatten(1).square().sum(1)
    return squares


def _passed_on(steps: Steps[None]) -> Iterator[StateLeaf]:
    """Yield the leaves of states that each step changed, and not those passed on, such as the memory of a decoder."""
    if steps.inputs is not None:
        yield StateLeaf(0, steps.inputs)
    before = [] if steps.before is None else state_leaves(steps.before)
    sizes = [tensor.shape for tensor in before]
    for t, state in enumerate(steps.states[:-1]):
        leaves = state_leaves(state)
        for size, old, new in zip(sizes, before, leaves, strict=True):
            if new is not old and new.requires_grad and new.numel():
                growing = next((dim for dim in range(1, new.dim()) if size[dim] == 0), None)
                yield StateLeaf(len(steps.states) - 1 - t, new, growing)
        before = leaves


def _grows(model: nn.Module) -> bool:
    states = (
        primitive.layer.initial_state(1)
        for primitive in primitive_layers(model)
        if not isinstance(primitive.layer, MemoryLayer)
    )
    return any(0 in leaf.shape for state in states for leaf in state_leaves(state))


def _batches(examples: Sequence[Example], size: int) -> Iterator[list[Example]]:
    """Yield examples of the same shape, at most ``size`` together."""
    by_shape = operator.attrgetter("shape")
    for alike in (list(group) for _, group in itertools.groupby(sorted(examples, key=by_shape), key=by_shape)):
        yield from (alike[start : start + size] for start in range(0, len(alike), size))


# What the page draws and says


def flow_section(inspected: InspectedRun) -> SectionBody:
    """Write the section on how far back the gradient reaches and how fast it changes, before and after training."""
    if not primitive_layers(inspected.run.model):
        raise NotSupportedError("this model has no layers, so that there is no gradient")

    # One text supports few statements, so that held-out data are measured, if the run has some.
    items = inspected.held_out_items(WINDOWS if inspected.inputs.running_text else CANDIDATES, LAGS + 1)
    result = gradient_flow(inspected.run, items or [inspected.item])
    if not result.layers:
        if items:
            raise EmptyError(f"all texts of the held-out data ({inspected.held_out_name}) are too short")
        tokens = inspected.explainer.chosen_excerpts().token_count(inspected.text)
        raise EmptyError(
            f"the text has {tokens:,} tokens, too few to measure how far back gradients reach, and the run has no "
            "held-out data; give a longer text with --text-file, or some --data"
        )

    # The table holds only what the windows support; a dash is better than a number without an interval.
    rows = []
    for layer in result.layers:
        cells = [text or "–" for curve in (layer.fresh, layer.trained) for text in (_rate(curve), curve.reach)]
        rows.append([layer.name, *cells])
    headings = ["layer", "before training: per step", "reach", "after training: per step", "reach"]
    caption = (
        "Per step: the factor by which one more step back multiplies the norm, up to the reach, with its 95 % interval "
        f"over the windows. Reach: steps back from which on the norm is below {percent(REACH_FRACTION)} of its value "
        "at k = 1. A dash means that the measurement does not support a statement."
    )
    supported = any(cell != "–" for row in rows for cell in row[1:])
    plots = [
        Plot(
            gradient_flow_figure([layer], architecture=inspected.layer),
            f"Gradient flow of {layer.name}",
            _caption(layer),
            f"Norm of the gradient against steps back, up to {len(layer.trained.norms)}, on a logarithmic scale.",
        )
        for layer in result.layers
    ]
    intro = _intro(inspected, result, f"the held-out data ({inspected.held_out_name})" if items else GIVEN)
    tables = [Table(headings, rows, caption, {1, 2, 3, 4})] if supported else []
    lines = [line for layer in result.layers for line in _summary(layer)]
    return SectionBody([Prose(intro), *tables, Plots(plots)], lines)


def _intro(inspected: InspectedRun, result: GradientFlow, name: str) -> str:
    """Return what a curve is, for each kind of layer that was measured, and of which windows."""
    measured = {layer.name for layer in result.layers}
    causal = {each.layer.causal for each in primitive_layers(inspected.run.model) if each.name in measured}
    intro = (SEQUENCE if inspected.inputs.predicts == "sequence" else STEPS) if True in causal else ""
    intro += INPUTS if False in causal else ""
    intro += "The solid line is the trained model; the dashed line is the same model before training. "
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


def _rate(curve: FlowCurve) -> str:
    """Return the factor per step with its interval, if the numbers support it; else an empty string."""
    if curve.trend is None or curve.trend.kind is None:
        return curve.overflow
    factor, low, high = _factors(curve.trend)
    return f"×{factor} ({low} to {high}), {curve.trend.kind}"


def _factors(trend: Trend) -> tuple[str, str, str]:
    """Return the factor and its interval, with the digits that the interval supports."""
    form = ".1g"
    if 0.1 <= trend.factor < 1000:
        form = f".{max(2, supported_digits(trend.low, trend.high, 4))}f"
    return format(trend.factor, form), format(trend.low, form), format(trend.high, form)


def _caption(layer: LayerFlow) -> str:
    curves = {"before training": layer.fresh, "after training": layer.trained}
    sentences = [f"{when.capitalize()}: {', '.join(each.phrases)}." for when, each in curves.items() if each.phrases]
    ends = zip(curves, reversed(leaves_frame(layer)), strict=True)
    left = [f"the curve {when} leaves the frame at k = {lag:,}" for when, lag in ends if lag is not None]
    if left:
        sentences.append(f"Norms below 1/{1 / SMALLEST:,.0f} of that at k = 1 are not drawn: {' and '.join(left)}.")
    return " ".join([*sentences, *_jacobians(layer)])


def _jacobians(layer: LayerFlow) -> Iterator[str]:
    """Yield sentences on the product of the layer's Jacobians and on its recurrent matrix, where they are known."""
    trained, fresh = layer.trained, layer.fresh
    if trained.product is not None:
        windows = trained.product.windows
        along = f"{windows} of these windows (means)" if windows > 1 else "one of these windows"
        yield (
            "The thin lines are the largest singular value of the exact product of the layer's own Jacobians, each of "
            f"a state with respect to the one before, along {along}, times the norm at k = 1. A gradient that flows "
            "through this state alone cannot be larger."
        )
    if trained.radius is not None and fresh.radius is not None:
        sentence = (
            f"The spectral radius of the recurrent matrix is {trained.radius:.3g} after training and "
            f"{fresh.radius:.3g} before it"
        )
        if trained.trend is not None and trained.trend.kind is not None:
            factor, low, high = _factors(trained.trend)
            sentence += f"; the measured factor after training is {factor} ({low} to {high})"
        yield f"{sentence}."


def _summary(layer: LayerFlow) -> list[str]:
    after, before = layer.trained.phrases, layer.fresh.phrases
    label, _, kind = layer.name.partition(": ")
    line = f"gradient flow, {label}{f' ({kind})' if kind else ''}: {', '.join(after)}"
    if not after:
        return []
    if after == before and reach(layer.trained.norms) is None and not any("per step" in phrase for phrase in after):
        return []  # neither curve falls within the windows
    if after == before:
        return [f"{line}, before and after training"]
    return [f"{line} (before training: {', '.join(before)})" if before else line]


def gradient_flow_figure(layers: Sequence[LayerFlow], *, architecture: str = "") -> Figure:
    """Draw norms against lags, with a logarithmic axis for the norms: dashed before training, solid after it.

    Shaded bands are 95 % intervals of the means. Thin black lines, dotted after training, are the norm at lag 1 times
    that of the exact product of the layer's Jacobians; see `jacobians`.
    A single layer has the colour of its ``architecture``, if one is named.
    """
    figure, [[axes]] = new_figure()
    axes.set_yscale("log")
    colours = itertools.cycle([layer_style(architecture)["color"]] if architecture else COLOURS)
    products = list[tuple[JacobianProduct, float, str, str]]()
    for layer, colour in zip(layers, colours, strict=False):
        prefix = f"{layer.name}, " if len(layers) > 1 else ""
        for curve, when, dashes, thin in (
            (layer.trained, "after training", "-", ":"),
            (layer.fresh, "before", "--", "-."),
        ):
            lags = np.arange(1, len(curve.norms) + 1)
            axes.plot(lags, _positive(curve.norms), dashes, color=colour, label=plain(prefix + when))
            if curve.band is not None:
                axes.fill_between(lags, *map(_positive, curve.band), color=colour, alpha=0.18, linewidth=0)
            if curve.product is not None:
                products.append((curve.product, curve.norms[0], f"{prefix}product of Jacobians, {when}", thin))

    # The products are drawn within the range of the measured norms, of which they are bounds that may be far larger.
    bottom, top = _drawn_range(axes)
    widest = 1.0
    for product, scale, label, dashes in products:
        values = _positive(product.norms) * scale
        axes.plot(product.lags, values, dashes, color=INK, linewidth=1.0, label=plain(label))
        widest = max([widest, *(values[np.isfinite(values)] / top)])
    axes.set_ylim(bottom, top * min(widest * 1.5 if widest > 1 else 1, WIDENED))
    axes.set(xlabel="k, steps back", ylabel="norm of ∂loss/∂h, k steps back", title="")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend()
    return figure


def _positive(values: Sequence[float]) -> np.ndarray:
    """Return values for a logarithmic axis, which cannot show zeros and infinite values."""
    array = np.array(values, dtype=float)
    return np.where((array > 0) & np.isfinite(array), array, np.nan)


def _drawn_range(axes: Axes) -> tuple[float, float]:
    """Return the range of norms that is drawn, and end the plot at the lag after which all are smaller."""
    low, high = axes.get_ylim()
    curves = [np.asarray(line.get_xydata(), dtype=float) for line in axes.lines]
    points = np.concatenate(curves)
    points = points[np.isfinite(points).all(1)]
    if not len(points):
        return low, high
    floor = _floor([curve[:1, 1] for curve in curves])
    axes.set_xlim(0, points[points[:, 1] >= floor, 0].max() * 1.04 + 1)
    return max(low, floor), high


def _floor(starts: Sequence[np.ndarray]) -> float:
    """Return the smallest norm that is drawn, which is below the norms at lag 1; these are the ``starts``."""
    known = np.nan_to_num(np.concatenate(starts))
    known = known[known > 0]
    return float(min(known.max() * SMALLEST, known.min())) if len(known) else 0.0


def leaves_frame(layer: LayerFlow) -> tuple[int | None, int | None]:
    """Return the lags from which on `gradient_flow_figure` shows nothing of the trained and of the fresh curve.

    None for a curve that stays in the frame, or that ends because a norm is not finite.
    """
    trained, fresh = layer.trained.norms, layer.fresh.norms
    floor = _floor([_positive(norms[:1]) for norms in (trained, fresh)])
    return lag_below(trained, floor), lag_below(fresh, floor)
