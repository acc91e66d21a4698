"""Gates over a text: how far each one is open at every token.

The step sizes of selective state spaces and the experts that a mixture chooses are recorded, too. A layer runs step by
step, as its equations are written, and the result of every sigmoid and softplus is recorded. The class of the layer
names its gates (`Stateful.gate_names`); gates of cells without names are numbered.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ..core.contract import Stateful
from ..layers.experts import Experts, Routing
from ..report.page import Part, Plot, Plots, Prose, Table
from ..report.theme import HEAT, new_figure, plain, style
from ..report.token_axis import name_tokens, width_for
from ..runs.run import Run
from ..training.task_view import Example
from .leaves import Leaf, leaves, run_once
from .recording import Steps, unrolled
from .subject import Content, Subject, view_of

MAX_TOKENS = 128
"""Tokens that are read."""
OPEN, CLOSED = 0.9, 0.1
"""Values above the first count as open, values below the second as closed."""
MARGINS = 1.2
"""Inches of a figure's width beside its plot."""
SIGMOIDS = {torch.sigmoid, torch.Tensor.sigmoid, F.sigmoid, torch.special.expit}


@dataclass(frozen=True)
class Gate:
    """One gate of one layer over a text.

    Attributes:
        layer: name of the layer, as in `leaves.Leaf`.
        name: name of the gate, such as ``forget``.
        tokens: tokens that were read, in the order of the text; empty if the steps are not tokens.
        values: value of every unit at every token ``(tokens, size)``, in the order of the text.
        is_rate: whether this is a step size (a positive number) instead of a gate between 0 and 1.
    """

    layer: str
    name: str
    tokens: tuple[str, ...]
    values: Tensor
    is_rate: bool = False

    @property
    def mean(self) -> Tensor:
        """Mean over the units at every token ``(tokens,)``."""
        return self.values.mean(1)

    @property
    def open(self) -> float:
        """Share of values above `OPEN`."""
        return (self.values > OPEN).float().mean().item()

    @property
    def closed(self) -> float:
        """Share of values below `CLOSED`."""
        return (self.values < CLOSED).float().mean().item()


@dataclass(frozen=True)
class ExpertChoices:
    """Experts that one mixture chose over a text.

    Attributes:
        layer: name of the layer.
        tokens: tokens that were read, in the order of the text; empty if the steps are not tokens.
        experts: the experts chosen for each token, in descending order of fitness ``(tokens, chosen)``.
        weights: weights of their outputs ``(tokens, chosen)``.
        count: number of experts.
    """

    layer: str
    tokens: tuple[str, ...]
    experts: Tensor
    weights: Tensor
    count: int


@dataclass(frozen=True)
class Gates:
    """Gates and chosen experts for the first ``shown`` of ``total`` tokens."""

    gates: list[Gate]
    choices: list[ExpertChoices]
    shown: int
    total: int


class GateValues(NamedTuple):
    """Values of one gate at one step ``(size,)``, and whether they are step sizes."""

    values: Tensor
    is_rate: bool


def gates(run: Run, text: object, *, max_tokens: int = MAX_TOKENS) -> Gates:
    """Read a text, and record every gate, step size and choice of experts.

    Args:
        run: a run of any task; a model without gates has none.
        text: a text, or another item that `TaskView.examples` reads; only its first sequence is used.
        max_tokens: number of tokens that are read, from the first on.

    Raises:
        InputError: there is nothing to read in the text.
    """
    view = view_of(run)
    whole = view.examples(text)[0]
    example = whole.beginning(max_tokens)
    with _recorded_experts(run.model) as routed:
        recorded = recorded_gates(run.model, lambda: run_once(view, example))
    values = [gate for steps in recorded for gate in _gates_of(steps, example)]
    choices = [_choices_of(leaf, routings, example) for leaf, routings in routed if routings]
    return Gates(values, choices, example.length, whole.length)


def recorded_gates(model: nn.Module, forward: Callable[[], object]) -> list[Steps[list[GateValues]]]:
    """Call ``forward`` while every leaf of a model runs step by step, and return the gates of every step.

    Gradients are enabled, since without them layers call kernels instead of their equations.
    """
    with torch.enable_grad(), unrolled(model, watch=_GateRecorder) as recorded:
        forward()
    return recorded


def gate_names(layer: nn.Module) -> tuple[str, ...]:
    """Return the names of the gates of a layer or of the cell in it; empty if its class does not name them."""
    names = (part.gate_names for part in layer.modules() if isinstance(part, Stateful) and part.gate_names)
    return next(names, ())


class _GateRecorder(TorchFunctionMode):
    """Records the results of sigmoid and softplus while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.gates: list[GateValues] = []

    def __enter__(self) -> list[GateValues]:
        super().__enter__()  # type: ignore[no-untyped-call]
        return self.gates

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in SIGMOIDS:
            self.record(result)
        elif func is F.glu:
            inputs, dim = args[0], (kwargs or {}).get("dim", args[1] if len(args) > 1 else -1)
            self.record(torch.sigmoid(inputs.chunk(2, dim)[1]))
        elif func is F.softplus:
            self.record(result, is_rate=True)
        return result

    def record(self, values: Tensor, *, is_rate: bool = False) -> None:
        """Record the values of the only row of the batch."""
        self.gates.append(GateValues(values.detach().float().flatten(), is_rate))


@contextmanager
def _recorded_experts(model: nn.Module) -> Iterator[list[tuple[Leaf, list[Routing]]]]:
    """Record the choices of every mixture of experts while the context is active."""
    recorded: list[tuple[Leaf, list[Routing]]] = []
    hooks = []
    for leaf in leaves(model):
        for part in leaf.layer.modules():
            if isinstance(part, Experts):
                routings: list[Routing] = []
                recorded.append((leaf, routings))
                hooks.append(
                    part.router.register_forward_hook(lambda _, __, routing, kept=routings: kept.append(routing))
                )
    try:
        yield recorded
    finally:
        for hook in hooks:
            hook.remove()


def _gates_of(steps: Steps[list[GateValues]], example: Example) -> list[Gate]:
    """Return the gates of one leaf, in the order of its equations."""
    count = min((len(gates) for gates in steps.recorded), default=0)
    names, tokens = gate_names(steps.leaf.layer), tokens_of(steps.leaf, example, len(steps.recorded))
    result = []
    for i in range(count):
        values = torch.stack([gates[i].values for gates in steps.recorded]).cpu()
        name = names[i] if len(names) == count else f"gate {i + 1}"
        values = values.flip(0) if steps.leaf.backwards else values
        result.append(Gate(steps.leaf.name, name, tokens, values, steps.recorded[0][i].is_rate))
    return result


def _choices_of(leaf: Leaf, routings: list[Routing], example: Example) -> ExpertChoices:
    experts = torch.cat([routing.experts for routing in routings])
    weights = torch.cat([routing.gates for routing in routings])
    if leaf.backwards:
        experts, weights = experts.flip(0), weights.flip(0)
    tokens, count = tokens_of(leaf, example, len(experts)), routings[0].probabilities.shape[1]
    return ExpertChoices(leaf.name, tokens, experts.detach().cpu(), weights.detach().float().cpu(), count)


def tokens_of(leaf: Leaf, example: Example, steps: int) -> tuple[str, ...]:
    """Return the tokens that a leaf reads at its steps, in the order of the text; empty if these are not tokens."""
    tokens = example.decoded if leaf.decodes else example.tokens
    return tokens if len(tokens) == steps else ()


def gate_figure(gate: Gate) -> Figure:
    """Draw a gate, or a step size, as a heat map: tokens across, units down, sorted by their means."""
    values = gate.values[:, gate.values.mean(0).argsort(descending=True)].T
    limits = {} if gate.is_rate else {"vmin": 0.0, "vmax": 1.0}
    label = "step size Δ" if gate.is_rate else "0 closed, 1 open"
    return _heat_map(values, gate.tokens, f"{gate.layer}, {gate.name}", "units, sorted by mean", label, limits)


def experts_figure(choices: ExpertChoices) -> Figure:
    """Draw the experts chosen for each token: tokens across, experts down, bright for large weights."""
    shares = torch.zeros(choices.count, len(choices.experts))
    shares.scatter_(0, choices.experts.T, choices.weights.T)
    limits = {"vmin": 0.0, "vmax": 1.0}
    figure = _heat_map(shares, choices.tokens, choices.layer, "expert", "weight of its answer", limits, height=2.4)
    figure.axes[0].set_yticks(range(choices.count), [str(i + 1) for i in range(choices.count)])
    return figure


def _heat_map(
    values: Tensor,
    tokens: Sequence[str],
    title: str,
    rows: str,
    label: str,
    limits: Mapping[str, float],
    height: float = 3.0,
) -> Figure:
    """Draw values ``(rows, tokens)`` as a heat map with a colour bar."""
    wide = width_for(values.shape[1])
    figure, grid = new_figure(width=wide, height=height)
    axes = grid.flat[0]
    image = axes.imshow(values.numpy(), aspect="auto", cmap=HEAT, interpolation="none", **limits)
    axes.set(ylabel=rows)
    axes.set_title(plain(title))
    axes.grid(visible=False)
    name_tokens(axes.xaxis, tokens, wide - MARGINS)
    figure.colorbar(image, ax=axes, label=label)
    return figure


def gate_means_figure(layer_gates: Sequence[Gate]) -> Figure:
    """Draw the means over units of the gates of one layer at every token."""
    first = layer_gates[0]
    wide = width_for(len(first.values))
    figure, grid = new_figure(width=wide)
    axes = grid.flat[0]
    for i, gate in enumerate(layer_gates):
        axes.plot(gate.mean.numpy(), **{**style(i), "marker": ""}, label=gate.name)
    if not any(gate.is_rate for gate in layer_gates):
        axes.set_ylim(0, 1)
    axes.set(ylabel="mean over units")
    axes.set_title(plain(first.layer))
    name_tokens(axes.xaxis, first.tokens, wide - MARGINS)
    axes.legend(frameon=False)
    return figure


def gates_section(subject: Subject) -> Content:
    """Write the section on gates, step sizes and experts."""
    result = gates(subject.run, subject.text)
    if not result.gates and not result.choices:
        return Content([Prose("Not shown: this model has no gates, step sizes or experts.")])
    parts: list[Part] = []
    if result.shown < result.total:
        parts.append(Prose(f"Only the first {result.shown:,} of {result.total:,} tokens are shown."))
    rows = [
        [gate.layer, gate.name, f"{gate.open:.0%}", f"{gate.closed:.0%}"] for gate in result.gates if not gate.is_rate
    ]
    if rows:
        caption = "Share of gate values that are open (above 0.9) and closed (below 0.1), over units and tokens."
        parts.append(Table(["layer", "gate", "open", "closed"], rows, caption, {2, 3}))
    plots = []
    for layer in dict.fromkeys(gate.layer for gate in result.gates):
        layer_gates = [gate for gate in result.gates if gate.layer == layer]
        names = ", ".join(gate.name for gate in layer_gates)
        plots.append(
            Plot(
                gate_means_figure(layer_gates),
                f"Means of the gates of {layer}",
                "Mean over the units at every token.",
                f"Means over units of {names} at every token.",
            )
        )
    plots += [_gate_plot(gate) for gate in result.gates]
    plots += [
        Plot(
            experts_figure(choices),
            f"Experts of {choices.layer}",
            "The experts chosen for each token, and the weights of their outputs.",
            f"Weights of {choices.count} experts over {len(choices.experts)} tokens.",
        )
        for choices in result.choices
    ]
    return Content([*parts, Plots(plots)])


def _gate_plot(gate: Gate) -> Plot:
    rate = (
        "Step sizes Δ: with a large one the layer takes the token in and forgets, with a small one it skips the token."
    )
    caption = rate if gate.is_rate else "Every unit at every token; units are sorted by their means."
    tokens, units = gate.values.shape
    return Plot(
        gate_figure(gate), f"{gate.layer}, {gate.name}", caption, f"Heat map of {units} units over {tokens} tokens."
    )
