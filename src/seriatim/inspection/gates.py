"""Gates and units over a text: how far each gate is open at every token, and how single units change step by step.

A layer runs step by step, as its equations are written, and the result of every sigmoid, tanh and softplus is recorded,
with the state after every step. The class of the layer names its gates (`Stateful.gate_names`), and says how a unit of
its state follows from them (`Stateful.unit_update`); gates of cells without names are numbered.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.contract import Stateful, UnitUpdate
from ..core.errors import NotSupportedError
from ..core.state import State, state_leaves
from ..evaluation.token_scores import counted, visible
from ..layers.experts import Experts, Routing
from ..pages.chart import Axis, Chart, HeatMap, Series, Switch
from ..pages.page import Folded, PageBlock, Prose
from ..pages.stepper import Equation, Stepper
from ..pages.strip import LONGEST, Values
from ..pages.theme import style
from ..pages.wording import cut
from ..runs.run import Run
from ..tasks.explainer import Example
from .inspected_run import InspectedRun, SectionBody, explainer_of
from .recording import Arguments, CallRecorder, Keywords, PrimitiveLayer, Steps, primitive_layers, run_once, unrolled

MAX_TOKENS = 64
"""Tokens that are read."""
UNITS = 3
"""Units of a layer whose numbers are shown."""
DIGITS = 5
"""Decimal places of the numbers of a unit."""
TOLERANCE = 1e-4
"""How far an equation may miss the recorded state, absolutely and relatively, by rounding in float32."""
KINDS: dict[object, Literal["gate", "tanh", "rate"]] = {
    **dict.fromkeys((torch.sigmoid, torch.Tensor.sigmoid, F.sigmoid, torch.special.expit, F.glu), "gate"),
    **dict.fromkeys((torch.tanh, torch.Tensor.tanh, F.tanh), "tanh"),
    F.softplus: "rate",
}
BRACKETS = re.compile(r"^\((.*)\)$")
CHOSEN = "The {count} of {size} units whose {state} varies most over this text, by its standard deviation."


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


@dataclass(frozen=True)
class UnitNumbers:
    """The numbers of the units of one layer whose state varies most over a text.

    Attributes:
        layer: the name of a `PrimitiveLayer`.
        tokens: in the order of the text.
        units: the indices of the units.
        size: the number of all units of the layer.
        names: of the numbers; a prime marks the state before a token.
        states: the names of the state after a token; the units were chosen by the first one.
        gates: the symbols of the gates and their names.
        values: the numbers ``(units, tokens, names)``.
        equations: those of `UnitUpdate` that hold for these numbers.
    """

    layer: str
    tokens: tuple[str, ...]
    units: list[int]
    size: int
    names: tuple[str, ...]
    states: tuple[str, ...]
    gates: tuple[tuple[str, str], ...]
    values: Tensor
    equations: tuple[Equation, ...]

    def of(self, unit: int, name: str) -> list[float]:
        """Return a number of the unit at an index at every token."""
        numbers: list[float] = self.values[unit, :, self.names.index(name)].tolist()
        return numbers


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
    """Gates, units and chosen experts for the first ``shown`` of ``total`` tokens."""

    gates: list[Gate]
    units: list[UnitNumbers]
    choices: list[ExpertChoices]
    shown: int
    total: int


class Result(NamedTuple):
    """The result of a sigmoid or tanh at one step ``(size,)``, or a step size, which is the result of a softplus."""

    kind: Literal["gate", "tanh", "rate"]
    values: Tensor


def gates(run: Run, text: object, *, max_tokens: int = MAX_TOKENS) -> Gates:
    """Read the beginning of a text, and record gates, step sizes, units and chosen experts, if the model has any.

    ``text`` is a text, or another item that `Explainer.examples` reads; only its first sequence is used.

    Raises:
        InputError: there is nothing to read in the text.
    """
    explainer = explainer_of(run)
    full = explainer.examples(text)[0]
    example = full.beginning(max_tokens)
    modules = [(primitive, module) for primitive in primitive_layers(run.model) for module in primitive.layer.modules()]
    routers = {module.router: primitive for primitive, module in modules if isinstance(module, Experts)}
    routed: dict[nn.Module, list[Routing]] = {router: [] for router in routers}
    with ExitStack() as hooks:
        for router in routers:
            hooks.enter_context(router.register_forward_hook(lambda of, _, found: routed[of].append(Routing(*found))))
        recorded = recorded_gates(run.model, lambda: run_once(explainer, example))
    values = [gate for steps in recorded for gate in _gates_of(steps, example)]
    units = [numbers for steps in recorded if (numbers := unit_numbers(steps, example)) is not None]
    choices = [
        _choices_of(primitive, routed[router], example) for router, primitive in routers.items() if routed[router]
    ]
    return Gates(values, units, choices, example.length, full.length)


def recorded_gates(model: nn.Module, forward: Callable[[], object]) -> list[Steps[list[Result]]]:
    """Call ``forward`` while every primitive layer of a model runs step by step, and return the results of every step.

    Gradients are enabled, since without them layers call kernels instead of their equations.
    """
    with torch.enable_grad(), unrolled(model, watch=_GateRecorder) as recorded:
        forward()
    return recorded


def gate_names(layer: nn.Module) -> tuple[str, ...]:
    """Return the names of the gates of a layer or of the cell in it; empty if its class does not name them."""
    return next((inner.gate_names for inner in layer.modules() if isinstance(inner, Stateful) and inner.gate_names), ())


def _unit_update(layer: nn.Module) -> UnitUpdate | None:
    updates = (inner.unit_update for inner in layer.modules() if isinstance(inner, Stateful))
    return next((update for update in updates if update is not None), None)


class _GateRecorder(CallRecorder):
    """Records the results of sigmoid, tanh and softplus, for the only row of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[Result] = []

    def __enter__(self) -> list[Result]:
        super().__enter__()  # type: ignore[no-untyped-call]
        return self.results

    def observe(self, func: Callable[..., Any], args: Arguments, kwargs: Keywords, result: Tensor) -> None:
        """Record the result, or the gate inside of a gated linear unit."""
        if func is F.glu:
            dim = kwargs.get("dim", args[1] if len(args) > 1 else -1)
            result = torch.sigmoid(args[0].chunk(2, dim)[1])
        if (kind := KINDS.get(func)) is not None:
            self.results.append(Result(kind, result.detach().float().flatten().cpu()))


def _named(steps: Steps[list[Result]]) -> Iterator[tuple[str, Result]]:
    """Yield the results of a layer with the names of gates, which are empty for tanh: ``(tokens, size)`` each."""
    by_result = list(zip(*steps.recorded, strict=False))
    names, count = list(gate_names(steps.primitive.layer)), sum(result[0].kind != "tanh" for result in by_result)
    names = names if len(names) == count else [f"gate {i + 1}" for i in range(count)]
    for result in by_result:
        name = "" if result[0].kind == "tanh" else names.pop(0)
        yield name, Result(result[0].kind, _in_order(steps, [step.values for step in result]))


def _gates_of(steps: Steps[list[Result]], example: Example) -> Iterator[Gate]:
    """Yield the gates of one primitive layer, in the order of its equations."""
    tokens = tokens_of(steps.primitive, example, len(steps.recorded))
    for name, result in _named(steps):
        if name:
            yield Gate(steps.primitive.name, name, tokens, result.values, result.kind == "rate")


def _in_order(steps: Steps[list[Result]], values: Sequence[Tensor]) -> Tensor:
    """Return the values of the steps in the order of the text ``(tokens, size)``."""
    stacked = torch.stack(list(values))
    return stacked.flip(0) if steps.primitive.backwards else stacked


def unit_numbers(steps: Steps[list[Result]], example: Example, *, count: int = UNITS) -> UnitNumbers | None:
    """Return the numbers of the units of one layer that vary most; None if its state is no vector, or for one token."""
    tokens = tokens_of(steps.primitive, example, len(steps.recorded))
    if len(tokens) < 2 or steps.before is None:
        return None
    states = [_vectors(state) for state in (steps.before, *steps.states)]
    size = states[0][-1].numel() if states[0] else 0
    if not size or any(len(state) != len(states[0]) for state in states):
        return None

    # Of the leaves, only those as wide as the last one belong to its units: a projected output does not.
    update = _unit_update(steps.primitive.layer)
    symbols = update.state if update and len(update.state) == len(states[0]) else _leaf_names(steps.before)
    columns: dict[str, Tensor] = {}
    for i, symbol in enumerate(symbols):
        if states[0][i].numel() == size:
            columns[symbol] = _in_order(steps, [state[i] for state in states[1:]])
            columns[f"{symbol}′"] = _in_order(steps, [state[i] for state in states[:-1]])
    after = tuple(symbol for symbol in symbols if symbol in columns)

    # A class without symbols has the names of its gates alone.
    results = [(name, result) for name, result in _named(steps) if result.values.shape[1] == size]
    named = update.results if update and len(update.results) == len(results) else [name for name, _ in results]
    columns |= {symbol: result.values for symbol, (_, result) in zip(named, results, strict=True) if symbol}
    shown = tuple((symbol, name) for symbol, (name, _) in zip(named, results, strict=True) if name)
    equations = tuple(_equations(update, columns)) if update else ()
    if not all(column.isfinite().all() for column in columns.values()):
        return None
    chosen = columns[after[0]].std(0).argsort(descending=True, stable=True)[:count].tolist()
    values = torch.stack([column[:, chosen] for column in columns.values()], dim=2).transpose(0, 1)
    return UnitNumbers(steps.primitive.name, tokens, chosen, size, tuple(columns), after, shown, values, equations)


def _vectors(state: State) -> list[Tensor]:
    """Return the leaves of the only row of a state ``(size,)``; none if any is no vector of numbers."""
    leaves = state_leaves(state)
    if not all(leaf.dim() == 2 and leaf.is_floating_point() for leaf in leaves):
        return []
    return [leaf[0].detach().float().cpu() for leaf in leaves]


def _leaf_names(state: State) -> tuple[str, ...]:
    return ("h",) if isinstance(state, Tensor) else tuple(getattr(state, "_fields", map(str, range(len(state)))))


def _equations(update: UnitUpdate, columns: dict[str, Tensor]) -> Iterator[Equation]:
    """Yield the equations that hold for the recorded numbers, which get those of factors such as ``1 − z``."""
    for text in update.equations:
        left, right = text.split(" = ")
        terms = [[BRACKETS.sub(r"\1", factor) for factor in term.split(" · ")] for term in right.split(" + ")]
        for factor in (factor for term in terms for factor in term if factor.startswith("1 − ")):
            if (gate := factor.removeprefix("1 − ")) in columns:
                columns[factor] = 1 - columns[gate]
        if not {left, *(factor for term in terms for factor in term)} <= columns.keys():
            continue
        total = torch.stack([torch.stack([columns[factor] for factor in term]).prod(0) for term in terms]).sum(0)
        if torch.allclose(total, columns[left], rtol=TOLERANCE, atol=TOLERANCE):
            yield Equation(left, terms)


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


# What the page draws


def unit_stepper(numbers: UnitNumbers) -> Stepper:
    """Return a stepper through the equations of the units, which begins where the first unit changes most."""
    state = numbers.states[-1]
    named = "".join(f"; {symbol}: {name}" for symbol, name in numbers.gates if symbol != name)
    change = torch.tensor(numbers.of(0, state)) - torch.tensor(numbers.of(0, f"{state}′"))
    return Stepper(
        f"One unit of {numbers.layer}, token by token",
        [cut(visible(token), LONGEST) for token in numbers.tokens],
        numbers.names,
        numbers.equations,
        [
            (str(unit + 1), [[round(value, DIGITS) for value in row] for row in rows])
            for unit, rows in zip(numbers.units, numbers.values.tolist(), strict=True)
        ],
        f"A prime marks the state before the token{named}. {_chosen(numbers)}",
        int(change.abs().argmax()),
    )


def unit_switch(numbers: UnitNumbers) -> Switch:
    """Return the state and the gates of each unit over the text."""
    drawn = [(state, state) for state in numbers.states]
    drawn += [(symbol, name if symbol == name else f"{name}: {symbol}") for symbol, name in numbers.gates]
    charts = []
    for i, unit in enumerate(numbers.units):
        curves = [(name, numbers.of(i, symbol)) for symbol, name in drawn]
        charts.append((str(unit + 1), _curves(f"unit {unit + 1}", numbers.tokens, curves, "value", _chosen(numbers))))
    return Switch(f"State and gates of {numbers.layer}", charts, "of unit")


def _chosen(numbers: UnitNumbers) -> str:
    return CHOSEN.format(count=len(numbers.units), size=numbers.size, state=numbers.states[0])


def gate_chart(gate: Gate) -> Chart:
    """Return the mean of a gate, or of a step size, over its units at every token, and the units that vary most."""
    deviations = gate.values.std(0) if len(gate.values) > 1 else torch.zeros(gate.values.shape[1])
    units = deviations.argsort(descending=True, stable=True)[:2].tolist()
    curves = [
        ("mean", gate.values.mean(1).tolist()),
        *((f"unit {unit + 1}", gate.values[:, unit].tolist()) for unit in units),
    ]
    what = "step size Δ" if gate.is_rate else "0 closed, 1 open"
    caption = f"The mean over {counted(gate.values.shape[1], 'units')}, and the two that vary most over this text."
    return _curves(f"{gate.layer}, {gate.name}", gate.tokens, curves, what, caption)


def _curves(
    title: str, tokens: Sequence[str], curves: Sequence[tuple[str, Sequence[float]]], what: str, caption: str
) -> Chart:
    """Return a chart of named curves over the tokens."""
    series = [
        Series(name, range(len(values)), values, "curve", look=style(i)) for i, (name, values) in enumerate(curves)
    ]
    return Chart(title, Axis("", names=[visible(token) for token in tokens]), Axis(what), series, caption)


def experts_map(choices: ExpertChoices) -> HeatMap:
    """Return the experts chosen for each token: tokens across, experts down, with the weights of their outputs."""
    weights = torch.zeros(choices.count, len(choices.experts))
    weights.scatter_(0, choices.experts.T, choices.weights.T)
    return HeatMap(
        f"Experts of {choices.layer}",
        [("", weights.tolist())],
        [str(i + 1) for i in range(choices.count)],
        choices.tokens or [""] * len(choices.experts),
        "weight of its output",
        row_name="expert",
    )


def gates_section(inspected: InspectedRun) -> SectionBody:
    """Write the section on units, gates, step sizes and experts."""
    result = gates(inspected.run, inspected.item)
    if not result.gates and not result.units and not result.choices:
        raise NotSupportedError("this model has no gates, units, step sizes or experts")
    blocks: list[PageBlock] = []
    if result.shown < result.total:
        blocks.append(Prose(f"The first {result.shown:,} of {result.total:,} tokens."))

    # One layer is shown, with its equations if it has any; the others are folded.
    layers: dict[str, list[PageBlock]] = {}
    for numbers in result.units:
        blocks_of = layers.setdefault(numbers.layer, [])
        blocks_of += [unit_stepper(numbers)] if numbers.equations else []
        blocks_of.append(unit_switch(numbers))
    for gate in [gate for gate in result.gates if gate.layer not in layers]:
        layers.setdefault(gate.layer, []).append(gate_chart(gate))
    for choices in result.choices:
        layers.setdefault(choices.layer, []).append(experts_map(choices))
    first, *rest = layers.values()
    blocks += first
    if rest:
        blocks.append(Folded("The other layers", [block for each in rest for block in each]))

    # Of a translator, gates are about the source or about the answer, and the strip has both.
    lenses = [] if inspected.explainer.searches else unit_lenses(result.units)
    return SectionBody(blocks, lenses=lenses)


def unit_lenses(units: Sequence[UnitNumbers]) -> list[Values]:
    """Return the gates of the unit of each layer that varies most over the text as lenses, from 0 to 1."""
    return [
        Values(
            f"{name}, unit {numbers.units[0] + 1}",
            numbers.of(0, symbol),
            1.0,
            sentence=f"A gate of the one of {numbers.size:,} units whose state varies most over this text.",
            group=f"Gates, {numbers.layer}",
            ends=("closed", "open"),
        )
        for numbers in units
        for symbol, name in numbers.gates
    ]
