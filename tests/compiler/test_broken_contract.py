"""A step or an initial state that breaks the contract is refused with a message that names the cell."""

from typing import Any

import pytest
import torch
from torch import Tensor

import seriatim
from seriatim.core.state import State
from seriatim.recurrence import explain, uncompiled, unroll

from ..quick_compiler import quickly
from ..recurrence.own_cells import Own, both, maps, simple

_quickly = pytest.fixture(autouse=True, scope="module")(quickly)


def mutating(cell: Any, x: Tensor, h: Tensor) -> Tensor:
    return h.add_(simple(cell, x, h))


def mutating_a_part(cell: Any, x: Tensor, h: Tensor) -> Tensor:
    new = simple(cell, x, h)
    h[:, 0] = 0
    return new


@pytest.mark.parametrize("step", [mutating, mutating_a_part])
def test_a_step_that_changes_its_state_in_place_is_refused(step: Any) -> None:
    cell, inputs = Own(both(step), 4, **maps(4)), torch.randn(2, 3, 5)
    with torch.no_grad(), pytest.raises(ValueError, match="a step changes its state in place; return new tensors"):
        unroll(cell, inputs, torch.zeros(2, 4))
    assert "changes the inputs, the state or a parameter in place" in explain(cell)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda h: (h, h), id="structure"),
        pytest.param(lambda h: h[:, :3], id="width"),
        pytest.param(lambda h: h.unsqueeze(1), id="dimensions"),
        pytest.param(lambda h: h.half(), id="type"),
        pytest.param(lambda h: h[:1], id="rows"),
        pytest.param(lambda h: h.t(), id="turned"),
    ],
)
def test_a_state_of_another_structure_shape_or_type_is_refused(change: Any) -> None:
    def equations(cell: Any, x: Tensor, h: Tensor) -> tuple[Tensor, State]:
        new = simple(cell, x, h)
        return new, change(new)

    cell = Own(equations, 4, **maps(4))
    with pytest.raises(ValueError, match="a step must return a state of the structure, shape and type it is given"):
        unroll(cell, torch.randn(2, 3, 5), torch.zeros(2, 4))
    assert "runs as a loop" in explain(cell)


def test_outputs_without_the_batch_in_front_are_refused() -> None:
    cell = Own(lambda cell, x, h: (simple(cell, x, h).t(), h), 4, **maps(4))
    with pytest.raises(ValueError, match="must have the batch first"):
        unroll(cell, torch.randn(2, 3, 5), torch.zeros(2, 4))


OUTPUTS = {
    "wide": (lambda new: (new[:, :3], new), r"output_size is 4, so .* shape \(\d+, 4\); it returns \(\d+, 3\)"),
    "three-dimensional": (lambda new: (new.unsqueeze(2), new), r"must have shape .* returns \(\d+, 4, 1\)"),
    "no state": (lambda new: new, r"must return a pair \(outputs, state\); it returns float32 \(\d+, 4\)"),
    "three values": (lambda new: (new, new, new), r"pair \(outputs, state\); it returns tuple"),
    "nothing": (lambda new: None, r"pair \(outputs, state\); it returns NoneType"),
    "no tensor": (lambda new: (1.0, new), "outputs of a step must be a tensor; it returns float"),
    "no rows": (lambda new: (new.sum(0), new), "must have the batch first"),
    "a list for a state": (lambda new: (new, [new]), "a state of the structure, shape and type it is given"),
}


@pytest.mark.parametrize("zoneout", [0.0, 0.2])
@pytest.mark.parametrize("batch", [2, pytest.param(3, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("kind", OUTPUTS)
def test_a_layer_names_the_cell_that_breaks_the_contract(kind: str, batch: int, zoneout: float) -> None:
    """Compiled or not, over a sequence and in a single step."""
    change, expected = OUTPUTS[kind]
    layer = seriatim.Recurrent(Own(lambda c, x, h: change(simple(c, x, h)), 4, **maps(4)), zoneout=zoneout).eval()
    inputs, state = torch.randn(batch, 3, 5), torch.zeros(batch, 4)
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            with pytest.raises(ValueError, match=f"^Own: .*{expected}"):
                layer(inputs)
            with pytest.raises(ValueError, match=f"^Own: .*{expected}"):
                layer(inputs, lengths=torch.arange(batch))
            with pytest.raises(ValueError, match=f"^Own: .*{expected}"):
                layer.step(inputs[:, 0], state)
            with uncompiled(), pytest.raises(ValueError, match=f"^Own: .*{expected}"):
                layer(inputs)


def test_a_state_that_changes_later_is_refused() -> None:
    def equations(cell: Any, x: Tensor, h: Tensor) -> tuple[Tensor, State]:
        new = simple(cell, x, h)
        return new, new if (x > -1).all() else new.double()

    inputs = torch.zeros(2, 4, 5)
    inputs[:, 2] = -2
    with pytest.raises(ValueError, match=r"Own: a step must return a state .*float32 \(2, 4\); it returns float64"):
        unroll(Own(equations, 4, **maps(4)), inputs, torch.zeros(2, 4))


@pytest.mark.parametrize(
    "state", [torch.zeros(4), torch.zeros(1, 4), [torch.zeros(2, 4)], None, (torch.zeros(2, 4), 0)]
)
def test_an_initial_state_without_a_row_for_each_of_the_batch_is_refused(state: Any) -> None:
    cell = Own(both(simple), 4, **maps(4))
    cell.initial_state = lambda batch_size: state
    with pytest.raises(ValueError, match=r"Own: initial_state\(2\) must return tensors whose first dimension is 2"):
        seriatim.Recurrent(cell)(torch.randn(2, 3, 5))
