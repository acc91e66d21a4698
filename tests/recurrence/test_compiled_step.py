"""One step at a time: a whole stack in one compiled call gives what its layers give as they are written."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

import seriatim
from seriatim.core.contract import SequenceLayer
from seriatim.core.state import State, state_leaves
from seriatim.recurrence import uncompiled
from seriatim.recurrence.compiled_step import CompiledStep
from seriatim.recurrence.fast_path import STEPS

from ..refusals import refused

STACKS = {
    "lstm": {"num_layers": 2},
    "gru": {"num_layers": 3, "residual": True},
    "rnn": {"num_layers": 1},
    "lstm-peephole": {"num_layers": 2},
    "lstm-layernorm": {"num_layers": 1},
    "gru-original": {"num_layers": 1, "zoneout": 0.2},
    "mingru": {"num_layers": 2, "block": True},
}


def build(name: str, size: int = 20) -> SequenceLayer:
    torch.manual_seed(0)
    return seriatim.layer(name, size, size, **STACKS[name]).double().eval()


def random_state(layer: SequenceLayer, batch: int) -> State:
    with torch.no_grad():
        return layer(torch.randn(batch, 3, layer.input_size, dtype=torch.float64))[1]


def step_both_ways(layer: SequenceLayer, inputs: Tensor, state: State) -> None:
    """Compares a step with the step as it is written, and sees that it was compiled."""
    with torch.inference_mode():
        found, after = layer.step(inputs, state)
        with uncompiled():
            expected, reference = layer.step(inputs, state)
    assert all(isinstance(stepper, CompiledStep) for stepper in STEPS.of(layer).entries.values())
    for a, b in zip([found, *state_leaves(after)], [expected, *state_leaves(reference)], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", STACKS)
def test_a_stack_steps_in_one_call(name: str) -> None:
    layer = build(name)
    for batch in (1, 3, 17):
        step_both_ways(layer, torch.randn(batch, 20, dtype=torch.float64), random_state(layer, batch))


def test_changed_weights_are_packed_again() -> None:
    layer, inputs = build("lstm"), torch.randn(2, 20, dtype=torch.float64)
    state = random_state(layer, 2)
    step_both_ways(layer, inputs, state)
    with torch.no_grad():
        next(layer.parameters()).mul_(2)
    step_both_ways(layer, inputs, state)
    other = build("lstm")
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.1)
    layer.load_state_dict(other.state_dict())
    step_both_ways(layer, inputs, state)
    layer.layers[0] = other.layers[1]
    step_both_ways(layer, inputs, state)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD])
@pytest.mark.parametrize("fused", [True, False])
def test_a_step_of_an_optimizer_changes_what_is_packed(kind: type, fused: bool) -> None:
    torch.manual_seed(1)
    layer = seriatim.layer("gru", 4, 5)
    optimizer = kind(layer.parameters(), lr=0.1, fused=fused)
    inputs, state = torch.randn(2, 3, 4), layer.initial_state(2)
    for _ in range(3):
        layer.train()(inputs)[0].sum().backward()
        optimizer.step()
        with torch.no_grad():
            found = [layer.eval()(inputs)[0], layer.step(inputs[:, 0], state)[0]]
            with uncompiled():
                expected = [layer(inputs)[0], layer.step(inputs[:, 0], state)[0]]
        torch.testing.assert_close(found, expected)


def test_a_layer_in_training_steps_as_it_is_written() -> None:
    layer, inputs = build("gru-original"), torch.randn(2, 20, dtype=torch.float64)
    state = random_state(layer, 2)
    step_both_ways(layer, inputs, state)
    layer.train()
    with torch.no_grad():
        torch.manual_seed(1)
        found = layer.step(inputs, state)[0]
        torch.manual_seed(2)
        assert not torch.equal(found, layer.step(inputs, state)[0])  # zoneout draws anew


def test_hooks_see_every_step() -> None:
    layer, inputs = build("lstm-peephole"), torch.randn(2, 20, dtype=torch.float64)
    state, seen = random_state(layer, 2), []
    step_both_ways(layer, inputs, state)
    handle = layer.layers[0].cell.register_forward_hook(lambda *_: seen.append(1))
    with torch.no_grad():
        layer.step(inputs, state)
    assert seen == [1]
    handle.remove()
    step_both_ways(layer, inputs, state)


def test_a_state_that_does_not_fit_is_refused() -> None:
    layer = build("lstm")
    state = random_state(layer, 3)
    with torch.no_grad():
        layer.step(torch.randn(3, 20, dtype=torch.float64), state)
        for inputs in (torch.randn(2, 20, dtype=torch.float64), torch.randn(3, 21, dtype=torch.float64)):
            with refused("mismatch"):
                layer.step(inputs, state)


def test_threads_do_not_mix_their_steps() -> None:
    layer = build("gru")
    inputs = [torch.randn(2, 20, dtype=torch.float64) for _ in range(8)]
    state = random_state(layer, 2)
    with uncompiled(), torch.no_grad():
        expected = [layer.step(x, state)[0] for x in inputs]

    def work(i: int) -> bool:
        with torch.no_grad():
            return all(torch.allclose(layer.step(inputs[i], state)[0], expected[i]) for _ in range(50))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))


def test_the_given_state_stays_as_it_was() -> None:
    layer = build("lstm")
    state = random_state(layer, 2)
    before = [leaf.clone() for leaf in state_leaves(state)]
    with torch.no_grad():
        layer.step(torch.randn(2, 20, dtype=torch.float64), state)
    assert all(torch.equal(a, b) for a, b in zip(before, state_leaves(state), strict=True))
