"""Defects that have one meaning are repaired, counted and reported; ``--strict`` refuses them."""

import json
from pathlib import Path

import pytest

import seriatim
from seriatim.cli.main import main
from seriatim.core.errors import InputError
from seriatim.data.conll import read_sentences
from seriatim.data.readers import find_sources
from seriatim.data.repairs import Repairs

STRAY = "a\tO\nBob\tI-PER\nx\tO\n\nb\tO\nAnn\tB-PER\nYork\tI-LOC\nCity\tI-LOC\n\n"
CLEAN = STRAY.replace("Bob\tI", "Bob\tB").replace("York\tI", "York\tB")
WARNING = r"stray\.conll:2: I-PER begins a chunk, .*read as B-PER.*2 times in this file"
SIZES = [
    "--layer",
    "window",
    "--model.embedding_size",
    "4",
    "--model.hidden_size",
    "4",
    "--model.options.characters",
    "none",
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A file with stray ``I-`` tags, the same in BIO, and a run trained on the first."""
    folder = tmp_path_factory.mktemp("stray")
    (folder / "stray.conll").write_text(STRAY)
    (folder / "clean.conll").write_text(CLEAN)
    out = folder / "run"
    arguments = ["--data", str(folder / "stray.conll"), "--out", str(out), "--training.steps", "3", "--quiet"]
    with pytest.warns(UserWarning, match=WARNING):
        assert main(["train", "tag", *arguments, *SIZES]) == 0
    return {"stray": folder / "stray.conll", "clean": folder / "clean.conll", "run": out}


def conlleval(truth: list[list[str]], guessed: list[list[str]]) -> dict[str, float]:
    """A second statement of conlleval's rules for BIO: a chunk begins at B, and at I after O or another type."""

    def spans(sentence: list[str]) -> set[tuple[int, int, str]]:
        found, start = set(), None
        for i, tag in enumerate([*sentence, "O"]):
            before = sentence[i - 1] if i else "O"
            begins = tag != "O" and (tag[0] == "B" or before[1:] != tag[1:])
            if start is not None and (begins or tag == "O"):
                found.add((start, i, before[2:]))
                start = None
            if begins:
                start = i
        return found

    gold, own = ([spans(sentence) for sentence in tags] for tags in (truth, guessed))
    correct = sum(len(a & b) for a, b in zip(gold, own, strict=True))
    precision, recall = correct / max(1, sum(map(len, own))), correct / sum(map(len, gold))
    pairs = [pair for both in zip(truth, guessed, strict=True) for pair in zip(*both, strict=True)]
    return {
        "precision": precision,
        "recall": recall,
        "f1": 2 * precision * recall / max(precision + recall, 1e-9),
        "accuracy": sum(a == b for a, b in pairs) / len(pairs),
    }


def test_a_stray_tag_begins_a_chunk(files: dict[str, Path]) -> None:
    repairs = Repairs()
    found = list(read_sentences(find_sources(str(files["stray"])), repairs=repairs))
    clean = list(read_sentences(find_sources(str(files["clean"]))))
    assert [one.tags for one in found] == [one.tags for one in clean]
    assert [one.raw_tags for one in found] == [["O", "I-PER", "O"], ["O", "B-PER", "I-LOC", "I-LOC"]]
    assert [(each.line, each.count) for each in repairs] == [(2, 2)]
    assert not list(Repairs())


def test_scores_are_those_of_conlleval_on_the_unrepaired_file(files: dict[str, Path]) -> None:
    run = seriatim.load(files["run"])
    with pytest.warns(UserWarning, match=WARNING):
        data = run.task.read(str(files["stray"]), "test", run.vocabulary)
    _, guessed = run.task.tagged(run.model, data)
    guessed[1][1:] = ["B-PER", "B-LOC", "I-LOC"]
    run.task.tagged = lambda *_: (run.task.__class__.tagged(run.task, run.model, data)[0], guessed)
    metrics = run.task.evaluate(run.model, data)
    raw = [[line.split("\t")[1] for line in part.splitlines()] for part in STRAY.strip().split("\n\n")]
    expected = conlleval(raw, guessed)
    assert expected["recall"] >= 2 / 3
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)


def test_every_verb_reports_repairs_once_for_each_file(files: dict[str, Path], capsys) -> None:
    capsys.readouterr()
    with pytest.warns(UserWarning, match=WARNING) as warned:
        assert main(["evaluate", str(files["run"]), "--data", str(files["stray"]), "--json"]) == 0
    assert len(warned) == 1
    (repair,) = json.loads(capsys.readouterr().out)["repairs"]
    assert (repair["line"], repair["count"], repair["kind"]) == (2, 2, "stray I- tag")
    with pytest.warns(UserWarning, match=WARNING):
        assert main(["check", "tag", "--data", str(files["stray"])]) == 0
    assert "stray I- tag 2 (first: stray.conll:2)" in capsys.readouterr().out
    assert main(["evaluate", str(files["run"]), "--data", str(files["clean"]), "--json"]) == 0
    assert "repairs" not in json.loads(capsys.readouterr().out)


def test_strict_refuses_what_needs_a_repair(files: dict[str, Path], tmp_path: Path, capsys) -> None:
    data = ["--data", str(files["stray"]), "--strict"]
    for arguments in (
        ["check", "tag", *data],
        ["evaluate", str(files["run"]), *data],
        ["train", "tag", *data, "--out", str(tmp_path / "none"), *SIZES],
        ["check", "tag", *data[:2], "--data.strict", "true"],
    ):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert "stray.conll:2: I-PER begins a chunk, where BIO has B-PER" in error
        assert error.count("\n") == 1
    assert not (tmp_path / "none").exists()
    assert main(["predict", str(files["run"]), str(files["clean"]), "--strict"]) == 0


def test_without_a_record_nothing_is_repaired(files: dict[str, Path]) -> None:
    with pytest.raises(InputError, match="I-PER begins a chunk"):
        list(read_sentences(find_sources(str(files["stray"]))))
