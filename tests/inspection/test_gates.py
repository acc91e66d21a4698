"""Gates: every one has a name, and its values are those of the equations."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import seriatim
from seriatim.inspection.gates import (
    Result,
    UnitNumbers,
    gate_chart,
    gate_names,
    gates,
    gates_section,
    recorded_gates,
    unit_numbers,
    unit_stepper,
    unit_switch,
)
from seriatim.inspection.inspected_run import prepare
from seriatim.inspection.recording import primitive_layers
from seriatim.pages.chart import Switch
from seriatim.pages.stepper import Stepper
from seriatim.recurrence import uncompiled
from seriatim.tasks.explainer import Example

from ..conftest import randn, small_config
from ..laws.eight_laws import INPUT_SIZE, build
from .inspected import SENTENCE


@pytest.fixture(autouse=True)
def _uncompiled() -> Iterator[None]:
    """Disable compiled code, which these tests do not need and which takes seconds to build."""
    with uncompiled():
        yield


def noted(layer: nn.Module, inputs: Tensor) -> list[list[Result]]:
    """Return the gates and step sizes of every step."""
    (steps,) = recorded_gates(layer, lambda: layer(inputs))
    return [[result for result in step if result.kind != "tanh"] for step in steps.recorded]


def numbers_of(layer: nn.Module, inputs: Tensor, *, count: int = 4) -> UnitNumbers | None:
    (steps,) = recorded_gates(layer, lambda: layer(inputs))
    size = inputs.shape[1]
    return unit_numbers(steps, Example((1,) * size, (), tuple(map(str, range(size)))), count=count)


UPDATED = ("lstm", "lstm-coupled", "lstm-peephole", "lstm-layernorm", "gru", "gru-original", "mgu", "residual-rnn")


@pytest.mark.parametrize("name", UPDATED)
def test_the_equations_of_a_unit_give_its_recorded_state(name: str) -> None:
    """Every equation that the class of a layer declares holds for the numbers that its step computed."""
    layer, inputs = build(f"bare-{name}"), randn(1, 6, INPUT_SIZE)
    found = numbers_of(layer, inputs)
    (update,) = {module.unit_update for module in layer.modules() if getattr(module, "unit_update", None)}
    assert [equation.left for equation in found.equations] == [text.split(" = ")[0] for text in update.equations]
    for unit in range(len(found.units)):
        for left, terms in found.equations:
            total = sum(torch.stack([torch.tensor(found.of(unit, name)) for name in term]).prod(0) for term in terms)
            torch.testing.assert_close(total, torch.tensor(found.of(unit, left)), rtol=1e-5, atol=1e-6)
    state = layer.initial_state(1)
    for t in range(6):
        _, state = layer.step(inputs[:, t], state)
        leaf = (state if isinstance(state, Tensor) else state[-1])[0, found.units].detach().float()
        torch.testing.assert_close(found.values[:, t, found.names.index(found.states[-1])], leaf)


def test_the_numbers_of_an_lstm_are_those_of_its_weights() -> None:
    layer, inputs = build("bare-lstm"), randn(1, 3, INPUT_SIZE)
    found = numbers_of(layer, inputs)
    hidden, cell = torch.zeros(1, layer.output_size), torch.zeros(1, layer.output_size)
    weights = {name: parameter.detach().float() for name, parameter in layer.cell.named_parameters()}
    for t in range(3):
        sums = inputs[:, t].float() @ weights["weight_ih_l0"].T + weights["bias_ih_l0"]
        i, f, g, o = (sums + hidden @ weights["weight_hh_l0"].T + weights["bias_hh_l0"]).chunk(4, dim=1)
        expected = {"f": f.sigmoid(), "i": i.sigmoid(), "g": g.tanh(), "o": o.sigmoid(), "c′": cell}
        cell = expected["f"] * cell + expected["i"] * expected["g"]
        hidden = expected["o"] * cell.tanh()
        expected |= {"c": cell, "tanh c": cell.tanh(), "h": hidden}
        for name, values in expected.items():
            torch.testing.assert_close(found.values[:, t, found.names.index(name)], values[0, found.units])


def test_an_equation_that_does_not_hold_is_left_out() -> None:
    """A projected output is no product of gate and cell, and is narrower than the cell."""
    layer = seriatim.layer("lstm", 5, 6, projection_size=3).double().eval()
    found = numbers_of(layer, randn(1, 4, 5))
    assert [equation.left for equation in found.equations] == ["c"]
    assert "h" not in found.names


def test_the_units_that_vary_most_are_chosen() -> None:
    layer, inputs = build("bare-rnn"), randn(1, 9, INPUT_SIZE)
    found = numbers_of(layer, inputs, count=3)
    deviations = layer(inputs)[0][0].std(0)
    assert found.units == deviations.argsort(descending=True)[:3].tolist()
    assert (found.size, found.states, found.gates) == (layer.output_size, ("h",), ())
    charts = [chart for _, chart in unit_switch(found).choices]
    assert [[list(series.y) for series in chart.series] for chart in charts] == [
        [found.of(unit, "h")] for unit in range(3)
    ]
    assert numbers_of(layer, inputs[:, :1]) is None, "one token has no variation"
    assert numbers_of(build("bare-mamba"), inputs) is None, "its state is a matrix"


def test_a_stepper_shows_products_of_its_own_numbers() -> None:
    found = numbers_of(build("bare-gru"), randn(1, 5, INPUT_SIZE))
    stepper = unit_stepper(found)
    (equation,) = stepper.equations
    total = sum(stepper.product(term) for term in equation.terms)
    assert total == pytest.approx(stepper.shown[equation.left], abs=1e-4)
    changes = [abs(a - b) for a, b in zip(found.of(0, "h"), found.of(0, "h′"), strict=True)]
    assert stepper.first == changes.index(max(changes))
    assert len(stepper.units) == len(found.units)


@pytest.mark.parametrize("name", [*(f"bare-{name}" for name in seriatim.layers.names()), "gru-zoneout", "cell-zoneout"])
def test_every_gate_of_an_architecture_has_a_name(name: str) -> None:
    """A new architecture names its gates in `gate_names`, in the order in which its step computes them."""
    layer = build(name)
    found = recorded_gates(layer, lambda: layer(randn(1, 4, INPUT_SIZE)))
    for steps in found:
        kinds = [[result.kind for result in step if result.kind != "tanh"] for step in steps.recorded]
        assert [len(gates) for gates in kinds] == [len(gate_names(steps.primitive.layer))] * 4
    named = {gate_names(leaf.layer) for leaf in primitive_layers(layer)} - {()}
    assert named <= {gate_names(steps.primitive.layer) for steps in found}


def test_gates_equal_the_equations() -> None:
    layer = build("lstm")
    inputs = randn(1, 3, INPUT_SIZE)
    hidden = torch.zeros(1, 6, dtype=torch.float64)
    state = layer.initial_state(1)
    for t, found in enumerate(noted(layer, inputs)):
        i, f, _, o = (
            inputs[:, t] @ layer.cell.weight_ih_l0.T
            + layer.cell.bias_ih_l0
            + hidden @ layer.cell.weight_hh_l0.T
            + layer.cell.bias_hh_l0
        ).chunk(4, dim=1)
        expected = dict(zip(("input", "forget", "output"), map(torch.sigmoid, (i, f, o)), strict=True))
        for name, (kind, values) in zip(gate_names(layer), found, strict=True):
            torch.testing.assert_close(values, expected[name][0].float())
            assert kind == "gate"
        hidden, state = layer.step(inputs[:, t], state)


def test_step_sizes_of_mamba_are_positive_rates() -> None:
    layer = build("bare-mamba")
    found = noted(layer, randn(1, 5, INPUT_SIZE))
    assert all(kind == "rate" and bool((values > 0).all()) for ((kind, values),) in found)


def test_a_cell_without_gate_names_has_no_names() -> None:
    class Leaky(seriatim.RecurrentCell):
        def __init__(self) -> None:
            super().__init__()
            self.input_size = self.output_size = 4
            self.w = nn.Linear(4, 8)

        def initial_state(self, batch_size: int) -> Tensor:
            return self.zeros(batch_size, 4)

        def forward(self, inputs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
            a, b = self.w(inputs).sigmoid().chunk(2, dim=1)
            hidden = a * state + b * torch.nn.functional.sigmoid(inputs)
            return hidden, hidden

    layer = seriatim.Recurrent(Leaky())
    assert gate_names(layer) == ()
    assert [len(found) for found in noted(layer, torch.randn(1, 3, 4))] == [2] * 3


def test_gates_of_a_run_belong_to_its_tokens(texts: dict[str, str], tmp_path: Path) -> None:
    config = small_config(texts, tmp_path / "run", model={"layer": "mingru,mamba"}, training={"steps": 2})
    run = seriatim.train({**config, "tokenizer": {"kind": "word"}})
    found = gates(run, "the cat sees the moon .", max_tokens=4)
    assert (found.shown, found.total) == (4, 6)
    assert [(gate.layer, gate.name, gate.is_rate) for gate in found.gates] == [
        ("layer 1: mingru", "update (takes)", False),
        ("layer 2: mamba", "step size Δ", True),
    ]
    gate = found.gates[0]
    assert gate.tokens == ("</s>", "the", "cat", "sees")
    assert gate.values.shape == (4, 24)
    assert bool(((gate.values > 0) & (gate.values < 1)).all())
    torch.testing.assert_close(torch.tensor(gate_chart(gate).series[0].y), gate.values.mean(1))


def test_both_directions_are_in_the_order_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "labels.tsv"
    path.write_text("label\ttext\n" + "a\tred green\nb\tblue red\n" * 8)
    config = {
        "task": "classify",
        "data": {"train": str(path)},
        "model": {"layer": "mingru", "embedding_size": 8, "hidden_size": 8},
        "training": {"baseline": "none", "steps": 2},
        "out": str(tmp_path / "run"),
    }
    run = seriatim.train(config)
    layer = run.model.layer
    layer.backwards.load_state_dict(layer.forwards.state_dict())
    there, back = (gates(run, text).gates for text in ("red green blue", "blue green red"))
    for gate, mirrored in zip(there[:1], back[1:], strict=True):
        assert gate.tokens == tuple(reversed(mirrored.tokens))
        torch.testing.assert_close(gate.values, mirrored.values.flip(0))


def test_every_token_has_its_experts(texts: dict[str, str], tmp_path: Path) -> None:
    options = {"num_experts": 3, "experts_per_token": 2, "feed_forward": "gelu"}
    model = {"layer": "transformer", "options": options, "num_layers": 2}
    run = seriatim.train(small_config(texts, tmp_path / "run", model=model, training={"steps": 2}))
    found = gates(run, "the cat")
    assert not found.gates
    assert [choices.layer for choices in found.choices] == ["layer 1: experts", "layer 2: experts"]
    for choices in found.choices:
        assert choices.count == 3
        assert choices.experts.shape == choices.weights.shape == (7, 2)
        torch.testing.assert_close(choices.weights.sum(1), torch.ones(7))


@pytest.mark.parametrize("name", ["lm", "lm-lines"])
def test_the_section_begins_with_the_units(inspected, name: str) -> None:
    parts = gates_section(prepare(inspected[name], SENTENCE, beam=1, data=None, file_format=None)).blocks
    assert [type(part) for part in parts[:2]] == [Stepper, Switch]
