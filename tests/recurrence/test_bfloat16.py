"""Compiled recurrences under autocast: products in bfloat16, states and sums in float32."""

import pytest
import torch
from torch import Tensor

from seriatim.core.contract import SequenceLayer
from seriatim.core.state import state_leaves
from seriatim.recurrence import uncompiled

from ..exhaustive import parameters
from ..layers.recurrences import CELLS, FUSED, N, build, sequence

ROUNDING = 2.0**-8
"""Of one number to bfloat16, relative."""

NAMES = parameters([*FUSED, *CELLS], everyday=["lstm", "gru-original"])
"""Every cell; all but a fused one and another are left to the exhaustive tests."""


def values_and_gradients(layer: SequenceLayer, inputs: Tensor, lengths: Tensor | None) -> list[Tensor]:
    """Outputs, the state after the last input, and the gradients of a random sum of both."""
    outputs, state = layer(inputs, lengths=lengths)
    values = [outputs, *state_leaves(state)]
    torch.manual_seed(3)
    total = sum((value.float() * torch.randn(value.shape)).sum() for value in values)
    return [*values, *torch.autograd.grad(total, [inputs, *layer.parameters()])]


@pytest.mark.parametrize("lengths", [None, [9, 0, 4]], ids=["full", "ragged"])
@pytest.mark.parametrize("name", NAMES)
def test_values_and_gradients_are_those_of_float32_to_rounding(name: str, lengths: list[int] | None) -> None:
    layer = build(name).float()
    inputs = sequence(9).float().requires_grad_()
    read = None if lengths is None else torch.tensor(lengths)
    with uncompiled():
        expected = values_and_gradients(layer, inputs, read)
    with torch.autocast("cpu", torch.bfloat16):
        found = values_and_gradients(layer, inputs, read)
    assert not torch.equal(found[0].float(), expected[0])
    for mine, exact in zip(found, expected, strict=True):
        assert mine.shape == exact.shape
        assert (mine - exact).norm() <= 8 * ROUNDING * exact.norm()


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["gru-original", "lstm-peephole", "gru", "lstm"])
def test_the_state_is_not_rounded(name: str) -> None:
    layer = build(name).float()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        _, state = layer(sequence(5).float())
        _, run_step = layer.step(sequence(1)[:, 0].float(), layer.initial_state(N))
    for leaf in (*state_leaves(state), *state_leaves(run_step)):
        assert leaf.dtype == torch.float32
        assert not torch.equal(leaf, leaf.bfloat16().float())


@pytest.mark.parametrize("name", NAMES)
def test_steps_are_those_of_float32_to_rounding(name: str) -> None:
    layer = build(name).float()
    inputs = sequence(9).float()
    with torch.no_grad():
        expected, _ = layer(inputs)
        with torch.autocast("cpu", torch.bfloat16):
            state, found = layer.initial_state(N), []
            for x in inputs.unbind(1):
                output, state = layer.step(x, state)
                found.append(output.float())
    assert (torch.stack(found, 1) - expected).norm() <= 8 * ROUNDING * expected.norm()
