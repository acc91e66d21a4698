"""Hashed features of words: equal features share a row, whatever stands beside a word."""

import random

import pytest
import torch
from torch import Tensor

import seriatim
from seriatim.models import characters
from seriatim.models.characters import FEATURES, LONGEST, ConvolutionalCharacters, WordFeatures
from seriatim.models.tagger import Options

from ..refusals import refused

LETTERS = "abcABC12-"
ALPHABET = ["</s>", "<unk>", *LETTERS]


def encode(words: list[str], padding: int = 0) -> tuple[Tensor, Tensor]:
    """Return ids and lengths; what stands in the padding is random."""
    ids = torch.randint(2, len(ALPHABET), (len(words), max(map(len, words)) + padding))
    for row, word in enumerate(words):
        ids[row, : len(word)] = torch.tensor([ALPHABET.index(character) for character in word])
    return ids, torch.tensor(list(map(len, words)))


def some_words(count: int = 60) -> list[str]:
    choose = random.Random(1)
    return ["".join(choose.choices(LETTERS, k=choose.randint(1, 7))) for _ in range(count)]


def texts_of(word: str) -> set[str]:
    """Return the features of a word as text, by the definition."""
    lower = word.lower()
    lengths = range(1, min(LONGEST, len(word)) + 1)
    classes = ["A" if c.isupper() else "a" if c.islower() else "0" if c.isdigit() else c for c in word]
    shape = "".join(c for c, before in zip(classes, ["", *classes], strict=False) if c != before)
    affixes = {f"prefix {lower[:n]}" for n in lengths} | {f"suffix {lower[-n:]}" for n in lengths}
    return affixes | {f"shape {shape}", f"lowercase {lower}"}


def test_two_words_share_a_row_for_every_feature_that_they_share() -> None:
    words = some_words()
    features = WordFeatures(ALPHABET, FEATURES, size=2, rows=1 << 24)
    rows = [set(row) - {0} for row in features.rows_of(*encode(words)).tolist()]
    for word, own in zip(words, rows, strict=True):
        assert len(own) == len(texts_of(word))
        for other, others in zip(words, rows, strict=True):
            assert len(own & others) == len(texts_of(word) & texts_of(other)), (word, other)


@pytest.mark.parametrize("kinds", [FEATURES, *[(kind,) for kind in FEATURES]])
def test_a_vector_is_the_sum_over_features_and_does_not_depend_on_padding(kinds: tuple[str, ...]) -> None:
    features = WordFeatures(ALPHABET, kinds, size=4, rows=500).double()
    words = some_words()
    assert not features(*encode(words)).any(), "features add nothing before training"
    with torch.no_grad():
        features.embedding.weight[1:].normal_()
    vectors = features(*encode(words, padding=3))
    for word, vector in zip(words, vectors, strict=True):
        (alone,) = features(*encode([word]))
        rows = features.rows_of(*encode([word]))[0]
        torch.testing.assert_close(alone, vector)
        torch.testing.assert_close(features.embedding.weight[rows].sum(0), vector)


@pytest.mark.parametrize("kinds", [FEATURES, *[(kind,) for kind in FEATURES]])
def test_compiled_sums_are_those_of_the_operators(kinds: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    features = WordFeatures(ALPHABET, kinds, size=5, rows=500)
    with torch.no_grad():
        features.embedding.weight[1:].normal_()
        features.embedding.weight[7, 2] = torch.nan
        words = encode([*some_words(), ""], padding=2)
        compiled = features(*words)
        for word, vector in zip([*some_words(), ""], compiled, strict=True):
            assert torch.equal(features(*encode([word]))[0].nan_to_num(99), vector.nan_to_num(99))
        monkeypatch.setattr(characters, "compiled_words", lambda: None)
        torch.testing.assert_close(compiled, features(*words), equal_nan=True)


@pytest.mark.parametrize(("size", "filters", "width"), [(5, 3, 3), (4, 17, 1), (3, 32, 5)])
def test_compiled_convolutions_are_those_of_the_operators(
    size: int, filters: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = ConvolutionalCharacters(len(ALPHABET), embedding_size=size, filters=filters, width=width)
    texts = [*some_words(), ""]
    words = encode(texts, padding=2)
    with_gradients = model(*encode(some_words()))
    with torch.no_grad():
        compiled = model(*words)
        for text, vector in zip(texts, compiled, strict=True):
            assert torch.equal(model(*encode([text]))[0], vector)
        torch.testing.assert_close(compiled[:-1], with_gradients)
        model.filters.weight[0, 0] = torch.nan
        assert model(*words)[:-1, 0].isnan().all()
        monkeypatch.setattr(characters, "compiled_words", lambda: None)
        torch.testing.assert_close(compiled[:, 1:], model(*words)[:, 1:])


def test_names_may_be_given_as_a_list_or_with_commas() -> None:
    assert Options(word_features="suffix, shape") == Options(word_features=["suffix", "shape"])


def test_only_features_of_the_batch_have_gradients() -> None:
    features = WordFeatures(ALPHABET, ["suffix"], size=4, rows=500)
    inputs = encode(["abc"])
    features(*inputs).sum().backward()
    assert set(features.embedding.weight.grad.any(1).nonzero().flatten().tolist()) == set(
        features.rows_of(*inputs)[0].tolist()
    )


def test_an_unknown_kind_is_refused() -> None:
    with refused("unknown"):
        WordFeatures(ALPHABET, ["sufix"], size=4)


def test_a_tagger_reads_unknown_words_by_their_features(tmp_path) -> None:
    """Words end in -ly or -ed, which decides their tags; no word of the held-out data occurs in training."""
    choose = random.Random(0)

    def write(name: str, letters: str) -> str:
        lines = []
        for _ in range(60):
            for _ in range(4):
                end, tag = choose.choice([("ly", "ADV"), ("ed", "VERB")])
                lines.append("".join(choose.choices(letters, k=5)) + f"{end}\t{tag}\n")
            lines.append("\n")
        (tmp_path / name).write_text("".join(lines))
        return str(tmp_path / name)

    options = {"characters": "none", "word_features": ["suffix"], "feature_size": 8}
    run = seriatim.train(
        {
            "task": "tag",
            "data": {"train": write("train.conll", "abcdef"), "valid": write("valid.conll", "ghijkl")},
            "model": {"layer": "rnn", "embedding_size": 8, "hidden_size": 8, "options": options},
            "training": {"baseline": "none", "steps": 60, "batch_size": 8, "precision": "float32"},
            "out": str(tmp_path / "run"),
        }
    )
    assert run.summary["valid"]["accuracy"] > 0.95
    loaded = seriatim.load(tmp_path / "run")
    assert [answer.split() for answer in loaded.predict(["xyzly xyzed"])] == [["ADV", "VERB"]]
    again = {**run.config.model_dump(), "out": str(tmp_path / "again")}
    more = seriatim.train(again, overrides={"training.init": str(tmp_path / "run"), "training.steps": 1})
    assert more.summary["valid"]["accuracy"] > 0.95, "embedding, layer and features come from the other run"
