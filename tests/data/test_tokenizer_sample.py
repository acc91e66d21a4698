"""The part of a large text that subwords are learned from is bounded, spread over the text, and told to the user."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import seriatim
from seriatim.config import Tokenizer as TokenizerConfig
from seriatim.data.corpus import fit_corpus_tokenizer
from seriatim.data.readers import find_sources
from seriatim.data.tokenizer_sample import SAMPLED, describe_sample, spread_sample
from seriatim.runs.checking import check_training

from ..conftest import small_config


@given(st.lists(st.text("aé", min_size=1, max_size=5), max_size=200), st.integers(1, 400), st.sampled_from(SAMPLED))
def test_a_sample_is_bounded_and_spread(texts: list[str], bound: int, kind: str) -> None:
    config, total = TokenizerConfig(kind=kind, sample_bytes=bound), sum(len(text.encode()) for text in texts)
    chosen = list(spread_sample(texts, config, total))
    size = sum(len(text.encode()) for text in chosen)
    assert chosen == list(spread_sample(texts, config, total))
    assert size <= bound
    if total <= bound:
        assert chosen == texts
    else:
        assert size >= bound - 10 * (1 + bound / total)  # a part that does not fit waits for the next
    middle = len(texts) // 2
    first = sum(len(text.encode()) for text in texts[:middle])
    taken = sum(len(text.encode()) for text in spread_sample(texts[:middle], config, total))
    if total > bound:
        assert taken <= bound * first / total


@pytest.mark.parametrize("kind", ["byte", "char", "word"])
def test_other_kinds_are_learned_from_all(kind: str) -> None:
    config = TokenizerConfig(kind=kind, sample_bytes=1)
    assert list(spread_sample(["abc"] * 5, config, 15)) == ["abc"] * 5
    assert not describe_sample(config, 10**12)


@pytest.mark.parametrize("unit", ["stream", "line"])
def test_subwords_are_those_of_the_sample(tmp_path: Path, unit: str, monkeypatch) -> None:
    monkeypatch.setattr("seriatim.data.readers.PIECE_BYTES", 64)
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
    assert reporter.record["tokenizer_sample"].startswith("the tokenizer was learned from 0 of 0 MB")
    report = check_training(small_config(texts, tmp_path / "other", tokenizer=tokenizer))
    assert report["train"]["tokenizer_sample"] == reporter.record["tokenizer_sample"]
    assert "tokenizer_sample" not in report["valid"]
