"""Tags of any scheme mean the same chunks in every other scheme, and spellings of a tag are one tag."""

import random

import pytest

from seriatim.data.tag_sets import TagSet, to_bio, to_scheme
from seriatim.evaluation.entities import counts

BIO = ["O", "B-A", "I-A", "I-A", "B-A", "O", "B-B", "B-A", "I-A"]
IN_SCHEME = {
    "bio": BIO,
    "iobes": ["O", "B-A", "I-A", "E-A", "S-A", "O", "S-B", "B-A", "E-A"],
    "bilou": ["O", "B-A", "I-A", "L-A", "U-A", "O", "U-B", "B-A", "L-A"],
}
IOB1 = ["O", "I-A", "I-A", "I-A", "B-A", "O", "I-B", "I-A", "I-A"]


@pytest.mark.parametrize("scheme", list(IN_SCHEME))
def test_every_scheme_is_converted_to_every_other(scheme: str) -> None:
    for tags in (*IN_SCHEME.values(), IOB1):
        assert to_scheme(tags, scheme) == IN_SCHEME[scheme]
    assert to_scheme(["O", "X-A", "B-", "A"], scheme) == ["O", "X-A", "B-", "A"]


@pytest.mark.parametrize("seed", range(40))
def test_any_tags_keep_the_chunks_that_conlleval_sees(seed: int) -> None:
    choose = random.Random(seed)
    tags = choose.choices(["O", *(f"{prefix}-{kind}" for prefix in "BIESLU" for kind in "XY")], k=12)
    for scheme in IN_SCHEME:
        converted = to_scheme(tags, scheme)
        correct, guessed, gold = counts(tags, converted)
        assert correct == guessed == gold
        assert to_bio(converted) == to_bio(tags)


def test_a_scheme_that_nearly_all_chunks_follow_is_kept() -> None:
    slip = ["B-A", "I-A", "O"]
    assert TagSet.learned([IN_SCHEME["iobes"]] * 20).scheme == "iobes"
    assert TagSet.learned([*[IN_SCHEME["bilou"]] * 20, slip]).scheme == "bilou"
    assert TagSet.learned([*[IN_SCHEME["iobes"]] * 2, slip]).scheme == "bio"
    assert TagSet.learned([IN_SCHEME["iobes"], IN_SCHEME["bilou"]]).scheme == "bio"
    assert TagSet.learned([BIO, IOB1]).scheme == "bio"
    assert TagSet.known(sorted(set(IN_SCHEME["iobes"]))).scheme == "iobes"


def test_the_most_frequent_spelling_stands_for_the_others() -> None:
    found = TagSet.learned([["B-PER", "I-PER", "o"], ["b-Per", "i-per", "O"], ["B-loc", "O"]])
    assert [found.spelled(tag) for tag in ("b-per", "I-Per", "B-LOC", "o", "B-New")] == [
        *("B-PER", "I-PER", "B-loc", "O", "B-New")
    ]
    assert TagSet.learned([["b-per", "i-per", "o"]]).spelled("o") == "O"
    words = TagSet.learned([["NOUN", "NOUN", "noun", "i-x"]])
    assert [words.spelled(tag) for tag in ("noun", "Noun ", "i-x")] == ["NOUN", "NOUN", "i-x"]
    known = TagSet.known(["B-PER", "I-PER", "O", "verb", "VERB"])
    assert [known.spelled(tag) for tag in ("b-per", "i-per", "verb", "Verb")] == ["B-PER", "I-PER", "verb", "Verb"]
