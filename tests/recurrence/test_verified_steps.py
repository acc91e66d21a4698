"""Whatever a step does, its values and gradients are those of the loop, by compiled code or without."""

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seriatim.core.state import State
from seriatim.recurrence import explain, unroll

from ..quick_compiler import quickly
from .own_cells import Own, agree, both, close, compiled, elman, given, looped, maps, results, simple

_quickly = pytest.fixture(autouse=True, scope="module")(quickly)


def cell_of(step: Any, **parts: Any) -> Own:
    return Own(both(step), 4, **maps(4), **parts)


def stopped(x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.sigmoid(x)


def many_operations(cell: Any, x: Tensor, h: Tensor) -> Tensor:
    h = simple(cell, x, h)
    for _ in range(400):
        h = torch.sin(h * 1.01)
    return h[:, :3].repeat(1, 2)[:, 1:5]


def assigned(cell: Any, x: Tensor, h: Tensor) -> Tensor:
    new = simple(cell, x, h) + h
    new[:, 1:3] = h[:, :2] * 2
    new[:, -1] = 0.5
    return torch.sin(new)


STEPS = {
    "a first feature for all": lambda c, x, h: simple(c, x, h) * torch.sigmoid(h[:, :1]),
    "a last feature for all": lambda c, x, h: simple(c, x, h) * torch.sigmoid(h[:, -1:]),
    "a first feature alone": lambda c, x, h: simple(c, x, torch.cat([h[:, :1], 0 * h[:, 1:]], dim=1)),
    "noise and no_grad": lambda c, x, h: simple(c, x, h) * stopped(h) * torch.rand_like(h),
    "noise and scaled products": lambda c, x, h: torch.rand_like(h) * torch.addmm(c.w(x), h, c.u.weight, beta=0.5),
    "noise of which some is unused": lambda c, x, h: (torch.rand_like(x), simple(c, x, h) * torch.rand_like(h))[1],
    "noise of another type": lambda c, x, h: simple(c, x, h) * torch.rand_like(h, dtype=torch.float32),
    "many operations": many_operations,
    "what it is given": lambda c, x, h: h,
    "a reduction of inputs": lambda c, x, h: (x * x).sum(-1, keepdim=True) * torch.ones(1, 4),
    "zeros": lambda c, x, h: 0 * h,
    "ones and more": lambda c, x, h: torch.ones_like(h) + torch.sin(h),
    "the mean of one feature": lambda c, x, h: simple(c, x, h) + F.gelu(h[:, :1].mean(-1, keepdim=True)),
    "no inputs": lambda c, x, h: torch.tanh(c.u(h)),
    "no state": lambda c, x, h: torch.tanh(c.w(x)),
    "one weight for both": lambda c, x, h: torch.tanh(F.linear(x[:, :4], c.u.weight) + F.linear(h, c.u.weight)),
    "changes of what it made": lambda c, x, h: (c.w(x) + c.u(h)).mul_(0.5).add_(h).sin(),
    "assigned features": assigned,
    "a count of features": lambda c, x, h: simple(c, x, h) / (h > 0).sum(-1, keepdim=True).clamp_min(1),
}


MOVED = {
    "stacked features": lambda c, x, h: torch.stack([part * 2 for part in h.unbind(1)], dim=1) + simple(c, x, h),
    "one feature of each row": lambda c, x, h: simple(c, x, h) * torch.sigmoid(h[:, 1].unsqueeze(1)),
    "blocks joined again": lambda c, x, h: simple(c, x, torch.cat(h.view(-1, 2, 2).split(1, dim=1), 1).flatten(1)),
    "repeated features": lambda c, x, h: simple(c, x, h) * h[:, 2:3].expand(-1, 4),
}


@pytest.mark.parametrize("name", MOVED)
def test_features_that_move_together(name: str) -> None:
    agree(cell_of(MOVED[name]))


@pytest.mark.parametrize("name", STEPS)
def test_odd_steps(name: str) -> None:
    agree(cell_of(STEPS[name]), fast=None)


def blocks(cell: Any, x: Tensor, h: Tensor) -> tuple[Tensor, State]:
    new = torch.softmax(h + (cell.w(x) * torch.rand(len(x), 1, dtype=x.dtype)).view(-1, 2, 2), dim=-1)
    return new.flatten(1), new


def parts_of_blocks(cell: Any, x: Tensor, state: Any) -> tuple[Tensor, State]:
    a, b = state
    return torch.tanh(cell.w(x) + a.flatten(1)), torch.cat([b, a], dim=1).split(2, dim=1)


class Blocks(Own):
    """A state of matrices."""

    def initial_state(self, batch_size: int) -> State:
        leaves = tuple(self.zeros(batch_size, 2, 2) for _ in self.widths)
        return leaves if len(leaves) > 1 else leaves[0]


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(lambda: Blocks(blocks, 4, w=nn.Linear(5, 4)), id="softmax over columns, with noise"),
        pytest.param(lambda: Blocks(parts_of_blocks, 4, 4, w=nn.Linear(5, 4)), id="split rows"),
        pytest.param(lambda: Own(lambda c, x, h: (simple(c, x, h), h), 4, **maps(4)), id="a state that stays"),
        pytest.param(
            lambda: Own(both(lambda c, x, h: F.gelu(c.u(h) + c.w(x))), 1, **maps(1)), id="gelu of one feature"
        ),
        pytest.param(lambda: Own(lambda c, x, h: (x, torch.tanh(F.gelu(h))), 1, output=5), id="no weights"),
        pytest.param(lambda: Own(lambda c, x, h: (x, h), 4, output=5), id="nothing computed"),
        pytest.param(lambda: Own(lambda c, x, s: (s[0], (s[1], simple(c, x, s[0]))), 4, 4, **maps(4)), id="exchanged"),
    ],
)
def test_odd_states(cell: Any) -> None:
    agree(cell(), fast=None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_outputs_have_the_type_that_the_step_gives(dtype: torch.dtype) -> None:
    cell = Own(lambda cell, x, h: (simple(cell, x, h) > 0, simple(cell, x, h)), 4, **maps(4)).to(dtype)
    inputs, state = given(cell, 3, 5, dtype)
    found, expected = compiled(cell, inputs, state)[0], looped(cell, inputs, state)[0]
    close([found.double()], [expected.double()], 1e-5)
    assert found.dtype == expected.dtype


def test_a_state_of_integers() -> None:
    def equations(cell: Any, x: Tensor, state: Any) -> tuple[Tensor, State]:
        h, count = state
        new = torch.tanh(cell.w(x) + cell.u(h) / (count + 1))
        return new, (new, count + 1)

    cell = Own(equations, 4, 1, **maps(4)).double()
    inputs, (h, _) = given(cell, 3, 5, torch.float64)
    state = (h, torch.zeros(3, 1, dtype=torch.long))
    found, expected = compiled(cell, inputs, state), looped(cell, inputs, state)
    close([found[0], *found[1]], [expected[0], *expected[1]], 1e-12)


def test_the_norm_of_a_state_of_zeros_has_the_gradient_of_torch() -> None:
    cell = cell_of(lambda cell, x, h: simple(cell, x, h) + F.normalize(h, dim=-1)).double()
    inputs, state = given(cell, 3, 5, torch.float64)
    state = torch.zeros_like(state).requires_grad_()
    for found, expected in zip(*(results(run, cell, inputs, state) for run in (compiled, looped)), strict=True):
        close(found, expected, 1e-12)


def test_a_gradient_of_gradients_is_right_or_refused() -> None:
    cell = elman().double()
    inputs, state = given(cell, 3, 5, torch.float64)
    parameters = list(cell.parameters())

    def penalty(run: Any) -> tuple[Tensor, ...]:
        (first,) = torch.autograd.grad(run(cell, inputs, state)[0].sum(), inputs, create_graph=True)
        return torch.autograd.grad(first.square().sum(), parameters, allow_unused=True, materialize_grads=True)

    try:
        found = penalty(compiled)
    except RuntimeError as error:
        if "once" not in str(error) and "twice" not in str(error):
            raise
    else:
        close(found, penalty(looped), 1e-12)


# ---- what must not be remembered


class Holder:
    """Neither a module nor a number."""

    def __init__(self) -> None:
        self.value = 2.0


CHANGES = {
    "a list": (lambda: [2.0], lambda c: c.held.__setitem__(0, 3.0), lambda held: held[0]),
    "a dictionary": (lambda: {"a": 2.0}, lambda c: c.held.__setitem__("a", 3.0), lambda held: held["a"]),
    "an object": (Holder, lambda c: setattr(c.held, "value", 3.0), lambda held: held.value),
    "a partial function": (
        lambda: partial(max, 2.0),
        lambda c: setattr(c, "held", partial(max, 3.0)),
        lambda held: held(1.0),
    ),
    "a tensor read by item": (lambda: torch.tensor(2.0), lambda c: c.held.fill_(3.0), lambda held: held.item()),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_attributes_of_every_kind_are_heeded(kind: str) -> None:
    make, change, read = CHANGES[kind]
    cell = cell_of(lambda cell, x, h: simple(cell, x, h) * read(cell.held))
    cell.held = make()
    agree(cell, fast=None)
    change(cell)
    agree(cell, fast=None)


def test_parts_registered_in_another_order_are_heeded() -> None:
    cell = Own(both(simple), 5, **maps(5))
    cell.w = nn.Linear(5, 5, bias=False)
    agree(cell)
    w = cell.w
    del cell.w
    cell.w = w
    agree(cell)


def test_a_weight_of_zeros_hides_no_gradient() -> None:
    cell = cell_of(lambda cell, x, h: simple(cell, x, h) + cell.gain * stopped(h), gain=(4,))
    nn.init.zeros_(cell.gain)
    agree(cell, fast=None)
    nn.init.ones_(cell.gain)
    agree(cell, fast=None)


@pytest.mark.parametrize(
    "step",
    [
        simple,
        lambda c, x, h: simple(c, x, h) * stopped(h),
    ],
)
def test_a_first_run_without_gradients_says_nothing_of_gradients(step: Any) -> None:
    cell = cell_of(step).double()
    with torch.inference_mode():
        unroll(cell, torch.randn(2, 3, 5).double(), torch.zeros(2, 4).double())
    agree(cell, fast=None)
    assert explain(cell).splitlines()[0] == explain(copy.deepcopy(cell)).splitlines()[0]


def test_buffers_that_a_step_changes_are_changed() -> None:
    def step(cell: Any, x: Tensor, h: Tensor) -> Tensor:
        with torch.no_grad():
            cell.count.add_(1)
        return simple(cell, x, h) * cell.count.clone()

    found = []
    cell = cell_of(step).double()
    cell.register_buffer("count", torch.zeros(()).double())
    inputs, state = given(cell, 3, 5, torch.float64)
    for run in (compiled, looped):
        other = copy.deepcopy(cell)
        explain(other)
        found.append([run(other, inputs, state)[0], other.count])
    close(*found, 1e-12)


def test_spectral_norms_are_computed_at_every_step() -> None:
    torch.manual_seed(0)
    cell = elman()
    cell.u = nn.utils.parametrizations.spectral_norm(cell.u)
    cell = cell.double().train()
    inputs, state = given(cell, 3, 5, torch.float64)
    found = [(other := copy.deepcopy(cell), run(other, inputs, state)[0]) for run in (compiled, looped)]
    close([found[0][1]], [found[1][1]], 1e-12)
    close(list(found[0][0].buffers()), list(found[1][0].buffers()), 1e-12)


@pytest.mark.parametrize("change", [lambda o: o.mul_(2), lambda o: o[:, 0].zero_(), F.relu_])
def test_outputs_changed_in_place_are_right_or_refused(change: Any) -> None:
    cell = elman().double()
    inputs, state = given(cell, 3, 5, torch.float64)
    found = []
    for run in (compiled, looped):
        outputs, end = run(cell, inputs, state)
        if run is compiled and outputs.grad_fn is not None and outputs._is_view():
            with pytest.raises(RuntimeError, match="modified inplace"):
                change(outputs)
            return
        change(outputs)
        found.append(torch.autograd.grad((outputs**2).sum() + (end**3).sum(), [inputs, *cell.parameters()]))
    close(*found, 1e-12)
