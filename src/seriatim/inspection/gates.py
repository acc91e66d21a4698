"""What gates do over a text: how far open each is at every token.

So with the step sizes of a selective state space, and with the experts that a mixture chooses.

A leaf runs step by step, as its equations are written, while every sigmoid and softplus of it is noted. What each is
called its class says (`Stateful.gate_names`); gates of cells that say nothing are numbered.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ..core.contract import Stateful
from ..layers.experts import Experts, Routing
from ..report.token_axis import name_tokens, width_for
from ..runs.run import Run
from .leaves import Leaf, leaves
from .reading import Example, read, read_examples
from .recording import Steps, unrolled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 128
"""Tokens looked at."""
OPEN, CLOSED = 0.9, 0.1
MARGINS = 1.2
"""Inches of a figure's width beside its plot."""
SIGMOIDS = {torch.sigmoid, torch.Tensor.sigmoid, F.sigmoid, torch.special.expit}


@dataclass(frozen=True)
class Gate:
    """One gate of one layer over a text.

    Attributes:
        layer: its name, as in `leaves.Leaf`.
        name: such as ``forget``.
        tokens: that were read, in the order of the text; empty where a step is no token.
        values: of every unit at every token ``(tokens, size)``, in the order of the text.
        is_rate: whether this is a step size, a positive number, and no gate between 0 and 1.
    """

    layer: str
    name: str
    tokens: tuple[str, ...]
    values: Tensor
    is_rate: bool = False

    @property
    def mean(self) -> Tensor:
        """Over units, at every token ``(tokens,)``."""
        return self.values.mean(1)

    @property
    def open(self) -> float:
        """The share of values above `OPEN`."""
        return (self.values > OPEN).float().mean().item()

    @property
    def closed(self) -> float:
        """The share of values below `CLOSED`."""
        return (self.values < CLOSED).float().mean().item()


@dataclass(frozen=True)
class Choices:
    """What one mixture of experts chose over a text.

    Attributes:
        layer: the layer's name.
        tokens: as of `Gate`.
        experts: those that each token went to, the fittest first ``(tokens, chosen)``.
        weights: of their answers ``(tokens, chosen)``.
        count: how many there are.
    """

    layer: str
    tokens: tuple[str, ...]
    experts: Tensor
    weights: Tensor
    count: int


@dataclass(frozen=True)
class Gates:
    """What `gates` found in the first ``shown`` of ``of`` tokens."""

    gates: list[Gate]
    choices: list[Choices]
    shown: int
    of: int


def gates(run: Run, text: Any, *, most: int = MOST) -> Gates:
    """Reads a text, and notes every gate, step size and choice of experts on the way.

    Args:
        run: of any task; of models without gates nothing is found.
        text: as in `reading.read_examples`; of several lines the first.
        most: tokens looked at, from the first on.

    Raises:
        InputError: nothing to read in the text.
    """
    whole = read_examples(run, text)[0]
    example = whole.beginning(most)
    with _experts(run.model) as routed:
        recorded = noted_gates(run.model, lambda: read(run, example))
    found = [gate for steps in recorded for gate in _of_leaf(steps, example)]
    choices = [_chosen(leaf, routings, example) for leaf, routings in routed if routings]
    return Gates(found, choices, example.longest, whole.longest)


def noted_gates(model: nn.Module, run_it: Callable[[], object]) -> list[Steps]:
    """Runs ``run_it`` with every leaf of a model taken step by step; what they note is lists of (values, is a rate).

    With gradients, for without them layers call kernels instead of their equations.
    """
    with torch.enable_grad(), unrolled(model, watch=_Noting) as recorded:
        run_it()
    return recorded


def gate_names(layer: nn.Module) -> tuple[str, ...]:
    """What the gates of a layer, or of the cell in it, are called; nothing where its class does not say."""
    named = (part.gate_names for part in layer.modules() if isinstance(part, Stateful) and part.gate_names)
    return next(named, ())


class _Noting(TorchFunctionMode):
    """Within it the results of sigmoids and softplus are noted."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[tuple[Tensor, bool]] = []

    def __enter__(self) -> list[tuple[Tensor, bool]]:
        super().__enter__()  # type: ignore[no-untyped-call]
        return self.noted

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in SIGMOIDS:
            self.note(result)
        elif func is F.glu:
            inputs, dim = args[0], (kwargs or {}).get("dim", args[1] if len(args) > 1 else -1)
            self.note(torch.sigmoid(inputs.chunk(2, dim)[1]))
        elif func is F.softplus:
            self.note(result, rate=True)
        return result

    def note(self, values: Tensor, *, rate: bool = False) -> None:
        """Of the one row of the batch."""
        self.noted.append((values.detach().float().flatten(), rate))


@contextmanager
def _experts(model: nn.Module) -> Iterator[list[tuple[Leaf, list[Routing]]]]:
    """Within it what every mixture of a model chooses is kept."""
    found: list[tuple[Leaf, list[Routing]]] = []
    hooks = []
    for leaf in leaves(model):
        for part in leaf.layer.modules():
            if isinstance(part, Experts):
                kept: list[Routing] = []
                found.append((leaf, kept))
                hooks.append(part.router.register_forward_hook(lambda _, __, routing, kept=kept: kept.append(routing)))
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _of_leaf(steps: Steps, example: Example) -> list[Gate]:
    """The gates of one leaf: noted values of one step after another, in the order of its equations."""
    count = min((len(noted) for noted in steps.noted), default=0)
    names, tokens = gate_names(steps.leaf.layer), tokens_of(steps.leaf, example, len(steps.noted))
    found = []
    for i in range(count):
        values = torch.stack([noted[i][0] for noted in steps.noted]).cpu()
        is_rate = steps.noted[0][i][1]
        name = names[i] if len(names) == count else f"gate {i + 1}"
        values = values.flip(0) if steps.leaf.backwards else values
        found.append(Gate(steps.leaf.name, name, tokens, values, is_rate))
    return found


def _chosen(leaf: Leaf, routings: list[Routing], example: Example) -> Choices:
    experts, weights = (torch.cat([getattr(one, name) for one in routings]) for name in ("experts", "gates"))
    if leaf.backwards:
        experts, weights = experts.flip(0), weights.flip(0)
    tokens, count = tokens_of(leaf, example, len(experts)), routings[0].probabilities.shape[1]
    return Choices(leaf.name, tokens, experts.detach().cpu(), weights.detach().float().cpu(), count)


def tokens_of(leaf: Leaf, example: Example, steps: int) -> tuple[str, ...]:
    """What a leaf reads at its steps, in the order of the text; empty where these are no tokens."""
    tokens = example.written if leaf.decodes else example.tokens
    return tokens if len(tokens) == steps else ()


def gate_figure(found: Gate) -> "Figure":
    """Draws a gate, or a step size, as a heat map: tokens across, units down, sorted by their means."""
    from ..report.theme import HEAT, new_figure, plain

    values = found.values[:, found.values.mean(0).argsort(descending=True)].T
    wide = width_for(len(values.T))
    figure, grid = new_figure(width=wide)
    axes = grid.flat[0]
    limits = {} if found.is_rate else {"vmin": 0.0, "vmax": 1.0}
    image = axes.imshow(values.numpy(), aspect="auto", cmap=HEAT, interpolation="none", **limits)
    axes.set(ylabel="units, sorted by mean")
    axes.set_title(plain(f"{found.layer}, {found.name}"))
    axes.grid(visible=False)
    name_tokens(axes.xaxis, found.tokens, wide - MARGINS)
    figure.colorbar(image, ax=axes, label="step size Δ" if found.is_rate else "0 closed, 1 open")
    return figure


def gate_means_figure(found: Sequence[Gate]) -> "Figure":
    """Draws the means over units of the gates of one layer, token after token."""
    from ..report.theme import new_figure, plain, style

    wide = width_for(len(found[0].values))
    figure, grid = new_figure(width=wide)
    axes = grid.flat[0]
    for i, gate in enumerate(found):
        axes.plot(gate.mean.numpy(), **{**style(i), "marker": ""}, label=gate.name)
    if not any(gate.is_rate for gate in found):
        axes.set_ylim(0, 1)
    axes.set(ylabel="mean over units")
    axes.set_title(plain(found[0].layer))
    name_tokens(axes.xaxis, found[0].tokens, wide - MARGINS)
    axes.legend(frameon=False)
    return figure


def experts_figure(found: Choices) -> "Figure":
    """Draws which experts saw each token: tokens across, experts down, dark where their answers weigh much."""
    from ..report.theme import HEAT, new_figure, plain

    shares = torch.zeros(found.count, len(found.experts))
    shares.scatter_(0, found.experts.T, found.weights.T)
    wide = width_for(len(found.experts))
    figure, grid = new_figure(width=wide, height=2.4)
    axes = grid.flat[0]
    image = axes.imshow(shares.numpy(), aspect="auto", cmap=HEAT, vmin=0, vmax=1, interpolation="none")
    axes.set(ylabel="expert")
    axes.set_title(plain(found.layer))
    axes.grid(visible=False)
    axes.set_yticks(range(found.count), [str(i + 1) for i in range(found.count)])
    name_tokens(axes.xaxis, found.tokens, wide - MARGINS)
    figure.colorbar(image, ax=axes, label="weight of its answer")
    return figure
