"""Labels in either normal form are one label, and texts that differ in form are warned of."""

import json
import unicodedata
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import seriatim
from seriatim.cli.main import main
from seriatim.config import Tokenizer as TokenizerConfig
from seriatim.data.repairs import DataWarning, Repairs
from seriatim.data.spellings import LabelSpellings, canonical, form_of, is_known_otherwise
from seriatim.data.vectors import read_vectors
from seriatim.data.vocabulary import fit_tokenizer

from ..refusals import refused

FRENCH = ["très bon café", "mauvais thé glacé", "il a été à l'hôtel", "rien du tout", "une forêt bébé"] * 4
LABELS = ["été", "hiver"] * 10


def in_form(form: str, text: str) -> str:
    return unicodedata.normalize(form, text)


@pytest.mark.parametrize("text", ["é", "Å", "ẹ́", "한국어", "が", "क़", "ﬁ", "e", "猫", "", "́"])
def test_the_form_of_a_text_is_that_to_which_it_is_normalized(text: str) -> None:
    composed, decomposed = in_form("NFC", text), in_form("NFD", text)
    if composed == decomposed:
        assert form_of(composed) is None
    else:
        assert (form_of(composed), form_of(decomposed)) == ("composed", "decomposed")


@pytest.mark.parametrize("kind", ["word", "char", "bpe"])
@pytest.mark.parametrize(("known", "other"), [("NFC", "NFD"), ("NFD", "NFC")])
def test_a_tokenizer_knows_texts_in_the_form_it_was_learned_from(kind: str, known: str, other: str) -> None:
    config = TokenizerConfig(kind=kind, vocabulary_size=400 if kind == "bpe" else None)
    texts = [" ".join(FRENCH)] * 20
    tokenizer = fit_tokenizer(config, [in_form(known, text) for text in texts])
    for text in FRENCH[:5]:
        assert not is_known_otherwise(in_form(known, text), tokenizer)
        assert is_known_otherwise(in_form(other, text), tokenizer) == (form_of(text) is not None)
    assert not is_known_otherwise("Größe ñ", fit_tokenizer(config, ["plain text only"] * 3))


def test_a_tokenizer_of_bytes_knows_every_form() -> None:
    assert not is_known_otherwise("café", fit_tokenizer(TokenizerConfig(kind="byte"), []))


def test_labels_in_either_form_are_one_label() -> None:
    composed, decomposed = (in_form(form, "été") for form in ("NFC", "NFD"))
    for counts, usual in (({composed: 2, decomposed: 1}, composed), ({composed: 1, decomposed: 2}, decomposed)):
        learned = LabelSpellings.learned(counts)
        assert {learned(composed), learned(decomposed), learned(f" {decomposed}")} == {usual}
    assert LabelSpellings([composed])(decomposed) == composed
    assert canonical(f"{decomposed} ") == composed
    frequent = LabelSpellings.learned(
        {composed: 20, decomposed: 30, composed.upper(): 10, decomposed.upper(): 4, "Été": 1}
    )
    assert frequent.exact == {decomposed, composed.upper()}  # letter case tells labels apart, a normal form does not
    assert (frequent(composed), frequent(decomposed.upper())) == (decomposed, composed.upper())
    both = LabelSpellings([composed, decomposed])
    assert (both(composed), both(decomposed)) == (composed, decomposed)


def labelled(folder: Path, name: str, form: str, labels: str = "") -> str:
    rows = (f"{in_form(form, t)}\t{in_form(labels or form, n)}\n" for t, n in zip(FRENCH, LABELS, strict=True))
    return written(folder, name, "text\tlabel\n" + "".join(rows))


def written(folder: Path, name: str, content: str) -> str:
    (folder / name).write_text(content, encoding="utf-8")
    return str(folder / name)


def told(call: Callable[[], object]) -> set[str]:
    """What is warned of while a function is called."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return {str(warning.message) for warning in caught if issubclass(warning.category, DataWarning)}


def settings(task: str, train: str, out: Path, valid: str = "none", **sections: dict) -> dict:
    base = {
        "data": {"train": train, "valid": valid},
        "model": {"layer": "window", "embedding_size": 4, "hidden_size": 4},
        "training": {"steps": 1, "baseline": "none"},
    }
    return {"task": task, "out": str(out), **{name: {**base[name], **sections.get(name, {})} for name in base}}


def test_a_label_in_the_other_form_is_a_repair_where_it_is_read(tmp_path: Path) -> None:
    spec = written(tmp_path, "mixed.tsv", "text\tlabel\na b\tété\nc\thiver\nd\te\u0301te\u0301\n")
    run: list[seriatim.Run] = []
    (warning,) = told(lambda: run.append(seriatim.train(settings("classify", spec, tmp_path / "run"))))
    assert "mixed.tsv:4: the label" in warning
    assert "normal form" in warning
    assert run[0].vocabulary.labels == ("hiver", "été")
    with refused("malformed", "mixed.tsv:4"):
        seriatim.train(settings("classify", spec, tmp_path / "strict", data={"strict": True}))


@pytest.mark.parametrize(("form", "other"), [("NFC", "NFD"), ("NFD", "NFC")])
def test_texts_to_classify_in_the_other_form_are_warned_of_once(
    tmp_path: Path, form: str, other: str, capsys: pytest.CaptureFixture[str]
) -> None:
    train = labelled(tmp_path, "train.tsv", form)
    same, valid = labelled(tmp_path, "same.tsv", form), labelled(tmp_path, "other.tsv", other, labels=form)
    run = tmp_path / "run"
    assert not [line for line in told(lambda: seriatim.train(settings("classify", train, run))) if "normal" in line]
    found = told(lambda: seriatim.train(settings("classify", train, tmp_path / "two", valid)))
    assert [line.split(": ")[0] for line in found if "normal form" in line] == [f"{valid}:2"]
    assert "16 times" in next(line for line in found if "normal form" in line)
    for verb in (["evaluate", str(run), "--data"], ["predict", str(run)]):
        assert not told(lambda verb=verb: main([*verb, same]))
        (line,) = told(lambda verb=verb: main([*verb, valid]))
        assert line.startswith(f"{valid}:2: ")
    capsys.readouterr()


@pytest.mark.parametrize("kind", ["word", "char", "bpe"])
@pytest.mark.parametrize("suffix", ["txt", "jsonl"])
def test_held_out_text_in_the_other_form_is_warned_of_once(tmp_path: Path, kind: str, suffix: str) -> None:
    def text(name: str, form: str) -> str:
        lines = [in_form(form, line) for line in FRENCH]
        lines = [json.dumps({"text": line}) for line in lines] if suffix == "jsonl" else lines
        return written(tmp_path, f"{name}.{suffix}", "\n".join(lines * 3) + "\n")

    train, same, other = text("train", "NFC"), text("same", "NFC"), text("other", "NFD")
    tokenizer = {"kind": kind, "vocabulary_size": 300 if kind == "bpe" else None}
    config = settings("lm", train, tmp_path / "run", other, data={"unit": "line"}) | {"tokenizer": tokenizer}
    found = [line for line in told(lambda: seriatim.train(config)) if "normal form" in line]
    assert [line.split(": ")[0] for line in found] == [f"{other}:1"]
    run = seriatim.load(tmp_path / "run")
    assert not told(lambda: run.evaluate(same))
    assert len(told(lambda: run.evaluate(other))) == 1


def test_sentences_to_tag_in_the_other_form_are_warned_of(tmp_path: Path, capsys) -> None:
    def columns(name: str, form: str) -> str:
        words = [in_form(form, word) for line in FRENCH for word in [*line.split(), "mécaniquement", ""]]
        return written(tmp_path, name, "".join(f"{word}\t{'AB'[len(word) > 9]}\n" if word else "\n" for word in words))

    train, other = columns("train.conll", "NFC"), columns("other.conll", "NFD")
    run = str(tmp_path / "run")
    seriatim.train(settings("tag", train, Path(run), model={"options": {"characters": "none"}}))
    assert not told(lambda: main(["predict", run, train]))
    for verb in (["evaluate", run, "--data", other], ["predict", run, other]):
        (line,) = told(lambda verb=verb: main(verb))
        assert line.startswith(f"{other}:1: ")
    lines = written(tmp_path, "other.txt", in_form("NFD", "\n".join(["rien", *FRENCH])))
    (line,) = told(lambda: main(["predict", run, lines]))
    assert line.startswith(f"{lines}:2: ")
    capsys.readouterr()


def test_pairs_whose_sides_or_files_differ_in_form_are_warned_of(tmp_path: Path, capsys) -> None:
    def pairs(name: str, source: str, target: str) -> str:
        rows = (f"{in_form(source, line)} x\t{in_form(target, line)}\n" for line in FRENCH)
        return written(tmp_path, name, "".join(rows))

    both, sides, other = pairs("a.tsv", "NFC", "NFC"), pairs("b.tsv", "NFC", "NFD"), pairs("c.tsv", "NFD", "NFD")
    found = [line for line in told(lambda: main(["check", "seq2seq", "--data", sides])) if "normal forms" in line]
    assert [line.split(": ")[0] for line in found] == [f"{sides}:1"]
    config = settings("seq2seq", both, tmp_path / "run", other)
    found = [line for line in told(lambda: seriatim.train(config)) if "normal form" in line]
    assert [line.split(": ")[0] for line in found] == [f"{other}:1"]
    (line,) = told(lambda: main(["predict", str(tmp_path / "run"), other]))
    assert line.startswith(f"{other}:1: ")
    capsys.readouterr()


def test_vectors_of_words_in_the_other_form_are_found(tmp_path: Path) -> None:
    composed, decomposed = (in_form(form, "café") for form in ("NFC", "NFD"))
    path = written(tmp_path, "v.txt", f"a 1.5 2.5\n{decomposed} 3.5 4.5\n")
    repairs = Repairs()
    words, vectors = read_vectors(path, ["a", composed], repairs)
    assert words == ["a", composed]
    np.testing.assert_array_equal(vectors, [[1.5, 2.5], [3.5, 4.5]])
    assert [(each.kind, each.line) for each in repairs] == [("another normal form", 2)]
    both = written(tmp_path, "w.txt", f"{decomposed} 1.5 2.5\n{composed} 3.5 4.5\n")
    words, vectors = read_vectors(both, [composed], Repairs(strict=True))
    np.testing.assert_array_equal(vectors, [[3.5, 4.5]])
