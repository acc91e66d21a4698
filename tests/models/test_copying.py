"""Copying from the source: one distribution, computed alike in parallel and step by step, for any decoder."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn

import seriatim
from seriatim.config import Model
from seriatim.config import Tokenizer as TokenizerConfig
from seriatim.data.vocabulary import fit_tokenizer
from seriatim.decoding.beam import Beam, beam_search
from seriatim.decoding.ensemble import EncoderDecoders
from seriatim.models.aligned import AlignedEncoderDecoder
from seriatim.models.attention_decoder import bahdanau_decoder, luong_decoder
from seriatim.models.copying import NOT_COPIED, copied_tokens
from seriatim.models.encoder_decoder import EncoderDecoder
from seriatim.models.recurrent_decoder import ContextDecoder
from seriatim.models.translator import Options, with_implied_options
from seriatim.recurrence import uncompiled

from ..refusals import refused

SIZE, TARGETS = 6, 8
TABLE = torch.tensor([NOT_COPIED, NOT_COPIED, 2, 5, 4, NOT_COPIED, 7, 2, 3])
"""The target token of each of nine source tokens."""


def layer(width: int, name: str = "gru", **options) -> seriatim.SequenceLayer:
    return seriatim.layer(name, width, SIZE, **options)


DECODERS = {
    "context": partial(ContextDecoder, layer, SIZE),
    "luong": partial(luong_decoder, layer, SIZE),
    "location": partial(luong_decoder, layer, SIZE, location=True),
    "aligned": partial(luong_decoder, layer, SIZE, location=True),
    "feeding": partial(luong_decoder, layer, SIZE, input_feeding=True),
    "bahdanau": partial(bahdanau_decoder, layer, SIZE, location=True),
    "transformer": lambda memory: layer(SIZE, "transformer", memory_size=memory, num_heads=2),
}


def model(decoder: str, **options) -> EncoderDecoder:
    torch.manual_seed(0)
    make = AlignedEncoderDecoder if decoder == "aligned" else EncoderDecoder
    made = make(layer(SIZE), DECODERS[decoder](SIZE), len(TABLE), TARGETS, SIZE, copied=TABLE, **options)
    for parameter in (made.copying.gate.weight, *(p for n, p in made.named_parameters() if n.endswith("location"))):
        nn.init.normal_(parameter, std=0.3)
    return made.double().eval()


@pytest.fixture(autouse=True)
def _as_written():
    with uncompiled():
        yield


def batch() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    source, targets = torch.randint(1, len(TABLE), (4, 5)), torch.randint(0, TARGETS, (4, 6))
    inputs = torch.cat([torch.zeros(4, 1).long(), targets[:, :-1]], 1)
    return source, torch.tensor([5, 0, 2, 5]), inputs, targets, torch.tensor([6, 3, 1, 0])


@pytest.mark.parametrize("decoder", DECODERS)
def test_the_probabilities_sum_to_one(decoder: str) -> None:
    made, (source, lengths, inputs, *_) = model(decoder), batch()
    log_p, _ = made(inputs, made.encode(source, lengths))
    torch.testing.assert_close(log_p.exp().sum(2), torch.ones(4, 6).double(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("decoder", DECODERS)
def test_losses_steps_and_search_agree_with_forward(decoder: str) -> None:
    made, (source, lengths, inputs, targets, target_lengths) = model(decoder), batch()
    state = made.encode(source, lengths)
    log_p, _ = made(inputs, state)
    expected = -log_p.gather(2, targets.unsqueeze(2)).squeeze(2)
    valid = torch.arange(6) < target_lengths[:, None]
    losses = made.token_losses(source, lengths, inputs, targets, target_lengths)
    torch.testing.assert_close(losses, expected * valid)
    loss = made.loss(source, lengths, inputs, targets, target_lengths)
    torch.testing.assert_close(loss, (expected * valid).sum())
    loss.backward()
    assert all(torch.isfinite(value.grad).all() for value in made.parameters() if value.grad is not None)
    found = beam_search(made, state, Beam(3, n_best=2), max_length=5)
    with torch.no_grad():
        for t in range(6):
            step, state = made.step(inputs[:, t], state)
            torch.testing.assert_close(step, log_p[:, t])
    for row, size in enumerate(lengths.tolist()):
        for one in found[row]:
            tokens = torch.tensor([[0, *one.tokens]])
            one_losses = made.token_losses(source[row : row + 1, :size], None, tokens, tokens.roll(-1, 1))
            assert one.log_probability == pytest.approx(-float(one_losses.sum()), abs=1e-10)


@pytest.mark.parametrize("decoder", ["luong", "transformer"])
def test_only_tokens_of_the_source_are_copied(decoder: str) -> None:
    made, (source, _, inputs, *_) = model(decoder), batch()
    source[0] = 5  # a token without a target: nothing can be copied
    with torch.no_grad():
        plain = made.logits(made.features(inputs, made.encode(source), None)[0]).log_softmax(2)
        made.copying.gate.bias.fill_(-50.0)  # copy whenever it is possible
        log_p, _ = made(inputs, made.encode(source))
    torch.testing.assert_close(log_p[0], plain[0])
    attended = log_p[1:].exp() > 1e-6
    ids = TABLE[source[1:]]
    for row in range(3):
        allowed = set(ids[row].tolist()) if NOT_COPIED not in ids[row] else set(range(TARGETS))
        assert all(set(step.nonzero().flatten().tolist()) <= allowed for step in attended[row])


def test_a_token_that_is_attended_to_is_certain() -> None:
    """Its loss stays finite and has a finite gradient if nothing else can be copied, or nothing at all."""
    made, (source, lengths, inputs, targets, target_lengths) = model("luong"), batch()
    for bias in (-200.0, 200.0):
        made.copying.gate.bias.data.fill_(bias)
        made.zero_grad()
        loss = made.float().loss(source, lengths, inputs, targets, target_lengths)
        loss.backward()
        assert torch.isfinite(loss)
        assert all(torch.isfinite(value.grad).all() for value in made.parameters() if value.grad is not None)


def test_an_ensemble_averages_probabilities() -> None:
    made, (source, lengths, inputs, *_) = [model("luong"), model("location")], batch()
    both = EncoderDecoders(made)
    step, _ = both.step(inputs[:, 0], both.encode(source, lengths))
    each = [one(inputs[:, :1], one.encode(source, lengths))[0][:, 0].exp() for one in made]
    torch.testing.assert_close(step.exp(), (each[0] + each[1]) / 2)


def test_label_smoothing_spreads_over_the_output_layer() -> None:
    made, (source, lengths, inputs, targets, target_lengths) = model("luong", label_smoothing=0.1), batch()
    hidden, _ = made.features(inputs, made.encode(source, lengths), None)
    spread = -made.logits(hidden).log_softmax(2).mean(2)
    valid = torch.arange(6) < target_lengths[:, None]
    exact = made.token_losses(source, lengths, inputs, targets, target_lengths).sum()
    smoothed = made.loss(source, lengths, inputs, targets, target_lengths)
    torch.testing.assert_close(smoothed, 0.9 * exact + 0.1 * (spread * valid).sum())


def test_tokens_with_the_same_text_are_copied() -> None:
    source = fit_tokenizer(TokenizerConfig(kind="word"), ["a b c +PL", "d"])
    target = fit_tokenizer(TokenizerConfig(kind="word"), ["c a", "e"])
    table = copied_tokens(source, target)
    pairs = {source.describe(i): target.describe(int(j)) for i, j in enumerate(table) if j != NOT_COPIED}
    assert pairs == {"a": "a", "c": "c"}


def test_bounded_logits_are_refused() -> None:
    with refused("conflict", "copying"):
        model("luong", bounded_logits=True)


@pytest.mark.parametrize("option", [{"readout": "tanh-logits"}, {"scheduled_sampling": 0.5}])
def test_options_without_meaning_beside_copying_are_refused(option: dict) -> None:
    with refused("conflict", next(iter(option))):
        with_implied_options(Options(copying=True, **option), Model(layer="gru", bidirectional=True), {})


def test_location_needs_attention_of_one_head() -> None:
    with refused("conflict", "model.options.location"):
        with_implied_options(Options(location=True, attention="none"), Model(layer="gru", bidirectional=True), {})
