"""Text to tokens and back, whatever the text."""

import itertools
import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seriatim.config import Tokenizer as TokenizerConfig
from seriatim.data.tokenizers import END, Spelling, Tokenizer, lines_of_json, name_of_bytes, whole_characters
from seriatim.data.vocabulary import fit_tokenizer, load_tokenizer

from ..conftest import sentences
from ..refusals import refused

KINDS = ("byte", "char", "word", "bpe", "unigram")
TEXT = "\n".join(sentences(200)) + "\nnaïve Ünïcödé 猫 🙂 <unk> </s>\n"


def fitted(kind: str, text: str = TEXT, **options) -> Tokenizer:
    size = 320 if kind in ("bpe", "unigram") else None
    return fit_tokenizer(TokenizerConfig(kind=kind, **{"vocabulary_size": size, **options}), [text])


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return fitted(request.param)


def test_the_training_text_comes_back(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT)
    assert tokenizer.decode(ids) == TEXT
    assert ids.min() >= 0
    assert ids.max() < tokenizer.vocabulary_size


# The dot stands for the first bytes of a character, so a text that has one of its own cannot be told from them.
@given(st.text().filter(lambda text: "bytes:" not in text and "·" not in text), st.sets(st.integers(1, 40)))
def test_characters_stand_where_their_last_byte_is(text: str, ends: set[int]) -> None:
    raw, cuts = text.encode(), [0, *sorted(ends), 10**6]
    names = whole_characters(name_of_bytes(raw[start:end]) for start, end in itertools.pairwise(cuts))
    ends_whole = [raw[:end].decode(errors="ignore") for end in cuts[1:]]
    for name, before, now in zip(names, ["", *ends_whole], ends_whole, strict=False):
        assert name.removesuffix("·") == now[len(before) :]


@pytest.mark.parametrize("lines", [[], [""], ["", ""], TEXT.split("\n"), [" a  b\t", "<unk>", "zzz \0 z", "\r"]])
def test_lines_at_once_are_lines_one_by_one(tokenizer: Tokenizer, lines: list[str]) -> None:
    ids, sizes = tokenizer.encode_lines("".join(line + "\n" for line in lines))
    alone = [[*tokenizer.encode(line).tolist(), END] for line in lines]
    assert ids.tolist() == [token for row in alone for token in row]
    assert sizes.tolist() == [len(row) for row in alone]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@settings(max_examples=30)
@given(JSON)
def test_what_is_kept_stands_a_word_a_line(value: object) -> None:
    assert lines_of_json(value) == json.dumps(value, ensure_ascii=False, indent=0)


def test_a_saved_tokenizer_is_the_same(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer.to_json(), encoding="utf-8")
    again = load_tokenizer(path)
    assert again.fingerprint() == tokenizer.fingerprint()
    assert again.encode(TEXT).tolist() == tokenizer.encode(TEXT).tolist()


@settings(deadline=None, max_examples=40)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_any_text_comes_back_from_bytes_and_pieces(text: str) -> None:
    for kind in ("byte", "bpe", "unigram"):
        tokenizer = CACHE.setdefault(kind, fitted(kind))
        assert tokenizer.decode(tokenizer.encode(text)) == text


CACHE: dict[str, Tokenizer] = {}


def test_half_a_character_waits(tokenizer: Tokenizer) -> None:
    decoder = tokenizer.decoder()
    pieces = [decoder.feed(int(token)) for token in tokenizer.encode("猫 🙂 naïve")]
    assert "".join(pieces) + decoder.finish() == "猫 🙂 naïve"
    assert all("\ufffd" not in piece for piece in pieces)


def test_special_strings_are_words_only_to_the_word_tokenizer() -> None:
    word = fitted("word")
    assert word.encode("<unk>").tolist() == [word.unknown_id]
    assert word.encode("</s>").tolist() not in ([END], [word.unknown_id])
    assert word.encode("zebra <unk>\n").tolist() == [word.unknown_id, word.unknown_id, END]
    assert word.find_unknown("zebra <unk>") == ["zebra"]
    for kind in ("byte", "char", "bpe", "unigram"):
        tokenizer = fitted(kind)
        ids = tokenizer.encode("<unk></s>").tolist()
        assert END not in ids
        assert tokenizer.unknown_id not in ids
        assert tokenizer.decode(ids) == "<unk></s>"


def test_rare_words_and_characters_become_unknown() -> None:
    text = "a a a b b c"
    word = fitted("word", text, min_count=2)
    assert word.vocabulary_size == 4
    assert word.find_unknown(text) == ["c"]
    assert fitted("word", text, vocabulary_size=3).find_unknown(text) == ["b", "b", "c"]
    assert fitted("char", text, min_count=2).find_unknown("abc!") == ["c", "!"]
    lower = fitted("word", "The the THE", lowercase=True)
    assert lower.vocabulary_size == 3
    assert lower.decode(lower.encode("THE")) == "the"


def test_a_spelling_is_a_probability() -> None:
    spelling = Spelling.fit(["ab", "abc"])
    assert math.isclose(sum(math.exp(-cost) for cost in spelling.cost), 1)
    assert spelling.nats(Spelling.count_symbols(["ab"])) < spelling.nats(Spelling.count_symbols(["xy"]))
    assert spelling.nats(Spelling.count_symbols([])) == 0


@pytest.mark.parametrize(
    ("content", "kind", "place"),
    [
        ("", "damaged", "tokenizer.json"),
        ("[]", "damaged", "tokenizer.json"),
        ('{"kind": "word", "lowercase": false}', "damaged", "tokenizer.json"),
        ('{"kind": "runes", "lowercase": false}', "damaged", "tokenizer.json"),
        ('{"kind": "bpe", "lowercase": false, "model": {}}', "damaged", "tokenizer.json"),
        ('{"kind": "word", "lowercase": false, "words": 3, "spelling": [1]}', "damaged", "tokenizer.json"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, content: str, kind: str, place: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with refused(kind, place):
        load_tokenizer(path)


def test_sizes_that_cannot_be() -> None:
    with refused("range", "tokenizer.vocabulary_size"):
        fitted("bpe", vocabulary_size=100)
    with refused("range", "tokenizer.vocabulary_size"):
        fitted("word", vocabulary_size=2)
