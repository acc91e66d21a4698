"""The eight laws, for every registered layer: values and gradients, in float64."""

import pytest
import torch
from torch import Tensor

from seriatim.core.contract import MemoryLayer
from seriatim.core.state import State, join_states, map_state, select_state, state_from_dict, state_to_dict

from ..exhaustive import parameters
from .eight_laws import (
    BATCH,
    CAUSAL,
    DEAF,
    INPUT_SIZE,
    WHOLE,
    assert_same,
    assert_states_close,
    build,
    example,
    initial,
)

TIMES = (1, 7, 63)

AROUND = ("block-", "bare-", "bidirectional-")
EVERYDAY = [
    name
    for name in (*CAUSAL, *WHOLE)
    if not name.startswith(AROUND) or name.partition("-")[2] in ("gru", "mamba", "transformer")
]
CAUSAL_LAYERS, WHOLE_LAYERS = (parameters(names, everyday=EVERYDAY) for names in (CAUSAL, WHOLE))
ALL_LAYERS = [*CAUSAL_LAYERS, *WHOLE_LAYERS]


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("name", CAUSAL_LAYERS)
def test_law_1_splitting_anywhere_changes_nothing(name: str, time: int) -> None:
    layer = build(name)
    inputs, state = example(layer, time)
    for cut in {0, 1, time // 2, time - 1, time}:

        def split(x: Tensor, start: State, cut: int = cut) -> tuple[Tensor, State]:
            first, middle = layer(x[:, :cut], start)
            second, end = layer(x[:, cut:], middle)
            return torch.cat([first, second], dim=1), end

        assert_same(layer, layer, split, inputs, state)


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("name", CAUSAL_LAYERS)
def test_law_2_steps_equal_one_forward(name: str, time: int) -> None:
    layer = build(name)
    inputs, state = example(layer, time)

    def steps(x: Tensor, state: State) -> tuple[Tensor, State]:
        outputs = []
        for t in range(time):
            output, state = layer.step(x[:, t], state)
            outputs.append(output)
        return torch.stack(outputs, dim=1), state

    assert_same(layer, layer, steps, inputs, state)


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("name", ALL_LAYERS)
def test_law_3_padding_may_hold_nan(name: str, time: int) -> None:
    layer = build(name)
    inputs, state = example(layer, time)
    lengths = torch.tensor([time, 0, (time + 1) // 2, 1])
    padded = inputs.clone()
    for row, length in enumerate(lengths):
        padded[row, length:] = float("nan")

    def batched(x: Tensor, start: State) -> tuple[Tensor, State]:
        return layer(x + (padded - inputs), start, lengths=lengths)

    def row_by_row(x: Tensor, start: State) -> tuple[Tensor, State]:
        outputs, ends = [], []
        for row, length in enumerate(lengths.tolist()):
            output, end = layer(x[row : row + 1, :length], select_state(start, torch.tensor([row])))
            outputs.append(torch.cat([output, output.new_zeros(1, time - length, layer.output_size)], dim=1))
            ends.append(end)
        return torch.cat(outputs), join_states(ends)

    assert_same(layer, batched, row_by_row, inputs, state)


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


@pytest.mark.parametrize("name", ALL_LAYERS)
def test_law_4_an_empty_row_keeps_its_state(name: str) -> None:
    layer = build(name)
    inputs, state = example(layer, 7)
    for lengths in ([3, 0, 7, 0], [0, 0, 0, 0]):
        outputs, end = layer(inputs, state, lengths=torch.tensor(lengths))
        assert outputs.shape == (BATCH, 7, layer.output_size)
        empty = torch.tensor(lengths) == 0
        assert_states_close(select_state(end, empty), select_state(state, empty), rtol=0, atol=0)


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("name", CAUSAL_LAYERS)
def test_law_5_no_output_depends_on_a_later_input(name: str, time: int) -> None:
    layer = build(name)
    inputs, state = example(layer, time)
    whole, _ = layer(inputs, state)
    for t in {0, time // 2, time - 1}:
        changed = inputs.clone()
        changed[:, t:] += 1
        outputs, _ = layer(changed, state)
        torch.testing.assert_close(outputs[:, :t], whole[:, :t])
        assert name in DEAF or not torch.equal(outputs[:, t:], whole[:, t:])


@pytest.mark.parametrize("name", ALL_LAYERS)
def test_law_6_the_given_state_is_never_mutated(name: str) -> None:
    layer = build(name)
    inputs, state = example(layer, 7)
    before = map_state(Tensor.clone, state)
    layer(inputs, state)
    layer(inputs, state, lengths=torch.tensor([7, 0, 3, 1]))
    if layer.causal:
        layer.step(inputs[:, 0], state)
    map_state(lambda a, b: torch.testing.assert_close(a, b, rtol=0, atol=0) or a, state, before)


@pytest.mark.parametrize("name", CAUSAL_LAYERS)
def test_law_7_select_state_commutes_with_step(name: str) -> None:
    layer = build(name)
    inputs, state = example(layer, 1)
    index = torch.tensor([2, 0, 0, 3, 1])

    def select_then_step(x: Tensor, start: State) -> tuple[Tensor, State]:
        return layer.step(x[index, 0], select_state(start, index))

    def step_then_select(x: Tensor, start: State) -> tuple[Tensor, State]:
        outputs, end = layer.step(x[:, 0], start)
        return outputs[index], select_state(end, index)

    assert_same(layer, select_then_step, step_then_select, inputs, state)


@pytest.mark.parametrize("name", CAUSAL_LAYERS)
def test_laws_1_2_6_and_7_hold_where_no_gradient_is_recorded(name: str) -> None:
    """There a state may share memory with those before it: two texts go on from every state of the first."""
    layer = build(name)
    inputs, state = example(layer, 9)
    other, index = inputs.flip(0), torch.tensor([3, 0, 0, 2])
    with torch.inference_mode():
        whole, end = layer(inputs, state)
        states, copies = [state], [map_state(Tensor.clone, state)]
        for t in range(9):
            output, after = layer.step(inputs[:, t], states[-1])
            torch.testing.assert_close(output, whole[:, t])
            states.append(after)
            copies.append(map_state(Tensor.clone, after))
        assert_states_close(states[-1], end)
        for cut, begin in enumerate(states):
            there, _ = layer(other[:, cut:], begin)
            back, _ = layer(inputs[:, cut:], begin)
            torch.testing.assert_close(back, whole[:, cut:])
            expected, _ = layer(other[:, cut:], copies[cut])
            torch.testing.assert_close(there, expected)
            output, _ = layer.step(other[index, 0], select_state(begin, index))
            expected, _ = layer.step(other[index, 0], select_state(copies[cut], index))
            torch.testing.assert_close(output, expected)
    for begin, copy in zip(states, copies, strict=True):
        map_state(lambda a, b: torch.testing.assert_close(a, b, rtol=0, atol=0) or a, begin, copy)


@pytest.mark.parametrize("name", CAUSAL_LAYERS)
def test_law_8_a_saved_state_goes_on_identically(name: str, tmp_path) -> None:
    from safetensors.torch import load_file, save_file

    layer = build(name)
    inputs, state = example(layer, 7)
    save_file(state_to_dict(state), tmp_path / "state.safetensors")
    loaded = state_from_dict(load_file(tmp_path / "state.safetensors"), initial(layer))
    assert type(loaded) is type(state)
    outputs, end = layer(inputs, state)
    again, end_again = layer(inputs, loaded)
    assert torch.equal(outputs, again)
    map_state(lambda a, b: torch.testing.assert_close(a, b, rtol=0, atol=0) or a, end, end_again)


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
