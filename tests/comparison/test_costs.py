"""The costs of a model: what its state holds, and how times are repeated."""

import time
from collections import defaultdict
from functools import partial

import pytest
import torch

import seriatim
from seriatim.comparison.row import FEWEST, quartiles, repeated, state_by_source
from seriatim.models.attention_decoder import luong_decoder
from seriatim.models.encoder_decoder import EncoderDecoder
from seriatim.models.recurrent_decoder import ContextDecoder
from seriatim.recurrence import uncompiled


def test_one_hiccup_of_the_machine_is_in_no_range() -> None:
    """Calls take turns, so that a moment disturbs one repetition of each, and the quartiles leave it out."""
    calls, order = defaultdict(int), []

    def call(name: str) -> None:
        calls[name] += 1
        order.append(name)
        time.sleep(0.03 if calls[name] == 3 else 0.001)

    found = repeated({"16": lambda: call("16"), "64": lambda: call("64")}, times=7, seconds=10)
    assert order == ["16", "64"] * 8
    for times in found.values():
        assert len(times) == 7
        assert max(times) > 25
        low, high = quartiles(times)
        assert high < 20
        assert low <= high
    assert quartiles([1.0] * (FEWEST - 1)) is None


def test_slow_calls_are_repeated_as_often_as_a_range_needs() -> None:
    found = repeated({"a": lambda: time.sleep(0.01)}, times=50, seconds=0.0)
    assert len(found["a"]) == FEWEST


@pytest.mark.parametrize("attends", [True, False])
def test_the_state_of_a_decoder_with_attention_grows_with_its_source(attends: bool) -> None:
    torch.manual_seed(0)
    with uncompiled(), torch.inference_mode():
        sizes = state_by_source(translator(attends))
    assert list(sizes) == ["10", "100", "1000"]
    growth = sizes["1000"] - sizes["100"], sizes["100"] - sizes["10"]
    assert growth[0] == 10 * growth[1]
    assert (growth[0] > 0) == attends


def translator(attends: bool) -> EncoderDecoder:
    encoder = seriatim.layer("gru", 6, 6)
    decoder = partial(seriatim.layer, "gru")
    if attends:
        return EncoderDecoder(encoder, luong_decoder(lambda width: decoder(width, 6), 6, 6), 9, 8, 6).eval()
    return EncoderDecoder(
        encoder, ContextDecoder(lambda width: decoder(width, 6), 6, 6, context="initial"), 9, 8, 6
    ).eval()
