"""Use of context, compared with ordinary evaluation and with the inputs that architectures can use."""

from pathlib import Path

import numpy as np
import pytest
import torch

import seriatim
from seriatim.data.corpus import Corpus
from seriatim.data.encoding import Statistics
from seriatim.evaluation.context_use import ContextScore, by_context, excess_of
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


@pytest.mark.parametrize("name", ["lstm", "transformer", "mamba", "window"])
def test_the_full_context_equals_ordinary_evaluation(name: str) -> None:
    model, ids = model_of(name), text_of(63)
    found = by_context(model, ids, [1, len(ids)], positions=range(len(ids)))
    losses = each_loss(model, Corpus(ids, None, Statistics()))
    assert found[len(ids)].loss == pytest.approx(losses.mean(), abs=1e-6)
    assert found[None].loss == pytest.approx(losses.mean(), abs=1e-6)
    assert found[None].accuracy == found[len(ids)].accuracy


def test_lines_are_texts_of_their_own() -> None:
    model, ids = model_of("gru"), text_of(40)
    ends = np.array([7, 8, 21, 40])
    ids[ends - 1] = 0
    found = by_context(model, ids, [3, 100], positions=range(40), ends=ends)
    losses = each_loss(model, Corpus(ids, ends, Statistics()))
    assert found[None].loss == pytest.approx(losses.mean(), abs=1e-6)
    assert found[100] == pytest.approx(found[None], abs=1e-6)
    assert found[3].loss != pytest.approx(found[None].loss, abs=1e-6)


def test_short_contexts_are_short_texts() -> None:
    model, ids = model_of("lstm"), text_of(30)
    logits, _ = model(torch.from_numpy(ids[20:23]).unsqueeze(0))
    expected = -torch.log_softmax(logits[0, -1], 0)[ids[23]].item()
    assert by_context(model, ids, [3], positions=[23])[3].loss == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("name", "options", "sees"), [("prior", {}, 0), ("window", {"context": 4}, 4)])
def test_tokens_beyond_the_window_change_nothing(name: str, options: dict, sees: int) -> None:
    found = by_context(model_of(name, **options), text_of(100), [1, 2, 4, 8, 16, 32])
    for size, seen in found.items():
        beyond = size is None or size >= sees
        assert (seen.loss == pytest.approx(found[None].loss, abs=1e-6)) == beyond


def test_an_ngram_model_uses_its_order(texts, tmp_path: Path) -> None:
    config = {"task": "lm", "data": {"train": texts["train"]}, "tokenizer": {"kind": "word"}}
    run = seriatim.train(
        {
            **config,
            "model": {"layer": "ngram", "options": {"order": 3, "smoothing": "witten-bell"}},
            "out": str(tmp_path / "run"),
        }
    )
    found = by_context(run.model, run.tokenizer.encode(Path(texts["test"]).read_text()), [1, 2, 4, 8])
    assert found[2] == pytest.approx(found[None])
    assert found[8] == pytest.approx(found[None])
    assert found[1].loss > found[None].loss


def test_a_text_of_one_token_has_every_context() -> None:
    with refused("empty", "text"):
        by_context(model_of("gru"), text_of(0), [1])
    assert by_context(model_of("prior"), text_of(1), [1, 4]).keys() == {1, 4, None}
    assert isinstance(by_context(model_of("prior"), text_of(1), [1])[1], ContextScore)


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
