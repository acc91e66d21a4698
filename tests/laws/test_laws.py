"""The eight laws, for every registered layer: values and gradients, in float64."""

import pytest
import torch

from seriatim.core.contract import MemoryLayer
from seriatim.core.state import join_states, select_state
from seriatim.testing import check_law, check_quickly

from ..exhaustive import parameters
from ..recurrence.own_cells import quickly_everyday
from .eight_laws import (
    BATCH,
    CAUSAL,
    DEAF,
    INPUT_SIZE,
    MEMORY_SIZE,
    WHOLE,
    assert_states_close,
    build,
    example,
    initial,
)

_quickly = pytest.fixture(autouse=True)(quickly_everyday)

TIMES = parameters([1, 7, 33, 63], everyday=[33])
"""Lengths of sequences; a convolution reaches 31 steps back."""

AROUND = ("block-", "bare-", "bidirectional-")
EVERYDAY = [
    name
    for name in (*CAUSAL, *WHOLE)
    if not name.startswith(AROUND) or name.partition("-")[2] in ("gru", "mamba", "transformer")
]
CAUSAL_LAYERS, WHOLE_LAYERS = (parameters(names, everyday=EVERYDAY) for names in (CAUSAL, WHOLE))
ALL_LAYERS = [*CAUSAL_LAYERS, *WHOLE_LAYERS]


def check(name: str, law: int, time: int = 7) -> None:
    """Check a law as `seriatim.testing.check_layer` does for anybody's layer."""
    layer = build(name)
    memory = torch.randn(BATCH, 9, MEMORY_SIZE) if isinstance(layer, MemoryLayer) else None
    check_law(layer, law, time=time, memory=memory, memory_lengths=torch.tensor([9, 0, 4, 1]))


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("name", CAUSAL_LAYERS)
def test_law_1_splitting_anywhere_changes_nothing(name: str, time: int) -> None:
    check(name, 1, time)


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("name", CAUSAL_LAYERS)
def test_law_2_steps_equal_one_forward(name: str, time: int) -> None:
    check(name, 2, time)


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("name", ALL_LAYERS)
def test_law_3_padding_may_hold_nan(name: str, time: int) -> None:
    check(name, 3, time)


@pytest.mark.parametrize("name", ALL_LAYERS)
def test_law_4_an_empty_row_keeps_its_state(name: str) -> None:
    check(name, 4)


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("name", CAUSAL_LAYERS)
def test_law_5_no_output_depends_on_a_later_input(name: str, time: int) -> None:
    check(name, 5, time)


@pytest.mark.parametrize("name", CAUSAL_LAYERS)
def test_outputs_depend_on_inputs(name: str) -> None:
    """Without this, a layer that ignores its inputs would keep law 5."""
    layer = build(name)
    inputs, state = example(layer, 7)
    outputs, changed = layer(inputs, state)[0], layer(inputs + 1, state)[0]
    assert torch.equal(outputs, changed) == (name in DEAF)


@pytest.mark.parametrize("name", ALL_LAYERS)
def test_law_6_the_given_state_is_never_mutated(name: str) -> None:
    check(name, 6)


@pytest.mark.parametrize("name", CAUSAL_LAYERS)
def test_law_7_select_state_commutes_with_step(name: str) -> None:
    """Also where no gradient is recorded and a state may share memory with those before it."""
    check(name, 7)


@pytest.mark.parametrize("name", CAUSAL_LAYERS)
def test_law_8_a_saved_state_continues_identically(name: str) -> None:
    check(name, 8)


@pytest.mark.parametrize("name", ALL_LAYERS)
def test_the_quick_check_accepts_every_layer(name: str) -> None:
    layer = build(name)
    check_quickly(layer, memory=torch.randn(BATCH, 9, MEMORY_SIZE) if isinstance(layer, MemoryLayer) else None)


@pytest.mark.parametrize("name", ALL_LAYERS)
def test_a_batch_gives_what_its_rows_give_alone(name: str) -> None:
    """Over several calls, ragged ones first, each row from its own initial state."""
    layer = build(name)
    torch.manual_seed(2)
    start, calls = initial(layer), ((9, [9, 0, 4, 1]), (5, [2, 5, 0, 5]), (6, [6, 6, 6, 6]))
    pieces = [torch.randn(BATCH, time, INPUT_SIZE, dtype=torch.float64) for time, _ in calls]
    with torch.no_grad():
        alone = [select_state(start, torch.tensor([row])) for row in range(BATCH)]
        state = start
        for piece, (_, lengths) in zip(pieces, calls, strict=True):
            outputs, state = layer(piece, state, lengths=torch.tensor(lengths))
            for row, length in enumerate(lengths):
                output, alone[row] = layer(piece[row : row + 1, :length], alone[row])
                torch.testing.assert_close(outputs[row : row + 1, :length], output)
        assert_states_close(state, join_states(alone))
        if layer.causal:
            output, _ = layer.step(pieces[0][:, 0], state)
            for row in range(BATCH):
                expected, _ = layer.step(pieces[0][row : row + 1, 0], alone[row])
                torch.testing.assert_close(output[row : row + 1], expected)


@pytest.mark.parametrize("name", WHOLE_LAYERS)
def test_a_bidirectional_layer_cannot_step(name: str) -> None:
    layer = build(name)
    inputs, state = example(layer, 1)
    assert not layer.causal
    with pytest.raises(ValueError, match="whole sequence"):
        layer.step(inputs[:, 0], state)


@pytest.mark.parametrize("name", ALL_LAYERS)
def test_wrong_shapes_are_named(name: str) -> None:
    layer = build(name)
    inputs, _state = example(layer, 7)
    with pytest.raises(ValueError, match=r"\(batch, time, 5\)"):
        layer(inputs[:, :, :-1], initial(layer))
    with pytest.raises(ValueError, match=r"0\.\.7"):
        layer(inputs, initial(layer), lengths=torch.tensor([8, 1, 1, 1]))
    with pytest.raises(ValueError, match=r"0\.\.7"):
        layer(inputs, initial(layer), lengths=torch.tensor([-1, 1, 1, 1]))
    for lengths in (torch.tensor([1, 1]), torch.tensor([True, True, False, True]), torch.ones(4)):
        with pytest.raises(ValueError, match="4 integers"):
            layer(inputs, initial(layer), lengths=lengths)
    if isinstance(layer, MemoryLayer):
        with pytest.raises(ValueError, match="needs a memory"):
            layer.initial_state(BATCH)


@pytest.mark.parametrize("name", ALL_LAYERS)
def test_a_state_that_does_not_fit_is_refused(name: str) -> None:
    layer = build(name)
    inputs, state = example(layer, 7)
    for rows in ([0], [0, 1, 2, 3, 0, 1]):
        with pytest.raises(ValueError, match="inputs have 4 rows and the state has another number"):
            layer(inputs, select_state(state, torch.tensor(rows)))
    if not isinstance(layer, MemoryLayer):
        with pytest.raises(ValueError, match="the state belongs to another layer"):
            layer(inputs, (state, state))
    if layer.causal:
        with pytest.raises(ValueError, match=r"inputs of a step must have shape \(batch, 5\)"):
            layer.step(inputs[:, 0, :-1], state)
        with pytest.raises(ValueError, match="the state has another number"):
            layer.step(inputs[:, 0], select_state(state, torch.tensor([0])))
