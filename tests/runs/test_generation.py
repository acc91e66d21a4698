"""A run writes texts and streams them: seeds, settings, the ends of texts, memory."""

import itertools
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

import seriatim
from seriatim.core.errors import InputError
from seriatim.decoding import continuous_batch
from seriatim.decoding.sampling import Sampling
from seriatim.recurrence.round_weights import round_weights

from ..conftest import small_config
from ..refusals import refused

RUNS = ("char-stream", "char-line", "word-stream", "word-line", "bpe-line", "byte-stream")


@pytest.mark.parametrize("name", RUNS)
def test_a_seed_gives_the_same_text(runs, name: str) -> None:
    run = runs[name]
    text = "".join(run.generate("the", max_tokens=40, seed=3))
    assert text == "".join(run.generate("the", max_tokens=40, seed=3))
    assert run.samples(3, "the", max_tokens=40, seed=2)[1] == text
    assert len({*run.samples(8, max_tokens=40, seed=0)}) > 1
    assert "<unk>" not in text
    assert "</s>" not in text


def test_lines_end_and_streams_go_on(runs) -> None:
    for text in runs["char-line"].samples(5, max_tokens=300, seed=0):
        assert "\n" not in text
        assert len(text) < 300
    text = "".join(runs["word-stream"].generate(max_tokens=300, seed=0))
    assert text.count("\n") > 5
    assert not text.startswith(" ")
    assert len("".join(runs["char-stream"].generate(max_tokens=300, seed=0))) == 300


@pytest.mark.parametrize("name", ["word-stream", "word-line"])
def test_words_go_on_after_a_space(runs, name: str) -> None:
    run = runs[name]
    assert "".join(run.generate("the cat", max_tokens=1, seed=1)).startswith(" ")
    assert run.samples(1, "the cat", max_tokens=1, seed=1)[0].startswith(" ")
    stream = run.stream()
    first = "".join(stream.generate(max_tokens=2, seed=1))
    second = "".join(stream.generate(max_tokens=1, seed=1))
    assert not first.startswith(" ")
    assert second.startswith(" ") != first.endswith("\n")


def test_a_running_text_ends_only_where_documents_did(texts, tmp_path: Path) -> None:
    """Short documents, so that the end of one is soon drawn."""
    path = tmp_path / "documents.jsonl"
    path.write_text('{"text": "ab"}\n' * 300)
    config = small_config({"train": str(path), "valid": texts["valid"]}, tmp_path / "run", training={"steps": 60})
    config["data"] = {"train": str(path)}
    run = seriatim.train(config)
    assert run.samples(3, max_tokens=50, temperature=0.1, seed=0) == ["ab"] * 3


def test_text_comes_as_it_is_made(runs) -> None:
    pieces = runs["char-stream"].generate(max_tokens=10**9, seed=0)
    assert len(list(itertools.islice(pieces, 20))) == 20


def test_temperature_zero_takes_the_likeliest(runs) -> None:
    run = runs["char-line"]
    text = "".join(run.generate("the c", max_tokens=5, temperature=0))
    assert text == "".join(run.generate("the c", max_tokens=5, temperature=0, seed=9))
    assert text == "".join(run.generate("the c", max_tokens=5, top_k=1, seed=5))


def test_filters_keep_the_likeliest_tokens() -> None:
    torch.manual_seed(0)
    logits = torch.randn(5, 40)
    plain = Sampling().distribution(logits)
    torch.testing.assert_close(plain, torch.softmax(logits.double(), 1))
    for sampling in (Sampling(top_k=7), Sampling(top_p=0.6), Sampling(min_p=0.3), Sampling(0.5, 20, 0.9, 0.05)):
        found = sampling.distribution(logits)
        torch.testing.assert_close(found.sum(1), torch.ones(5).double())
        for row, wanted in zip(found, plain, strict=True):
            assert wanted[row > 0].min() > wanted[row == 0].max()
    assert Sampling(2.0**-126).distribution(logits).argmax(1).equal(logits.argmax(1))
    assert ((Sampling(top_k=7).distribution(logits) > 0).sum(1) == 7).all()
    kept = Sampling(top_p=0.6).distribution(logits) > 0
    mass = (plain * kept).sum(1)
    assert (mass >= 0.6).all()
    assert (mass - torch.where(kept, plain, 2.0).amin(1) < 0.6).all()


@pytest.mark.parametrize("name", RUNS)
def test_a_stream_in_pieces_is_the_text_whole(runs, tmp_path: Path, name: str) -> None:
    run, pieces = runs[name], ["the cat", " sees", " the", " sea ."]
    if run.tokenizer.kind == "bpe":
        pieces = ["the cat sees the sea ."]  # how pieces are cut decides the tokens
    whole = run.stream().feed("".join(pieces))
    stream = run.stream()
    parts = []
    for i, piece in enumerate(pieces):
        parts.append(stream.feed(piece))
        stream.save(tmp_path / f"{i}.safetensors")
        stream = run.stream().load(tmp_path / f"{i}.safetensors")
    assert sum(part.log_probability for part in parts) == pytest.approx(whole.log_probability, abs=1e-4)
    assert sum(part.tokens for part in parts) == whole.tokens
    straight = "".join(run.generate("".join(pieces), max_tokens=20, seed=4))
    assert "".join(stream.generate(max_tokens=20, seed=4)) == straight
    with refused("mismatch", "0.safetensors"):
        runs["char-line" if name != "char-line" else "word-line"].stream().load(tmp_path / "0.safetensors")


TOO_LARGE = (math.inf, 1e39, -1e308, 10**39, 10**400, -(10**400), Fraction(10**400), np.longdouble("1e4000"))
NUMBERS = (
    *("temperature", "repetition_penalty", "top_p", "min_p", "typical"),
    *("frequency_penalty", "presence_penalty"),
)


@pytest.mark.parametrize(
    "settings",
    [
        *({name: value} for name in NUMBERS for value in (math.nan, "1", True, np.True_, *TOO_LARGE)),
        *({name: value} for name in NUMBERS[:5] for value in (-1, Fraction(1, 10**400), np.longdouble("1e-4000"))),
        *({name: value} for name in ("temperature", "repetition_penalty") for value in (None, 1e-308, 1e-320, 1e-40)),
        *({name: 1.1} for name in ("top_p", "min_p", "typical")),
        *({"top_k": value} for value in (0, 2.5, True, -(10**400))),
        *({"logit_bias": value} for value in (["a"], {"a": "1"}, {"never": 1.0}, {1: 1.0}, {"": 1.0})),
        *({"logit_bias": {"a": value}} for value in (math.nan, True, *TOO_LARGE)),
        *({"stop": value} for value in ("text", [""], [1])),
        *({"max_tokens": value} for value in (-1, 1.5, True, -(10**400))),
        *({"seed": value} for value in (1.5, "1", True, math.inf)),
    ],
)
def test_settings_out_of_range_are_refused(runs, settings) -> None:
    with pytest.raises(InputError, match=next(iter(settings))):
        runs["char-line"].generate(**settings)
    with pytest.raises(InputError, match=next(iter(settings))):
        runs["char-line"].samples(2, **settings)


def test_numbers_of_any_type_are_settings(runs) -> None:
    run = runs["char-line"]
    settings = {"temperature": 0.5, "top_p": 0.5, "presence_penalty": 2.0, "logit_bias": {"a": 1.0}}
    whole = {"top_k": 7, "max_tokens": 6, "seed": 3}
    text = "".join(run.generate("the", **settings, **whole))
    for kind in (np.float32, np.float64, np.float16, np.longdouble, Fraction):
        given = {name: kind(value) for name, value in settings.items() if name != "logit_bias"}
        for integer in (np.int8, np.uint64):
            more = {name: integer(value) for name, value in whole.items()} | {"logit_bias": {"a": kind(1)}}
            assert "".join(run.generate("the", **given, **more)) == text
            assert run.samples(integer(1), "the", **given, **more) == [text]
    for temperature in (10**30, 1e37, 1e-37):  # as even as can be, and as certain
        assert len("".join(run.generate("the", temperature=temperature, max_tokens=6, seed=3))) <= 6
    assert next(run.iter_samples(10**30, max_tokens=10**30, seed=10**30, logit_bias={"</s>": 1e37})) == ""


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_settings_that_together_exceed_float32_are_named(runs, temperature: float) -> None:
    """Each time that the letter is written makes it more likely."""
    run, settings = (
        runs["char-line"],
        {"temperature": temperature, "frequency_penalty": -8e37, "logit_bias": {"a": 8e37}},
    )
    uses = (lambda: list(run.generate("the", **settings)), lambda: run.samples(2, "the", **settings))
    for use in uses:
        with pytest.raises(InputError, match=f"{run.path}: .*infinite; .* frequency_penalty, logit_bias ") as raised:
            use()
        assert "presence" not in str(raised.value)


def test_any_integer_is_a_seed(runs) -> None:
    run = runs["char-line"]
    assert run.samples(1, seed=1 << 64 | 5, max_tokens=5) == run.samples(1, seed=5, max_tokens=5)
    assert run.samples(2, seed=(1 << 63) - 1, max_tokens=5)[1] == "".join(run.generate(seed=1 << 63, max_tokens=5))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_cannot_go_on_ends_and_is_said(tmp_path: Path, temperature: float) -> None:
    """Only words that are unknown follow "q", and the unknown word is never written."""
    path = tmp_path / "text.txt"
    path.write_text("a b\n" * 3 + "".join(f"q x{i}\n" for i in range(9)))
    run = seriatim.train(
        {
            "data": {"train": str(path)},
            "tokenizer": {"kind": "word", "min_count": 2},
            "model": {"layer": "ngram", "options": {"smoothing": "maximum-likelihood", "order": 2}},
            "out": str(tmp_path / "run"),
        }
    )
    with pytest.warns(UserWarning, match="probability 0"):
        assert list(run.generate("q", temperature=temperature, seed=1)) == []
    with pytest.warns(UserWarning, match="probability 0"):
        assert run.samples(2, "q", temperature=temperature, seed=1) == ["", ""]


def test_a_prompt_never_seen_is_refused(runs) -> None:
    with refused("unknown"):
        runs["char-line"].generate("Ü")
    with refused("malformed"):
        runs["byte-stream"].generate("\udcff")
    with refused("unknown"):
        runs["word-line"].samples(2, "zebra")


def test_samples_come_in_batches_of_bounded_memory(runs, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = runs["char-line"].samples(5, "the", max_tokens=20, seed=3)
    sizes = []

    def counting(self: continuous_batch.ContinuousBatch) -> list:
        events = advance(self)
        sizes.append(len(self.texts.rows))
        return events

    advance = continuous_batch.ContinuousBatch.advance
    monkeypatch.setattr(continuous_batch.ContinuousBatch, "advance", counting)
    monkeypatch.setattr(continuous_batch, "MAX_ROWS", 2)
    assert runs["char-line"].samples(5, "the", max_tokens=20, seed=3) == expected
    assert max(sizes) == 2
    texts = runs["char-line"].iter_samples(10**9, max_tokens=2, seed=0)
    assert [next(texts), next(texts)] == runs["char-line"].samples(2, max_tokens=2, seed=0)


def test_a_stream_shows_its_last_token_and_the_size_of_its_state(runs) -> None:
    stream = runs["char-line"].stream()
    stream.feed("the")
    assert repr(stream).startswith("Stream(LanguageModel, last token 'e', state of ")


ALL_SETTINGS = {
    "temperature": 1.2,
    "top_k": 30,
    "typical": 0.9,
    "repetition_penalty": 1.3,
    "frequency_penalty": 0.2,
    "presence_penalty": 0.1,
    "stop": ["mat", "e s"],
}


@pytest.mark.parametrize("name", RUNS)
def test_samples_and_streams_have_the_same_settings(runs, tmp_path: Path, name: str) -> None:
    run = runs[name]
    texts = run.samples(4, "the cat", max_tokens=30, seed=5, **ALL_SETTINGS)
    assert texts == ["".join(run.generate("the cat", max_tokens=30, seed=5 + i, **ALL_SETTINGS)) for i in range(4)]
    stream = run.stream()
    stream.feed("the cat")
    stream.save(tmp_path / "state.safetensors")
    other = run.stream().load(tmp_path / "state.safetensors")
    assert "".join(other.generate(max_tokens=30, seed=5, **ALL_SETTINGS)) == texts[0]
    assert other.seen_tokens.sum() >= stream.seen_tokens.sum() > 0


@pytest.mark.parametrize("name", ["char-stream", "bpe-line", "byte-stream", "word-stream"])
def test_a_text_ends_before_a_stop_string(runs, name: str) -> None:
    whole = "".join(runs[name].generate("the", max_tokens=60, seed=2))
    for length in (1, 3, 5):
        stop = whole[len(whole) // 2 :][:length]
        pieces = list(runs[name].generate("the", max_tokens=60, seed=2, stop=[stop, "not there"]))
        assert "".join(pieces) == whole[: whole.index(stop)]
        assert all(pieces)
        assert runs[name].samples(1, "the", max_tokens=60, seed=2, stop=[stop]) == ["".join(pieces)]
    assert "".join(runs[name].generate("the", max_tokens=60, seed=2, stop=[whole + "x"])) == whole


def test_biases_change_what_is_written(runs) -> None:
    assert "".join(runs["char-stream"].generate("the", max_tokens=5, seed=0, logit_bias={"t": 100.0})) == "ttttt"
    assert "".join(runs["word-stream"].generate("the", max_tokens=2, seed=0, logit_bias={"cat": 100})) == " cat cat"
    assert runs["char-line"].samples(2, "the", seed=0, logit_bias={"</s>": 100.0}) == ["", ""]
    text = "".join(runs["char-stream"].generate("the", max_tokens=50, seed=0, logit_bias={"e": -100.0, "t": -100.0}))
    assert not set("et") & set(text)
    with refused("unknown", "logit_bias"):
        runs["word-stream"].generate(logit_bias={"catt": 1.0})


def test_penalties_avoid_what_was_written(runs) -> None:
    run = runs["char-stream"]
    text = "".join(run.generate(max_tokens=6, seed=0, presence_penalty=1000))
    assert len(set(text)) == 6
    text = "".join(run.generate("the", max_tokens=2, seed=0, repetition_penalty=1e6))
    assert not set(text) & set("the")
    stream = run.stream()
    "".join(stream.generate(max_tokens=5, seed=0, frequency_penalty=1000))
    assert "".join(stream.generate(max_tokens=5, seed=3, frequency_penalty=0.0))  # each call counts from zero


def test_a_state_without_the_tokens_that_occurred_is_refused(runs, tmp_path: Path) -> None:
    from seriatim.storage.weights import load_tensors, read_metadata, save_tensors

    stream, path = runs["char-stream"].stream(), tmp_path / "state.safetensors"
    stream.feed("the")
    stream.save(path)
    tensors, metadata = load_tensors(path), read_metadata(path)
    for wrong in (torch.tensor([[10**6]]), torch.tensor([[-1]]), torch.tensor([1]), torch.tensor([[1.0]])):
        save_tensors({**tensors, "occurred": wrong}, path, metadata)
        with refused("mismatch", "state.safetensors"):
            runs["char-stream"].stream().load(path)
    del tensors["occurred"]
    save_tensors(tensors, path, metadata)
    with refused("mismatch", "state.safetensors"):
        runs["char-stream"].stream().load(path)


def test_settings_that_do_not_exist_are_named(runs) -> None:
    run = runs["char-line"]
    uses = (run.generate, run.stream().generate, lambda **more: run.samples(1, **more))
    for use in uses:
        with refused("unknown"):
            use(temprature=1.0)
    for use in (lambda: seriatim.load(run.path, weights="foo"), lambda: round_weights(run.model, "foo")):
        with refused("unknown", "weights"):
            use()
