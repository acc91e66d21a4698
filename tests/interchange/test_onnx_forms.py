"""Exported models compute what the models compute, for other lengths and batches than those they were traced with."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

import seriatim
from seriatim.layers.containers import bidirectional
from seriatim.models import Classifier, LanguageModel, MaskedLanguageModel
from seriatim.models.attention_decoder import bahdanau_decoder, luong_decoder
from seriatim.models.characters import (
    FEATURES,
    ConvolutionalCharacters,
    JoinedCharacters,
    RecurrentCharacters,
    WordFeatures,
)
from seriatim.models.crf import CRF
from seriatim.models.ctc_translator import CTCTranslator
from seriatim.models.encoder_decoder import EncoderDecoder
from seriatim.models.recurrent_decoder import ContextDecoder
from seriatim.models.tagger import Tagger

from ..exhaustive import parameters
from . import onnx_agreement as agreement

TOLERANCE = 2e-5
"""Rounding in float32; the recurrences of S4 amplify it most."""
SIZE, TOKENS, SOURCES, LABELS = 16, 23, 21, 5


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def language_model(name: str, **options: object) -> LanguageModel:
    num_layers = options.pop("num_layers", 1)
    return LanguageModel(seriatim.layer(name, SIZE, SIZE, num_layers=num_layers, **options), TOKENS)


@pytest.mark.parametrize("name", parameters(seriatim.layers.names(), everyday=("lstm",)))
def test_every_layer(name, tmp_path) -> None:
    assert agreement.language_deviation(language_model(name), tmp_path) < TOLERANCE


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lstm", {"num_layers": 2, "block": True}),
        ("lstm", {"projection_size": 8, "zoneout": 0.2, "weight_dropout": 0.3}),
        ("mamba,transformer", {}),
        ("window", {"context": 1}),
        ("attention", {"window": 3, "position": "alibi"}),
        ("attention", {"window": 64, "position": "rotary"}),
        ("attention", {"window": 1}),
        ("attention", {"score": "additive", "num_heads": 4, "num_kv_heads": 2}),
        ("attention", {"score": "bilinear", "position": "learned", "max_length": 200}),
        ("transformer", {"num_heads": 4, "num_kv_heads": 2, "qk_norm": True, "num_layers": 2}),
        ("transformer", {"num_experts": 4, "position": "sinusoidal"}),
    ],
)
@pytest.mark.exhaustive
def test_options_of_layers(name, options, tmp_path) -> None:
    assert agreement.language_deviation(language_model(name, **options), tmp_path) < TOLERANCE


class Averages(seriatim.RecurrentCell):
    """Two running averages; the first begins at a learned value."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, 2 * hidden_size
        self.first, self.in_proj = nn.Parameter(torch.randn(hidden_size)), nn.Linear(input_size, hidden_size)

    def initial_state(self, batch_size: int) -> tuple[Tensor, Tensor]:
        return self.first.expand(batch_size, -1), self.zeros(batch_size, len(self.first))

    def forward(self, inputs: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        slow, fast = state
        x = self.in_proj(inputs)
        slow, fast = 0.9 * slow + 0.1 * x, 0.5 * fast + 0.5 * torch.relu(x)
        return torch.cat([slow, fast], dim=1), (slow, fast)


@pytest.mark.exhaustive
def test_a_cell_of_ones_own_with_a_learned_beginning(tmp_path) -> None:
    model = LanguageModel(seriatim.Recurrent(Averages(SIZE, 8)), TOKENS)
    assert agreement.language_deviation(model, tmp_path) < TOLERANCE


class Looping(seriatim.SequenceLayer):
    """Loops over time in Python around an inner layer, and writes its shift in place."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, hidden_size
        self.inner = seriatim.layer("gru", input_size, hidden_size)
        self.register_buffer("shift", torch.ones(hidden_size), persistent=False)

    def initial_state(self, batch_size: int) -> seriatim.State:
        return self.inner.initial_state(batch_size)

    def forward(self, inputs, state=None, *, lengths=None):
        inputs, state, lengths = self.begin(inputs, state, lengths)
        outputs = []
        for x in inputs.unbind(1):
            y, state = self.inner.step(x, state)
            shift = self.shift.clone()
            shift[0] = 2.0
            outputs.append(y + shift)
        return torch.stack(outputs, dim=1), state


@pytest.mark.exhaustive
def test_a_layer_of_ones_own_that_loops_around_another(tmp_path) -> None:
    model = LanguageModel(Looping(SIZE, SIZE), TOKENS)
    assert agreement.language_deviation(model, tmp_path) < TOLERANCE


def field() -> CRF:
    crf = CRF(LABELS, torch.rand(LABELS + 1, LABELS + 1) > 0.2)
    for parameter in crf.parameters():
        nn.init.normal_(parameter)
    return crf


def spelling(*, recurrent: bool = False) -> JoinedCharacters:
    """Return a reader of words of width 12; its features are not zero, as they are at first."""
    alphabet = [chr(ord("a" if i % 3 else "A") + i) for i in range(agreement.CHARACTERS)]
    features = WordFeatures(alphabet, FEATURES, size=6, rows=500)
    nn.init.normal_(features.embedding.weight)
    inner: nn.Module = ConvolutionalCharacters(agreement.CHARACTERS, embedding_size=4, filters=6)
    if recurrent:
        inner = RecurrentCharacters(agreement.CHARACTERS, embedding_size=4, hidden_size=3)
    return JoinedCharacters([inner, features])


class Case(NamedTuple):
    name: str
    deviation: Callable[..., float]
    model: Callable[[], nn.Module]


def layer(name: str, width: int = SIZE, **options: object) -> seriatim.SequenceLayer:
    return seriatim.layer(name, width, SIZE, **options)


def recurrence(width: int) -> seriatim.SequenceLayer:
    return seriatim.layer("lstm", width, 10)


def translator(encoder: seriatim.SequenceLayer, decoder: seriatim.SequenceLayer, **options: object) -> EncoderDecoder:
    return EncoderDecoder(encoder, decoder, SOURCES, TOKENS, SIZE, **options)


def copied() -> Tensor:
    return torch.randint(-1, TOKENS, (SOURCES,))


def both_ways() -> seriatim.SequenceLayer:
    return seriatim.layer("lstm", SIZE, 8, bidirectional=True)


CASES = [
    Case("tagger with a field and spelling", agreement.tag_deviation, lambda: Tagger(
        layer("lstm", 28, bidirectional=True), TOKENS, num_tags=LABELS, characters=spelling(), crf=field())),
    Case("tagger with independent tags", agreement.tag_deviation, lambda: Tagger(
        layer("gru", 28, bidirectional=True), TOKENS, num_tags=LABELS, characters=spelling(recurrent=True))),
    Case("tagger with attention", agreement.tag_deviation, lambda: Tagger(
        layer("transformer", causal=False), TOKENS, num_tags=LABELS, crf=field())),
    Case("classifier of last states", agreement.label_deviation, lambda: Classifier(
        layer("lstm", 28, bidirectional=True), TOKENS, LABELS, pooling="final", two_ways=True, characters=spelling())),
    Case("classifier of maxima", agreement.label_deviation, lambda: Classifier(
        layer("convolution"), TOKENS, LABELS, pooling="max")),
    Case("classifier of means", agreement.label_deviation, lambda: Classifier(
        bidirectional(layer("s4d"), layer("s4d")), TOKENS, LABELS, pooling="mean")),
    Case("classifier with attention", agreement.label_deviation, lambda: Classifier(
        layer("transformer", causal=False, position="learned", max_length=64), TOKENS, LABELS, pooling="attention")),
    Case("masked transformer", agreement.masked_deviation, lambda: MaskedLanguageModel(
        layer("transformer", causal=False, num_layers=2), TOKENS)),
    Case("masked mixture of experts", agreement.masked_deviation, lambda: MaskedLanguageModel(
        layer("transformer", causal=False, num_experts=3), TOKENS, tie_weights=True)),
    Case("masked window", agreement.masked_deviation, lambda: MaskedLanguageModel(
        layer("attention", causal=False, window=3, position="alibi"), TOKENS)),
    Case("masked recurrence", agreement.masked_deviation, lambda: MaskedLanguageModel(
        layer("lstm", bidirectional=True, num_layers=2), TOKENS)),
    Case("Luong with input feeding", agreement.translation_deviation, lambda: translator(
        both_ways(), luong_decoder(recurrence, SIZE, 16, input_feeding=True))),
    Case("Luong with location and copies", agreement.translation_deviation, lambda: translator(
        both_ways(), luong_decoder(recurrence, SIZE, 16, score="additive", location=True), copied=copied())),
    Case("Bahdanau", agreement.translation_deviation, lambda: translator(
        layer("gru"), bahdanau_decoder(recurrence, SIZE, 16))),
    Case("context in every place", agreement.translation_deviation, lambda: translator(
        layer("lstm"), ContextDecoder(recurrence, SIZE, 16, context="initial+updates+outputs"))),
    Case("transformer", agreement.translation_deviation, lambda: translator(
        layer("transformer", causal=False), layer("transformer", memory_size=16, num_layers=2), tie_weights=True)),
    Case("transformer with copies", agreement.translation_deviation, lambda: translator(
        layer("transformer", causal=False), layer("transformer", memory_size=16, position="learned"), copied=copied())),
    Case("connectionist temporal classification", agreement.aligned_deviation, lambda: CTCTranslator(
        both_ways(), SOURCES, TOKENS)),
]  # fmt: skip
BY_NAME = {case.name: case for case in CASES}
EVERYDAY = ("classifier of maxima", "masked window")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", parameters(BY_NAME, everyday=EVERYDAY))
def test_every_kind_of_model(name, tmp_path) -> None:
    case = BY_NAME[name]
    assert case.deviation(case.model(), tmp_path) < TOLERANCE
