"""Gates over a text: how far each one is open at every token; also step sizes Δ, and the experts of a mixture.

A layer runs step by step, as its equations are written, and the result of every sigmoid and softplus is recorded. The
class of the layer names its gates (`Stateful.gate_names`); gates of cells without names are numbered.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.contract import Stateful
from ..core.errors import NotSupportedError
from ..evaluation.token_scores import visible
from ..layers.experts import Experts, Routing
from ..pages.charts import name_tokens, width_for
from ..pages.drawing import show
from ..pages.page import Folded, PageBlock, Plot, Plots, Prose, Table
from ..pages.strip import Values
from ..pages.theme import new_figure, plain, style
from ..pages.wording import percent
from ..runs.run import Run
from ..tasks.explainer import Example
from .attention_maps import MARGINS, token_map
from .inspected_run import InspectedRun, SectionBody, explainer_of
from .recording import (
    Arguments,
    CallRecorder,
    Keywords,
    PrimitiveLayer,
    Steps,
    primitive_layers,
    recorded_results,
    run_once,
    unrolled,
)

MAX_TOKENS = 128
"""Tokens that are read."""
OPEN, CLOSED = 0.9, 0.1
"""Values above the first count as open, values below the second as closed."""
PAINTED = 3
"""Units whose values are painted on the text."""
RATES = "With a large step size Δ, the layer takes the token in and forgets; with a small one, it skips the token."
SIGMOIDS = {torch.sigmoid, torch.Tensor.sigmoid, F.sigmoid, torch.special.expit}


@dataclass(frozen=True)
class Gate:
    """One gate of one layer over a text, or a step size (``is_rate``): values of all units ``(tokens, size)``.

    ``layer`` is the name of a `PrimitiveLayer`, ``name`` that of the gate, such as ``forget``. Tokens are in the order
    of the text; they are empty if the steps of the layer are not tokens.
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
    """Experts that one mixture of ``count`` experts chose over a text.

    ``layer`` and ``tokens`` are those of a `Gate`. ``experts`` and the ``weights`` of their outputs are given for each
    token, in descending order of fitness ``(tokens, chosen)``.
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
    """Read the beginning of a text, and record every gate, step size and choice of experts, if the model has any.

    ``text`` is a text, or another item that `Explainer.examples` reads; only its first sequence is used.

    Raises:
        InputError: there is nothing to read in the text.
    """
    explainer = explainer_of(run)
    full = explainer.examples(text)[0]
    example = full.beginning(max_tokens)
    modules = [(primitive, module) for primitive in primitive_layers(run.model) for module in primitive.layer.modules()]
    routers = {module.router: primitive for primitive, module in modules if isinstance(module, Experts)}
    with recorded_results(routers, Routing._make) as routed:
        recorded = recorded_gates(run.model, lambda: run_once(explainer, example))
    values = [gate for steps in recorded for gate in _gates_of(steps, example)]
    choices = [
        _choices_of(primitive, routed[router], example) for router, primitive in routers.items() if routed[router]
    ]
    return Gates(values, choices, example.length, full.length)


def recorded_gates(model: nn.Module, forward: Callable[[], object]) -> list[Steps[list[GateValues]]]:
    """Call ``forward`` while every primitive layer of a model runs step by step, and return the gates of every step.

    Gradients are enabled, since without them layers call kernels instead of their equations.
    """
    with torch.enable_grad(), unrolled(model, watch=_GateRecorder) as recorded:
        forward()
    return recorded


def gate_names(layer: nn.Module) -> tuple[str, ...]:
    """Return the names of the gates of a layer or of the cell in it; empty if its class does not name them."""
    return next((inner.gate_names for inner in layer.modules() if isinstance(inner, Stateful) and inner.gate_names), ())


class _GateRecorder(CallRecorder):
    """Records the results of sigmoid and softplus, for the only row of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.gates: list[GateValues] = []

    def __enter__(self) -> list[GateValues]:
        super().__enter__()  # type: ignore[no-untyped-call]
        return self.gates

    def observe(self, func: Callable[..., Any], args: Arguments, kwargs: Keywords, result: Tensor) -> None:
        """Record the result, or the gate inside of a gated linear unit."""
        if func is F.glu:
            dim = kwargs.get("dim", args[1] if len(args) > 1 else -1)
            result = torch.sigmoid(args[0].chunk(2, dim)[1])
        elif func not in SIGMOIDS and func is not F.softplus:
            return
        self.gates.append(GateValues(result.detach().float().flatten(), func is F.softplus))


def _gates_of(steps: Steps[list[GateValues]], example: Example) -> Iterator[Gate]:
    """Yield the gates of one primitive layer, in the order of its equations."""
    by_gate = list(zip(*steps.recorded, strict=False))
    names, tokens = gate_names(steps.primitive.layer), tokens_of(steps.primitive, example, len(steps.recorded))
    for i, gate in enumerate(by_gate):
        values = torch.stack([step.values for step in gate]).cpu()
        name = names[i] if len(names) == len(by_gate) else f"gate {i + 1}"
        yield Gate(
            steps.primitive.name, name, tokens, values.flip(0) if steps.primitive.backwards else values, gate[0].is_rate
        )


def _choices_of(primitive: PrimitiveLayer, routings: list[Routing], example: Example) -> ExpertChoices:
    weights, experts, probabilities = (torch.cat(tensors).detach().cpu() for tensors in zip(*routings, strict=True))
    if primitive.backwards:
        experts, weights = experts.flip(0), weights.flip(0)
    tokens = tokens_of(primitive, example, len(experts))
    return ExpertChoices(primitive.name, tokens, experts, weights.float(), probabilities.shape[1])


def tokens_of(primitive: PrimitiveLayer, example: Example, steps: int) -> tuple[str, ...]:
    """Return what a primitive layer reads at its steps, in the order of the text; empty if these are not tokens."""
    tokens = example.decoded if primitive.decodes else example.tokens
    return tokens if len(tokens) == steps else ()


def gate_figure(gate: Gate) -> Figure:
    """Draw a gate, or a step size, as a heat map: tokens across, units down, sorted by their means."""
    values = gate.values[:, gate.values.mean(0).argsort(descending=True)].T
    label, largest = ("step size Δ", None) if gate.is_rate else ("0 closed, 1 open", 1.0)
    figure = token_map(values.numpy(), gate.tokens, f"{gate.layer}, {gate.name}", label, largest=largest)
    figure.axes[0].set_ylabel("units, sorted by mean")
    figure.axes[0].yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    return figure


def experts_figure(choices: ExpertChoices) -> Figure:
    """Draw the experts chosen for each token: tokens across, experts down, bright for large weights."""
    weights = torch.zeros(choices.count, len(choices.experts))
    weights.scatter_(0, choices.experts.T, choices.weights.T)
    label = "weight of its answer"
    figure = token_map(weights.numpy(), choices.tokens, choices.layer, label, largest=1.0, height=2.4)
    figure.axes[0].set_ylabel("expert")
    figure.axes[0].set_yticks(range(choices.count), [str(i + 1) for i in range(choices.count)])
    return figure


def gate_means_figure(layer_gates: Sequence[Gate]) -> Figure:
    """Draw the means over units of the gates of one layer at every token."""
    first, width = layer_gates[0], width_for(len(layer_gates[0].values))
    figure, [[axes]] = new_figure(width=width)
    for i, gate in enumerate(layer_gates):
        line = axes.plot(gate.mean.numpy(), **{**style(i), "marker": ""}, label=gate.name)
        show(line, gate.name, names=[visible(token) for token in gate.tokens])
    if not any(gate.is_rate for gate in layer_gates):
        axes.set_ylim(0, 1)
    axes.set(ylabel="mean over units", title=plain(first.layer))
    name_tokens(axes.xaxis, first.tokens, width - MARGINS)
    axes.legend()
    return figure


def gates_section(inspected: InspectedRun) -> SectionBody:
    """Write the section on gates, step sizes and experts."""
    result = gates(inspected.run, inspected.item)
    if not result.gates and not result.choices:
        raise NotSupportedError("this model has no gates, step sizes or experts")
    blocks: list[PageBlock] = []
    if result.shown < result.total:
        blocks.append(Prose(f"Only the first {result.shown:,} of {result.total:,} tokens are shown."))

    # Step sizes are left out of the table, because they have no bounds within which to be open or closed.
    rows = [
        [gate.layer, gate.name, percent(gate.open), percent(gate.closed)] for gate in result.gates if not gate.is_rate
    ]
    if rows:
        caption = "Share of gate values that are open (above 0.9) and closed (below 0.1), over units and tokens."
        blocks.append(Table(["layer", "gate", "open", "closed"], rows, caption, {2, 3}))

    # The means stand before the heat maps, which only few readers unfold.
    by_layer: dict[str, list[Gate]] = {}
    for gate in result.gates:
        by_layer.setdefault(gate.layer, []).append(gate)
    means = [_means_plot(layer_gates) for layer_gates in by_layer.values()]
    blocks.append(Plots([*means, *map(_experts_plot, result.choices)]))
    if result.gates:
        blocks.append(Folded("All units of all gates", [Plots(list(map(_gate_plot, result.gates)))]))
    # Of a translator, gates are about the source or about the answer, and the strip has both.
    lenses = gate_lenses(result.gates) if inspected.explainer.search is None else []
    return SectionBody(blocks, lenses=lenses)


def changing_units(layer_gates: Sequence[Gate], count: int = PAINTED) -> list[tuple[Gate, int]]:
    """Return the gates and units whose values vary most over the tokens, by their standard deviation."""
    units = [
        (deviation, i, unit)
        for i, gate in enumerate(layer_gates)
        if len(gate.values) > 1
        for unit, deviation in enumerate(gate.values.std(0).tolist())
    ]
    return [(layer_gates[i], unit) for _, i, unit in sorted(units, key=lambda each: (-each[0], *each[1:]))[:count]]


def gate_lenses(all_gates: Sequence[Gate]) -> list[Values]:
    """Return the units that vary most over the text as lenses; step sizes have no fixed scale."""
    known = [gate for gate in all_gates if not gate.is_rate and gate.tokens]
    units = sum(gate.values.shape[1] for gate in known)
    return [
        Values(
            f"{gate.name}, unit {unit + 1}",
            gate.values[:, unit].tolist(),
            1.0,
            # Of many units some vary by chance, so that a reader is told from how many these were chosen.
            sentence=f"One of the {PAINTED} of {units:,} units that vary most over this text.",
            group=f"Gates, {gate.layer}",
            ends=("closed", "open"),
        )
        for gate, unit in changing_units(known)
    ]


def _means_plot(layer_gates: Sequence[Gate]) -> Plot:
    names, figure = ", ".join(gate.name for gate in layer_gates), gate_means_figure(layer_gates)
    description = f"Means over units of {names} at every token."
    rates = all(gate.is_rate for gate in layer_gates)
    title = f"{'Step sizes' if rates else 'Means of the gates'} of {layer_gates[0].layer}"
    caption = f"Mean over the units at every token.{f' {RATES}' if rates else ''}"
    return Plot(figure, title, caption, description)


def _gate_plot(gate: Gate) -> Plot:
    caption = "Every unit at every token; units are sorted by their means."
    if gate.is_rate:
        caption = f"{caption} {RATES}"
    tokens, units = gate.values.shape
    description = f"Heat map of {units} units over {tokens} tokens."
    return Plot(gate_figure(gate), f"{gate.layer}, {gate.name}", caption, description)


def _experts_plot(choices: ExpertChoices) -> Plot:
    caption = "The experts chosen for each token, and the weights of their outputs."
    description = f"Weights of {choices.count} experts over {len(choices.experts)} tokens."
    return Plot(experts_figure(choices), f"Experts of {choices.layer}", caption, description)
