"""Words with an id of their own each, and their characters."""

import numpy as np
import pytest
import torch

from seriatim.config import Tokenizer
from seriatim.data.vocabulary import Vocabulary, fit_tokenizer
from seriatim.data.word_forms import MAX_CHARACTERS, WordForms


@pytest.fixture
def vocabulary() -> Vocabulary:
    words = fit_tokenizer(Tokenizer(kind="word", lowercase=True), ["the sea and the moon"])
    return Vocabulary({"tokenizer": words, "characters": fit_tokenizer(Tokenizer(kind="char"), ["theseandmo"])}, ["a"])


def test_ids_are_those_of_the_vocabulary_and_others_follow(vocabulary: Vocabulary) -> None:
    forms, text = WordForms(vocabulary), "The tide and the moons tide"
    found, expected = forms.encode(text), vocabulary.tokenizer.encode(text)
    known = torch.from_numpy(found.astype(np.int64))
    assert forms.known(known).tolist() == expected.tolist()
    assert [forms.form(token) for token in found.tolist()] == text.lower().split()
    assert found[1] == found[5] != found[4]
    assert [forms.describe(token) for token in found.tolist()] == text.lower().split()
    assert vocabulary.tokenizer.encode("tide").tolist() == [1]  # the vocabulary has not changed


def test_spellings_are_the_characters_of_the_words(vocabulary: Vocabulary) -> None:
    forms = WordForms(vocabulary)
    long = "s" * MAX_CHARACTERS + "e"
    tokens = torch.from_numpy(np.stack([forms.encode("the tide"), forms.encode(f"{long} the")])).long()
    spelled, characters = forms.spellings(tokens), vocabulary.tokenizers["characters"]
    for row, words in enumerate((["the", "tide"], [long[: MAX_CHARACTERS // 2] + long[-MAX_CHARACTERS // 2 :], "the"])):
        for place, word in enumerate(words):
            index = spelled.indices[row, place]
            found = spelled.characters[index, : spelled.lengths[index]]
            assert found.tolist() == characters.encode(word).tolist()


def test_padding_has_characters(vocabulary: Vocabulary) -> None:
    assert (WordForms(vocabulary).spellings(torch.zeros(2, 3, dtype=torch.long)).lengths > 0).all()
