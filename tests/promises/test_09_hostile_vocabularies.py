"""A vocabulary changed anywhere is refused, or is the tokenizer it says it is; the libraries below never fall."""

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import seriatim
from seriatim.config import Tokenizer as TokenizerConfig
from seriatim.core.errors import InputError
from seriatim.data import tokenizers, vocabulary
from seriatim.data.tokenizers import Tokenizer
from seriatim.data.vocabulary import Vocabulary, fit_tokenizer, load_tokenizer, load_vocabulary
from seriatim.storage.weights import load_tensors, save_tensors
from seriatim.training.run_files import identity

from ..conftest import sentences, small_config
from ..refusals import refused
from .judge import refuse

KINDS = ("byte", "char", "word", "bpe", "unigram")
ODD = (
    *(None, True, False, 0, -1, 1.5, 2**31, 2**64, 10**400, float("nan"), float("inf"), "", "x", "\0", "\ud800", "\n"),
    *([], [[]], {}, [None], ["a"], {"type": "ByteLevel"}, {"a": 0}, "bpe", "unigram", "word", "a" * 100_000),
)
BOMB = {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "(a*)*b"}, "behavior": "Removed"}]}
TEXTS = ("the cat sees the sea .", "Ünknown 日本 \U0001f600", " a  b\n\tx", "")


@pytest.fixture(scope="module")
def fitted() -> dict[str, Tokenizer]:
    return {
        kind: fit_tokenizer(TokenizerConfig(kind=kind, vocabulary_size=None if kind == "byte" else 280), sentences(40))
        for kind in KINDS
    }


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Ways to every value in some JSON, of long lists to a few."""
    yield path
    if isinstance(value, dict | list):
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        for key in keys if len(keys) < 20 else random.Random(0).sample(keys, 3):
            yield from places(value[key], (*path, key))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy with another value in one place."""
    if not path:
        return new
    changed = copy.deepcopy(value)
    inside = changed
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = new
    return changed


def left_out(value: Any, path: tuple[Any, ...]) -> Any:
    """A copy without the value in one place."""
    changed = copy.deepcopy(value)
    inside = changed
    for key in path[:-1]:
        inside = inside[key]
    del inside[path[-1]]
    return changed


def check(path: Path, kept: Any) -> bool:
    """Whether a tokenizer is taken from the file; it then works as one."""
    path.write_text(json.dumps(kept))
    try:
        found = load_tokenizer(path)
    except InputError:
        return False
    for text in TEXTS:
        ids = found.encode(text)
        assert ((ids >= 0) & (ids < found.vocabulary_size)).all()
        if found.unknown_id is None:
            assert found.decode(ids) == found.prepare(text)
    for token in {0, found.vocabulary_size - 1, found.vocabulary_size // 2}:
        assert isinstance(found.describe(token), str)
        assert isinstance(found.token_bytes(token), bytes)
    return True


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_tokenizer_is_refused_or_works(fitted, kind: str, tmp_path: Path) -> None:
    kept = json.loads(fitted[kind].to_json())
    assert check(tmp_path / "tokenizer.json", kept)
    refused = 0
    for path in places(kept):
        for new in ODD:
            refused += not check(tmp_path / "tokenizer.json", replaced(kept, path, new))
        if path:
            check(tmp_path / "tokenizer.json", left_out(kept, path))
    assert refused > 50


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_only_pieces_are_taken_from_a_tokenizer_of_pieces(fitted, kind: str, tmp_path: Path) -> None:
    kept, path = json.loads(fitted[kind].to_json()), tmp_path / "tokenizer.json"
    for name, value in (
        ("pre_tokenizer", BOMB),
        ("normalizer", {"type": "Replace", "pattern": {"Regex": "(a*)*b"}, "content": "x" * 1000}),
        ("post_processor", {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}),
        ("truncation", {"max_length": 0, "stride": 5, "strategy": "LongestFirst", "direction": "Right"}),
        ("padding", {"strategy": {"Fixed": 2**40}, "pad_id": 0, "pad_token": "x", "pad_type_id": 0}),
        ("added_tokens", [{"id": 2**31, "content": "a", "special": True}]),
        ("decoder", {"type": "Replace", "pattern": {"Regex": "(a*)*b"}, "content": ""}),
    ):
        assert not check(path, replaced(kept, ("model", name), value))
    pieces = kept["model"]["model"]
    changes: list[Any] = [("dropout", 0.5), ("unk_token", "a"), ("unk_id", 5), ("byte_fallback", True), ("vocab", [])]
    if kind == "bpe":
        vocabulary, merges = pieces["vocab"], pieces["merges"]
        few = {piece: place for piece, place in vocabulary.items() if piece != "a"}
        changes += [("vocab", few), ("vocab", {**vocabulary, "a": 0}), ("vocab", {**vocabulary, "!": -1})]
        changes += [("vocab", {**vocabulary, "x y": len(vocabulary)}), ("vocab", {**vocabulary, "": len(vocabulary)})]
        changes += [("vocab", {**vocabulary, "xy": 2**32}), ("merges", [*merges, ["zz", "zz"]]), ("merges", [["a"]])]
        changes += [("merges", [["a", "b", "c"]]), ("merges", [[0, 1]]), ("merges", ["ab"]), ("merges", {"a": "b"})]
    else:
        vocabulary = pieces["vocab"]
        changes += [
            ("vocab", vocabulary[5:]),
            ("vocab", [*vocabulary, vocabulary[0]]),
            ("vocab", [*vocabulary, ["", -1.0]]),
        ]
        changes += [("vocab", [*vocabulary, ["xyz", value]]) for value in (float("nan"), "1", None, 10**400)]
    for name, value in changes:
        assert not check(path, replaced(kept, ("model", "model", name), value)), (name, str(value)[:100])


def test_symbols_that_stand_twice_or_for_something_else_are_refused(fitted, tmp_path: Path) -> None:
    for kind, name, odd in (
        ("char", "characters", ("aa", "\ud800", ["a", "b"], {"a": 1})),
        ("word", "words", (["a", "a"], ["\0"], ["<unk>"], ["\udfff"], [["a"]], "ab", {"a": 1})),
    ):
        kept = json.loads(fitted[kind].to_json())
        counts = kept["spelling"]
        for value in odd:
            assert not check(tmp_path / "tokenizer.json", {**kept, name: value})
        for value in (counts[1:], [*counts, 0], [-1, *counts[1:]], [2**60, *counts[1:]], ["0", *counts[1:]], "0" * 257):
            assert not check(tmp_path / "tokenizer.json", {**kept, "spelling": value})


CONTROLS = "\n\r\t\0\v\f\x1b\x1c\x85\u2028\u2029\x7f"
"""Characters that would end a line of output, or that a terminal would obey."""


def test_labels_are_texts_that_stand_there_once(fitted, tmp_path: Path) -> None:
    Vocabulary({"tokenizer": fitted["char"]}, ["a", "é"]).save(tmp_path)
    assert load_vocabulary(tmp_path).labels == ("a", "é")
    for value in (
        *(odd for odd in ODD if odd not in ([], ["a"])),
        ["a", "a"],
        ["\ud800"],
        [1],
        {"a": 1},
        *(["a", f"b{c}c"] for c in CONTROLS),
    ):
        (tmp_path / "labels.json").write_text(json.dumps(value))
        with pytest.raises(InputError, match=r"labels\.json: "):
            load_vocabulary(tmp_path)


@pytest.mark.exhaustive
def test_a_summary_of_another_form_is_refused_by_the_command(texts, tmp_path: Path) -> None:
    run = seriatim.train(small_config(texts, tmp_path / "run", training={"steps": 2}))
    cases: dict[str, Any] = {
        f"summary {i}": ("summary.json", lambda path, value=value: path.write_text(json.dumps(value)))
        for i, value in enumerate(ODD)
        if not isinstance(value, dict)
    }
    refuse(cases, run.path, tmp_path)


def test_tokens_that_the_weights_do_not_have_are_refused(texts, tmp_path: Path) -> None:
    """Though the weights say that they belong to them."""
    run = seriatim.train(small_config(texts, tmp_path / "run", training={"steps": 2}))
    other = Vocabulary({"tokenizer": fit_tokenizer(TokenizerConfig(kind="char"), ["ab"])})
    other.save(run.path)
    weights = run.path / "model.safetensors"
    save_tensors(load_tensors(weights), weights, identity(run.config, other))
    with refused("mismatch", "model.safetensors"):
        seriatim.load(run.path)


def test_a_vocabulary_that_could_not_be_read_again_is_not_written(monkeypatch, texts, tmp_path: Path) -> None:
    for module in (tokenizers, vocabulary):
        monkeypatch.setattr(module, "MAX_FILE_BYTES", 100)
    monkeypatch.setenv("SERIATIM_CACHE", str(tmp_path / "cache"))  # without tokenizers of other tests
    with refused("size", "tokenizer.vocabulary_size"):
        seriatim.train(small_config(texts, tmp_path / "run", training={"steps": 2}))
    assert not (tmp_path / "run").exists()
