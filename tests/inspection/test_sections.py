"""What single sections of a page draw and say, from small numbers."""

import numpy as np
import pytest
import torch

from seriatim.inspection.attention_maps import AttentionMap, attention_map, blank_future
from seriatim.inspection.influence import MIN_ANSWERS, Influence, influence_section, nearest_sentence
from seriatim.inspection.inspected_run import InspectedRun, explainer_of, prepare
from seriatim.inspection.mistakes import mistakes_section
from seriatim.inspection.surprisal import MIN_FULL, label_effect_section, reference_blocks, surprisal_section
from seriatim.pages.page import Prose, TokenLinks, Tokens
from seriatim.recurrence import uncompiled
from seriatim.tasks.explainer import Example, LabelEffect, SearchResult
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
    effect = LabelEffect(tokens, ["no", "yes"], np.array(full), None, np.array(without))
    monkeypatch.setattr(ClassifierExamples, "label_effect", lambda *_: effect)
    return effect


def test_a_small_effect_is_not_drawn_as_a_large_one(inspected, monkeypatch) -> None:
    with_effect(monkeypatch, [0.05, 0.95], [[0.09, 0.91], [0.04, 0.96]])
    content = label_effect_section(prepare(inspected["classify"], SENTENCE, **GIVEN))
    (tokens,) = (part for part in content.blocks if isinstance(part, Tokens))
    assert [token.shade for token in tokens.tokens] == [pytest.approx(np.log2(0.95 / 0.91)), 0.0]
    assert f"Full shade is {MIN_FULL:.2f} bits" in tokens.caption
    assert tokens.tokens[0].note == "Without this token, P(yes) falls from 95 % to 91 %."
    assert content.blocks[0] == Prose("Predicted label: yes (95 %), no (5 %).")
    assert content.summary[0].startswith("answer: yes (95 %); without “")
    assert content.summary[0].endswith(", P(yes) falls from 95 % to 91 %")


def test_nothing_is_said_to_lower_the_label_if_nothing_does(inspected, monkeypatch) -> None:
    with_effect(monkeypatch, [0.3, 0.7], [[0.2, 0.8], [0.3, 0.7]])
    content = label_effect_section(prepare(inspected["classify"], SENTENCE, **GIVEN))
    assert content.summary == ["answer: yes (70 %)"]
    (tokens,) = (part for part in content.blocks if isinstance(part, Tokens))
    assert [token.shade for token in tokens.tokens] == [0.0, 0.0]
    assert "stays at 70 %" in tokens.tokens[1].note


def test_all_sections_of_a_translator_are_about_the_answer_of_beam_search(inspected, monkeypatch) -> None:
    run = inspected["seq2seq-heads"]
    monkeypatch.setattr(TranslatedData, "search", lambda *_: SearchResult("fed", -1.0))
    subject = prepare(run, "axbxcx", **GIVEN)
    assert subject.item == ("axbxcx", "fed")
    (tokens, *_) = surprisal_section(subject).blocks
    assert [token.text for token in tokens.tokens] == ["f", "e", "d", "</s>"], "the end has one name on the page"
    links = next(part for part in influence_section(subject).blocks if isinstance(part, TokenLinks))
    assert [token.text.strip() for token in links.texts[1][1]] == ["</s>", "f", "e", "d", "</s>"]
    assert "The answer of beam search." in tokens.caption


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
    assert (drawn.largest, drawn.power) == (1.0, 1.0)
    assert [name for name, _ in drawn.panels] == ["head 1", "head 2"]
    assert drawn.panels[0][1][0] == pytest.approx([0.05] * 20)


def near(answers: int, share: float) -> Influence:
    rows = torch.full((answers, answers), torch.nan, dtype=torch.float64)
    for i in range(answers):
        rows[i, : i + 1] = (1 - share - 0.01 * (i % 2)) / max(i, 1)
        rows[i, i] = share + 0.01 * (i % 2)
    ids = tuple(range(answers))
    example = Example(ids, ids, tuple(map(str, ids)))
    return Influence(example, tuple(map(str, ids)), rows, torch.ones(answers), answers)


def test_the_share_of_the_token_before_is_stated_from_enough_answers(inspected) -> None:
    inputs = explainer_of(inspected["lm"]).inputs
    assert nearest_sentence(inputs, near(MIN_ANSWERS, 0.4)) == "", "the first answer has a single token before it"
    sentence = nearest_sentence(inputs, near(MIN_ANSWERS + 1, 0.4))
    assert sentence.startswith("On average, 40")
    assert f"over {MIN_ANSWERS} tokens of this text" in sentence
    assert nearest_sentence(explainer_of(inspected["mlm"]).inputs, near(MIN_ANSWERS + 1, 0.4)) == ""


def test_lines_of_the_lead_say_what_they_are_about(inspected) -> None:
    subject = prepare(inspected["classify"], SENTENCE, **GIVEN)
    (line,) = mistakes_section(subject).summary
    assert line.startswith("evaluation: ")
    assert "labels correct" in line


def test_the_gold_answer_of_one_word_is_no_label(inspected, monkeypatch) -> None:
    monkeypatch.setattr(InspectedRun, "from_held_out", lambda *_: ["DET"])
    (prose,) = reference_blocks(prepare(inspected["tag"], "the", **GIVEN), ["X"])
    assert "where its gold answer is DET; the prediction is wrong." in prose.text
