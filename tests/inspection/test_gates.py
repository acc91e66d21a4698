"""Gates: every one has a name, and its values are those of the equations."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import seriatim
from seriatim.inspection.gates import Gate, changing_units, gate_names, gates, gates_section, recorded_gates
from seriatim.inspection.inspected_run import prepare
from seriatim.inspection.recording import primitive_layers
from seriatim.pages.page import Tokens
from seriatim.recurrence import uncompiled

from ..conftest import randn, small_config
from ..laws.eight_laws import INPUT_SIZE, build
from .inspected import SENTENCE


@pytest.fixture(autouse=True)
def _uncompiled() -> Iterator[None]:
    """Disable compiled code, which these tests do not need and which takes seconds to build."""
    with uncompiled():
        yield


def noted(layer: nn.Module, inputs: Tensor) -> list[list[tuple[Tensor, bool]]]:
    (steps,) = recorded_gates(layer, lambda: layer(inputs))
    return steps.recorded


def test_the_units_that_vary_most_are_chosen() -> None:
    values = torch.full((6, 5), 0.5)
    values[:, 3], values[::2, 1] = torch.linspace(0, 1, 6), 0.9
    steady = Gate("layer 1: gru", "reset", tuple("abcdef"), torch.rand(1, 4).expand(6, 4))
    moving = Gate("layer 1: gru", "update", tuple("abcdef"), values)
    assert changing_units([steady, moving], 2) == [(moving, 3), (moving, 1)]
    assert changing_units([Gate("one token", "reset", ("a",), torch.rand(1, 4))]) == []


@pytest.mark.parametrize("name", [*(f"bare-{name}" for name in seriatim.layers.names()), "gru-zoneout", "cell-zoneout"])
def test_every_gate_of_an_architecture_has_a_name(name: str) -> None:
    """A new architecture names its gates in `gate_names`, in the order in which its step computes them."""
    layer = build(name)
    found = recorded_gates(layer, lambda: layer(randn(1, 4, INPUT_SIZE)))
    for steps in found:
        assert [len(gates) for gates in steps.recorded] == [len(gate_names(steps.primitive.layer))] * 4
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
        for name, (values, is_rate) in zip(gate_names(layer), found, strict=True):
            torch.testing.assert_close(values, expected[name][0].float())
            assert not is_rate
        hidden, state = layer.step(inputs[:, t], state)


def test_step_sizes_of_mamba_are_positive_rates() -> None:
    layer = build("bare-mamba")
    found = noted(layer, randn(1, 5, INPUT_SIZE))
    assert all(is_rate and bool((values > 0).all()) for ((values, is_rate),) in found)


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
    assert gate.open == pytest.approx((gate.values > 0.9).double().mean())
    assert gate.closed == pytest.approx((gate.values < 0.1).double().mean())
    torch.testing.assert_close(gate.mean, gate.values.mean(1))


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


@pytest.mark.parametrize("name", ["lm", "classify"])
def test_units_are_painted_on_the_text_itself(inspected, name: str) -> None:
    parts = gates_section(prepare(inspected[name], SENTENCE, beam=1, data=None, file_format=None)).blocks
    painted = [part for part in parts if isinstance(part, Tokens)]
    assert len(painted) == 3
    for part in painted:
        text = "".join(token.text for token in part.tokens if not token.symbol)
        assert SENTENCE.startswith(text.rstrip())
        assert len(text) >= len(SENTENCE) - 1, "the last token is predicted, not read"
