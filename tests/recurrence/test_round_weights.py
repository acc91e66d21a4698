"""Models with rounded weights: the compiled step reads fewer bytes and computes what the layers compute."""

import copy

import pytest
import torch
from torch import nn

import seriatim
from seriatim.compiler.fallback_reasons import UnsupportedError
from seriatim.core.contract import RecurrentCell
from seriatim.core.state import state_leaves
from seriatim.models.encoder_decoder import EncoderDecoder
from seriatim.models.language_model import LanguageModel
from seriatim.recurrence import uncompiled
from seriatim.recurrence.compiled_step import CompiledStep
from seriatim.recurrence.fast_path import STEPS, run_step
from seriatim.recurrence.round_weights import round_weights
from seriatim.recurrence.weight_formats import FORMATS

from ..exhaustive import parameters

NAMES = [name for name in seriatim.layers.names() if name != "prior"]
TOLERANCE = {"bfloat16": 1e-4, "int8": 1e-4, "int4": 1e-3}
"""Products with int4 round the rows to 16 bits."""


def language_model(name: str, size: int = 24, words: int = 30) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(seriatim.layer(name, size, size, num_layers=2), words, tie_weights=True).eval()


def formats(model: nn.Module) -> set[str]:
    """Return the formats of the packed matrices of a step."""
    (stepper,) = STEPS.of(model).entries.values()
    assert isinstance(stepper, CompiledStep)
    return {FORMATS[number] for number in stepper.formats.values()}


@pytest.mark.parametrize("weight_format", TOLERANCE)
@pytest.mark.parametrize("rows", parameters([1, 3, 11], everyday=[3]))
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_steps_with_rounded_weights_are_those_of_the_layers(name, rows, weight_format) -> None:
    model = language_model(name)
    for weight in model.parameters():  # some are zeros or the identity at first, which every format holds
        weight.add_(torch.randn(weight.shape) * 0.01)
    before = copy.deepcopy(model.state_dict())
    numbers, changed = round_weights(model, weight_format)
    state = expected_state = model.initial_state(rows)
    for token in torch.randint(30, (4, rows), generator=torch.Generator().manual_seed(1)):
        result = run_step(model, token, state)
        assert result is not None
        logits, state = result
        with uncompiled():
            expected, expected_state = model.step(token, expected_state)
        tolerance = TOLERANCE[weight_format]
        torch.testing.assert_close(logits, expected, rtol=tolerance, atol=tolerance)
        for leaf, other in zip(state_leaves(state), state_leaves(expected_state), strict=True):
            torch.testing.assert_close(leaf, other, rtol=tolerance, atol=tolerance)
    whole = copy.deepcopy(model)
    whole.load_state_dict(before)
    run_step(whole, token, whole.initial_state(rows))
    assert changed == numbers
    assert (formats(whole), formats(model)) == ({"float32"}, {weight_format})
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items() if value.dim() < 2)


@torch.no_grad()
def test_a_whole_sequence_and_its_steps_use_the_same_weights() -> None:
    model = language_model("transformer").double()
    round_weights(model, "int8")
    tokens = torch.randint(30, (2, 6))
    expected, state = model(tokens)[0], model.initial_state(2)
    for time in range(6):
        logits, state = model.step(tokens[:, time], state)
        torch.testing.assert_close(logits, expected[:, time], rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_a_state_goes_on_under_weights_of_another_format() -> None:
    full, small = language_model("lstm"), language_model("lstm")
    round_weights(small, "int8")
    _, state = full.step(torch.tensor([3]), full.initial_state(1))
    logits, _ = small.step(torch.tensor([4]), state)
    with uncompiled():
        expected, _ = small.step(torch.tensor([4]), state)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_weights_that_change_after_packing_are_packed_again() -> None:
    model = language_model("gru")
    round_weights(model, "int8")
    token, state = torch.tensor([3]), model.initial_state(1)
    model.step(token, state)
    model.output.weight[5] += torch.randn(24) * 0.01
    logits, _ = model.step(token, state)
    with uncompiled():
        expected, _ = model.step(token, state)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_a_decoder_that_attends_to_an_encoder() -> None:
    torch.manual_seed(0)
    encoder, decoder = seriatim.layer("transformer", 16, 16), seriatim.layer("transformer", 16, 16, memory_size=16)
    model = EncoderDecoder(encoder, decoder, 20, 20, 16).eval()
    before = copy.deepcopy(model.state_dict())
    numbers, changed = round_weights(model, "int8")
    assert numbers == changed
    after = model.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items() if key.startswith("encoder."))
    assert not torch.equal(after["output.weight"], before["output.weight"])


class Outward(RecurrentCell):
    """A cell whose matrix is stored as (depth, width)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.input_size = self.output_size = size
        self.matrix = nn.Parameter(torch.randn(size, size) * torch.logspace(-3, 0, size))

    def initial_state(self, batch_size: int) -> torch.Tensor:
        return self.matrix.new_zeros(batch_size, self.input_size)

    def forward(self, inputs, state):
        state = torch.tanh(inputs + state @ self.matrix)
        return state, state


@torch.no_grad()
def test_columns_are_those_of_the_product_however_the_matrix_is_stored() -> None:
    layer = seriatim.Recurrent(Outward(20)).eval()
    before = layer.cell.matrix.detach().clone()
    round_weights(layer, "int8")
    error = (layer.cell.matrix - before).abs()
    assert (error <= before.abs().amax(0) / 254 * 1.001).all()
    assert error.any()


def test_a_step_that_cannot_be_traced_is_refused() -> None:
    with pytest.raises(UnsupportedError):
        round_weights(seriatim.layer("transformer", 16, 16, num_experts=4), "int8")
