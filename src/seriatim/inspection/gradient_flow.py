"""How far back a loss reaches: the norm of ∂loss_t/∂h_{t−k} against k.

Y. Bengio, P. Simard and P. Frasconi, "Learning long-term dependencies with gradient descent is difficult", IEEE Trans.
Neural Networks 5(2), 1994; R. Pascanu, T. Mikolov and Y. Bengio, "On the difficulty of training recurrent neural
networks", ICML 2013.

h_{t−k} is what a layer hands on from step t − k to the next: its whole state where that has one size, and where it
grows (keys and values) the entry of step t − k alone. So k = 1 is the state that step t itself is given, the nearest
there is, and every kind of layer begins there. What goes from step t − k to the loss by other ways, the layer's output
of that step, is not counted. A layer that is not causal keeps nothing; there h_{t−k} is what it reads of input t − k.

One backward pass gives all k at once, for every layer and every window of a batch.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ..core.contract import MemoryLayer
from ..core.state import state_leaves
from ..runs.run import Run
from .gradient_trend import Trend, trend
from .leaves import leaves
from .reading import Example, reading, windows
from .recording import Steps, unrolled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LAGS, WINDOWS = 128, 16
TOGETHER, TOGETHER_GROWING = 16, 4
"""Windows differentiated at once; fewer where states grow, for those of all steps are held until then."""
SHARE = 0.01


@dataclass(frozen=True)
class LayerFlow:
    """The norms of one layer, from lag 1 on.

    Attributes:
        name: of the layer, as in `leaves.Leaf`.
        trained: means over windows of the trained model's norms; where windows differ in length, see `_mean`.
        fresh: those of a model of the same configuration before training.
        trained_trend: rate at which the trained model's norms change; None where the windows are too few or too short.
        fresh_trend: that of the model before training.
    """

    name: str
    trained: list[float]
    fresh: list[float]
    trained_trend: Trend | None = None
    fresh_trend: Trend | None = None

    @property
    def reach(self) -> tuple[int | None, int | None]:
        """Reach in the trained model and in the fresh one; see `reach`."""
        return reach(self.trained), reach(self.fresh)


@dataclass(frozen=True)
class GradientFlow:
    """Result of `gradient_flow`: the layers, the number of windows, and the largest number of lags."""

    layers: list[LayerFlow]
    windows: int
    lags: int


def reach(norms: Sequence[float], *, share: float = SHARE) -> int | None:
    """The smallest lag at which the norm is 0, or below a share of that at lag 1; None where it nowhere is."""
    return next((lag for lag, norm in enumerate(norms, start=1) if norm < share * norms[0] or norm == 0), None)


def gradient_flow(run: Run, texts: Any, *, lags: int = LAGS, most_windows: int = WINDOWS) -> GradientFlow:
    """Measures how far back the loss at the end of a text reaches, in every layer that keeps something.

    The loss is that of the last token or word; of a classifier, of its label. Where no truth is given it is the trained
    model's own answer, for the fresh model too.

    Args:
        run: of any task. Of n-grams there is nothing to differentiate, and no layer is found.
        texts: one text, or a list of them; see `reading.read_examples`.
        lags: how far back at most.
        most_windows: stretches of the texts over which is averaged.

    Raises:
        InputError: nothing to read in the texts.
    """
    if not leaves(run.model):
        return GradientFlow([], 0, 0)
    given = texts if isinstance(texts, list) else [texts]
    examples = windows(run, given, length=lags + 1, count=most_windows)
    how, together = reading(run), TOGETHER_GROWING if _grows(run.model) else TOGETHER

    def measured(model: nn.Module) -> dict[str, list[Tensor]]:
        def of(batch: list[Example]) -> dict[str, Tensor]:
            last = norms_by_lag(model, lambda: how.loss(model, run, batch, False))
            if not how.two_ends or not any(leaf.backwards for leaf in leaves(model)):
                return last
            first = norms_by_lag(model, lambda: how.loss(model, run, batch, True))
            back = {leaf.name for leaf in leaves(model) if leaf.backwards}
            return {name: first[name] if name in back else norms for name, norms in last.items()}

        return _rows(map(of, _batches(examples, together)), lags)

    trained, fresh = measured(run.model), measured(fresh_model(run))
    layers = [
        LayerFlow(name, _mean(trained[name]), _mean(fresh[name]), trend(trained[name]), trend(fresh[name]))
        for name in trained
        if trained[name]
    ]
    return GradientFlow(layers, len(examples), max((len(layer.trained) for layer in layers), default=0))


def fresh_model(run: Run) -> Any:
    """A model of a run's configuration as its training found it (without `training.init`), in evaluation mode."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(run.config.training.seed)  # and no other device's
        return run.task.make_model(run.vocabulary).to(run.device).eval()


def norms_by_lag(model: nn.Module, loss: Callable[[], Tensor]) -> dict[str, Tensor]:
    """The norms of one batch of windows of the same length, in float64: ``(batch, lags)`` for each layer by name.

    Args:
        model: what `loss` runs; parameters and their gradients stay as they are.
        loss: runs it over the windows, once, and gives their losses ``(batch,)``.
    """
    with torch.enable_grad(), unrolled(model) as recorded:
        losses = loss()
    kept = {steps.leaf.name: list(_handed_on(steps)) for steps in recorded}
    tensors = [part.tensor for parts in kept.values() for part in parts]
    gradients = iter(torch.autograd.grad(losses.sum(), tensors, allow_unused=True) if tensors else ())
    return {
        name: _squares([(part, next(gradients)) for part in parts], len(losses)).sqrt() for name, parts in kept.items()
    }


class Kept(NamedTuple):
    """What the norm at a lag is of; at lag 0 all a layer without steps has read, input by input."""

    lag: int
    tensor: Tensor
    growing: int | None = None
    """The dimension along which it grows, so that only the newest entry is of its step."""


def _squares(found: Sequence[tuple[Kept, Tensor | None]], rows: int) -> Tensor:
    """Squared norms ``(batch, lags)``."""
    squares = torch.zeros(rows, max((kept.lag for kept, _ in found), default=0), dtype=torch.float64)
    for kept, gradient in found:
        if gradient is None:
            continue
        gradient = gradient.double().cpu()
        if not kept.lag:
            return gradient.square().sum(2)[:, :-1].flip(1)
        entry = gradient if kept.growing is None else gradient.select(kept.growing, -1)
        squares[:, kept.lag - 1] += entry.flatten(1).square().sum(1)
    return squares


def _handed_on(steps: Steps) -> Iterator[Kept]:
    """The parts of states that each step has made.

    What is handed on as it came, such as the memory of a decoder, holds nothing of any step.
    """
    if steps.inputs is not None:
        yield Kept(0, steps.inputs)
    before = [] if steps.before is None else state_leaves(steps.before)
    sizes = [leaf.shape for leaf in before]
    for t, state in enumerate(steps.states[:-1]):
        parts = state_leaves(state)
        for size, old, new in zip(sizes, before, parts, strict=True):
            if new is not old and new.requires_grad and new.numel():
                growing = next((dim for dim in range(1, new.dim()) if size[dim] == 0), None)
                yield Kept(len(steps.states) - 1 - t, new, growing)
        before = parts


def _grows(model: nn.Module) -> bool:
    """Whether what a layer keeps grows with time."""
    states = (leaf.layer.initial_state(1) for leaf in leaves(model) if not isinstance(leaf.layer, MemoryLayer))
    return any(0 in part.shape for state in states for part in state_leaves(state))


def _batches(examples: Sequence[Example], together: int) -> Iterator[list[Example]]:
    """Examples of one shape, at most so many together."""
    for _, same in itertools.groupby(sorted(examples, key=lambda one: one.shape), key=lambda one: one.shape):
        some = list(same)
        yield from (some[start : start + together] for start in range(0, len(some), together))


def _rows(batches: Iterable[dict[str, Tensor]], lags: int) -> dict[str, list[Tensor]]:
    """The norms ``(lags,)`` of every window that has any, by layer."""
    rows: dict[str, list[Tensor]] = defaultdict(list)
    for batch in batches:
        for name, norms in batch.items():
            rows[name] += [row for row in norms[:, :lags] if len(row)]
    return rows


def _mean(rows: Sequence[Tensor]) -> list[float]:
    """Mean over windows of any lengths: the mean norm at lag 1, times the share of it that is left at each lag.

    The share is computed from the windows that reach so far back. A loss that is large in long windows and small in
    short ones, or the other way round, would otherwise look like a gradient that grows or vanishes.

    Args:
        rows: norms ``(lags,)`` of every window, at least one.
    """
    norms = pad_sequence(list(rows), batch_first=True, padding_value=torch.nan)  # (windows, lags)
    starts = norms[:, :1].where(~norms.isnan(), 0.0).sum(0)
    means = norms[:, 0].mean() * norms.nansum(0) / starts
    return means.where(starts > 0, norms.nanmean(0)).tolist()


def gradient_flow_figure(layers: Sequence[LayerFlow], title: str = "", *, relative: bool = False) -> "Figure":
    """Draws norms against lags, on logarithmic axes of norms: dashed before training, solid after it.

    Args:
        layers: a few.
        title: above.
        relative: as shares of the norm at lag 1, to compare layers; a line marks `SHARE`.
    """
    from ..report.theme import COLOURS, SOFT, new_figure, plain

    figure, grid = new_figure()
    axes = grid.flat[0]
    for layer, colour in zip(layers, itertools.cycle(COLOURS), strict=False):
        label = f"{layer.name}, " if len(layers) > 1 else ""
        for norms, when, dashes in ((layer.trained, "after training", "-"), (layer.fresh, "before", "--")):
            start = norms[0] or 1.0 if relative else 1.0
            shown = [norm / start if norm > 0 else float("nan") for norm in norms]
            axes.plot(range(1, len(norms) + 1), shown, dashes, color=colour, label=plain(label + when))
    if relative:
        axes.axhline(SHARE, color=SOFT, linewidth=0.8, linestyle=":")
    axes.set(yscale="log", xlabel="k, steps back")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_title(plain(title))
    axes.set_ylabel("norm as a share of that at k = 1" if relative else "norm of ∂loss/∂h, k steps back")
    axes.legend(frameon=False)
    return figure
