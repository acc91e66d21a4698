"""The compiled path over sequences agrees with the reference loop: values, final states, gradients."""

import pytest
import torch
from torch import nn

import seriatim
from seriatim.compiler.cpp import toolchain as compiler
from seriatim.core.errors import InputError
from seriatim.core.state import state_leaves
from seriatim.layers.pointwise import ACTIVATIONS, activation_named
from seriatim.recurrence import compiled_loop as runner
from seriatim.recurrence import explain
from seriatim.recurrence.conditions import uncompiled

from ..exhaustive import parameters
from ..quick_compiler import quickly
from .own_cells import (
    CELLS,
    Own,
    agree,
    both,
    close,
    compiled,
    elman,
    given,
    looped,
    maps,
    normalized,
    peephole_lstm,
    results,
    weighted,
)

RAGGED = {2: [2, 0, 1, 2, 1], 7: [3, 7, 0, 1, 7], 63: [63, 0, 5, 62, 17]}


OPTIONS = compiler.OPTIONS
_quickly = pytest.fixture(autouse=True, scope="module")(quickly)


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch):
    """Two threads share every step, however small."""
    monkeypatch.setattr(runner, "WORTH_SHARING", 0)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", CELLS)
def test_every_width_length_and_padding(name: str) -> None:
    for width in (3, 16, 37, 50) if name != "normalized" else (3, 50):  # whose every width is compiled anew
        cell = CELLS[name](width)
        for time, lengths in RAGGED.items():
            agree(cell, time=time)
            agree(cell, time=time, lengths=lengths, batch=5)


@pytest.mark.parametrize("name", ["peephole LSTM", "joined state"])
def test_a_single_feature(name: str) -> None:
    cell = CELLS[name](1)
    agree(cell, time=7, batch=5, lengths=RAGGED[7])
    agree(cell, time=63)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CELLS)
def test_single_precision(name: str) -> None:
    cell = CELLS[name](50)
    agree(cell, time=7, dtype=torch.float32)
    agree(cell, time=63, batch=5, lengths=RAGGED[63], dtype=torch.float32)


USED = [
    f"{name}-{dtype}" for name in ("peephole LSTM", "normalized", "joined state") for dtype in ("float32", "float64")
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("use", parameters(USED, everyday=("peephole LSTM-float32", "normalized-float64")))
def test_as_it_is_compiled_for_use(use: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "OPTIONS", OPTIONS)
    name, number = use.split("-")
    cell, dtype = CELLS[name](50), getattr(torch, number)
    agree(cell, dtype=dtype)
    agree(cell, time=63, batch=5, lengths=RAGGED[63], dtype=dtype)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("name", CELLS)
def test_threads_share_a_step(name: str) -> None:
    for width in (3, 50):
        cell = CELLS[name](width)
        for lengths in (None, RAGGED[7]):
            agree(cell, batch=5, lengths=lengths)


@pytest.mark.usefixtures("shared")
def test_threads_share_a_step_of_one_row() -> None:
    for make in (peephole_lstm, normalized):
        agree(make(50), batch=1)


def test_batches_of_many_sizes() -> None:
    cell = peephole_lstm(16)
    for batch in (1, 2, 3, 8, 9, 15, 33):
        agree(cell, batch=batch)


def test_all_rows_empty() -> None:
    agree(elman(), lengths=[0, 0, 0, 0])


def test_no_row_is_full() -> None:
    agree(elman(), lengths=[0, 5, 2, 1])


def test_a_state_that_is_not_contiguous_and_inputs_that_are_expanded() -> None:
    cell = elman().double()
    inputs = torch.randn(1, 7, 5).double().expand(3, 7, 5)
    for state in (torch.randn(4, 3).double().t(), torch.zeros(1, 4).double().expand(3, 4)):
        close([compiled(cell, inputs, state)[0]], [looped(cell, inputs, state)[0]], 1e-12)


@pytest.fixture(scope="module")
def lstm() -> Own:
    torch.manual_seed(0)
    return peephole_lstm(16).double()


def test_two_backward_passes_of_one_forward_are_equal(lstm: Own) -> None:
    inputs, state = given(lstm, 4, 7, torch.float64)
    sources = [inputs, *state_leaves(state), *lstm.parameters()]
    outputs, end = compiled(lstm, inputs, state)
    loss = weighted([outputs, *state_leaves(end)])
    first = torch.autograd.grad(loss, sources, retain_graph=True)
    second = torch.autograd.grad(loss, sources, retain_graph=True)
    third = torch.autograd.grad(loss, sources)
    for a, b, c in zip(first, second, third, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)
    close(first, results(looped, lstm, inputs, state)[1], 1e-12)


@pytest.mark.parametrize("part", ["outputs", "one output", "hidden state", "cell state"])
def test_a_gradient_of_some_results_alone(lstm: Own, part: str) -> None:
    found = []
    inputs, state = given(lstm, 4, 7, torch.float64)
    for run in (compiled, looped):
        outputs, (h, c) = run(lstm, inputs, state)
        wanted = {"outputs": outputs, "one output": outputs[1, 3], "hidden state": h, "cell state": c}[part]
        sources = [inputs, *state_leaves(state), *lstm.parameters()]
        found.append(torch.autograd.grad(weighted([wanted]), sources, allow_unused=True, materialize_grads=True))
    close(*found, 1e-12)


@pytest.mark.parametrize("frozen", ["w.weight", "u.weight", "peepholes"])
def test_frozen_parameters(frozen: str) -> None:
    cell = peephole_lstm(3)
    cell.get_parameter(frozen).requires_grad_(False)
    agree(cell)


@pytest.mark.parametrize("wanted", ["inputs", "state", "parameters"])
def test_a_gradient_of_some_sources_alone(lstm: Own, wanted: str) -> None:
    inputs, state = given(lstm, 4, 7, torch.float64)
    inputs.requires_grad_(wanted == "inputs")
    for leaf in state_leaves(state):
        leaf.requires_grad_(wanted == "state")
    lstm.requires_grad_(wanted == "parameters")
    found, expected = (results(run, lstm, inputs, state) for run in (compiled, looped))
    lstm.requires_grad_(True)
    close(found[1], expected[1], 1e-12)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_without_gradients(lstm: Own, context) -> None:
    inputs, state = given(lstm, 4, 7, torch.float64)
    with context():
        inside = torch.randn(4, 7, 5).double(), lstm.initial_state(4)
        found, expected = [], []
        for values in ((inputs, state), inside):
            for run, results in ((compiled, found), (looped, expected)):
                outputs, end = run(lstm, *values)
                results += [outputs, *state_leaves(end)]
    assert not any(value.requires_grad for value in found)
    close(found, expected, 1e-12)


def test_frozen_everything_wants_no_gradient(lstm: Own) -> None:
    lstm.requires_grad_(False)
    outputs, _ = compiled(lstm, torch.randn(2, 3, 5).double(), lstm.initial_state(2))
    lstm.requires_grad_(True)
    assert not outputs.requires_grad


def test_every_activation() -> None:
    def step(cell, x, h):
        z = cell.w(x) + cell.u(h)
        parts = z.chunk(len(ACTIVATIONS), dim=1)
        return torch.cat(
            [activation_named(name)(part) for name, part in zip(ACTIVATIONS, parts, strict=True)], dim=1
        ).tanh()

    width = 3 * len(ACTIVATIONS)
    cell = Own(both(step), width, **maps(width))
    agree(cell)


@pytest.mark.parametrize("activation", [nn.Tanh, nn.Hardswish, nn.PReLU])
def test_activations_that_are_modules(activation) -> None:
    cell = Own(both(lambda cell, x, h: cell.f(cell.w(x) + cell.u(h))), 4, f=activation(), **maps(4))
    agree(cell, fast=activation is not nn.PReLU)


def test_the_plan_is_told_in_words(lstm: Own) -> None:
    explanation = explain(lstm)
    assert explanation.startswith("Own runs in compiled code\n")
    assert "before the loop: one product for all steps, 5 x 64" in explanation
    assert "each step forward: products" in explanation


@pytest.mark.parametrize("threads", [1, 2])
def test_weights_that_are_kept_packed_are_those_of_the_module(shared: None, threads: int) -> None:
    layer, inputs = seriatim.layer("lstm", 5, 37).eval(), torch.randn(1, 7, 5)
    torch.set_num_threads(threads)
    for scale in (1.0, 2.0):
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.mul_(scale)
            first, second = (layer(inputs)[0] for _ in range(2))
            with uncompiled():
                expected = layer(inputs)[0]
        torch.testing.assert_close(first, expected)
        assert torch.equal(first, second)


def test_a_loop_that_keeps_its_weights_checks_what_it_is_given(shared: None) -> None:
    layer, inputs = seriatim.layer("lstm", 5, 37).eval(), torch.randn(3, 7, 5)
    with torch.no_grad():
        state = layer.initial_state(3)
        outputs, _ = layer(inputs, state)
        for row, output in enumerate(outputs):
            assert torch.equal(layer(inputs[row : row + 1], layer.initial_state(1))[0][0], output)
        for others in (inputs[:, :, :4], inputs[:2], inputs[0], inputs.double(), inputs.to_sparse(), inputs.tolist()):
            with pytest.raises(InputError):
                layer(others, state)
        for others in (state[0], tuple(state), layer.initial_state(2), layer.double().initial_state(3)):
            with pytest.raises(InputError):
                layer(inputs, others)
