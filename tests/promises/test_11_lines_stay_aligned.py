"""`predict`: as many lines out as in, in order, and each line's answer is the one it gets alone."""

import io
import json
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import seriatim
from seriatim.cli.main import main

from ..conftest import sentences
from ..exhaustive import parameters
from ..refusals import refused

pytestmark = pytest.mark.filterwarnings("ignore:.* learned positions", "ignore:.* boundary marker")
PLAIN = ["the cat sees the sea .", "", " ", "\t", "the\tcat ", "  it  ", "zebra quagga", "x" * 300, "- -"]
ODD = ["one\u2028two the\u2029three\vfour\ffive\x1csix", "\u00a0", "\u3000 the ", "🙂 猫"]
SPECIALS = ["<unk>", "<s> </s> <pad>", "[MASK]", "the [MASK] sea [MASK][MASK] .", "[UNK] [CLS] <|endoftext|>", "\\n"]
SHORT = [*PLAIN, *ODD, *SPECIALS]
REPAIRED = {"a lone\rreturn": "a lone\nreturn", "\ufeffmark": "mark"}
"""What begins or ends a line in a file, though not in a text of Python."""
LONG = {"words": " ".join(["the", "sea", "zebra"] * 1700), "characters": "abc " * 500}
"""Longer than any window, and than there are learned positions."""


def texts(folder: Path) -> dict[str, str]:
    """Files to learn from, by their formats."""
    found = sentences(60)
    chosen = random.Random(0)
    labels = ["yes" if "the" in line else "no way" for line in found]
    words = [line.split() for line in found]
    tagged = [[(word, "B-X" if word in ("sea", "cat") else "O") for word in line] for line in words]
    row = "{}\t{}\t_\t{}\t_\t_\t0\t_\t_\t_"
    contents = {
        "txt": "".join(f"{line}\n" for line in found),
        "tsv": "label\ttext\n" + "".join(f"{label}\t{line}\n" for label, line in zip(labels, found, strict=True)),
        "pairs.tsv": "".join(f"{''.join(chosen.choices('abc ', k=6))}\tAB C\n" for _ in range(60)),
        "conll": "".join("".join(f"{w}\t{tag}\n" for w, tag in line) + "\n" for line in tagged),
        "conllu": "".join(
            "".join(row.format(i, w, tag) + "\n" for i, (w, tag) in enumerate(line, 1)) + "\n" for line in tagged
        ),
    }
    for name, content in contents.items():
        (folder / f"train.{name}").write_bytes(content.encode())
    return {name: str(folder / f"train.{name}") for name in contents}


TRANSFORMER = {"layer": "transformer", "hidden_size": 8, "embedding_size": 8, "options": {"num_heads": 2}}
LEARNED = {**TRANSFORMER, "options": {"num_heads": 2, "position": "learned", "max_length": 20}}
TASKS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "classify": ("classify", "tsv", {}, "word"),
    "classify bytes": ("classify", "tsv", {"options": {"pooling": "max"}}, "byte"),
    "classify learned": ("classify", "tsv", LEARNED, "word"),
    "tag": ("tag", "conll", {"options": {"character_size": 4, "filters": 4}}, "word"),
    "tag treebank": ("tag", "conllu", {"options": {"characters": "none"}}, "word"),
    "tag learned": ("tag", "conllu", {**LEARNED, "options": {**LEARNED["options"], "characters": "none"}}, "word"),
    "seq2seq": ("seq2seq", "pairs.tsv", {}, "char"),
    "seq2seq bytes": ("seq2seq", "pairs.tsv", {"options": {"attention": "none"}}, "byte"),
    "seq2seq transformer": ("seq2seq", "pairs.tsv", TRANSFORMER, "char"),
    "seq2seq learned": ("seq2seq", "pairs.tsv", LEARNED, "char"),
    "seq2seq at once": ("seq2seq", "pairs.tsv", {"options": {"factorisation": "ctc", "upsample": 4}}, "char"),
    "seq2seq at once learned": (
        "seq2seq",
        "pairs.tsv",
        {**LEARNED, "options": {**LEARNED["options"], "factorisation": "ctc", "upsample": 3}},
        "char",
    ),
    "mlm": ("mlm", "txt", {}, "word"),
    "mlm pieces": ("mlm", "txt", TRANSFORMER, "bpe"),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], seriatim.Run]:
    """A run for each, when it is asked for."""
    folder, runs = tmp_path_factory.mktemp("runs"), {}
    files = texts(folder)

    def run(name: str) -> seriatim.Run:
        if name not in runs:
            task, data, model, kind = TASKS[name]
            options = {"max_target_length": 40} if task == "seq2seq" else {}
            base = {"layer": "gru", "hidden_size": 8, "embedding_size": 8, "options": {}}
            settings = {
                "task": task,
                "data": {"train": files[data], **({"unit": "line"} if task == "mlm" else {})},
                "tokenizer": {"kind": kind, "vocabulary_size": 300 if kind == "bpe" else None},
                "model": base | model | {"options": {**model.get("options", {}), **options}},
                "training": {
                    "steps": 5,
                    "batch_size": 16,
                    "sequence_length": 20,
                    "learning_rate": 0.03,
                    "baseline": "none",
                },
                "out": str(folder / name.replace(" ", "-")),
            }
            runs[name] = seriatim.train(settings)
        return runs[name]

    return run


def lines_for(name: str) -> list[str]:
    """Short lines and a long one, the first a plain one."""
    return [*SHORT, LONG["characters" if name.startswith("seq2seq") else "words"], "the last line"]


@pytest.fixture(scope="module")
def alone(trained: Callable[[str], seriatim.Run]) -> Callable[[str], dict[str, str]]:
    """Each line's answer where it is the only line."""
    found: dict[str, dict[str, str]] = {}

    def answers(name: str) -> dict[str, str]:
        if name not in found:
            found[name] = {}
            for line in [*lines_for(name), *REPAIRED]:
                (found[name][line],) = trained(name).predict([line])
        return found[name]

    return answers


def answers_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Lines of the command's output."""
    assert main(["predict", *arguments]) == 0
    out = capsys.readouterr().out
    assert out.endswith("\n") or not out
    return out.split("\n")[:-1]


@pytest.mark.parametrize(
    "name", parameters(TASKS, everyday=("classify", "tag", "seq2seq", "seq2seq at once learned", "mlm", "mlm pieces"))
)
def test_every_line_has_its_own_answer(name: str, trained, alone, tmp_path: Path, capsys, monkeypatch) -> None:
    """From a file with either line end and none at the last, from standard input, and as JSON."""
    run, expected = trained(name), alone(name)
    lines = lines_for(name)
    right = [expected[line] for line in lines]
    for line, answer in expected.items():
        assert "\n" not in answer
        assert "\r" not in answer or (name.startswith("mlm") and "\r" in line)
    path = tmp_path / "lines.txt"
    for end in ("\n", "\r\n"):
        path.write_bytes(end.join(lines).encode())
        assert answers_of([str(run.path), str(path), "--format", "text"], capsys) == right
    path.write_bytes("".join(f"{line}\n" for line in reversed(lines)).encode())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    objects = [json.loads(line) for line in answers_of([str(run.path), "--format", "text", "--json"], capsys)]
    assert [one["text"] for one in objects] == right[::-1]
    path.write_text("\n".join(["the", *REPAIRED]), newline="")
    with pytest.warns(UserWarning, match=r"lines\.txt:[24]: ") as told:
        found = answers_of([str(run.path), str(path), "--format", "text"], capsys)
    assert len(told) == 2
    path.write_text("\n".join(["the", *REPAIRED.values()]))
    assert answers_of([str(run.path), str(path), "--format", "text"], capsys) == found


AROUND = ("classify", "tag", "seq2seq", "seq2seq at once learned", "mlm")


@pytest.mark.parametrize("name", parameters(TASKS, everyday=AROUND))
def test_whatever_stands_around_a_line(name: str, trained, alone) -> None:
    run, expected = trained(name), alone(name)
    for seed in range(2):
        lines = random.Random(seed).choices([*SHORT, *REPAIRED], k=300)
        if seed:
            lines.insert(20, lines_for(name)[-2])
        assert list(run.predict(lines)) == [expected[line] for line in lines]


@pytest.mark.parametrize(
    "name",
    parameters((name for name in TASKS if name.startswith("seq2seq")), everyday=("seq2seq", "seq2seq at once learned")),
)
@pytest.mark.parametrize("settings", [{"beam": 3}, {"beam": 2, "n_best": 2, "length_penalty": 0.6}, {"seed": 1}])
def test_however_answers_are_found(name: str, settings: dict[str, Any], trained) -> None:
    run = trained(name)
    if "at once" in name:
        settings = {key: value for key, value in settings.items() if key == "beam"}
    lines = [*SHORT, "abcab " * 20]
    answers = list(run.predict(lines, **settings))
    assert answers == [answer for line in lines for answer in run.predict([line], **settings)]
    assert not any(end in answer for answer in answers for end in "\r\n")


@pytest.mark.parametrize("name", [name for name in TASKS if "learned" in name])
def test_what_is_not_read_is_said(name: str, trained) -> None:
    def answered(line: str) -> list[str]:
        return list(trained(name).predict(["a", line]))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answered("a a")
        assert not caught
        answered(lines_for(name)[-2])
    assert bool(caught) == (not name.startswith("tag"))  # which reads a long sentence in parts


@pytest.mark.parametrize("name", TASKS)
def test_texts_of_json(name: str, trained, alone, tmp_path: Path, capsys, monkeypatch) -> None:
    """An answer an object; one that would be two lines is refused by line."""
    run, path = trained(name), tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": line}) + "\n" for line in SHORT))
    right = [alone(name)[line] for line in SHORT]
    assert answers_of([str(run.path), str(path), "--format", "jsonl"], capsys) == right
    path.write_text('{"text": "the sea"}\n{"text": "one\\ntwo"}\n')
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    if name.startswith("mlm"):
        assert main(["predict", str(run.path), "--format", "jsonl"]) == 2
        assert "<stdin>:2: a line end" in capsys.readouterr().err
    else:
        assert len(answers_of([str(run.path), "--format", "jsonl"], capsys)) == 2


@pytest.mark.parametrize(
    "name", parameters(TASKS, everyday=("classify", "tag", "seq2seq", "seq2seq at once learned", "mlm", "mlm pieces"))
)
def test_a_word_of_any_characters_has_an_answer(name: str, trained) -> None:
    """Also of characters that no file of text holds, in a program and over HTTP."""
    words = ["\0", "\0\0", "\x01", "\x1b[31m", "\x7f", "\x9b", "\u202e", "\uffff", "\U0010ffff", "\u0301" * 20]
    lines = [text for word in words for text in (word, f"the {word} sea")]
    assert len(list(trained(name).predict(lines))) == len(lines)
    with refused("malformed", "predict"):
        list(trained(name).predict(["the sea", "half \ud800"]))


@pytest.mark.parametrize("name", TASKS)
def test_no_lines(name: str, trained, tmp_path: Path, capsys, monkeypatch) -> None:
    path = tmp_path / "none.txt"
    path.write_bytes(b"")
    assert answers_of([str(trained(name).path), str(path)], capsys) == []
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert answers_of([str(trained(name).path)], capsys) == []
    path.write_bytes(b"\n")
    assert len(answers_of([str(trained(name).path), str(path)], capsys)) == 1


WORDS = ["the", "sea", "zebra", "<unk>", "[MASK]", "a\u2028b", "a\u2029b", "\ufeff", "#", "é" * 200, "_", "1-2", "-"]


def in_columns(kind: str) -> list[str]:
    """Sentences, one of them long, with all that is no word."""
    chosen, lines = random.Random(0), []
    for size in (1, 3, 2500, 2):
        words = chosen.choices(WORDS, k=size)
        if kind == "conllu":
            lines += ["# text = a\tb", *(["1-2\tab" + "\t_" * 8] if size > 1 else [])]
            lines += [f"{i}\t{word}\tl\tOLD\tx\t_\t0\tr\t_\t_" for i, word in enumerate(words, 1)]
            lines += [f"{size}.1\tc" + "\t_" * 8, "", *([" "] if size == 3 else [])]
        else:
            lines += [f"{word}\tOLD" for word in words] + ["", *(["-DOCSTART-\tO", ""] if size == 3 else [])]
    return lines


@pytest.mark.parametrize(("name", "kind"), [("tag", "conll"), ("tag treebank", "conllu"), ("tag learned", "conllu")])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_columns_come_back_line_for_line(name: str, kind: str, end: str, trained, tmp_path: Path, capsys, monkeypatch):
    """With other tags, and nothing else changed."""
    run, lines = trained(name), in_columns(kind)
    path = tmp_path / f"a.{kind}"
    path.write_bytes(end.join(lines).encode())
    found = answers_of([str(run.path), str(path)], capsys)
    lines = lines[:-1] if lines[-1] == "" else lines  # the last line's end
    assert len(found) == len(lines)
    column = 3 if kind == "conllu" else 1
    for before, after in zip(lines, found, strict=True):
        old, new = before.split("\t"), after.split("\t")
        if "OLD" in old:
            assert new[column] in run.vocabulary.labels
            new[column] = "OLD"
        assert new == old
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    assert answers_of([str(run.path)], capsys) == found
