"""A run writes texts and streams them: seeds, settings, the ends of texts, memory."""

import itertools
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import seriatim
from seriatim.core.errors import InputError
from seriatim.decoding.sampling import Sampling, sample
from seriatim.runs import stream as streams

from ..conftest import small_config

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
    assert Sampling(1e-310).distribution(logits).argmax(1).equal(logits.argmax(1))
    assert ((Sampling(top_k=7).distribution(logits) > 0).sum(1) == 7).all()
    kept = Sampling(top_p=0.6).distribution(logits) > 0
    mass = (plain * kept).sum(1)
    assert (mass >= 0.6).all()
    assert (mass - torch.where(kept, plain, 2.0).amin(1) < 0.6).all()


def test_draws_follow_the_distribution() -> None:
    from seriatim.decoding.sampling import _draw

    probabilities = torch.tensor([0.5, 0.0, 0.3, 0.2, 0.0], dtype=torch.float64)
    generators = [torch.Generator().manual_seed(i) for i in range(4000)]
    counts = torch.bincount(_draw(probabilities.repeat(4000, 1), generators), minlength=5) / 4000
    assert counts[1] == counts[4] == 0
    torch.testing.assert_close(counts.double(), probabilities, atol=0.03, rtol=0)


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
    with pytest.raises(InputError, match="does not belong"):
        runs["char-line" if name != "char-line" else "word-line"].stream().load(tmp_path / "0.safetensors")


@pytest.mark.parametrize(
    "settings",
    [
        *({"temperature": value} for value in (-1, math.nan, "1", None)),
        *({"top_k": value} for value in (0, 2.5, True)),
        *({"top_p": value} for value in (0.0, 1.1, "0.5")),
        *({"min_p": value} for value in (2.0, True)),
        *({"max_tokens": value} for value in (-1, 1.5)),
        *({"seed": value} for value in (1.5, "1")),
    ],
)
def test_settings_out_of_range_are_refused(runs, settings) -> None:
    with pytest.raises(InputError, match=next(iter(settings))):
        runs["char-line"].generate(**settings)
    with pytest.raises(InputError, match=next(iter(settings))):
        runs["char-line"].samples(2, **settings)


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
    with pytest.raises(InputError, match="characters never seen in training: 'Ü'"):
        runs["char-line"].generate("Ü")
    with pytest.raises(InputError, match="not UTF-8"):
        runs["byte-stream"].generate("\udcff")
    with pytest.raises(InputError, match="words never seen in training: 'zebra'"):
        runs["word-line"].samples(2, "zebra")


def test_samples_come_in_batches_of_bounded_memory(runs, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = runs["char-line"].samples(5, "the", max_tokens=20, seed=3)
    sizes = []

    def counting(model, logits, *rest, **named):
        sizes.append(len(logits))
        return sample(model, logits, *rest, **named)

    monkeypatch.setattr(streams, "sample", counting)
    monkeypatch.setattr(streams, "MAX_ROWS", 2)
    assert runs["char-line"].samples(5, "the", max_tokens=20, seed=3) == expected
    assert sizes == [2, 2, 1]
    texts = runs["char-line"].iter_samples(10**9, max_tokens=2, seed=0)
    assert [next(texts), next(texts)] == runs["char-line"].samples(2, max_tokens=2, seed=0)


@given(st.integers(0, 1 << 40), st.integers(1, 1 << 24), st.integers(1, 1 << 40))
def test_a_batch_of_texts_fits_its_memory(state: int, vocabulary: int, tokens: int) -> None:
    rows = streams.rows_per_batch(state, vocabulary, tokens)
    assert 1 <= rows <= streams.MAX_ROWS
    assert rows == 1 or rows * (2 * state + 64 * vocabulary) <= streams.MEMORY


def test_a_stream_shows_its_last_token_and_the_size_of_its_state(runs) -> None:
    stream = runs["char-line"].stream()
    stream.feed("the")
    assert repr(stream).startswith("Stream(LanguageModel, last token 'e', state of ")
