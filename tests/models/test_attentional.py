"""Recurrent decoders: the laws of a sequence layer, agreement with their papers' equations."""

from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import seriatim
from seriatim.core.contract import SequenceLayer
from seriatim.core.state import State, join_states, select_state
from seriatim.models.attention_decoder import Bahdanau, bahdanau_decoder, luong_decoder
from seriatim.models.recurrent_decoder import ContextDecoder
from seriatim.recurrence import uncompiled

from ..conftest import randn
from ..exhaustive import parameters
from ..laws import test_laws
from ..laws.eight_laws import BATCH, HIDDEN_SIZE, INPUT_SIZE, MEMORY_SIZE, Decay, example, initial
from ..refusals import refused


def recurrence(width: int, name: str = "gru", **options) -> SequenceLayer:
    if name == "cell":
        return seriatim.Recurrent(Decay(width, HIDDEN_SIZE))
    return seriatim.layer(name, width, HIDDEN_SIZE, **options)


DECODERS = {
    "context-initial": (ContextDecoder, {}, {}),
    "context-updates": (ContextDecoder, {"context": "updates", "summary": "ends"}, {"name": "lstm", "num_layers": 2}),
    "context-outputs": (ContextDecoder, {"context": "outputs+initial", "summary": "mean"}, {"name": "transformer"}),
    "context-everywhere": (ContextDecoder, {"context": "initial+updates+outputs"}, {"name": "mamba"}),
    "luong": (luong_decoder, {}, {"name": "lstm"}),
    "luong-direct": (luong_decoder, {"readout": "direct", "bridge": "none"}, {"name": "attention", "window": 3}),
    "luong-additive": (luong_decoder, {"score": "additive", "summary": "mean"}, {"name": "cell"}),
    "luong-feeding": (luong_decoder, {"input_feeding": True, "summary": "ends"}, {"name": "lstm", "num_layers": 2}),
    "luong-feeding-direct": (luong_decoder, {"input_feeding": True, "readout": "direct", "score": "additive"}, {}),
    "luong-location": (luong_decoder, {"location": True, "score": "bilinear"}, {"name": "lstm"}),
    "luong-feeding-location": (luong_decoder, {"location": True, "input_feeding": True}, {}),
    "bahdanau-location": (bahdanau_decoder, {"location": True}, {}),
    "bahdanau": (bahdanau_decoder, {}, {}),
    "bahdanau-direct": (bahdanau_decoder, {"readout": "direct", "score": "bilinear"}, {"name": "lstm"}),
    "bahdanau-growing": (bahdanau_decoder, {"bridge": "none"}, {"name": "transformer"}),
}


def build(name: str) -> SequenceLayer:
    torch.manual_seed(1)
    kind, options, inner = DECODERS[name]
    decoder = kind(partial(recurrence, **inner), INPUT_SIZE, MEMORY_SIZE, **options).double().eval()
    if options.get("location"):
        torch.nn.init.normal_(decoder.attend.location, std=0.1)
    return decoder


COMPILED = ("luong-feeding", "bahdanau-location")

TIMED = (
    "test_law_1_splitting_anywhere_changes_nothing",
    "test_law_2_steps_equal_one_forward",
    "test_law_3_padding_may_hold_nan",
    "test_law_5_no_output_depends_on_a_later_input",
)
UNTIMED = (
    "test_a_batch_gives_what_its_rows_give_alone",
    "test_law_4_an_empty_row_keeps_its_state",
    "test_law_6_the_given_state_is_never_mutated",
    "test_law_7_select_state_commutes_with_step",
    "test_law_8_a_saved_state_continues_identically",
    "test_wrong_shapes_are_named",
    "test_a_state_that_does_not_fit_is_refused",
)


EVERYDAY = (
    "context-updates",
    "context-everywhere",
    "luong",
    "luong-location",
    "luong-feeding",
    "bahdanau",
    "bahdanau-growing",
)


@pytest.mark.parametrize("name", parameters(DECODERS, everyday=EVERYDAY))
@pytest.mark.parametrize("law", [*TIMED, *UNTIMED])
def test_the_laws_of_a_sequence_layer_hold(law: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_laws, "build", build)
    check = getattr(test_laws, law)
    with nullcontext() if name in COMPILED else uncompiled():
        for time in (1, 7) if law in TIMED else (None,):
            check(name, *([] if time is None else [time]))


class Equations(nn.Module):
    """The papers' decoders as they are printed, one row and one step at a time, with a GRU cell."""

    def __init__(self, decoder: SequenceLayer) -> None:
        super().__init__()
        self.decoder = decoder

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        score = self.decoder.attend.score
        if hasattr(score, "vector"):
            return torch.tanh(query @ score.query_weight[0] + key @ score.key_weight[0]) @ score.vector[0, :, 0]
        return query @ score.weight[0] @ key if hasattr(score, "weight") else query @ key

    def context(self, query: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        if not len(memory):
            return torch.zeros(self.decoder.memory_size).double(), torch.zeros(0).double()
        weights = torch.softmax(torch.stack([self.score(query, key) for key in memory]), 0)
        return sum(weight * key for weight, key in zip(weights, memory, strict=True)), weights

    def update(self, inputs: Tensor, hidden: Tensor) -> Tensor:
        gru = self.decoder.layer.cell
        weights = gru.weight_ih_l0, gru.weight_hh_l0, gru.bias_ih_l0, gru.bias_hh_l0
        return torch.gru_cell(inputs.unsqueeze(0), hidden.unsqueeze(0), *weights).squeeze(0)

    def read(self, context: Tensor, hidden: Tensor) -> Tensor:
        found, readout = torch.cat([context, hidden]), self.decoder.map
        return found if readout is None else torch.tanh(readout.weight @ found)

    def row(self, inputs: Tensor, memory: Tensor) -> tuple[Tensor, list[Tensor]]:
        decoder, outputs, looks = self.decoder, [], []
        last = memory[-1] if len(memory) else torch.zeros(decoder.memory_size).double()
        hidden = torch.tanh(decoder.bridge.maps[0](last))
        fed = torch.zeros(decoder.output_size).double()
        for x in inputs:
            if isinstance(decoder.form, Bahdanau):
                context, weights = self.context(hidden, memory)
                hidden = self.update(torch.cat([x, context]), hidden)
            else:
                hidden = self.update(torch.cat([x, fed]) if decoder.form.input_feeding else x, hidden)
                context, weights = self.context(hidden, memory)
            fed = self.read(context, hidden)
            outputs.append(fed)
            looks.append(weights)
        return torch.stack(outputs), looks


@pytest.mark.parametrize("readout", ["tanh", "direct"])
@pytest.mark.parametrize("score", ["dot", "bilinear", "additive"])
@pytest.mark.parametrize("kind", ["luong", "feeding", "bahdanau"])
def test_attention_agrees_with_the_equations(kind: str, score: str, readout: str) -> None:
    torch.manual_seed(0)
    made = bahdanau_decoder if kind == "bahdanau" else partial(luong_decoder, input_feeding=kind == "feeding")
    decoder = made(recurrence, INPUT_SIZE, HIDDEN_SIZE, score=score, readout=readout).double()
    memory, inputs, lengths = randn(3, 5, HIDDEN_SIZE), randn(3, 4, INPUT_SIZE), [5, 0, 2]
    memory.requires_grad_()
    state = decoder.initial_state(3, memory, torch.tensor(lengths))
    with uncompiled():
        outputs, _ = decoder(inputs, state)
        looks = decoder.attention(inputs, state)
    rows = [Equations(decoder).row(inputs[i], memory[i, :length]) for i, length in enumerate(lengths)]
    expected = torch.stack([row for row, _ in rows])
    torch.testing.assert_close(outputs, expected, rtol=0, atol=1e-12)
    for found, (_, weights), length in zip(looks, rows, lengths, strict=True):
        torch.testing.assert_close(found[:, :length], torch.stack(weights))
        assert not found[:, length:].any()
    sources = [memory, *decoder.parameters()]
    direction = torch.randn_like(outputs)
    ours, theirs = (torch.autograd.grad((y * direction).sum(), sources) for y in (outputs, expected))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [luong_decoder, bahdanau_decoder])
def test_location_adds_a_filter_of_the_weights_before(kind) -> None:
    torch.manual_seed(0)
    decoder = kind(recurrence, INPUT_SIZE, HIDDEN_SIZE, score="dot", location=True).double()
    memory, inputs, lengths = randn(2, 5, HIDDEN_SIZE), randn(2, 4, INPUT_SIZE), torch.tensor([5, 3])
    state = decoder.initial_state(2, memory, lengths)
    plain = decoder.attention(inputs, state)
    with torch.no_grad():
        decoder.attend.location.copy_(torch.tensor([-0.1, 0.4, 0.1, 0.3, -0.2]))
    with uncompiled():
        weights = decoder.attention(inputs, state)
    torch.testing.assert_close(weights[:, 0], plain[:, 0])  # nothing was looked at before
    torch.testing.assert_close(weights.sum(2), torch.ones(2, 4).double())
    if kind is luong_decoder:  # the queries do not depend on the weights
        for row, length in enumerate(lengths.tolist()):
            for t in range(1, 4):
                before = dict(enumerate(weights[row, t - 1, :length].tolist()))
                shifts = {-2: -0.1, -1: 0.4, 0: 0.1, 1: 0.3, 2: -0.2}
                added = [10 * sum(w * before.get(n - j, 0) for j, w in shifts.items()) for n in range(length)]
                expected = torch.softmax(plain[row, t, :length].log() + torch.tensor(added), 0)
                torch.testing.assert_close(weights[row, t, :length], expected)


def test_a_vector_enters_where_it_is_said_to() -> None:
    torch.manual_seed(0)
    memory, inputs = randn(2, 4, MEMORY_SIZE), randn(2, 3, INPUT_SIZE)
    c = memory[:, -1]
    for uses in ("initial", "updates", "outputs", "initial+outputs", "updates+outputs"):
        decoder = ContextDecoder(recurrence, INPUT_SIZE, MEMORY_SIZE, context=uses).double()
        gru = decoder.layer
        start = torch.tanh(decoder.bridge.maps[0](c)) if "initial" in uses else gru.initial_state(2)
        repeated = c.unsqueeze(1).expand(-1, 3, -1)
        expected, _ = gru(torch.cat([inputs, repeated], 2) if "updates" in uses else inputs, start)
        expected = torch.cat([expected, repeated], 2) if "outputs" in uses else expected
        found, _ = decoder(inputs, decoder.initial_state(2, memory))
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_the_decoder_goes_on_from_the_encoders_state(name: str) -> None:
    """With the encoder's own layer and nothing to look at, it does what the encoder would do with the inputs."""
    torch.manual_seed(0)
    encoder = seriatim.layer(name, INPUT_SIZE, HIDDEN_SIZE, num_layers=2).double()
    source, inputs, lengths = randn(3, 6, INPUT_SIZE), randn(3, 4, INPUT_SIZE), torch.tensor([6, 0, 2])
    memory, end = encoder(source, lengths=lengths)
    expected, _ = encoder(inputs, end)
    decoder = ContextDecoder(lambda _: encoder, INPUT_SIZE, HIDDEN_SIZE, bridge="copy")
    found, _ = decoder(inputs, decoder.initial_state(3, memory, lengths, encoder_state=end))
    torch.testing.assert_close(found, expected)
    with refused("required", value="encoder_state"):
        decoder.initial_state(3, memory, lengths)
    with refused("mismatch"):
        decoder.initial_state(3, memory, lengths, encoder_state=end[0])


@pytest.mark.parametrize(
    "name", parameters(seriatim.layers.names(), everyday=("lstm", "mamba", "self-attention", "window"))
)
def test_any_layer_can_be_the_recurrence(name: str) -> None:
    torch.manual_seed(0)
    memory, inputs = randn(2, 4, MEMORY_SIZE), randn(2, 3, INPUT_SIZE)
    for made in (ContextDecoder, luong_decoder, partial(luong_decoder, input_feeding=True), bahdanau_decoder):
        decoder = made(partial(recurrence, name=name), INPUT_SIZE, MEMORY_SIZE).double().eval()
        with uncompiled(), torch.no_grad():
            whole, _ = decoder(inputs, decoder.initial_state(2, memory))
            state = decoder.initial_state(2, memory)
            for t in range(3):
                step, state = decoder.step(inputs[:, t], state)
                torch.testing.assert_close(step, whole[:, t])


def test_summaries() -> None:
    memory = randn(3, 4, 6)
    memory[1], memory[2, 2:] = 0, 0
    lengths = torch.tensor([4, 0, 2])
    last = torch.stack([memory[0, 3], torch.zeros(6).double(), memory[2, 1]])
    ends = torch.cat([last[:, :3], memory[:, 0, 3:]], 1)
    mean = torch.stack([memory[0].mean(0), torch.zeros(6).double(), memory[2, :2].mean(0)])
    for summary, expected in (("last", last), ("ends", ends), ("mean", mean)):
        decoder = ContextDecoder(recurrence, INPUT_SIZE, 6, context="outputs", summary=summary).double()
        torch.testing.assert_close(decoder.initial_state(3, memory, lengths).context, expected)
        assert not decoder.initial_state(3, memory[:, :0]).context.any()


def test_the_memory_in_the_state_is_the_one_given() -> None:
    """No step copies it, which beam search relies on for its speed."""
    for name in DECODERS:
        layer = build(name)
        state = initial(layer)
        with uncompiled(), torch.no_grad():
            _, after = layer.step(randn(BATCH, INPUT_SIZE), state)
        if hasattr(state, "memory"):
            assert after.memory is state.memory
            assert after.keys is state.keys or after.keys == state.keys == ()
        else:
            assert after.context is state.context or after.context == ()


@pytest.mark.parametrize("name", [name for name in DECODERS if not name.startswith("context")])
def test_rows_of_different_lengths_and_a_memory_without_padding(name: str) -> None:
    layer, memory, inputs = build(name), randn(3, 4, MEMORY_SIZE), randn(3, 5, INPUT_SIZE)
    with uncompiled(), torch.no_grad():
        lengths = torch.tensor([2, 5, 0])
        outputs, _ = layer(inputs, layer.initial_state(3, memory), lengths=lengths)
        looks = layer.attention(inputs, layer.initial_state(3, memory), lengths=lengths)
        for row, length in enumerate(lengths.tolist()):
            state = layer.initial_state(1, memory[row : row + 1])
            alone = inputs[row : row + 1, :length]
            torch.testing.assert_close(outputs[row : row + 1, :length], layer(alone, state)[0])
            torch.testing.assert_close(looks[row : row + 1, :length], layer.attention(alone, state))
            assert not looks[row, length:].any()


def test_rows_may_be_joined_and_chosen() -> None:
    layer = build("luong-feeding")
    inputs, state = example(layer, 5)
    rows = [select_state(state, torch.tensor([i])) for i in (2, 0)]
    both: State = join_states(rows)
    torch.testing.assert_close(layer(inputs[[2, 0]], both)[0], layer(inputs, state)[0][[2, 0]])


@pytest.mark.parametrize(
    ("make", "kind", "place", "value"),
    [
        (lambda: ContextDecoder(recurrence, 4, 5, context="inital"), "unknown", "", "initial"),
        (lambda: ContextDecoder(recurrence, 4, 5, bridge="maps"), "unknown", "", "map"),
        (lambda: ContextDecoder(recurrence, 4, 5, summary="lasts"), "unknown", "", "last"),
        (lambda: luong_decoder(recurrence, 4, 5, readout="tan"), "unknown", "", "tanh"),
        (lambda: luong_decoder(recurrence, 4, 5, score="dot"), "mismatch", "score 'dot'", ""),
        (lambda: luong_decoder(partial(recurrence, bidirectional=True), 4, 5), "unsupported", "decoder", ""),
        (lambda: luong_decoder(partial(recurrence, block=True, memory_size=3), 4, 5), "unsupported", "decoder", ""),
    ],
)
def test_what_cannot_be_a_decoder(make, kind: str, place: str, value: str) -> None:
    with refused(kind, place, value):
        make()


def test_a_memory_must_fit() -> None:
    decoder = luong_decoder(recurrence, 4, 5)
    with refused("required"):
        decoder.initial_state(2)
    with refused("mismatch", "memory"):
        decoder.initial_state(2, torch.zeros(2, 3, 6))
