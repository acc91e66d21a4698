"""Gradient flow: the norm of ∂loss_t/∂h_{t−k} against k, which shows how far back a loss reaches.

Y. Bengio, P. Simard and P. Frasconi, "Learning long-term dependencies with gradient descent is difficult", IEEE Trans.
Neural Networks 5(2), 1994; R. Pascanu, T. Mikolov and Y. Bengio, "On the difficulty of training recurrent neural
networks", ICML 2013.

h_{t−k} is what a layer passes from step t − k to the next step: the whole state if its size is constant, or the entry
of step t − k if the state grows (keys and values). Lag 1 is the state before step t. The path through the output of
step t − k is not counted. A layer that is not causal passes nothing on, and is left out. One backward pass computes
all lags at once, for every layer and every window of a batch.
"""

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..core.contract import MemoryLayer
from ..core.errors import EmptyError, NotSupportedError
from ..core.state import state_leaves
from ..evaluation.intervals import BOUNDS, RESAMPLES
from ..layers.positions import learned_positions
from ..pages.chart import Axis, Chart, Look, Series, Switch
from ..pages.page import Folded, Prose
from ..pages.palette import SOFT
from ..pages.statements import Statement, told
from ..pages.theme import layer_style
from ..runs.run import Run
from ..tasks.explainer import Example, Examples, Explainer
from .inspected_run import InspectedRun, SectionBody, explainer_of
from .recording import BACKWARDS, Steps, has_memory, primitive_layers, unrolled

LAGS, WINDOWS = 255, 16
"""Largest lag, and largest number of windows over which the norms are averaged."""
MIN_LAGS, MIN_WINDOWS = 16, 4
"""Lags and windows that are wanted, at least; windows of a shorter text are shorter or fewer."""
BATCH, GROWING_BATCH = 16, 2
"""Windows differentiated at once; fewer if states grow, since the states of all steps are held until then."""
SMALLEST = 1e-7
"""The smallest relative norm that is drawn."""
CANDIDATES = 200
"""Held-out texts of which the longest are measured."""


# The windows. All have one length, so that every lag is averaged over the same windows: otherwise a curve would change
# at a lag only because fewer windows reach so far.


def equal_windows(inputs: Examples, items: Sequence[object], *, length: int, count: int) -> list[Example]:
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
        return []
    if inputs.is_divisible:
        starts = [(i, start) for i, size in enumerate(sizes) for start in range(0, size - width + 1, width)]
    else:
        starts = [(i, max(0, size - width)) for i, size in enumerate(sizes) if size >= width]
    chosen = np.unique(np.linspace(0, len(starts) - 1, min(count, len(starts))).round().astype(int)).tolist()
    return [_window(sequences[i], start, width) for i, start in (starts[index] for index in chosen)]


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


# The measurement


@dataclass(frozen=True)
class FlowCurve:
    """The norms of one layer from lag 1 on, as means over windows.

    The ``band`` has the 95 % intervals of the norms relative to that at lag 1, as lists of lower and upper bounds; None
    for a single window.
    """

    norms: list[float]
    band: tuple[list[float], list[float]] | None = None

    @property
    def relative(self) -> list[float]:
        """The norms relative to that at lag 1; NaN where they are not known."""
        first = self.norms[0] or math.nan
        return [norm / first if math.isfinite(norm) else math.nan for norm in self.norms]


@dataclass(frozen=True)
class LayerFlow:
    """The curves of one layer after training and before it (fresh)."""

    name: str
    trained: FlowCurve
    fresh: FlowCurve


@dataclass(frozen=True)
class GradientFlow:
    """Result of `gradient_flow`: the layers, and the number of windows; all windows have ``length`` tokens.

    The ``source`` is where these come from, in words.
    """

    layers: list[LayerFlow]
    windows: int
    length: int = 0
    source: str = "the given text"


def band(rows: Sequence[Tensor]) -> tuple[list[float], list[float]] | None:
    """Return the 95 % intervals of mean norms ``(lags,)`` relative to lag 1, by the bootstrap over windows.

    The lower and the upper bounds are lists over the lags. None for a single window.
    """
    if len(rows) < 2:
        return None
    norms = np.stack([row.double().cpu().numpy() for row in rows])  # (windows, lags)
    drawn = np.random.default_rng(0).integers(len(norms), size=(RESAMPLES, len(norms)))
    counts = np.stack([np.bincount(draw, minlength=len(norms)) for draw in drawn])
    with np.errstate(all="ignore"):  # exploding gradients may be infinite
        sums = counts @ norms
        low, high = np.quantile(sums / sums[:, :1], BOUNDS, axis=0)
    return low.tolist(), high.tolist()


def gradient_flow(run: Run, texts: object, *, lags: int = LAGS, max_windows: int = WINDOWS) -> GradientFlow:
    """Measure how far back the loss at the end of a text reaches, in every layer with memory.

    The loss is that of the last token or word, or of the label for a classifier. Without known targets, the target is
    the trained model's prediction, also for the fresh model. ``texts`` is a text, or a list of items that
    `Examples.read` reads, of which at most ``max_windows`` windows of one length are used; see `equal_windows`.

    Raises:
        InputError: there is nothing to read in the texts.
    """
    if not primitive_layers(run.model):
        return GradientFlow([], 0)

    # Lag k needs k + 1 tokens: the loss is taken at the last one.
    explainer = explainer_of(run)
    inputs = explainer.require(explainer.inputs)
    items = texts if isinstance(texts, list) else [texts]
    found = equal_windows(inputs, items, length=lags + 1, count=max_windows)
    if not found:
        if not any(inputs.read(item) for item in items):
            raise EmptyError("text: nothing in it to read; give a few words")
        return GradientFlow([], 0)

    # The same windows are measured before training, since only the difference shows what the training changed.
    trained, fresh = (_curves(each, found, lags) for each in (explainer, fresh_explainer(run)))
    layers = [LayerFlow(name, curve, fresh[name]) for name, curve in trained.items()]
    return GradientFlow(layers, len(found), len(found[0].inputs))


def _curves(explainer: Explainer, examples: Sequence[Example], lags: int) -> dict[str, FlowCurve]:
    """Return the curve of each layer that has norms."""
    norms = _norms(explainer, examples, lags)
    return {name: FlowCurve(torch.stack(rows).mean(0).tolist(), band(rows)) for name, rows in norms.items() if rows}


def fresh_explainer(run: Run) -> Explainer:
    """Return what can be shown of the run's model before training (without `training.init`), in evaluation mode."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(run.config.training.seed)  # does not seed other devices
        model = run.task.builder.build(run.vocabulary).to(run.device).eval()
    return run.task.explainer(model, run.vocabulary)


def _norms(explainer: Explainer, examples: Sequence[Example], lags: int) -> dict[str, list[Tensor]]:
    """Return the norms ``(lags,)`` of every window that has any, for each layer."""
    inputs = explainer.require(explainer.inputs)
    backwards = {primitive.name for primitive in primitive_layers(explainer.model) if primitive.backwards}
    rows: dict[str, list[Tensor]] = defaultdict(list)
    size = GROWING_BATCH if _grows(explainer.model) else BATCH
    for batch in (examples[start : start + size] for start in range(0, len(examples), size)):  # all have one shape
        last, first = ([inputs.end_place(each, at_start=start) for each in batch] for start in (False, True))
        norms = norms_by_lag(explainer.model, functools.partial(inputs.place_losses, batch, last))
        if inputs.predicts == "each token" and backwards:  # a layer that reads backwards ends at the first token
            at_start = norms_by_lag(explainer.model, functools.partial(inputs.place_losses, batch, first))
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
    """A leaf of a state, ``lag`` steps before the loss.

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
        entry = gradient if leaf.growing is None else gradient.select(leaf.growing, -1)
        squares[:, leaf.lag - 1] += entry.flatten(1).square().sum(1)
    return squares


def _passed_on(steps: Steps[None]) -> Iterator[StateLeaf]:
    """Yield the leaves of states that each step changed, and not those passed on, such as the memory of a decoder."""
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


# What the page draws and says


MEANING = (
    "The curve is the norm of ∂loss/∂h relative to that at k = 1, where h is what a layer passed to its own next step "
    "k steps before the loss. Paths through other layers are not counted, and what a saturated unit keeps has no "
    "gradient."
)
CAPTION = (
    Statement[GradientFlow](
        lambda result: result.windows > 1,
        "Means over {windows} windows of {length} tokens of {source}, with 95 % bands.",
    ),
    Statement[GradientFlow](lambda result: result.windows == 1, "One window of {length} tokens of {source}."),
    Statement[GradientFlow](
        lambda result: any(BACKWARDS in layer.name for layer in result.layers),
        "For a layer that reads backwards, k counts from the beginning of the text.",
    ),
)


def flow_section(inspected: InspectedRun) -> SectionBody:
    """Write the section on how far back the gradient reaches, before and after training."""
    layers = primitive_layers(inspected.run.model)
    if not layers:
        raise NotSupportedError("this model has no layers, so that there is no gradient")
    if not any(each.layer.causal and has_memory(each.layer) for each in layers):
        raise NotSupportedError("no layer of this model passes a state from step to step")

    # One text supports few statements, so that held-out data are measured, if the run has some.
    items = inspected.held_out_items(WINDOWS if inspected.inputs.running_text else CANDIDATES, LAGS + 1)
    result = gradient_flow(inspected.run, items or [inspected.item])
    if not result.layers:
        if items:
            raise EmptyError(f"all texts of the held-out data ({inspected.held_out_name}) are too short")
        raise EmptyError(
            "the text is too short to measure how far back gradients reach, and the run has no held-out data; give a "
            "longer text with --text-file, or some --data"
        )

    if items:
        result = replace(result, source=f"the held-out data ({inspected.held_out_name})")
    caption = " ".join(told(CAPTION, result))
    charts = [(each.name, gradient_flow_chart(each, caption, architecture=inspected.layer)) for each in result.layers]
    drawn = Switch("Gradient against distance", charts, "in") if len(charts) > 1 else charts[0][1]
    meaning = Folded("What this shows", [Prose(MEANING)])
    return SectionBody([drawn, meaning])


def gradient_flow_chart(layer: LayerFlow, caption: str = "", *, architecture: str = "") -> Chart:
    """Return the relative norms of one layer against lags, with their bands, in the look of its ``architecture``."""
    look: Look = layer_style(architecture or layer.name) | {"linestyle": "-"}
    before: Look = {"color": SOFT, "linestyle": "--"}
    curves = (("after training", layer.trained, look), ("before training", layer.fresh, before))
    series = [
        Series(
            name, range(1, len(curve.norms) + 1), _drawn(curve.relative), "curve", _intervals(curve), True, look=look
        )
        for name, curve, look in curves
    ]
    drawn = [value for each in series for value in each.y if math.isfinite(value)]
    drawn += [end for each in series for ends in each.intervals if ends for end in ends]
    limits = (0.8 * min(drawn), 1.2 * max(drawn)) if drawn else None
    return Chart(
        layer.name,
        Axis("k, steps back", "{:,.0f}".format),
        Axis("norm of ∂loss/∂h, relative to k = 1", "{:g}".format, is_log=True, limits=limits),
        series,
        caption,
    )


def _drawn(values: Sequence[float]) -> list[float]:
    """Return values for a logarithmic axis, which has no zeros."""
    return [value if SMALLEST <= value < math.inf else math.nan for value in values]


def _intervals(curve: FlowCurve) -> list[tuple[float, float] | None]:
    """Return the band, as far as it can be drawn."""
    ends = zip(*curve.band, strict=True) if curve.band else ()
    return [(max(low, SMALLEST), high) if SMALLEST <= high < math.inf and low >= 0 else None for low, high in ends]
