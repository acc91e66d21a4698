"""What compiled code cannot take runs as a loop and `explain` says why; nothing has a wrong value or gradient."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import seriatim
from seriatim.recurrence import explain, uncompiled, unroll

from ..quick_compiler import quickly
from ..recurrence.own_cells import (
    Own,
    agree,
    both,
    close,
    compiled,
    elman,
    given,
    looped,
    maps,
    peephole_lstm,
    results,
    simple,
)
from ..refusals import refused

_quickly = pytest.fixture(autouse=True, scope="module")(quickly)


def cell_of(step: Any, **parts: Any) -> Own:
    return Own(both(step), 4, **maps(4), **parts)


# ---- steps that run as loops


class Odd(torch.autograd.Function):
    """The identity, with a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> Tensor:
        return 3 * given.clamp(-0.1, 0.1)


class Threefold(torch.autograd.Function):
    """The same, written for function transforms, which tracing is one of."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> Tensor:
        return 3 * given


def stopped(x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.sigmoid(x)


LOOPS = {
    "a value decides": (lambda c, x, h: simple(c, x, h) if h.abs().amax() > 0 else h, ""),
    "item": (lambda c, x, h: simple(c, x, h) * h.max().item(), ""),
    "a count": (lambda c, x, h: simple(c, x, h) * len(h.nonzero()), ""),
    "numpy": (lambda c, x, h: simple(c, x, h) + torch.from_numpy(h.detach().numpy()), "as a NumPy array"),
    "a list": (lambda c, x, h: simple(c, x, h) + torch.tensor(h.tolist()), "as a list"),
    "no_grad": (lambda c, x, h: simple(c, x, h) * stopped(h), "gradients"),
    "a gradient by hand": (lambda c, x, h: Odd.apply(simple(c, x, h)), ""),
    "another gradient by hand": (lambda c, x, h: Threefold.apply(simple(c, x, h)), ""),
    "the mean of a batch": (lambda c, x, h: simple(c, x, h) - h.mean(0), "the features of a row"),
    "batch norm": (lambda c, x, h: F.batch_norm(simple(c, x, h), None, None, training=True), "batch_norm"),
    "the number of rows": (lambda c, x, h: simple(c, x, h) / x.shape[0], "how many rows there are"),
    "one row for all": (lambda c, x, h: simple(c, x, h) + h[:1], "indexing"),
    "rows in reverse": (lambda c, x, h: simple(c, x, h) + h.flip(0), "flip"),
    "sorted features": (lambda c, x, h: simple(c, x, h.sort(-1).values), "sort"),
    "products of states": (lambda c, x, h: simple(c, x, h) + (h @ h.t() @ h), ""),
    "a power of a state": (lambda c, x, h: simple(c, x, h) + 2.0**h, "exponent"),
    "normal noise": (lambda c, x, h: simple(c, x, h) + torch.randn_like(h), "randn_like"),
    "a transposed state": (lambda c, x, h: simple(c, x, h.view(-1, 2, 2).mT.reshape(-1, 4)), "two dimensions"),
    "a matrix times a row": (
        lambda c, x, h: simple(c, x, h) + (h.view(-1, 2, 2) * h[:, None, :2]).flatten(1),
        "as x @ W",
    ),
    "rows of a table": (lambda c, x, h: simple(c, x, h) + c.u.weight[(h[:, 0] > 0).long()], ""),
}


@pytest.mark.parametrize("other", [None, "lstm", torch.nn.Linear(2, 2)])
def test_other_objects_are_not_explained(other: object) -> None:
    with refused("range", "explain"):
        explain(other)


@pytest.mark.parametrize("name", LOOPS)
def test_a_step_that_runs_as_a_loop(name: str) -> None:
    step, reason = LOOPS[name]
    cell = cell_of(step)
    agree(cell, fast=False)
    explanation = explain(cell)
    assert explanation.startswith("Own runs as a loop: ")
    assert reason in explanation.partition(": ")[2]
    assert ".py:" in explanation


def test_a_tensor_that_is_no_parameter_runs_as_a_loop() -> None:
    cell = cell_of(lambda cell, x, h: simple(cell, x, h) * cell.scale).double()
    cell.scale = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    agree(cell, fast=False)
    cell.scale.fill_(5.0)
    agree(cell, fast=False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_runs_as_a_loop(dtype: torch.dtype) -> None:
    cell = elman().to(dtype)
    assert f"numbers of type {dtype}" in explain(cell)
    inputs, state = torch.randn(2, 3, 5).to(dtype), torch.zeros(2, 4, dtype=dtype)
    assert torch.equal(compiled(cell, inputs, state)[0], looped(cell, inputs, state)[0])


def test_mixed_types_run_as_a_loop() -> None:
    cell = cell_of(lambda cell, x, h: simple(cell, x, h) * cell.scale)
    cell.register_buffer("scale", torch.ones(4, dtype=torch.bfloat16))
    assert "numbers of several types" in explain(cell)
    with pytest.raises(RuntimeError):  # torch's own refusal
        unroll(elman().double(), torch.randn(2, 3, 5), torch.zeros(2, 4))


class Marked(Tensor):
    """A tensor of a class of its own."""


def test_tensors_of_a_class_of_their_own_run_as_a_loop() -> None:
    cell = elman()
    inputs, state = torch.randn(2, 3, 5).as_subclass(Marked), torch.zeros(2, 4)
    found = compiled(cell, inputs, state)[0]
    assert type(found) is Marked
    assert torch.equal(found, looped(cell, inputs, state)[0])


@pytest.mark.parametrize("part", ["", "u"])
@pytest.mark.parametrize("kind", ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"])
def test_hooks_are_called(part: str, kind: str) -> None:
    cell = elman()
    agree(cell, time=3)
    seen: list[int] = []
    handle = getattr(cell.get_submodule(part), kind)(lambda *_: seen.append(1))
    assert "hooks are registered on it" in explain(cell)
    inputs, state = given(cell, 2, 3, torch.float64)
    results(compiled, cell, inputs, state)
    assert len(seen) == 3
    handle.remove()
    agree(cell, time=3)


def test_function_transforms_run_as_a_loop() -> None:
    cell = elman().double()
    inputs, state = torch.randn(2, 3, 5).double(), torch.zeros(2, 4).double()

    def loss(inputs: Tensor, run: Any) -> Tensor:
        return run(cell, inputs, state)[0].square().sum()

    found, expected = (torch.func.grad(loss)(inputs, run) for run in (compiled, looped))
    close([found], [expected], 1e-12)
    one = torch.func.vmap(lambda x: compiled(cell, x.unsqueeze(0), state[:1])[0])(inputs)
    close([one.squeeze(1)], [looped(cell, inputs, state)[0]], 1e-12)


# ---- random numbers


RANDOM = {
    "rand_like": lambda c, x, h: simple(c, x, h) * torch.rand_like(h),
    "a mask": lambda c, x, h: torch.where(torch.rand_like(h) < 0.3, h, simple(c, x, h)),
    "two draws": lambda c, x, h: simple(c, x * torch.rand_like(x), h) * torch.rand(len(h), 1, dtype=h.dtype),
}


@pytest.mark.parametrize("lengths", [None, [3, 0, 7, 1]])
@pytest.mark.parametrize("name", RANDOM)
def test_uniform_numbers_are_those_of_the_loop(name: str, lengths: list[int] | None) -> None:
    agree(cell_of(RANDOM[name]), lengths=lengths)


def test_a_single_step_draws_uniform_numbers() -> None:
    layer = seriatim.Recurrent(cell_of(RANDOM["rand_like"])).eval()
    inputs, state = torch.randn(2, 5), torch.randn(2, 4)
    with torch.no_grad():
        torch.manual_seed(0)
        found = layer.step(inputs, state)[0]
        torch.manual_seed(0)
        close([found], [layer.cell(inputs, state)[0]], 1e-6)


@pytest.mark.parametrize("function", [F.dropout, F.alpha_dropout, F.rrelu])
def test_other_random_functions_give_the_numbers_of_the_loop(function: Any) -> None:
    cell = cell_of(lambda cell, x, h: function(simple(cell, x, h), training=True)).double()
    inputs, state = given(cell, 4, 7, torch.float64)
    for found, expected in zip(*(results(run, cell, inputs, state) for run in (compiled, looped)), strict=True):
        close(found, expected, 1e-12)


# ---- what changes between two calls


def test_an_attribute_changed_between_calls_is_heeded() -> None:
    cell = cell_of(lambda cell, x, h: simple(cell, x, h) * cell.scale, scale=2.0)
    agree(cell)
    cell.scale = 3.0
    agree(cell)


def test_training_and_evaluation_are_told_apart() -> None:
    cell = cell_of(lambda cell, x, h: simple(cell, x, h) * (0.5 if cell.training else 1.0))
    agree(cell)
    agree(cell.eval())
    agree(cell.train())


def test_an_exchanged_part_is_heeded() -> None:
    cell = cell_of(lambda cell, x, h: cell.f(cell.w(x) + cell.u(h)), f=nn.Tanh())
    agree(cell)
    cell.f = nn.Sigmoid()
    agree(cell)
    cell.w = nn.Linear(5, 4, bias=False)
    agree(cell)
    cell.u.weight = nn.Parameter(torch.eye(4))
    agree(cell)


def test_new_values_of_parameters_are_heeded() -> None:
    cell = peephole_lstm(3)
    agree(cell)
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.mul_(0.5)
    agree(cell)


def test_a_copy_is_a_cell_of_its_own() -> None:
    layer = seriatim.Recurrent(elman().double())
    inputs = torch.randn(2, 3, 5).double()
    before = layer(inputs)[0]
    other = copy.deepcopy(layer)
    close([other(inputs)[0]], [before], 1e-12)
    nn.init.zeros_(other.cell.u.weight)
    close([other(inputs)[0]], [looped(other.cell, inputs, torch.zeros(2, 4).double())[0]], 1e-12)
    close([layer(inputs)[0]], [before], 1e-12)
    fresh = seriatim.Recurrent(elman().double())
    fresh.load_state_dict(layer.state_dict())
    assert set(layer.state_dict()) == {"cell.w.weight", "cell.w.bias", "cell.u.weight"}
    close([fresh(inputs)[0]], [before], 1e-12)


def test_autocast_gives_its_precision() -> None:
    cell = elman(16)
    inputs, state = torch.randn(2, 6, 5), torch.zeros(2, 16)
    with torch.autocast("cpu", torch.bfloat16):
        found = compiled(cell, inputs, state)[0]
    torch.testing.assert_close(found.float(), looped(cell, inputs, state)[0], rtol=0, atol=0.05)


@pytest.mark.parametrize("name", ["rnn", "lstm", "gru"])
def test_registered_layers_say_what_runs_them(name: str) -> None:
    layer = seriatim.layer(name, 5, 4)
    assert "runs in compiled code" in explain(layer)
    with uncompiled():
        assert "runs in PyTorch's own kernel: within uncompiled()" in explain(layer)
        assert "runs as a loop: within uncompiled()" in explain(seriatim.layer(name, 5, 4, zoneout=0.1))
    assert "runs in PyTorch's own kernel: numbers of type" in explain(layer.half())


def test_stacks_and_other_layers_say_what_runs_them() -> None:
    assert explain(seriatim.layer("lstm,mgu", 5, 4)).count("runs in compiled code") == 2
    assert "whole sequences with PyTorch's operators" in explain(seriatim.layer("self-attention", 4, 4))
