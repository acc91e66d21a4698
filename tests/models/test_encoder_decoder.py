"""The encoder-decoder: the loss and its gradient, empty sources, batches, any encoder with any decoder."""

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import seriatim
from seriatim.core.contract import MemoryLayer
from seriatim.decoding.beam import Beam, beam_search
from seriatim.decoding.sampling import Sampling, sample
from seriatim.models import cross_entropy
from seriatim.models.attention_decoder import bahdanau_decoder, luong_decoder
from seriatim.models.encoder_decoder import EncoderDecoder
from seriatim.models.recurrent_decoder import ContextDecoder
from seriatim.recurrence import uncompiled

from ..refusals import refused

SIZE, SOURCES, TARGETS = 6, 9, 8
WHOLE = {"causal": False, "num_layers": 2, "num_heads": 2}


def layer(width: int, name: str = "gru", **options) -> seriatim.SequenceLayer:
    return seriatim.layer(name, width, SIZE, **options)


def transformer(memory_size: int) -> seriatim.SequenceLayer:
    return layer(SIZE, "transformer", memory_size=memory_size, num_heads=2, num_layers=2)


def recurrent(kind, memory_size: int, name: str = "gru", **options) -> seriatim.SequenceLayer:
    return kind(partial(layer, name=name), SIZE, memory_size, **options)


ENCODERS = {
    "gru": {},
    "bidirectional": {"name": "lstm", "bidirectional": True},
    "mamba": {"name": "mamba"},
    "transformer": {"name": "transformer", **WHOLE},
}
DECODERS = {
    "context": partial(recurrent, ContextDecoder, context="initial+outputs", name="lstm"),
    "luong": partial(recurrent, luong_decoder, summary="ends"),
    "feeding": partial(recurrent, luong_decoder, input_feeding=True, name="lstm"),
    "bahdanau": partial(recurrent, bahdanau_decoder, summary="mean"),
    "transformer": transformer,
}
PAIRS = [(encoder, decoder) for encoder in ENCODERS for decoder in DECODERS]


def model(encoder: str = "gru", decoder: str = "feeding", **options) -> EncoderDecoder:
    torch.manual_seed(0)
    reader = layer(SIZE, **ENCODERS[encoder])
    made = EncoderDecoder(reader, DECODERS[decoder](reader.output_size), SOURCES, TARGETS, SIZE, **options)
    return made.double().eval()


@pytest.fixture(autouse=True)
def _as_written():
    """What compiled code does to these layers is tested with the layers."""
    with uncompiled():
        yield


def batch() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    source, targets = torch.randint(0, SOURCES, (4, 5)), torch.randint(0, TARGETS, (4, 6))
    inputs = torch.cat([torch.zeros(4, 1).long(), targets[:, :-1]], 1)
    return source, torch.tensor([5, 0, 2, 5]), inputs, targets, torch.tensor([6, 3, 1, 0])


@pytest.mark.parametrize(("encoder", "decoder"), PAIRS)
def test_a_batch_gives_what_its_rows_give_alone(encoder: str, decoder: str) -> None:
    made, (source, lengths, inputs, targets, target_lengths) = model(encoder, decoder), batch()
    losses = made.token_losses(source, lengths, inputs, targets, target_lengths)
    beam = Beam(3, n_best=2, length_penalty=0.5)
    found = beam_search(made, made.encode(source, lengths), beam, max_length=7)
    for i, (s, t) in enumerate(zip(lengths.tolist(), target_lengths.tolist(), strict=True)):
        row = slice(i, i + 1)
        alone = made.token_losses(source[row, :s], None, inputs[row, :t], targets[row, :t])
        torch.testing.assert_close(losses[row, :t], alone, rtol=0, atol=1e-10)
        assert not losses[row, t:].any()
        (expected,) = beam_search(made, made.encode(source[row, :s]), beam, max_length=7)
        assert [one.tokens for one in found[i]] == [one.tokens for one in expected]
        for ours, theirs in zip(found[i], expected, strict=True):
            assert ours.score == pytest.approx(theirs.score, abs=1e-10)


@pytest.mark.parametrize(("encoder", "decoder"), PAIRS)
def test_the_loss_is_cross_entropy_with_its_gradient(encoder: str, decoder: str) -> None:
    made, (source, lengths, inputs, targets, target_lengths) = model(encoder, decoder, label_smoothing=0.1), batch()
    ours = made.loss(source, lengths, inputs, targets, target_lengths)
    logits, _ = made(inputs, made.encode(source, lengths), lengths=target_lengths)
    valid = torch.arange(6) < target_lengths[:, None]
    theirs = F.cross_entropy(logits[valid], targets[valid], reduction="sum", label_smoothing=0.1)
    torch.testing.assert_close(ours, theirs)
    parameters = list(made.parameters())
    gradients = [torch.autograd.grad(loss * 0.3, parameters, allow_unused=True) for loss in (ours, theirs)]
    for a, b in zip(*gradients, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b)
    losses = made.token_losses(source, lengths, inputs, targets, target_lengths)
    torch.testing.assert_close(losses.sum(), F.cross_entropy(logits[valid], targets[valid], reduction="sum"))


@pytest.mark.parametrize(("encoder", "decoder"), PAIRS)
def test_steps_equal_forward(encoder: str, decoder: str) -> None:
    made, (source, lengths, inputs, *_) = model(encoder, decoder), batch()
    state = made.encode(source, lengths)
    logits, _ = made(inputs, state)
    with torch.no_grad():
        for t in range(6):
            step, state = made.step(inputs[:, t], state)
            torch.testing.assert_close(step, logits[:, t])


def test_a_hypothesis_has_the_probability_that_its_text_has() -> None:
    made, (source, lengths, *_) = model(decoder="transformer"), batch()
    (found, *_) = beam_search(made, made.encode(source[2:3], lengths[2:3]), Beam(4, n_best=4), max_length=5), None
    for one in found[0]:
        targets = torch.tensor([[*one.tokens, 0]])
        losses = made.token_losses(source[2:3], lengths[2:3], torch.tensor([[0, *one.tokens]]), targets)
        assert one.log_probability == pytest.approx(-float(losses.sum()), abs=1e-10)


def test_sampling_takes_an_encoded_source() -> None:
    made, (source, lengths, inputs, *_) = model(), batch()
    logits, state = made.step(inputs[:, 0], made.encode(source, lengths))
    drawn = sample(made, logits, state, Sampling(temperature=0.0), max_tokens=4, seeds=range(4), banned=(0,))
    tokens = torch.tensor([one.tokens for one in drawn]).T
    greedy = beam_search(made, made.encode(source, lengths), Beam(1, min_length=4), max_length=4)
    assert [one.tokens for (one,) in greedy] == [tuple(row) for row in tokens.tolist()]
    empty = beam_search(made, made.initial_state(1), Beam(1), max_length=4)
    assert empty == beam_search(made, made.encode(source[1:2], lengths[1:2]), Beam(1), max_length=4)


def test_scheduled_sampling_feeds_the_likeliest_token() -> None:
    made, (source, lengths, inputs, targets, target_lengths) = model(), batch()
    own = made.loss(source, lengths, inputs, targets, target_lengths, own_predictions=1.0)
    fed = inputs.clone()
    for t in range(1, 6):
        fed[:, t] = made(fed[:, :t], made.encode(source, lengths))[0][:, -1].argmax(1)
    torch.testing.assert_close(own, made.loss(source, lengths, fed, targets, target_lengths))
    assert not torch.equal(fed, inputs)
    forced = made.loss(source, lengths, inputs, targets, target_lengths, own_predictions=1e-12)
    torch.testing.assert_close(forced, made.loss(source, lengths, inputs, targets, target_lengths))
    half = made.loss(source, lengths, inputs, targets, target_lengths, own_predictions=0.5)
    half.backward()
    assert all(parameter.grad.isfinite().all() for parameter in made.parameters())


@pytest.mark.parametrize("decoder", ["luong", "feeding", "bahdanau"])
def test_attention_can_be_seen(decoder: str) -> None:
    made, (source, lengths, inputs, _, target_lengths) = model(decoder=decoder), batch()
    weights = made.attention(source, lengths, inputs, target_lengths)
    assert weights.shape == (4, 6, 5)
    valid = (torch.arange(6) < target_lengths[:, None]) & (lengths > 0).unsqueeze(1)
    torch.testing.assert_close(weights.sum(2), valid.double())
    with refused("unsupported"):
        model(decoder="transformer").attention(source, lengths, inputs)


class Mean(MemoryLayer):
    """A decoder of one's own, with the signature of the contract: it adds the mean of the memory to its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.input_size = self.output_size = SIZE

    def initial_state(
        self, batch_size: int, memory: Tensor | None = None, memory_lengths: Tensor | None = None
    ) -> Tensor:
        memory, lengths = self.check_memory(batch_size, memory, memory_lengths, SIZE)
        return memory.sum(1) / lengths.clamp(min=1)[:, None]

    def forward(
        self, inputs: Tensor, state: Tensor | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        return inputs + state[:, None], state


def test_a_decoder_need_not_know_of_the_encoders_state() -> None:
    source, lengths, inputs, targets, target_lengths = batch()
    made = EncoderDecoder(layer(SIZE), Mean(), SOURCES, TARGETS, SIZE).double()
    assert made.loss(source, lengths, inputs, targets, target_lengths).isfinite()


def test_weights_are_shared_where_asked() -> None:
    reader, writer = layer(SIZE), recurrent(luong_decoder, SIZE, score="dot", bridge="copy")
    plain = EncoderDecoder(reader, writer, TARGETS, TARGETS, SIZE)
    shared = EncoderDecoder(reader, writer, TARGETS, TARGETS, SIZE, shared_embedding=True, tie_weights=True)
    count = [sum(p.numel() for p in made.parameters()) for made in (plain, shared)]
    assert count[0] - count[1] == 2 * SIZE * TARGETS
    assert shared.source_embedding.weight is shared.target_embedding.weight is shared.output.weight


def test_a_small_model_is_small() -> None:
    torch.manual_seed(0)
    reader = seriatim.layer("gru", 32, 32)
    writer = luong_decoder(
        lambda width: seriatim.layer("gru", width, 32), 32, 32, score="dot", readout="direct", bridge="copy"
    )
    made = EncoderDecoder(reader, writer, 28, 28, 32)
    assert sum(parameter.numel() for parameter in made.parameters()) <= 16_444


def test_it_learns_to_reverse() -> None:
    torch.manual_seed(0)
    reader = seriatim.layer("gru", 24, 24, bidirectional=True)
    writer = luong_decoder(lambda width: seriatim.layer("gru", width, 24), 24, 48, summary="ends")
    made = EncoderDecoder(reader, writer, 6, 6, 24)
    source, zeros = torch.randint(1, 6, (64, 4)), torch.zeros(64, 1).long()
    targets = torch.cat([source.flip(1), zeros], 1)
    inputs = torch.cat([zeros, source.flip(1)], 1)
    optimizer = torch.optim.Adam(made.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        (made.loss(source, None, inputs, targets) / targets.numel()).backward()
        optimizer.step()
    made.eval()
    with torch.no_grad():
        found = beam_search(made, made.encode(source), Beam(3), max_length=8)
    right = sum(one.tokens == tuple(row[:-1]) for (one, *_), row in zip(found, targets.tolist(), strict=True))
    assert right > 55


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_smoothed_labels_give_cross_entropy_and_its_gradient(smoothing: float, monkeypatch) -> None:
    monkeypatch.setattr(cross_entropy, "CHUNK_ELEMENTS", 70)
    monkeypatch.setattr(cross_entropy, "CHUNK_ROWS", 7)
    torch.manual_seed(0)
    hidden, weight = (torch.randn(n, 5, dtype=torch.float64, requires_grad=True) for n in (30, 11))
    bias, targets = torch.randn(11, dtype=torch.float64, requires_grad=True), torch.randint(0, 11, (30,))
    sources = [hidden, weight, bias]
    ours = cross_entropy.summed_loss(hidden, weight, bias, targets, label_smoothing=smoothing)
    logits = F.linear(hidden, weight, bias)
    theirs = F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)
    torch.testing.assert_close(ours, theirs)
    for a, b in zip(torch.autograd.grad(ours, sources), torch.autograd.grad(theirs, sources), strict=True):
        torch.testing.assert_close(a, b)
    with torch.no_grad():
        again = cross_entropy.summed_loss(hidden, weight, bias, targets, label_smoothing=smoothing)
        torch.testing.assert_close(again, theirs)


@pytest.mark.parametrize(
    ("change", "kind", "place"),
    [
        ({"decoder": lambda: layer(SIZE)}, "required", "decoder"),
        ({"encoder": lambda: transformer(SIZE)}, "unsupported", ""),
        ({"decoder": lambda: recurrent(luong_decoder, 5)}, "mismatch", ""),
        ({"decoder": lambda: layer(SIZE, "transformer", memory_size=SIZE, causal=False)}, "unsupported", "decoder"),
        ({"decoder": lambda: recurrent(luong_decoder, SIZE, "lstm", bridge="copy")}, "mismatch", "bridge copy"),
        ({"size": 5}, "mismatch", ""),
        ({"shared_embedding": True}, "mismatch", "model.shared_embedding"),
        (
            {"tie_weights": True, "decoder": lambda: recurrent(luong_decoder, SIZE, readout="direct")},
            "mismatch",
            "model.tie_weights",
        ),
        ({"label_smoothing": 1.0}, "range", "label_smoothing"),
    ],
)
def test_what_cannot_be_an_encoder_decoder(change: dict, kind: str, place: str) -> None:
    parts = {"encoder": lambda: layer(SIZE), "decoder": lambda: recurrent(luong_decoder, SIZE), "size": SIZE, **change}
    encoder, decoder, size = parts.pop("encoder")(), parts.pop("decoder")(), parts.pop("size")
    with refused(kind, place):
        EncoderDecoder(encoder, decoder, SOURCES, TARGETS, size, **parts)


def test_a_decoder_refuses_the_state_of_one_with_another_recurrence_or_attention() -> None:
    """Also where the shapes agree."""
    kinds = {
        "luong": partial(luong_decoder, input_feeding=True, score="additive"),
        "bahdanau": bahdanau_decoder,
        "context": ContextDecoder,
    }
    decoders = {
        (kind, name): make(partial(seriatim.layer, name, hidden_size=6), 5, 6)
        for kind, make in kinds.items()
        for name in ("rnn", "gru", "mgu")
    }
    states = {key: decoder.initial_state(2, torch.zeros(2, 3, 6)) for key, decoder in decoders.items()}
    for key, decoder in decoders.items():
        for other, state in states.items():
            if other == key:
                decoder(torch.zeros(2, 1, 5), state)
                continue
            with refused("mismatch"):
                decoder(torch.zeros(2, 1, 5), state)
