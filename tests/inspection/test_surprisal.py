"""Surprisal and the effect of words on answers, compared with the results of the runs themselves."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from seriatim.core.errors import InputError
from seriatim.evaluation.token_scores import token_name
from seriatim.inspection.inspected_run import explainer_of
from seriatim.inspection.surprisal import TextBits
from seriatim.recurrence import uncompiled

from ..refusals import refused
from .inspected import SENTENCE, total_bits

TEXT = f"{SENTENCE}\na dog likes it .\n"


@pytest.fixture(autouse=True)
def _uncompiled():
    with uncompiled():
        yield


@pytest.mark.parametrize("name", ["lm", "lm-words", "ngram"])
def test_the_bits_of_a_running_text_are_those_of_a_stream(inspected, name: str) -> None:
    found = explainer_of(inspected[name]).token_scores(TEXT)
    assert total_bits(found) * math.log(2) == pytest.approx(
        -inspected[name].stream().feed(TEXT).log_probability, rel=1e-5
    )
    if name == "lm":
        assert "".join(score.text for score in found.scores) == TEXT


@pytest.mark.parametrize("name", ["lm-words", "ngram"])
def test_words_outside_the_vocabulary_keep_their_names(inspected, name: str) -> None:
    explainer = explainer_of(inspected[name])
    known = "zzyzx the qwrty cat"
    found = explainer.token_scores(known)
    assert [score.text.strip() for score in found.scores] == ["[zzyzx]", "the", "[qwrty]", "cat"]
    assert "in brackets are not in the vocabulary" in found.caption
    assert "brackets" not in explainer.token_scores("the cat").caption
    (example,) = explainer.examples(known)
    assert example.tokens[1:] == ("[zzyzx]", "the", "[qwrty]")  # after the boundary symbol


def test_the_bits_of_lines_are_those_of_their_scores(inspected) -> None:
    run = inspected["lm-lines"]
    found = explainer_of(run).token_scores(TEXT)
    scores = [score.log_probability for score in run.score(TEXT.splitlines())]
    assert total_bits(found) * math.log(2) == pytest.approx(-sum(scores), rel=1e-5)


def test_masking_each_token_alone_is_the_exact_measure(inspected, tmp_path: Path) -> None:
    run, path = inspected["mlm"], tmp_path / "a.txt"
    path.write_text(TEXT)
    explainer = explainer_of(run)
    found = explainer.token_scores(TEXT)
    expected = run.evaluate(str(path), exact=True)
    assert total_bits(found) * math.log(2) / len(found.scores) == pytest.approx(expected["loss"], rel=1e-5)
    together = sum(
        len(places) for places, _ in explainer.labelled.log_probabilities(explainer.labelled.text.encode(TEXT), every=3)
    )
    assert together == len(found.scores)


def test_alternatives_are_the_most_likely_tokens(inspected) -> None:
    run = inspected["lm"]
    corpus = explainer_of(run).labelled.text.encode(TEXT)
    found = explainer_of(run).token_scores(TEXT, alternatives=run.tokenizer.vocabulary_size).scores
    for one, token in zip(found, corpus.ids.tolist(), strict=True):
        shares = [share for _, share in one.alternatives]
        assert sum(shares) == pytest.approx(1)
        assert shares == sorted(shares, reverse=True)
        assert dict(one.alternatives)[token_name(run.tokenizer, token)] == pytest.approx(2**-one.bits)


@pytest.mark.parametrize("name", ["seq2seq", "seq2seq-heads"])
def test_the_bits_of_an_answer_equal_those_of_its_search(inspected, name: str) -> None:
    run = inspected[name]
    (expected,) = run.predict(["axbxcx"], beam=1, details=True)
    nats = total_bits(explainer_of(run).token_scores(("axbxcx", expected["text"]))) * math.log(2)
    assert nats == pytest.approx(-expected["log_probability"], rel=1e-4)


def test_a_ctc_run_has_no_probabilities_of_single_tokens(inspected) -> None:
    explainer = explainer_of(inspected["ctc"])
    with pytest.raises(InputError, match="all of an answer at once"):
        explainer.require(explainer.token_scores)("axbxcx")


@pytest.mark.parametrize("name", ["classify", "classify-forwards"])
def test_the_label_without_a_word_equals_that_of_the_shorter_text(inspected, name: str) -> None:
    run = inspected[name]
    found, words = explainer_of(run).label_effect(SENTENCE), SENTENCE.split()
    texts = [SENTENCE, *(" ".join(words[:i] + words[i + 1 :]) for i in range(len(words)))]
    expected = np.array([list(answer["probabilities"].values()) for answer in run.predict(texts, details=True)])
    assert found.full == pytest.approx(expected[0], abs=1e-6)
    assert found.without == pytest.approx(expected[1:], abs=1e-6)
    gains = np.log2(expected[0, found.predicted] / expected[1:, found.predicted])
    assert found.bits() == pytest.approx(gains, abs=1e-5)


def test_the_certainty_of_tags_equals_that_of_the_tagger(inspected) -> None:
    (expected,) = inspected["tag"].predict([SENTENCE], details=True)
    found = explainer_of(inspected["tag"]).token_scores(SENTENCE).scores
    assert [one.text.strip() for one in found] == [
        f"{word}/{tag}" for word, tag in zip(expected["words"], expected["tags"], strict=True)
    ]
    assert [2**-one.bits for one in found] == pytest.approx(expected["probabilities"], abs=1e-5)


def test_unknown_words_are_read_and_unknown_characters_refused(inspected) -> None:
    run = inspected["lm-words"]
    assert explainer_of(run).labelled.text.encode("the zebra .").ids.tolist().count(run.tokenizer.unknown_id) == 1
    for name, text in (("lm-words", "zebra"), ("lm", "the ☃")):
        with refused("unknown"):
            explainer_of(inspected[name]).labelled.text.encode(text)


def test_models_are_not_changed(inspected) -> None:
    run = inspected["lm"]
    before = {name: values.clone() for name, values in run.model.state_dict().items()}
    explainer_of(run).token_scores(TEXT)
    assert not run.model.training
    assert all(torch.equal(values, before[name]) for name, values in run.model.state_dict().items())


def test_the_mean_of_a_text_has_the_digits_of_its_interval() -> None:
    bits = TextBits(np.tile([1.0, 4.0], 20), "tokens", 50)
    mean, ends = bits.mean
    low, high = map(float, ends.split(" to "))
    assert low < 2.5 < high
    assert (mean, bits.total, bits.per_byte) == ("2.50", "100.0", "2.00")
    few = TextBits(np.array([1.0, 4.0]), "tokens", 2)
    assert few.tile.interval == ""
    impossible = TextBits(np.array([1.0, np.inf]), "tokens", 2)
    assert impossible.mean == ("∞", "")
    assert impossible.per_byte == ""
    assert impossible.tile.note.endswith("1 of 2 tokens")
