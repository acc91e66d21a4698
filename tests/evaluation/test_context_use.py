"""Use of context, compared with ordinary evaluation and with the inputs that architectures can use."""

from pathlib import Path

import numpy as np
import pytest
import torch

import seriatim
from seriatim.data.corpus import Corpus
from seriatim.data.encoding import Statistics
from seriatim.evaluation.context_use import excess_losses, excess_of, losses_after
from seriatim.evaluation.perplexity import each_loss
from seriatim.models import LanguageModel
from seriatim.recurrence import uncompiled

from ..refusals import refused


@pytest.fixture(autouse=True)
def _uncompiled():
    with uncompiled():
        yield


def model_of(name: str, **options) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(seriatim.layer(name, 8, 8, **options), 20).eval()


def text_of(tokens: int) -> np.ndarray:
    return np.random.default_rng(0).integers(1, 20, tokens)


def every(ids: np.ndarray) -> np.ndarray:
    return np.arange(len(ids))


@pytest.mark.parametrize("name", ["lstm", "transformer", "mamba", "window"])
def test_the_full_context_equals_ordinary_evaluation(name: str) -> None:
    model, ids = model_of(name), text_of(63)
    found = losses_after(model, ids, every(ids), len(ids))
    assert found == pytest.approx(each_loss(model, Corpus(ids, None, Statistics())), abs=1e-5)


def test_lines_are_texts_of_their_own() -> None:
    model, ids = model_of("gru"), text_of(40)
    ends = np.array([7, 8, 21, 40])
    ids[ends - 1] = 0
    losses = each_loss(model, Corpus(ids, ends, Statistics()))
    assert losses_after(model, ids, every(ids), 100, ends=ends) == pytest.approx(losses, abs=1e-5)
    assert losses_after(model, ids, every(ids), 3, ends=ends) != pytest.approx(losses, abs=1e-5)


def test_short_contexts_are_short_texts() -> None:
    model, ids = model_of("lstm"), text_of(30)
    logits, _ = model(torch.from_numpy(ids[20:23]).unsqueeze(0))
    expected = -torch.log_softmax(logits[0, -1], 0)[ids[23]].item()
    assert losses_after(model, ids, np.array([23]), 3) == pytest.approx([expected], abs=1e-6)


@pytest.mark.parametrize(("name", "options", "sees"), [("prior", {}, 0), ("window", {"context": 4}, 4)])
def test_tokens_beyond_the_window_change_nothing(name: str, options: dict, sees: int) -> None:
    model, ids = model_of(name, **options), text_of(100)
    full = losses_after(model, ids, every(ids), 100)
    for size in (1, 2, 4, 8, 16, 32):
        assert (losses_after(model, ids, every(ids), size) == pytest.approx(full, abs=1e-6)) == (size >= sees)


def test_an_ngram_model_uses_its_order(texts, tmp_path: Path) -> None:
    config = {"task": "lm", "data": {"train": texts["train"]}, "tokenizer": {"kind": "word"}}
    run = seriatim.train(
        {
            **config,
            "model": {"layer": "ngram", "options": {"order": 3, "smoothing": "witten-bell"}},
            "out": str(tmp_path / "run"),
        }
    )
    ids = run.tokenizer.encode(Path(texts["test"]).read_text())
    one, two, eight = (losses_after(run.model, ids, every(ids), size) for size in (1, 2, 8))
    assert two == pytest.approx(eight)
    assert one.mean() > two.mean()


def test_texts_without_tokens_are_refused_and_short_ones_have_no_interval() -> None:
    with refused("empty", "text"):
        excess_losses(model_of("gru"), Corpus(text_of(0), None, Statistics()))
    assert excess_losses(model_of("prior"), Corpus(text_of(1), None, Statistics())).by_size == {}


def test_the_gain_from_context_is_found_if_it_exists_and_only_then() -> None:
    random = np.random.default_rng(0)
    full, stretch_of = random.gamma(2, 1, 4000), np.arange(4000) // 100
    found = excess_of(full + 0.2 + random.normal(0, 0.5, 4000), full, stretch_of)
    assert found is not None
    assert found.low < 0.2 / np.log(2) < found.high
    assert found.low > 0.15
    covered = 0
    for _ in range(40):
        none = excess_of(full + random.normal(0, 0.5, 4000), full, stretch_of)
        covered += none.low < 0 < none.high
    assert covered >= 34
    infinite = full.copy()
    infinite[0] = np.inf
    assert excess_of(infinite, full, stretch_of) is None
