"""Tags of any scheme mean the same chunks in every other scheme, and spellings of a tag are one tag."""

import random
from collections import Counter

import pytest

from seriatim.data.tag_sets import TagSet, first_without_chunk, marks_chunks, to_scheme
from seriatim.evaluation.label_metrics import chunk_counts

BIO = ["O", "B-A", "I-A", "I-A", "B-A", "O", "B-B", "B-A", "I-A"]
IN_SCHEME = {
    "bio": BIO,
    "iobes": ["O", "B-A", "I-A", "E-A", "S-A", "O", "S-B", "B-A", "E-A"],
    "bilou": ["O", "B-A", "I-A", "L-A", "U-A", "O", "U-B", "B-A", "L-A"],
    "bmes": ["O", "B-A", "M-A", "E-A", "S-A", "O", "S-B", "B-A", "E-A"],
}
IOB1 = ["O", "I-A", "I-A", "I-A", "B-A", "O", "I-B", "I-A", "I-A"]


@pytest.mark.parametrize("scheme", list(IN_SCHEME))
def test_every_scheme_is_converted_to_every_other(scheme: str) -> None:
    for tags in (*IN_SCHEME.values(), IOB1):
        assert to_scheme(tags, scheme) == IN_SCHEME[scheme]
    assert to_scheme(["O", "X-A", "B-", "A"], scheme) == ["O", "X-A", "B-", "A"]


@pytest.mark.parametrize("types", [("-X", "-Y"), ("",)], ids=["typed", "bare"])
@pytest.mark.parametrize("seed", range(40))
def test_any_tags_keep_the_chunks_that_conlleval_sees(seed: int, types: tuple[str, ...]) -> None:
    choose = random.Random(seed)
    tags = choose.choices(["O", *(f"{prefix}{kind}" for prefix in "BIESLUM" for kind in types)], k=12)
    for scheme in IN_SCHEME:
        converted = to_scheme(tags, scheme)
        correct, guessed, gold = chunk_counts(tags, converted)
        assert correct == guessed == gold
        assert to_scheme(converted, "bio") == to_scheme(tags, "bio")


def test_a_scheme_that_nearly_all_chunks_follow_is_kept() -> None:
    slip = ["B-A", "I-A", "O"]
    assert TagSet.learned([IN_SCHEME["iobes"]] * 20).scheme == "iobes"
    assert TagSet.learned([*[IN_SCHEME["bilou"]] * 20, slip]).scheme == "bilou"
    assert TagSet.learned([*[IN_SCHEME["iobes"]] * 2, slip]).scheme == "bio"
    assert TagSet.learned([IN_SCHEME["iobes"], IN_SCHEME["bilou"]]).scheme == "bio"
    assert TagSet.learned([BIO, IOB1]).scheme == "bio"
    assert TagSet.learned([*[IN_SCHEME["bmes"]] * 20, slip]).scheme == "bmes"
    for scheme, tags in IN_SCHEME.items():
        bare = [tag[0] for tag in tags]
        assert TagSet.known(sorted(set(tags))).scheme == TagSet.known(sorted(set(bare))).scheme == scheme


def test_the_most_frequent_spelling_stands_for_slips() -> None:
    slips = [["b-Per", "i-per", "o"], ["B-loc", "O"]]
    found = TagSet.learned([["B-PER", "I-PER", "o"]] * 9 + slips)
    assert [found.spelled(tag) for tag in ("b-per", "I-Per", "B-LOC", "o", "B-New")] == [
        *("B-PER", "I-PER", "B-loc", "O", "B-New")
    ]
    assert TagSet.learned([["b-per", "i-per", "o"]]).spelled("o") == "O"
    words = TagSet.learned([[*["NOUN"] * 9, "noun", "i-x"]])
    assert [words.spelled(tag) for tag in ("noun", "Noun ", "i-x")] == ["NOUN", "NOUN", "i-x"]
    known = TagSet.known(["VERB", "noun", "verb"])
    assert [known.spelled(tag) for tag in ("verb", "vERB", "verB", "VErb", "Noun")] == [
        *("verb", "VERB", "verb", "VErb", "noun")
    ]
    exact = TagSet.learned([["B-PER"] * 99 + ["b-per", "o"]], exact=True)
    assert [exact.spelled(tag) for tag in ("b-per", "o")] == ["B-per", "O"]


@pytest.mark.parametrize(
    ("counts", "style"),
    [
        ({"B-X": 50, "PER": 49, "O": 9}, "typed"),
        ({"B-X": 1, "PER": 2, "O": 9}, ""),
        ({"PER": 9, "O": 90}, ""),
        ({"NOUN": 9, "B-X": 8, "O": 1}, ""),
        ({"I-x": 9}, ""),
        ({"I-x": 9, "O": 1}, "typed"),
        ({"B": 5, "I": 5, "O": 90, "X": 9}, "bare"),
        ({"B-PER": 5, "B": 4, "O": 90}, "typed"),
        ({"B-PER": 5, "B": 6, "O": 90}, "bare"),
        ({"B-PER": 4, "I": 3, "PER": 6, "O": 90}, "typed"),
        ({"B-PER": 4, "I": 3, "PER": 8, "O": 90}, ""),
        ({"S": 5, "E": 5, "O": 90}, ""),
        ({"N": 50, "V": 30, "B": 5, "I": 5, "O": 9}, ""),
        ({"O": 9}, ""),
    ],
)
def test_data_mark_chunks_if_most_of_their_tags_do(counts: dict[str, int], style: str) -> None:
    """No single word decides: the same counts a hundredfold, with another word of any kind, have the same style.

    Unless it is the only one that is not outside.
    """
    sentence = list(Counter(counts).elements())
    assert TagSet.learned([sentence]).style == style
    assert marks_chunks(sentence) == bool(style)
    for odd in ("X", "B-Y", "B", "O", "I"):
        assert TagSet.learned([*[sentence] * 100, [odd]]).style == style or set(counts) == {"O"}


def test_odd_tags_are_outside_and_never_learned() -> None:
    tags = [["B-X", "I-X", "O", "PER", "B", "b_X"], ["B-X", "O", "I-Y"], ["B-X"]]
    found = TagSet.learned(tags)
    assert [found.spelled(tag) for tag in tags[0]] == ["B-X", "I-X", "O", "O", "O", "O"]
    assert [tag for tag in tags[0] if found.is_odd(tag)] == ["PER", "B", "b_X"]
    bare = TagSet.learned([["B", "I", "O", "b", "B-X", "X"]])
    assert [bare.spelled(tag) for tag in ("B", "i", "O", "B-X", "X")] == ["B", "I", "O", "O", "O"]
    assert TagSet.known(["B", "I", "O"]).style == "bare"
    assert TagSet.known(["B-X", "O", "PER"]).style == TagSet.known(["I", "O"]).style == ""


def test_chunks_that_are_not_counted_are_told() -> None:
    assert first_without_chunk({"O": 90, "B-X": 5, "PER": 2, "LOC": 9}) == "PER"
    assert first_without_chunk({"0": 90, "B-X": 5, "I-X": 2}) == "0"  # in the place of O
    alone = [{"B-X": 5, "PER": 9, "LOC": 9}, {"O": 9, "B-X": 5, "PER": 4}, {"O": 9, "I-X": 5, "N": 9}, {"O": 9, "N": 9}]
    for each in (*alone, {"O": 90, "B-X": 1, "PER": 99}):
        assert first_without_chunk(each) is None
