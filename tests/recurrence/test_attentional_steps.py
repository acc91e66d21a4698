"""A step of a recurrent decoder with attention, in one call of compiled code, is the step as it is written."""

import pytest
import torch

import seriatim
from seriatim.core.state import map_state, select_state, state_leaves
from seriatim.models.attention_decoder import bahdanau_decoder, luong_decoder
from seriatim.models.copying import Copying
from seriatim.models.encoder_decoder import EncoderDecoder
from seriatim.recurrence import uncompiled
from seriatim.recurrence.compiled_step import CompiledStep
from seriatim.recurrence.fast_path import STEPS, run_step
from seriatim.recurrence.round_weights import round_weights
from seriatim.runs.weight_rounding import round_model

DECODERS = {
    "dot": (luong_decoder, {"score": "dot"}),
    "scaled dot": (luong_decoder, {"score": "scaled-dot", "readout": "direct"}),
    "bilinear": (luong_decoder, {"score": "bilinear"}),
    "additive": (luong_decoder, {"score": "additive"}),
    "input feeding": (luong_decoder, {"score": "bilinear", "input_feeding": True}),
    "direct input feeding": (luong_decoder, {"score": "dot", "input_feeding": True, "readout": "direct"}),
    "before the recurrence": (bahdanau_decoder, {}),
    "before, bilinear": (bahdanau_decoder, {"score": "bilinear"}),
    "location": (luong_decoder, {"score": "dot", "location": True}),
    "location, additive": (bahdanau_decoder, {"location": True}),
    "location, input feeding": (luong_decoder, {"score": "bilinear", "location": True, "input_feeding": True}),
}
WORDS = 13


def made(case: str, recurrence: str = "lstm", **more: object) -> EncoderDecoder:
    torch.manual_seed(0)
    kind, options = DECODERS[case]
    encoder = seriatim.layer("lstm", 6, 4, bidirectional=True)
    decoder = kind(lambda width: seriatim.layer(recurrence, width, 8), 6, 8, **options, **more)
    if decoder.attend.location is not None:
        torch.nn.init.normal_(decoder.attend.location)
    return EncoderDecoder(encoder, decoder, WORDS, WORDS, 6).double().eval()


@pytest.mark.parametrize("recurrence", ["lstm", "gru", "mamba", "transformer"])
@pytest.mark.parametrize("case", DECODERS)
@torch.no_grad()
def test_compiled_steps_are_those_as_written(case: str, recurrence: str) -> None:
    model = made(case, recurrence)
    source, lengths = torch.randint(WORDS, (4, 7)), torch.tensor([7, 3, 0, 1])
    state = model.encode(source, lengths)
    expected_state = state
    for time, rows in enumerate(([0, 1, 2, 3], [1, 1, 0, 2, 3], [4, 0], [1])):
        index = torch.tensor(rows)
        state, expected_state = select_state(state, index), select_state(expected_state, index)
        tokens = torch.randint(WORDS, (len(rows),), generator=torch.Generator().manual_seed(time))
        before = [leaf.clone() for leaf in state_leaves(state)]
        result = run_step(model, tokens, state)
        assert result is not None
        with uncompiled():
            expected, expected_state = model.step(tokens, expected_state)
        assert all(map(torch.equal, before, state_leaves(state))), "a given state was changed"
        logits, state = result
        torch.testing.assert_close(logits, expected, rtol=1e-10, atol=1e-10)
        map_state(
            lambda a, b: torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10) or a,
            state,
            expected_state,
        )


@torch.no_grad()
def test_one_program_serves_sources_of_any_length() -> None:
    model = made("additive")
    for rows, time in ((1, 5), (3, 2), (2, 0), (1, 90)):
        state = model.encode(torch.randint(WORDS, (rows, time)))
        tokens = torch.zeros(rows, dtype=torch.long)
        result = run_step(model, tokens, state)
        assert result is not None
        with uncompiled():
            expected, _ = model.step(tokens, state)
        torch.testing.assert_close(result[0], expected, rtol=1e-10, atol=1e-10)
    (entry,) = STEPS.of(model).entries.values()
    assert isinstance(entry, CompiledStep)


@pytest.mark.parametrize("case", ["dot", "location", "location, additive"])
@torch.no_grad()
def test_steps_of_a_model_that_copies_are_those_as_written(case: str) -> None:
    model = made(case)
    model.copying = Copying(8, torch.arange(WORDS), None).double()
    model.copying.gate.weight.normal_()
    state = expected_state = model.encode(torch.randint(WORDS, (3, 4)), torch.tensor([4, 0, 2]))
    for time in range(3):
        tokens = torch.full((3,), time)
        assert run_step(model, tokens, state) is None
        logits, state = model.step(tokens, state)
        with uncompiled():
            expected, expected_state = model.step(tokens, expected_state)
        torch.testing.assert_close(logits, expected, rtol=1e-10, atol=1e-10)


def test_the_decoder_of_a_model_that_copies_can_be_rounded(tmp_path) -> None:
    model = made("location").float()
    model.copying = Copying(8, torch.arange(WORDS), None)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    round_model(model, "int8", tmp_path, "seq2seq")
    changed = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    assert changed
    assert all(key.startswith("decoder.") for key in changed)


@torch.no_grad()
def test_weights_can_be_rounded() -> None:
    model = made("input feeding").float()
    numbers, changed = round_weights(model, "int8")
    assert numbers == changed
    state, tokens = model.encode(torch.randint(WORDS, (2, 4))), torch.tensor([1, 2])
    result = run_step(model, tokens, state)
    assert result is not None
    with uncompiled():
        expected, _ = model.step(tokens, state)
    torch.testing.assert_close(result[0], expected, rtol=1e-4, atol=1e-4)
