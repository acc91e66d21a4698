"""Surprisal, and what words do to answers, held against what runs say themselves."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from seriatim.core.errors import InputError
from seriatim.inspection.answers import answer_by_context, own_answer
from seriatim.inspection.influence import label_figure, labelling, tag_surprisals
from seriatim.inspection.predictions import encode_text, log_probabilities, name_of
from seriatim.inspection.surprisal import answer_surprisals, bits, surprisal_figure, surprisals
from seriatim.recurrence.obstacles import uncompiled

from .inspected import SENTENCE

TEXT = f"{SENTENCE}\na dog likes it .\n"


@pytest.fixture(autouse=True)
def _uncompiled():
    with uncompiled():
        yield


@pytest.mark.parametrize("name", ["lm", "lm-words", "ngram"])
def test_the_bits_of_a_running_text_are_those_of_a_stream(inspected, name: str) -> None:
    found = surprisals(inspected[name], encode_text(inspected[name], TEXT))
    assert bits(found) * math.log(2) == pytest.approx(-inspected[name].stream().feed(TEXT).log_probability, rel=1e-5)
    if name == "lm":
        assert "".join(one.text for one in found) == TEXT


def test_the_bits_of_lines_are_those_of_their_scores(inspected) -> None:
    run = inspected["lm-lines"]
    found = surprisals(run, encode_text(run, TEXT))
    scores = [score.log_probability for score in run.score(TEXT.splitlines())]
    assert bits(found) * math.log(2) == pytest.approx(-sum(scores), rel=1e-5)


def test_masked_each_alone_is_the_exact_measure(inspected, tmp_path: Path) -> None:
    run, path = inspected["mlm"], tmp_path / "a.txt"
    path.write_text(TEXT)
    found = surprisals(run, encode_text(run, TEXT))
    expected = run.evaluate(str(path), exact=True)
    assert bits(found) * math.log(2) / len(found) == pytest.approx(expected["loss"], rel=1e-5)
    together = sum(len(places) for places, _ in log_probabilities(run, encode_text(run, TEXT), every=3))
    assert together == len(found)


def test_alternatives_are_the_likeliest_and_ranks_count_the_likelier(inspected) -> None:
    run = inspected["lm"]
    corpus = encode_text(run, TEXT)
    found = surprisals(run, corpus, alternatives=run.tokenizer.vocabulary_size)
    for one, token in zip(found, corpus.ids.tolist(), strict=True):
        shares = [share for _, share in one.alternatives]
        assert sum(shares) == pytest.approx(1)
        assert shares == sorted(shares, reverse=True)
        assert one.alternatives[one.rank - 1][0] == name_of(run.tokenizer, token)
        assert one.alternatives[one.rank - 1][1] == pytest.approx(2**-one.bits)
    assert surprisal_figure(found).axes[0].lines[0].get_ydata()[-1] == pytest.approx(1)


@pytest.mark.parametrize("name", ["seq2seq", "seq2seq-heads"])
def test_an_answer_costs_what_its_search_says(inspected, name: str) -> None:
    run = inspected[name]
    (expected,) = run.details(["axbxcx"])
    answer = own_answer(run, "axbxcx")
    assert run.vocabulary.target.decode(answer.tokens) == expected["text"]
    nats = bits(answer_surprisals(run, answer)) * math.log(2)
    assert nats == pytest.approx(-expected["log_probability"], rel=1e-4)
    by_context = answer_by_context(run, "axbxcx", [1, 6])
    assert by_context[6] == by_context[None] == pytest.approx(nats / (len(answer.tokens) + 1), rel=1e-4)
    assert by_context[1] != by_context[None]


def test_what_gives_all_at_once_has_no_tokens_to_be_surprised_by(inspected) -> None:
    with pytest.raises(InputError, match="all of an answer at once"):
        answer_by_context(inspected["ctc"], "axbxcx", [1])


@pytest.mark.parametrize("name", ["classify", "classify-forwards"])
def test_the_label_without_a_word_is_that_of_the_shorter_text(inspected, name: str) -> None:
    run = inspected[name]
    found, words = labelling(run, SENTENCE), SENTENCE.split()
    texts = [SENTENCE, *(" ".join(words[:i] + words[i + 1 :]) for i in range(len(words)))]
    expected = np.array([list(answer["probabilities"].values()) for answer in run.details(texts)])
    assert found.whole == pytest.approx(expected[0], abs=1e-6)
    assert found.without == pytest.approx(expected[1:], abs=1e-6)
    gains = np.log2(expected[0, found.answer] / expected[1:, found.answer])
    assert found.bits() == pytest.approx(gains, abs=1e-5)
    if name == "classify":
        assert found.after is None
        with pytest.raises(InputError, match="whole text at once"):
            label_figure(found)
    else:
        assert found.after is not None
        assert found.after[-1] == pytest.approx(found.whole, abs=1e-6)
        assert label_figure(found).axes[0].lines


def test_tags_are_as_sure_as_the_tagger_says(inspected) -> None:
    (expected,) = inspected["tag"].details([SENTENCE])
    found = tag_surprisals(inspected["tag"], SENTENCE)
    assert [one.text.strip() for one in found] == [
        f"{word}/{tag}" for word, tag in zip(expected["words"], expected["tags"], strict=True)
    ]
    assert [2**-one.bits for one in found] == pytest.approx(expected["probabilities"], abs=1e-5)
    by_context = answer_by_context(inspected["tag"], SENTENCE, [1, 100])
    assert by_context[100] == pytest.approx(by_context[None])


def test_unknown_words_are_read_and_unknown_characters_refused(inspected) -> None:
    run = inspected["lm-words"]
    assert encode_text(run, "the zebra .").ids.tolist().count(run.tokenizer.unknown_id) == 1
    for name, text in (("lm-words", "zebra"), ("lm", "the ☃")):
        with pytest.raises(InputError, match="never seen in training"):
            encode_text(inspected[name], text)


def test_models_are_left_as_they_were(inspected) -> None:
    run = inspected["lm"]
    before = {name: values.clone() for name, values in run.model.state_dict().items()}
    surprisals(run, encode_text(run, TEXT))
    assert not run.model.training
    assert all(torch.equal(values, before[name]) for name, values in run.model.state_dict().items())
