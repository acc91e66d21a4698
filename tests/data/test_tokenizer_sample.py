"""The part of a large text that subwords are learned from is bounded, spread over the text, and told to the user."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import seriatim
from seriatim.config import Tokenizer as TokenizerConfig
from seriatim.data.corpus import SAMPLED, TokenizerSample, describe_sample, fit_corpus_tokenizer, in_words
from seriatim.data.source_content import HashedSources
from seriatim.data.sources import find_sources
from seriatim.data.text import read_chunks
from seriatim.runs.checking import check_training

from ..conftest import small_config
from ..exhaustive import parameters
from ..refusals import refused


def sampled(texts: list[str], config: TokenizerConfig) -> tuple[list[str], TokenizerSample]:
    """Choose from a text that stands in its files as it is."""
    positions = itertools.accumulate(len(text.encode()) for text in texts)
    sample = TokenizerSample(config, sum(len(text.encode()) for text in texts))
    return list(sample.choose(texts, lambda: next(positions))), sample


@given(
    st.lists(st.text("aé \n", min_size=1, max_size=2000), min_size=1, max_size=30),
    st.integers(2, 20),
    st.sampled_from(SAMPLED),
)
def test_a_sample_is_bounded_and_spread(texts: list[str], part: int, kind: str) -> None:
    size = sum(len(text.encode()) for text in texts)
    texts[:0] = ["a" * 700, "b c\n" * 200]  # larger than the smallest bound, and not blank
    total = size + 1500
    bound = max(300, total // part)
    chosen, sample = sampled(texts, TokenizerConfig(kind=kind, sample_bytes=bound))
    assert sample.taken == sum(len(text.encode()) for text in chosen)
    assert sample.read == total
    assert 0.8 * bound <= sample.taken <= bound
    assert "".join(chosen) == "".join(sampled(texts, TokenizerConfig(kind=kind, sample_bytes=bound))[0])


BOUNDS = (1_000, 100_000, 500_000, 1_000_000, 1_500_000, 3_000_000)


@pytest.mark.exhaustive
@pytest.mark.parametrize("bound", parameters(BOUNDS, everyday=(1_000, 1_000_000)))
@pytest.mark.parametrize("jsonl", [False, True])
def test_every_tenth_of_a_text_is_in_its_sample(tmp_path: Path, bound: int, jsonl: bool) -> None:
    rows = [f"{i:06d} of the lines of this text\n" for i in range(150_000)]
    path = tmp_path / ("a.jsonl" if jsonl else "a.txt")
    path.write_text("".join(f'{{"id": "{"x" * 30}", "text": {json.dumps(row)}}}\n' if jsonl else row for row in rows))
    hashed = HashedSources(find_sources(str(path)))
    sample = TokenizerSample(TokenizerConfig(kind="bpe", sample_bytes=bound), path.stat().st_size)
    chosen = list(sample.choose((chunk.text for chunk in read_chunks(hashed.sources)), lambda: hashed.bytes))
    numbers = [int(word) for text in chosen for word in text.split() if len(word) == 6 and word.isdigit()]
    tenths = np.bincount(np.array(numbers) // 15_000, minlength=10)
    assert 0.8 * bound <= sample.taken <= bound
    assert sample.read == sum(map(len, rows))
    assert len(tenths) == 10
    if not jsonl:  # JSONL is spread over the blocks in which it is read
        assert tenths.min() > 0.5 * tenths.max()
    assert tenths.min() > 0 or bound == 1_000


def test_what_surrounds_a_text_in_its_file_does_not_count() -> None:
    texts, files = ["one two "] * 1000, iter(range(100, 100_100, 100))
    sample = TokenizerSample(TokenizerConfig(kind="bpe", sample_bytes=50_000), 100_000)
    assert len("".join(sample.choose(texts, lambda: next(files)))) > 0.9 * sample.read


def test_short_parts_are_not_preferred() -> None:
    texts = [word * size for _ in range(500) for word, size in (("a", 60), ("b", 3))]
    chosen = "".join(sampled(texts, TokenizerConfig(kind="bpe", sample_bytes=3_000))[0])
    assert chosen.count("b") < 0.15 * len(chosen)


@pytest.mark.parametrize("bound", [1, 10])
def test_a_sample_without_a_word_is_refused(bound: int) -> None:
    with refused("empty", "tokenizer.sample_bytes", f"{bound}"):
        sampled(
            ["\N{OLD ITALIC LETTER A}\n" if bound == 1 else "\n" * 50] * 100,
            TokenizerConfig(kind="bpe", sample_bytes=bound),
        )


@pytest.mark.parametrize("kind", ["byte", "char", "word"])
def test_other_kinds_are_learned_from_all(kind: str) -> None:
    config = TokenizerConfig(kind=kind, sample_bytes=1)
    assert sampled(["abc"] * 5, config)[0] == ["abc"] * 5
    assert not describe_sample(None, config, 10**12)


@pytest.mark.parametrize(("size", "words"), [(999, "999 bytes"), (97_499, "97.5 kB"), (256_000_000, "256.0 MB")])
def test_sizes_are_told_in_fitting_units(size: int, words: str) -> None:
    assert in_words(size) == words


@pytest.mark.parametrize("unit", ["stream", "line"])
def test_subwords_are_those_of_the_sample(tmp_path: Path, unit: str, monkeypatch) -> None:
    monkeypatch.setattr("seriatim.data.text.CHUNK_BYTES", 64)
    (tmp_path / "a.txt").write_text("".join(f"word{i % 3} other{i}\n" for i in range(300)))
    sources = find_sources(str(tmp_path / "a.txt"))
    found = [
        fit_corpus_tokenizer(sources, TokenizerConfig(kind="bpe", vocabulary_size=300, sample_bytes=size), unit=unit)
        for size in (None, 10**9, 600)
    ]
    assert found[0].to_json() == found[1].to_json()
    assert found[2].to_json() != found[0].to_json()


class Lines(seriatim.Reporter):
    """Keeps the first record."""

    def begin(self, record) -> None:
        self.record = record


def test_a_training_and_check_say_so(texts, tmp_path: Path) -> None:
    tokenizer = {"kind": "bpe", "vocabulary_size": 260, "sample_bytes": 100}
    config, reporter = small_config(texts, tmp_path / "run", tokenizer=tokenizer, training={"steps": 1}), Lines()
    seriatim.train(config, reporter=reporter)
    assert reporter.record["tokenizer_sample"].startswith("the tokenizer was learned from ")
    size, unit = reporter.record["tokenizer_sample"].split()[5:7]
    assert unit == "bytes"
    assert 80 <= int(size) <= 100
    report = check_training(small_config(texts, tmp_path / "other", tokenizer=tokenizer))
    assert report["train"]["tokenizer_sample"] == reporter.record["tokenizer_sample"]
    assert "tokenizer_sample" not in report["valid"]
