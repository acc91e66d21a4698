"""What single sections of a page draw and say, from small numbers."""

import numpy as np
import pytest
import torch

from seriatim.inspection.attention_maps import AttentionMap, attention_map, blank_future
from seriatim.inspection.gates import gates_section
from seriatim.inspection.inspected_run import InspectedRun, prepare
from seriatim.inspection.surprisal import FULL_EFFECT, read_text
from seriatim.pages.wording import quoted
from seriatim.recurrence import uncompiled
from seriatim.tasks.explainer import LabelEffect, SearchResult
from seriatim.tasks.label_explainer import ClassifierExamples
from seriatim.tasks.translation_explainer import TranslatedData

from .inspected import SENTENCE

GIVEN = {"beam": 2, "data": None, "file_format": None}


@pytest.fixture(autouse=True)
def _uncompiled():
    with uncompiled():
        yield


def with_effect(monkeypatch, full: list[float], without: list[list[float]]) -> LabelEffect:
    tokens = [f"w{i} " for i in range(len(without))]
    effect = LabelEffect(tokens, ["no", "yes"], np.array(full), np.array(without), np.array(full))
    monkeypatch.setattr(ClassifierExamples, "label_effect", lambda *_: effect)
    return effect


def test_a_small_effect_is_not_drawn_as_a_large_one(inspected, monkeypatch) -> None:
    with_effect(monkeypatch, [0.05, 0.95], [[0.09, 0.91], [0.04, 0.96]])
    reading = read_text(prepare(inspected["classify"], SENTENCE, **GIVEN))
    lens, gain = reading.lenses[0], float(np.log2(0.95 / 0.91))
    assert lens.shades(2) == [pytest.approx(gain / FULL_EFFECT), 0.0]
    assert lens.notes == ["Without it, P(yes) is 91 %.", "Without it, P(yes) is 96 %."]
    assert reading.answers[0].text == "yes 95 %, then no 5 %"
    assert reading.tiles[0].value == quoted("w0")


def test_nothing_is_said_to_lower_the_label_if_nothing_does(inspected, monkeypatch) -> None:
    with_effect(monkeypatch, [0.3, 0.7], [[0.2, 0.8], [0.3, 0.7]])
    reading = read_text(prepare(inspected["classify"], SENTENCE, **GIVEN))
    assert reading.tiles == []
    assert reading.lenses[0].shades(2) == [0.0, 0.0]
    assert reading.lenses[0].notes[1].endswith("is 70 %.")


def test_the_strip_of_a_translator_is_about_the_answer_of_beam_search(inspected, monkeypatch) -> None:
    run = inspected["seq2seq-heads"]
    monkeypatch.setattr(TranslatedData, "search", lambda *_: SearchResult("fed", -1.0))
    subject = prepare(run, "axbxcx", **GIVEN)
    assert subject.item == ("axbxcx", "fed")
    reading = read_text(subject)
    assert [token.text.strip() for token in reading.layout.rows[1].tokens] == ["</s>", "f", "e", "d", "</s>"]
    (lens,) = reading.lenses
    assert lens.first == len(reading.layout.rows[0].tokens) + 1
    assert len(lens.values) == 4
    assert "The answer of beam search." in lens.sentence


def attention(weights: torch.Tensor, **settings: bool) -> AttentionMap:
    names = tuple(f"t{i}" for i in range(weights.shape[1]))
    return AttentionMap("layer 1: attention", names, names, weights, **settings)


def test_only_later_tokens_of_a_causal_layer_are_blank() -> None:
    full = torch.full((2, 4, 4), 0.25)
    causal = full.tril()
    later = torch.ones(2, 4, 4, dtype=torch.bool).triu(1)
    assert torch.equal(blank_future(attention(causal)).isnan(), later)
    windowed = causal.triu(-1)
    assert torch.equal(blank_future(attention(windowed)).isnan(), later), "what lies before a window has the weight 0"
    assert not blank_future(attention(full)).isnan().any()
    assert not blank_future(attention(causal, crosses=True)).isnan().any()
    assert not blank_future(attention(causal[:, :, :3])).isnan().any()


def test_attention_has_one_absolute_scale() -> None:
    """A largest weight of 5 % is no dark cell, and all heads are in one figure."""
    drawn = attention_map(attention(torch.full((2, 20, 20), 0.05)))
    assert drawn.power == 1.0
    assert [name for name, _ in drawn.panels] == ["head 1", "head 2"]
    assert drawn.panels[0][1][0] == pytest.approx([0.05] * 20)


def test_the_units_of_gates_are_lenses(inspected) -> None:
    subject = prepare(inspected["lm"], SENTENCE, **GIVEN)
    lenses = gates_section(subject).lenses
    assert len(lenses) == 2, "a GRU has two gates"
    assert all(lens.full == 1.0 and "of 8 units" in lens.sentence for lens in lenses)
    assert all(len(lens.values) <= read_text(subject).layout.size for lens in lenses)


def test_a_wrong_tag_has_the_gold_one(inspected, monkeypatch) -> None:
    monkeypatch.setattr(InspectedRun, "from_held_out", lambda *_: ["none of them"])
    reading = read_text(prepare(inspected["tag"], "the", **GIVEN))
    (token,) = reading.layout.rows[0].tokens
    assert (token.text, token.gold) == ("the ", "none of them")
    assert reading.tiles[0].value == "0 of 1"
