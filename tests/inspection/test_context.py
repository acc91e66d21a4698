"""What a page says of the context that a model uses: only what held-out data support."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import seriatim
from seriatim.core.errors import InputError
from seriatim.core.state import state_bytes
from seriatim.data.corpus import Corpus
from seriatim.data.encoding import Statistics
from seriatim.evaluation.context_use import ContextExcess, Excess, excess_losses
from seriatim.evaluation.perplexity import each_loss
from seriatim.inspection.context_section import memory_section
from seriatim.inspection.inspected_run import InspectedRun, explainer_of, prepare
from seriatim.models.base_models import TextModel
from seriatim.pages.chart import Chart
from seriatim.pages.page import PageBlock
from seriatim.recurrence import uncompiled

from .inspected import SENTENCE, TEXTS

GIVEN = {"beam": 1, "data": None, "file_format": None}


@pytest.fixture(autouse=True)
def _uncompiled():
    with uncompiled():
        yield


class Repeating(TextModel):
    """Predicts the token that stands ``distance`` tokens back with probability 0.9; uniform if it has not been seen."""

    def __init__(self, distance: int, vocabulary: int = 10) -> None:
        super().__init__()
        self.distance, self.vocabulary_size = distance, vocabulary

    def initial_state(self, batch_size: int) -> torch.Tensor:
        return torch.full((batch_size, self.distance), -1)

    def forward(self, tokens, state=None, *, lengths=None):
        state = self.initial_state(len(tokens)) if state is None else state
        rows = []
        for t in range(tokens.shape[1]):
            valid = torch.ones(len(tokens), dtype=torch.bool) if lengths is None else t < lengths
            state = torch.where(valid.unsqueeze(1), torch.cat([state[:, 1:], tokens[:, t : t + 1]], 1), state)
            rows.append(self.logits(state))
        return torch.stack(rows, 1), state

    def step(self, tokens, state):
        state = torch.cat([state[:, 1:], tokens.unsqueeze(1)], 1)
        return self.logits(state), state

    def token_losses(self, tokens, targets, state=None, *, lengths=None):
        logits, state = self(tokens, state, lengths=lengths)
        return -torch.log_softmax(logits, -1).gather(2, targets.unsqueeze(2)).squeeze(2), state

    def logits(self, state: torch.Tensor) -> torch.Tensor:
        seen = state[:, 0]
        logits = torch.full((len(seen), self.vocabulary_size), math.log(0.1 / (self.vocabulary_size - 1)))
        logits[range(len(seen)), seen.clamp_min(0)] = math.log(0.9)
        return torch.where((seen >= 0).unsqueeze(1), logits, torch.zeros(()))


def test_the_excess_of_a_model_that_looks_ten_tokens_back() -> None:
    random = np.random.default_rng(0)
    ids = np.tile(random.integers(1, 10, 10), 100)
    wrong = random.random(len(ids)) < 0.2
    ids = np.where(wrong, random.integers(1, 10, len(ids)), ids)
    found = excess_losses(Repeating(10), text(ids))
    assert found.tokens == len(ids)
    assert [size for size in found.by_size if found.by_size[size].low > 0] == [1, 4]
    assert all(abs(found.by_size[size].bits) < 1e-6 for size in (16, 64))

    # With too little context the model is uniform, so that the gain in bits is known without it.
    full = each_loss(Repeating(10), text(ids)).mean()
    assert found.by_size[1].bits == pytest.approx((math.log(10) - full) / math.log(2), abs=1e-4)
    exact = excess_losses(Repeating(1), text(ids))
    assert {exact.by_size[size] for size in (1, 4, 16)} == {Excess(0.0, 0.0, 0.0)}, "no difference, not a rare one"
    assert excess_losses(Repeating(10), text(ids[:8])).by_size == {}, "too few stretches"


def text(ids: np.ndarray) -> Corpus:
    return Corpus(ids, None, Statistics())


def with_excess(subject: InspectedRun, excess: ContextExcess) -> InspectedRun:
    vars(subject)["explainer"] = dataclasses.replace(subject.explainer, context_excess=lambda *_: excess)
    return subject


def chart_of(blocks: list[PageBlock]) -> Chart:
    return next(block for block in blocks if isinstance(block, Chart) and "context" in block.title)


def test_the_page_measures_the_context_on_held_out_data(inspected) -> None:
    subject = prepare(inspected["lm-words"], SENTENCE * 20, **GIVEN)
    clear = ContextExcess({1: Excess(0.3, 0.2, 0.4), 4: Excess(0.0, -0.002, 0.003)}, 1_000, "1,000 tokens")
    chart = chart_of(memory_section(with_excess(subject, clear)).blocks)
    (series,) = chart.series
    assert (series.x, series.y) == ([1, 4], [0.3, 0.0])
    assert series.intervals == [(0.2, 0.4), (-0.002, 0.003)]
    assert chart.levels == [("full context", 0.0)]
    assert "1,000 tokens of the held-out data" in chart.caption


@pytest.mark.parametrize("name", ["lm-words", "classify", "tag"])
def test_one_text_supports_no_curve(inspected, name: str) -> None:
    """What a shorter context costs is measured on held-out data, of a language model, or not at all."""
    subject = prepare(inspected[name], SENTENCE * 20, **GIVEN)
    if name == "lm-words":
        subject = with_excess(subject, ContextExcess({}, 1_000))
    try:
        blocks = memory_section(subject).blocks
    except InputError:  # a model that reads from both sides has no state, either
        blocks = []
    assert not any(isinstance(block, Chart) and "context" in block.title for block in blocks)


def test_the_state_of_a_decoder_is_drawn_against_its_source(inspected) -> None:
    run = inspected["seq2seq-heads"]
    content = memory_section(prepare(run, TEXTS["seq2seq-heads"], **GIVEN))
    (series,) = next(block for block in content.blocks if getattr(block, "title", "") == "Size of the state").series
    for tokens, size in zip(series.x, series.y, strict=True):
        assert size == state_bytes(run.model.encode(torch.zeros(1, tokens, dtype=torch.long)))
    assert series.y[-1] > series.y[0]


def test_items_keep_their_own_words(inspected, tmp_path: Path) -> None:
    run, path = inspected["lm-words"], tmp_path / "a.txt"
    path.write_text("the zebra sees <unk> .\nthe cat likes Xylo .\n")
    (item,) = explainer_of(run).labelled.mistakes(str(path), None).items
    words = [token.strip("[]\n ") for token in item.text]
    assert [word for word in words if word] == path.read_text().split()
    assert seriatim.load(run.path).tokenizer.unknown_id is not None
