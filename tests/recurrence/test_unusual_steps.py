"""Steps of one's own that are compiled correctly or not at all: other types, empty parts, changed weights, copies."""

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional as F

import seriatim
from seriatim.core.state import State, state_leaves
from seriatim.recurrence import uncompiled
from seriatim.recurrence.fast_path import run_step

Step = Callable[["Own", Tensor, State], tuple[Tensor, State]]


class Own(nn.Module):
    """A step that is given as a function."""

    def __init__(self, function: Step) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.w, self.table = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(9, 4))
        self.function = function

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        return self.function(self, inputs, state)


def vectors(batch: int = 3) -> Tensor:
    return torch.randn(batch, 4)


STEPS: dict[str, tuple[Step, Callable[[], Tensor], Callable[[], State]]] = {
    "a bool in the state": (
        lambda m, x, s: (torch.where(s[1], x @ m.w, x), (s[0] + x, x > 0)),
        vectors,
        lambda: (vectors(), vectors() > 0),
    ),
    "a count of 32 bits": (
        lambda m, x, s: (x @ m.w, (s[0] + x, s[1] + 1)),
        lambda: vectors(64),
        lambda: (vectors(64), torch.zeros(64, dtype=torch.int32)),
    ),
    "ids of 32 bits": (
        lambda m, x, s: (F.embedding(x, m.table) @ m.w + s, s),
        lambda: torch.tensor([3, 5, 7], dtype=torch.int32),
        vectors,
    ),
    "ids as numbers": (
        lambda m, x, s: (F.embedding(x, m.table) @ m.w + s * x.unsqueeze(1).to(s.dtype), s + 1),
        lambda: torch.tensor([3, 5, 7]),
        vectors,
    ),
    "numbers times ids": (
        lambda m, x, s: (F.embedding(x, m.table) @ m.w + s * x.unsqueeze(1), s + 1),
        lambda: torch.tensor([3, 5, 7]),
        vectors,
    ),
    "the last id in the state": (
        lambda m, x, s: (F.embedding(x, m.table) @ m.w + s[0], (s[0] * 0.5, x)),
        lambda: torch.tensor([5, 1, 8]),
        lambda: (vectors(), torch.tensor([0, 1, 2])),
    ),
    "a count twice": (
        lambda m, x, s: (x @ m.w, (s[0] + x, s[1] + 1, s[1] + 1)),
        vectors,
        lambda: (vectors(), torch.tensor([0, 1, 2]), torch.tensor([5, 6, 7])),
    ),
    "an empty part of the state": (
        lambda m, x, s: (x @ m.w, (s[0] + x, s[1] * 0.5)),
        vectors,
        lambda: (vectors(), torch.zeros(3, 3, 0)),
    ),
    "a part of constant numbers": (
        lambda m, x, s: (x.new_zeros(len(x), 8)[:, :4] + x @ m.w, s + x),
        vectors,
        vectors,
    ),
    "bool outputs": (lambda m, x, s: ((x @ m.w) > 0, s + x), vectors, vectors),
    "a mask that is constant": (
        lambda m, x, s: (torch.where(torch.arange(4) % 2 == 0, x @ m.w, s), s + x),
        vectors,
        vectors,
    ),
    "matrices": (
        lambda m, x, s: ((s * x.unsqueeze(1)).sum(2) @ m.w, s * 0.9 + x.unsqueeze(2) * x.unsqueeze(1)),
        vectors,
        lambda: torch.randn(3, 4, 4),
    ),
}


@pytest.mark.parametrize("name", STEPS)
@torch.no_grad()
def test_a_step_gives_what_is_written(name: str) -> None:
    function, make_inputs, make_state = STEPS[name]
    module = Own(function).eval()
    for _ in range(3):
        inputs, state = make_inputs(), make_state()
        expected, expected_state = module.step(inputs, state)
        result = run_step(module, inputs, state)
        outputs, after = module.step(inputs, state) if result is None else result
        torch.testing.assert_close(outputs, expected)
        for leaf, other in zip(state_leaves(after), state_leaves(expected_state), strict=True):
            torch.testing.assert_close(leaf, other)


@torch.no_grad()
def test_weights_that_are_assigned_are_packed_again() -> None:
    module, x, s = Own(lambda m, x, s: (x @ m.w, s + x)).eval(), vectors(), vectors()
    assert run_step(module, x, s) is not None
    module.w.data = torch.eye(4)
    result = run_step(module, x, s)
    assert result is not None
    torch.testing.assert_close(result[0], x)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda state: pickle.loads(pickle.dumps(state))])
@torch.no_grad()
def test_a_copied_state_continues_alone(copied: Callable[[State], State]) -> None:
    torch.manual_seed(0)
    layer = seriatim.layer("attention", 8, 8).double().eval()
    state, inputs = layer.initial_state(1), torch.randn(5, 1, 8).double()
    for x in inputs[:3]:
        _, state = layer.step(x, state)
    other = copied(state)
    _, state = layer.step(inputs[3], state)
    result = run_step(layer, inputs[4], other)
    assert result is not None
    with uncompiled():
        expected, end = layer.step(inputs[4], other)
    torch.testing.assert_close(result[0], expected)
    torch.testing.assert_close(state_leaves(result[1])[0], state_leaves(end)[0])


@torch.no_grad()
def test_inputs_of_another_width_are_not_read() -> None:
    module = Own(lambda m, x, s: (x @ m.w[: x.shape[1]], s)).eval()
    assert run_step(module, vectors(), vectors()) is not None
    assert run_step(module, vectors()[:, :2], vectors()) is None


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@torch.no_grad()
def test_derivatives_forward_are_those_of_the_written_step() -> None:
    module, x, s = Own(lambda m, x, s: (x @ m.w, s)).eval(), vectors(), vectors()
    assert run_step(module, x, s) is not None
    with forward_ad.dual_level():
        assert run_step(module, forward_ad.make_dual(x, torch.ones_like(x)), s) is None
    assert run_step(module, x, s) is not None
