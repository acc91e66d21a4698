"""What a page says of the context that a model uses: only what held-out data support."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import seriatim
from seriatim.data.corpus import Corpus
from seriatim.data.encoding import Statistics
from seriatim.evaluation.context_use import ContextExcess, Excess, excess_losses
from seriatim.evaluation.perplexity import each_loss
from seriatim.inspection.context_section import memory_section, needed_sentence
from seriatim.inspection.inspected_run import InspectedRun, explainer_of, prepare
from seriatim.models.base_models import TextModel
from seriatim.pages.page import PageBlock, Plot, Plots, Prose, Table
from seriatim.recurrence import uncompiled

from .inspected import SENTENCE, TEXTS

GIVEN = {"beam": 1, "data": None, "file_format": None}


@pytest.fixture(autouse=True)
def _uncompiled():
    with uncompiled():
        yield


def narrow(**bits: float) -> dict[int, Excess]:
    return {int(name[1:]): Excess(value, value - 0.002, value + 0.002) for name, value in bits.items()}


def test_a_sentence_agrees_with_every_size() -> None:
    """A loss that rises again with more context is not within 0.02 bits, and a lower loss is not called higher."""
    mixed = needed_sentence(narrow(k1=1.0, k2=0.0, k4=0.5))
    assert "or more" not in mixed
    assert mixed.startswith(
        "With only the last token, the loss is 1.000 bits a token (95 % interval 0.998 to 1.002) above"
    )
    lower = needed_sentence(narrow(k1=-0.9, k2=-0.9))
    assert lower.startswith(
        "With only the last 2 tokens, the loss is 0.900 bits a token (95 % interval 0.898 to 0.902) below"
    )
    enough = needed_sentence(narrow(k1=0.3, k4=0.05, k16=0.004, k64=-0.001))
    assert "With only the last 4 tokens, the loss is 0.050 bits" in enough
    assert "With the last 16 tokens or more, the loss is within 0.02 bits" in enough
    assert "the last token or more" in needed_sentence(narrow(k1=0.001, k4=0.0))


def test_nothing_is_said_where_the_interval_says_nothing() -> None:
    assert needed_sentence({}) == ""
    assert needed_sentence({1: Excess(0.004, -0.02, 0.03), 4: Excess(0.001, -0.03, 0.03)}) == ""
    by_chance = {1: Excess(0.01, -0.01, 0.03), 4: Excess(0.02, 0.006, 0.04)}
    assert needed_sentence(by_chance) == "", "the smaller context is not clearly worse"


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
    sentence = needed_sentence(found.by_size)
    assert "With only the last 4 tokens" in sentence
    assert "With the last 16 tokens or more" in sentence
    assert excess_losses(Repeating(10), text(ids[:8])).by_size == {}, "too few stretches"


def text(ids: np.ndarray) -> Corpus:
    return Corpus(ids, None, Statistics())


def with_excess(subject: InspectedRun, excess: ContextExcess) -> InspectedRun:
    vars(subject)["explainer"] = dataclasses.replace(subject.explainer, context_excess=lambda *_: excess)
    return subject


def test_the_page_measures_the_context_on_held_out_data(inspected) -> None:
    subject = prepare(inspected["lm-words"], SENTENCE * 20, **GIVEN)
    clear = ContextExcess({1: Excess(0.3, 0.2, 0.4), 4: Excess(0.0, -0.002, 0.003)}, 1_000, "1,000 tokens")
    with_excess(subject, clear)
    content = memory_section(subject)
    first, second = (
        "With only the last token, the loss is 0.30 bits a token (95 % interval 0.20 to 0.40) above",
        "With the last 4 tokens",
    )
    (sentence, *_) = (part.text for part in content.blocks if isinstance(part, Prose))
    assert sentence.startswith(first)
    assert second in sentence
    assert "Measured on 1,000 tokens of the held-out data (" in sentence
    (line,) = content.summary
    assert line.startswith("memory, on held-out data: with only the last token")
    (plot,) = plots(content.blocks)
    assert plot.title == "Loss with only the last k tokens"
    curve, *intervals, zero = plot.figure.axes[0].lines
    assert curve.get_ydata().tolist() == [0.3, 0.0]
    assert [one.get_ydata().tolist() for one in intervals] == [[0.2, 0.4], [-0.002, 0.003]]
    assert set(zero.get_ydata()) == {0}
    silent = memory_section(with_excess(subject, ContextExcess({}, 1_000)))
    assert not silent.summary
    assert [plot.title for plot in plots(silent.blocks)] == ["Loss when only the last k tokens are seen"]
    assert not any("Measured on" in part.text for part in silent.blocks if isinstance(part, Prose))
    short = memory_section(with_excess(prepare(inspected["lm-words"], SENTENCE, **GIVEN), ContextExcess({}, 1_000)))
    assert not any(isinstance(part, Plots) for part in short.blocks)
    assert any("too few to draw" in part.text for part in short.blocks if isinstance(part, Prose))


def plots(parts: list[PageBlock]) -> list[Plot]:
    return [plot for part in parts if isinstance(part, Plots) for plot in part.plots]


def test_one_answer_supports_no_statement(inspected) -> None:
    for name in ("classify", "tag"):
        content = memory_section(prepare(inspected[name], SENTENCE, **GIVEN))
        assert not content.summary
        captions = [plot.caption for plot in plots(content.blocks)]
        assert all(caption.endswith("when only the last k tokens of the text are seen.") for caption in captions)
        assert captions


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("lm", ["layer 1: gru, state"]),
        ("lm-lines", ["layer 1: lstm, hidden", "layer 1: lstm, cell"]),
        ("lm-words", ["layer 1: transformer, kept", "layer 1: transformer, seen"]),
        (
            "seq2seq-heads",
            [f"decoder, layer 1: {part}" for part in ("transformer, kept", "transformer, seen")]
            + [f"decoder, layer 1: cross attention, {part}" for part in ("kept", "lengths")],
        ),
    ],
)
def test_parts_of_a_state_are_named_by_their_layers(inspected, name: str, parts: list[str]) -> None:
    content = memory_section(prepare(inspected[name], TEXTS.get(name, SENTENCE), **GIVEN))
    table = next(part for part in content.blocks if isinstance(part, Table))
    assert [row[0] for row in table.rows][: len(parts)] == parts


def test_items_keep_their_own_words(inspected, tmp_path: Path) -> None:
    run, path = inspected["lm-words"], tmp_path / "a.txt"
    path.write_text("the zebra sees <unk> .\nthe cat likes Xylo .\n")
    (item,) = explainer_of(run).labelled.mistakes(str(path), None).items
    words = [token.strip("[]\n ") for token in item.text]
    assert [word for word in words if word] == path.read_text().split()
    assert seriatim.load(run.path).tokenizer.unknown_id is not None
