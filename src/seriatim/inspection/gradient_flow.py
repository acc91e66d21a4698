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
from ..core.errors import InputError
from ..core.state import state_leaves
from ..report.layer_styles import layer_style
from ..report.palette import COLOURS, INK, SOFT
from ..report.theme import new_figure, plain
from ..runs.run import Run
from ..tasks.explainer import Example, Explainer
from .flow_windows import equal_windows
from .gradient_trend import SHARE, Trend, band, lag_below, reach, trend
from .jacobians import JacobianProduct, jacobian_products, spectral_radii
from .leaves import leaves
from .recording import Steps, unrolled
from .subject import explainer_of

LAGS, WINDOWS = 255, 16
"""Largest lag, and largest number of windows over which the norms are averaged."""
BATCH, GROWING_BATCH = 16, 2
"""Windows differentiated at once; fewer if states grow, since the states of all steps are held until then."""
SMALLEST = 1e-9
"""Share of the norm at lag 1 below which norms are not drawn."""
WIDENED = 1e4
"""Largest factor by which the range of norms is widened for products of Jacobians, which can be much larger."""


@dataclass(frozen=True)
class LayerFlow:
    """The norms of one layer from lag 1 on, as means over windows, after training and before it (fresh).

    The trends are the rates at which they change; None if the windows are too few or too short. The bands are 95 %
    intervals of the means, as lists of lower and upper bounds; None for a single window. The products are those of
    the Jacobians of the layer's own state, and the radii the spectral radii of its recurrent matrix; see `jacobians`.
    """

    name: str
    trained: list[float]
    fresh: list[float]
    trained_trend: Trend | None = None
    fresh_trend: Trend | None = None
    trained_band: tuple[list[float], list[float]] | None = None
    fresh_band: tuple[list[float], list[float]] | None = None
    trained_product: JacobianProduct | None = None
    fresh_product: JacobianProduct | None = None
    trained_radius: float | None = None
    fresh_radius: float | None = None

    @property
    def reach(self) -> tuple[int | None, int | None]:
        """Reach in the trained model and in the fresh model; see `reach`."""
        return reach(self.trained), reach(self.fresh)


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
    if not leaves(run.model):
        return GradientFlow([], 0, 0)
    explainer = explainer_of(run)
    inputs = explainer.require(explainer.inputs)
    items = texts if isinstance(texts, list) else [texts]
    found = equal_windows(inputs, items, length=lags + 1, count=max_windows)
    if not found.examples:
        if not any(inputs.read(item) for item in items):
            raise InputError("text: nothing in it to read; give a few words")
        return GradientFlow([], 0, 0)
    before = fresh_explainer(run)
    trained, fresh = (_norms(each, found.examples, lags) for each in (explainer, before))
    products, fresh_products = (
        jacobian_products(each.model, each.require(each.losses).forward, found.examples) for each in (explainer, before)
    )
    radii, fresh_radii = (spectral_radii(each.model) for each in (explainer, before))
    layers = [
        LayerFlow(
            name,
            torch.stack(rows).mean(0).tolist(),
            torch.stack(fresh[name]).mean(0).tolist(),
            trend(rows),
            trend(fresh[name]),
            band(rows),
            band(fresh[name]),
            products.get(name),
            fresh_products.get(name),
            radii.get(name),
            fresh_radii.get(name),
        )
        for name, rows in trained.items()
        if rows
    ]
    most = max((len(layer.trained) for layer in layers), default=0)
    return GradientFlow(layers, len(found.examples), most, found.length, found.cut)


def fresh_explainer(run: Run) -> Explainer:
    """Return what can be shown of the run's model before training (without `training.init`), in evaluation mode."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(run.config.training.seed)  # does not seed other devices
        model = run.task.builder.build(run.vocabulary).to(run.device).eval()
    return run.task.explainer(model, run.vocabulary)


def _norms(explainer: Explainer, examples: Sequence[Example], lags: int) -> dict[str, list[Tensor]]:
    """Return the norms ``(lags,)`` of every window that has any, for each layer."""
    losses, inputs = explainer.require(explainer.losses), explainer.require(explainer.inputs)
    backwards = {leaf.name for leaf in leaves(explainer.model) if leaf.backwards}
    rows: dict[str, list[Tensor]] = defaultdict(list)
    for batch in _batches(examples, GROWING_BATCH if _grows(explainer.model) else BATCH):
        norms = norms_by_lag(explainer.model, functools.partial(losses.end_losses, batch))
        if inputs.has_loss_at_start and backwards:
            at_start = norms_by_lag(explainer.model, functools.partial(losses.end_losses, batch, at_start=True))
            norms |= {name: at_start[name] for name in backwards & at_start.keys()}
        for name, values in norms.items():
            rows[name] += [row for row in values[:, :lags] if len(row)]
    return rows


def norms_by_lag(model: nn.Module, loss: Callable[[], Tensor]) -> dict[str, Tensor]:
    """Return the norms ``(batch, lags)`` of each layer, in float64, for a function that returns losses ``(batch,)``."""
    with torch.enable_grad(), unrolled(model, watch=nullcontext[None]) as recorded:
        losses = loss()
    states = {steps.leaf.name: list(_passed_on(steps)) for steps in recorded}
    tensors = [part.tensor for parts in states.values() for part in parts]
    gradients = iter(torch.autograd.grad(losses.sum(), tensors, allow_unused=True) if tensors else ())
    return {
        name: _squares([(part, next(gradients)) for part in parts], len(losses)).sqrt()
        for name, parts in states.items()
    }


class StatePart(NamedTuple):
    """A part of a state, ``lag`` steps before the loss; lag 0 stands for all inputs of a layer without steps.

    If the part grows along a dimension, ``growing``, only its newest entry belongs to its step.
    """

    lag: int
    tensor: Tensor
    growing: int | None = None


def _squares(parts: Sequence[tuple[StatePart, Tensor | None]], rows: int) -> Tensor:
    """Return the squared norms ``(batch, lags)`` of the gradients of the parts."""
    squares = torch.zeros(rows, max((part.lag for part, _ in parts), default=0), dtype=torch.float64)
    for part, gradient in parts:
        if gradient is None:
            continue
        gradient = gradient.double().cpu()
        if not part.lag:
            return gradient.square().sum(2)[:, :-1].flip(1)
        entry = gradient if part.growing is None else gradient.select(part.growing, -1)
        squares[:, part.lag - 1] += entry.flatten(1).square().sum(1)
    return squares


def _passed_on(steps: Steps[None]) -> Iterator[StatePart]:
    """Yield the parts of states that each step changed, and not those passed on, such as the memory of a decoder."""
    if steps.inputs is not None:
        yield StatePart(0, steps.inputs)
    before = [] if steps.before is None else state_leaves(steps.before)
    sizes = [leaf.shape for leaf in before]
    for t, state in enumerate(steps.states[:-1]):
        parts = state_leaves(state)
        for size, old, new in zip(sizes, before, parts, strict=True):
            if new is not old and new.requires_grad and new.numel():
                growing = next((dim for dim in range(1, new.dim()) if size[dim] == 0), None)
                yield StatePart(len(steps.states) - 1 - t, new, growing)
        before = parts


def _grows(model: nn.Module) -> bool:
    states = (leaf.layer.initial_state(1) for leaf in leaves(model) if not isinstance(leaf.layer, MemoryLayer))
    return any(0 in part.shape for state in states for part in state_leaves(state))


def _batches(examples: Sequence[Example], size: int) -> Iterator[list[Example]]:
    """Yield examples of the same shape, at most ``size`` together."""
    by_shape = operator.attrgetter("shape")
    for alike in (list(group) for _, group in itertools.groupby(sorted(examples, key=by_shape), key=by_shape)):
        yield from (alike[start : start + size] for start in range(0, len(alike), size))


def gradient_flow_figure(
    layers: Sequence[LayerFlow], title: str = "", *, relative: bool = False, architecture: str = ""
) -> Figure:
    """Draw norms against lags, with a logarithmic axis for the norms: dashed before training, solid after it.

    Shaded bands are 95 % intervals of the means. Thin black lines, dotted after training, are the norm at lag 1 times
    that of the exact product of the layer's Jacobians; see `jacobians`.
    If ``relative``, shares of the norm at lag 1 are drawn, to compare layers, and a line marks `SHARE`.
    A single layer has the colour of its ``architecture``, if one is named.
    """
    figure, [[axes]] = new_figure()
    axes.set_yscale("log")
    colours = itertools.cycle([layer_style(architecture)["color"]] if architecture else COLOURS)
    products = list[tuple[JacobianProduct, float, str, str]]()
    for layer, colour in zip(layers, colours, strict=False):
        prefix = f"{layer.name}, " if len(layers) > 1 else ""
        curves = (
            (layer.trained, layer.trained_band, layer.trained_product, "after training", "-"),
            (layer.fresh, layer.fresh_band, layer.fresh_product, "before", "--"),
        )
        for norms, intervals, product, when, dashes in curves:
            lags, start = np.arange(1, len(norms) + 1), norms[0] or 1.0 if relative else 1.0
            axes.plot(lags, _positive(norms) / start, dashes, color=colour, label=plain(prefix + when))
            if intervals is not None:
                low, high = (_positive(bounds) / start for bounds in intervals)
                axes.fill_between(lags, low, high, color=colour, alpha=0.18, linewidth=0)
            if product is not None:
                dashes = ":" if when == "after training" else "-."
                products.append((product, norms[0] / start, f"{prefix}product of Jacobians, {when}", dashes))
    bottom, top = _drawn_range(axes)
    widest = 1.0
    for product, scale, label, dashes in products:
        values = _positive(product.norms) * scale
        axes.plot(product.lags, values, dashes, color=INK, linewidth=1.0, label=plain(label))
        widest = max([widest, *(values[np.isfinite(values)] / top)])
    axes.set_ylim(bottom, top * min(widest * 1.5 if widest > 1 else 1, WIDENED))
    if relative:
        axes.axhline(SHARE, color=SOFT, linewidth=0.8, linestyle=":")
    name = "norm as a share of that at k = 1" if relative else "norm of ∂loss/∂h, k steps back"
    axes.set(xlabel="k, steps back", ylabel=name, title=plain(title))
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
    floor = _floor([_positive(norms[:1]) for norms in (layer.trained, layer.fresh)])
    return lag_below(layer.trained, floor), lag_below(layer.fresh, floor)
