"""Samples of a text are spread over all of it, and their losses are those of the ordinary evaluation."""

import numpy as np
import pytest
import torch

import seriatim
from seriatim.data.corpus import Corpus
from seriatim.data.encoding import Statistics
from seriatim.evaluation.perplexity import each_loss
from seriatim.evaluation.text_sample import TextSample, choose_sample, sample_text
from seriatim.models import LanguageModel
from seriatim.recurrence import uncompiled


def running(tokens: int) -> Corpus:
    return Corpus(np.random.default_rng(0).integers(1, 20, tokens), None, Statistics())


def lines(lengths: np.ndarray) -> Corpus:
    return Corpus(np.random.default_rng(0).integers(1, 20, lengths.sum()), lengths.cumsum(), Statistics())


def spread(sample: TextSample, total: int) -> list[int]:
    """The number of tokens in each tenth of the text."""
    return np.histogram(sample.at, 10, (0, total))[0].tolist()


@pytest.mark.parametrize("read", [10_000, 5_000])
def test_stretches_are_spread_evenly_and_hold_the_tokens_of_the_text(read: int) -> None:
    text = running(10_000)
    sample = choose_sample(text, 1_000, stretch=50, read=read)
    assert spread(sample, 10_000) == [100] * 10
    assert (sample.corpus.ids[sample.kept] == text.ids[sample.at]).all()
    assert len(sample.corpus.ids) <= read
    assert np.diff(sample.ends, prepend=0).tolist() == [50] * 20
    assert np.bincount(sample.stretch_of).tolist() == [50] * 20
    assert sample.measured.startswith("1,000 tokens in 20 stretches")
    assert ("read after up to 200 tokens" in sample.measured) == (read < 10_000)


def test_a_short_text_is_read_as_a_whole_in_stretches() -> None:
    sample = choose_sample(running(130), 4_000, stretch=100, read=4_000)
    assert sample.at.tolist() == list(range(130))
    assert len(sample.ends) == 22
    assert sample.measured == "all 130 tokens"
    assert choose_sample(running(3), 4_000, stretch=100, read=4_000).ends.tolist() == [1, 2, 3]


def test_lines_are_chosen_whole_from_all_of_the_text() -> None:
    lengths = np.random.default_rng(1).integers(1, 19, 2_000)
    text = lines(lengths)
    sample = choose_sample(text, 1_000, stretch=100, read=10)
    assert 800 < len(sample.at) < 1_200
    assert min(spread(sample, lengths.sum())) > 50
    starts = set(np.concatenate([[0], text.ends[:-1]]).tolist())
    assert {int(sample.at[end - 1]) + 1 for end in sample.ends} <= set(text.ends.tolist())
    assert {int(sample.at[end]) for end in [0, *sample.ends[:-1]]} <= starts
    assert (sample.corpus.ids == text.ids[sample.at]).all()
    everything = choose_sample(text, 10**6, stretch=100, read=10)
    assert everything.at.tolist() == list(range(lengths.sum()))


def test_losses_are_those_of_the_evaluation_or_of_a_stated_context() -> None:
    torch.manual_seed(0)
    model, text = LanguageModel(seriatim.layer("lstm", 8, 8), 20).eval(), running(900)
    with uncompiled():
        whole = each_loss(model, text)
        read = choose_sample(text, 300, stretch=20, read=900)
        assert each_loss(model, read.corpus)[read.kept] == pytest.approx(whole[read.at], abs=1e-6)
        limited = choose_sample(text, 300, stretch=20, read=600)
        near = each_loss(model, limited.corpus)[limited.kept]
    assert near[:20] == pytest.approx(whole[limited.at[:20]], abs=1e-6), "the beginning of the text"
    assert near == pytest.approx(whole[limited.at], abs=0.02), "an untrained model forgets what is 20 tokens back"


def test_a_sample_of_a_text_has_the_counts_of_its_fraction() -> None:
    text = running(10_000)
    text.statistics.add(Statistics(tokens=10_000, words=4_000, bytes=30_000, lines=100, spelling_nats=8.0))
    sample = sample_text(text, 2_000)
    assert len(sample.ids) == 2_000
    assert sample.ends.tolist() == [500, 1_000, 1_500, 2_000]
    counts = sample.statistics
    assert (counts.tokens, counts.words, counts.bytes, counts.lines) == (2_000, 800, 6_000, 20)
    assert counts.spelling_nats == pytest.approx(1.6)
    assert sample_text(text, None) is sample_text(text, 10_000) is text
