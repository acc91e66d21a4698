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
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ..core.contract import MemoryLayer
from ..core.state import state_leaves
from ..report.layer_styles import layer_style
from ..report.theme import COLOURS, SOFT, new_figure, plain
from ..runs.run import Run
from ..training.task_view import Example, TaskView
from .gradient_trend import Trend, trend
from .leaves import leaves
from .recording import Steps, unrolled
from .subject import view_of

LAGS, WINDOWS = 128, 16
"""Largest lag, and largest number of windows over which the norms are averaged."""
BATCH, GROWING_BATCH = 16, 4
"""Windows differentiated at once; fewer if states grow, since the states of all steps are held until then."""
SHARE = 0.01
"""Share of the norm at lag 1 below which the gradient no longer counts."""


@dataclass(frozen=True)
class LayerFlow:
    """The norms of one layer from lag 1 on, as means over windows, after training and before it (fresh).

    The trends are the rates at which they change; None if the windows are too few or too short.
    """

    name: str
    trained: list[float]
    fresh: list[float]
    trained_trend: Trend | None = None
    fresh_trend: Trend | None = None

    @property
    def reach(self) -> tuple[int | None, int | None]:
        """Reach in the trained model and in the fresh model; see `reach`."""
        return reach(self.trained), reach(self.fresh)


@dataclass(frozen=True)
class GradientFlow:
    """Result of `gradient_flow`: the layers, the number of windows, and the largest number of lags."""

    layers: list[LayerFlow]
    windows: int
    lags: int


def reach(norms: Sequence[float], *, share: float = SHARE) -> int | None:
    """Return the smallest lag at which the norm is 0 or below a share of that at lag 1; None if there is none."""
    return next((lag for lag, norm in enumerate(norms, start=1) if norm < share * norms[0] or norm == 0), None)


def gradient_flow(run: Run, texts: object, *, lags: int = LAGS, max_windows: int = WINDOWS) -> GradientFlow:
    """Measure how far back the loss at the end of a text reaches, in every layer with memory.

    The loss is that of the last token or word, or of the label for a classifier. Without known targets, the target is
    the trained model's prediction, also for the fresh model. ``texts`` is a text, or a list of items that
    `TaskView.examples` reads, of which at most ``max_windows`` stretches are used.

    Raises:
        InputError: there is nothing to read in the texts.
    """
    if not leaves(run.model):
        return GradientFlow([], 0, 0)
    view = view_of(run)
    items = texts if isinstance(texts, list) else [texts]
    examples = windows(view, items, length=lags + 1, count=max_windows)
    trained, fresh = _norms(view, examples, lags), _norms(fresh_view(run), examples, lags)
    layers = [
        LayerFlow(name, _mean(rows), _mean(fresh[name]), trend(rows), trend(fresh[name]))
        for name, rows in trained.items()
        if rows
    ]
    return GradientFlow(layers, len(examples), max((len(layer.trained) for layer in layers), default=0))


def windows(view: TaskView[nn.Module], items: Sequence[object], *, length: int, count: int) -> list[Example]:
    """Return at most ``count`` stretches of at most ``length`` inputs, spread evenly over the items.

    Stretches of a running text have at most half of its length, so that there are many of them.
    """
    sequences = [example for item in items for example in view.examples(item)]
    chosen = np.linspace(0, len(sequences) - 1, min(count, len(sequences))).round().astype(int).tolist()
    per_sequence = count // len(chosen)
    stretches: list[Example] = []
    for sequence in (sequences[place] for place in chosen):
        size = len(sequence.inputs)
        if not view.windowed:
            stretches.append(sequence.part(range(max(0, size - length), size)))
            continue
        width = min(length, size if per_sequence == 1 else -(-size // 2))
        ends = np.unique(np.linspace(width, size, min(per_sequence, size - width + 1)).round().astype(int)).tolist()
        stretches += [sequence.part(range(end - width, end)) for end in ends[-per_sequence:]]
    return stretches


def fresh_view(run: Run) -> TaskView[nn.Module]:
    """Return the view of the run's model as it was before training (without `training.init`), in evaluation mode."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(run.config.training.seed)  # does not seed other devices
        model = run.task.make_model(run.vocabulary).to(run.device).eval()
    return run.task.model_view(model, run.vocabulary)


def _norms(view: TaskView[nn.Module], examples: Sequence[Example], lags: int) -> dict[str, list[Tensor]]:
    """Return the norms ``(lags,)`` of every window that has any, for each layer."""
    backwards = {leaf.name for leaf in leaves(view.model) if leaf.backwards}
    rows: dict[str, list[Tensor]] = defaultdict(list)
    for batch in _batches(examples, GROWING_BATCH if _grows(view.model) else BATCH):
        norms = norms_by_lag(view.model, functools.partial(view.end_losses, batch))
        if view.two_ends and backwards:
            at_start = norms_by_lag(view.model, functools.partial(view.end_losses, batch, at_start=True))
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


def _mean(rows: Sequence[Tensor]) -> list[float]:
    """Return the mean of norms ``(lags,)`` over windows: that at lag 1, times the remaining share of it at each lag.

    The share is computed from the windows that reach so far back. Otherwise, a loss that is larger in long windows than
    in short ones, or the other way round, would look like a gradient that grows or vanishes.
    """
    norms = pad_sequence(list(rows), batch_first=True, padding_value=torch.nan)  # (windows, lags)
    starts = norms[:, :1].where(~norms.isnan(), 0.0).sum(0)
    means = norms[:, 0].mean() * norms.nansum(0) / starts
    return means.where(starts > 0, norms.nanmean(0)).tolist()


def gradient_flow_figure(
    layers: Sequence[LayerFlow], title: str = "", *, relative: bool = False, architecture: str = ""
) -> Figure:
    """Draw norms against lags, with a logarithmic axis for the norms: dashed before training, solid after it.

    If ``relative``, shares of the norm at lag 1 are drawn, to compare layers, and a line marks `SHARE`.
    A single layer has the colour of its ``architecture``, if one is named.
    """
    figure, [[axes]] = new_figure()
    colours = itertools.cycle([layer_style(architecture)["color"]] if architecture else COLOURS)
    for layer, colour in zip(layers, colours, strict=False):
        prefix = f"{layer.name}, " if len(layers) > 1 else ""
        for norms, when, dashes in ((layer.trained, "after training", "-"), (layer.fresh, "before", "--")):
            start = norms[0] or 1.0 if relative else 1.0
            values = [norm / start if norm > 0 else float("nan") for norm in norms]
            axes.plot(range(1, len(norms) + 1), values, dashes, color=colour, label=plain(prefix + when))
    if relative:
        axes.axhline(SHARE, color=SOFT, linewidth=0.8, linestyle=":")
    name = "norm as a share of that at k = 1" if relative else "norm of ∂loss/∂h, k steps back"
    axes.set(yscale="log", xlabel="k, steps back", ylabel=name, title=plain(title))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend()
    return figure
