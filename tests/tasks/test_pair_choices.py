"""The kinds of tokens of pairs, and the options that follow from what their sides share."""

import itertools
import unicodedata
from operator import itemgetter
from pathlib import Path

import pytest

import seriatim
from seriatim.config import resolve
from seriatim.data.text_kinds import kind_of, parts_generalise, shared_fraction
from seriatim.data.vocabulary import tokenizer_from_json
from seriatim.tasks import new_task, open_task
from seriatim.tasks.paired import LARGER, TRANSFORMER_PAIRS, choose, data_dependent_defaults, hallucination_rate
from seriatim.training.settle import settle_texts

WORDS = ["walk", "talk", "open", "start", "jump", "climb"]
SENTENCES = [f"the {word} of the old house was seen by {word}ers, who left" for word in WORDS]
KINDS = {
    "symbols": [" ".join(word) for word in WORDS],
    "words": WORDS,
    "text": SENTENCES,
}
INFLECTION = [" ".join(word) + " +V +PST" for word in WORDS], [" ".join(word) + " e d" for word in WORDS]
PHONES = ["W AO1 K", "T AO1 K", "OW1 P AH0 N", "S T AA1 R T", "JH AH1 M P", "K L AY1 M"]

IPA = ["w ɔː k", "tʰ ɔː k", "əʊ pʰ ə n̩", "s t ɑː tʰ", "dʒ ʌ̃ m p", "k l aɪ m"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_kind_of_texts_is_recognized(kind: str) -> None:
    assert kind_of(KINDS[kind]) == kind
    assert kind_of([*KINDS[kind], "", " "]) == kind


def test_many_occurrences_of_few_long_symbols_are_symbols() -> None:
    assert kind_of(["noun.plural verb.past"] * 50) == "symbols"
    assert kind_of([f"word number {i}, other number {i}" for i in range(50)]) == "text"


def test_a_few_short_words_are_read_by_letters_with_or_without_spaces() -> None:
    """Whether a space occurs decides nothing: syllables, names of several words and single words are read alike."""
    several = [" ".join(pair) for pair in itertools.product(WORDS, WORDS)]
    assert kind_of(several) == kind_of([text.replace(" ", "-") for text in several]) == "words"
    assert kind_of([f"{text}, {text}, {text}" for text in several]) == "text"


def syllables(count: int) -> list[str]:
    """Return words of Hangul, most of whose syllables are rare."""
    numbers = [(i * i * 7919) % 11172 for i in range(1, 3 * count + 1)]
    return ["".join(chr(0xAC00 + number) for number in numbers[i : i + 3]) for i in range(0, 3 * count, 3)]


def test_rare_letters_are_read_as_parts_that_are_not_rare() -> None:
    hangul = syllables(200)
    assert parts_generalise(hangul)
    assert not parts_generalise([unicodedata.normalize("NFD", text) for text in hangul])  # its form would be lost
    assert not parts_generalise(["für", "über", "hätte", "größer", "können"] * 20)  # common letters
    assert not parts_generalise([chr(0x4E00 + i) for i in range(500)])  # letters without parts
    accents = [
        unicodedata.normalize("NFC", letter + mark) for letter in "aeiouy" for mark in "\u0300\u0301\u0303\u0309"
    ]
    assert parts_generalise(["xyz" + letter for letter in accents * 2])


@pytest.mark.parametrize("has_parts", [True, False])
def test_answers_are_composed_as_the_training_texts_are(tmp_path: Path, has_parts: bool) -> None:
    words = syllables(40) if has_parts else [word + "é" for word in WORDS] * 20
    (tmp_path / "train.tsv").write_text("".join(f"{word}\t{word}\n" for word in words), encoding="utf-8")
    given = {"task": "seq2seq", "data": {"train": str(tmp_path / "train.tsv"), "valid": "none"}}
    _, _, vocabulary = settle_texts(resolve(given))
    tokenizer = tokenizer_from_json(vocabulary.tokenizer.to_json())
    ids = tokenizer.encode(words[0])
    assert len(ids) == len(unicodedata.normalize("NFD" if has_parts else "NFC", words[0]))
    assert tokenizer.decode(ids.tolist()) == words[0]
    assert tokenizer.fingerprint() == vocabulary.tokenizer.fingerprint()


def test_tokens_are_shared_as_often_as_they_occur() -> None:
    assert shared_fraction(["abb"], ["bbb"]) == 2 / 3
    assert shared_fraction(["", "a"], ["", "a"]) == 1
    assert shared_fraction([], []) == 0


CHOICES = {
    "inflection": (*INFLECTION, ("word", None, True, True, True, True, 0.5)),
    "pronunciation": (WORDS, PHONES, ("char", "word", False, False, True, True, 0.0)),
    "phonetic alphabet": (WORDS, IPA, ("char", None, False, False, True, True, 0.0)),
    "spelling": ([word.upper() for word in WORDS], WORDS, ("char", None, False, False, True, True, 0.0)),
    "translation": (SENTENCES, [text[::-1] for text in SENTENCES], ("bpe", None, True, False, False, False, 0.0)),
    "another alphabet": (
        SENTENCES,
        [text.upper() for text in SENTENCES],
        ("bpe", None, False, False, False, False, 0.0),
    ),
    "normalization": (SENTENCES, SENTENCES, ("bpe", None, True, True, False, False, 0.0)),
}


@pytest.mark.parametrize("name", CHOICES)
def test_options_follow_from_the_pairs(name: str) -> None:
    sources, targets, expected = CHOICES[name]
    assert tuple(choose(None, None, sources, targets)) == expected


def test_kinds_that_are_given_stay() -> None:
    assert choose("byte", None, WORDS, PHONES)[:2] == ("byte", None)
    assert choose("char", "word", *INFLECTION)[:2] == ("char", "word")
    assert choose(None, "char", WORDS, PHONES)[:2] == ("char", None)


def test_more_data_is_read_less_often_with_less_dropout() -> None:
    fields = [
        data_dependent_defaults(count, is_text=False, rate=0.01, has_budget=False)
        for count in (100, 1_000, 10_000, 100_000, 10**7)
    ]
    for name, first, last in (("training.epochs", 80, 10), ("model.dropout", 0.5, 0.3)):
        values = [each[name] for each in fields]
        assert values == sorted(values, reverse=True)
        assert (values[0], values[-1]) == (first, last)
    sizes = [each["training.batch_size"] for each in fields]
    assert sizes == sorted(sizes)
    assert [hallucination_rate(count) for count in (1_000, 3_000, 10_000)] == [0.5, 0.25, 0]


def test_a_budget_that_is_given_stays_as_it_is() -> None:
    fields = data_dependent_defaults(1_000, is_text=True, rate=0.01, has_budget=True)
    assert fields.keys() == {"model.dropout", "training.batch_size"}


def task(path: Path, **options):
    path.write_text("".join(f"{source}\t{target}\n" for source, target in zip(*INFLECTION, strict=True)))
    return settle_texts(resolve({"task": "seq2seq", "data": {"train": str(path)}, "model": {"options": options}}))[0]


def test_choices_are_written_into_the_configuration(tmp_path: Path) -> None:
    config = task(tmp_path / "train.tsv")
    assert config.tokenizer.kind == "word"
    assert all(config.model.options[name] is True for name in ("shared_vocabulary", "copying", "location"))
    assert new_task(config).config == config  # a run is opened with what was chosen


@pytest.mark.parametrize(
    ("options", "off"),
    [
        ({"attention": "none"}, ["aligned", "location"]),
        ({"factorisation": "ctc"}, ["aligned", "copying", "location"]),
        ({"scheduled_sampling": 0.5}, ["aligned", "copying"]),
        ({"form": "bahdanau"}, ["aligned"]),
        ({"input_feeding": True}, ["aligned"]),
        ({"aligned": False}, ["aligned"]),
        ({"copying": False, "location": False}, ["aligned", "copying", "location"]),
    ],
)
def test_choices_fit_the_other_options(tmp_path: Path, options: dict, off: list[str]) -> None:
    config = task(tmp_path / "train.tsv", **options)
    assert [name for name in ("aligned", "copying", "location") if not config.model.options[name]] == off
    assert new_task(config).config == config


LONG = TRANSFORMER_PAIRS[-1][0]
TEXTS = [f"house {i} of {SENTENCES[i % len(SENTENCES)]} in {i + 1000}" for i in range(LONG)]


@pytest.mark.parametrize(
    ("pairs", "count", "given", "layer"),
    [
        ((TEXTS, TEXTS), LONG, {}, "transformer"),
        ((TEXTS, TEXTS), LONG - 1, {}, "lstm"),
        (INFLECTION, LONG, {}, "lstm"),
        ((TEXTS, WORDS), LONG, {}, "lstm"),
        ((TEXTS, TEXTS), LONG, {"layer": "gru"}, "gru"),
        ((TEXTS, TEXTS), LONG, {"options": {"form": "bahdanau"}}, "lstm"),
        ((TEXTS, TEXTS), LONG, {"options": {"label_smoothing": 0.2}}, "transformer"),
        ((TEXTS, TEXTS), LONG, {"hidden_size": 64}, "transformer"),
    ],
)
def test_the_layer_follows_from_the_pairs_unless_it_is_given(
    tmp_path: Path, pairs: tuple, count: int, given: dict, layer: str
) -> None:
    rows = itertools.islice(zip(*map(itertools.cycle, pairs), strict=True), count)
    (tmp_path / "train.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in rows))
    config = resolve(
        {"task": "seq2seq", "data": {"train": str(tmp_path / "train.tsv"), "valid": "none"}, "model": given}
    )
    found, _, vocabulary = settle_texts(resolve(config))
    assert found.model.layer == layer
    for name, value in given.items():
        chosen = getattr(found.model, name)
        assert {**chosen, **value} == chosen if name == "options" else chosen == value
    open_task(found.replaced({"model.dropout": 0.0})).builder.build(vocabulary)
    assert new_task(resolve(found)).config.model == found.model  # a run is opened with what was chosen


@pytest.mark.exhaustive
@pytest.mark.parametrize("given", [{}, {"hidden_size": 64}, {"layer": "gru"}])
def test_more_pairs_of_symbols_get_a_larger_lstm_unless_a_size_or_layer_is_given(tmp_path: Path, given: dict) -> None:
    sizes = [(10, {}), *sorted(LARGER, key=itemgetter(0))]
    pairs = [*zip(*map(itertools.cycle, INFLECTION), range(sizes[-1][0]), strict=False)]
    for count, larger in sizes:
        (tmp_path / "train.tsv").write_text("".join(f"{source}\t{target}\n" for source, target, _ in pairs[:count]))
        config = resolve(
            {"task": "seq2seq", "data": {"train": str(tmp_path / "train.tsv"), "valid": "none"}, "model": given}
        )
        model, chosen = (
            settle_texts(config)[0].model,
            {} if "layer" in given else {**larger, **given},
        )
        assert {name: getattr(model, name) for name in chosen} == chosen
        assert model.hidden_size == chosen.get("hidden_size", resolve({}).model.hidden_size)
        assert model.options["encoder_size"] == model.hidden_size // 2  # one direction of the encoder follows


def test_a_run_with_chosen_options_answers_as_it_was_evaluated(tmp_path: Path) -> None:
    task(tmp_path / "train.tsv")
    small = {"embedding_size": 8, "hidden_size": 8}
    settings = {"task": "seq2seq", "data": {"train": str(tmp_path / "train.tsv")}, "model": small}
    run = seriatim.train({**settings, "training": {"baseline": "none", "epochs": 1}, "out": str(tmp_path / "run")})
    assert list(seriatim.load(tmp_path / "run").predict(INFLECTION[0])) == list(run.predict(INFLECTION[0]))
