"""Defects that have one meaning are repaired, counted and reported; ``--strict`` refuses them."""

import json
from pathlib import Path

import pytest

import seriatim
from seriatim.cli.main import main
from seriatim.data.conll import read_sentences
from seriatim.data.repairs import Repairs
from seriatim.data.sources import find_sources

from ..refusals import refused

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


def test_scores_are_those_of_conlleval_on_the_unrepaired_file(files: dict[str, Path], monkeypatch) -> None:
    run = seriatim.load(files["run"])
    with pytest.warns(UserWarning, match=WARNING):
        data = run.task.reader.read(str(files["stray"]), "test", run.vocabulary)
    right, guessed = run.task.evaluator.tagged(run.model, data)
    guessed[1][1:] = ["B-PER", "B-LOC", "I-LOC"]
    monkeypatch.setattr(type(run.task.evaluator), "tagged", lambda *_: (right, guessed))
    metrics = run.task.evaluator.evaluate(run.model, data)
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


REGULAR = "Ann\tB-PER\nLee\tI-PER\nsaw\tO\n\nBob\tB-PER\nand\tO\nRome\tB-LOC\n"
MORE = "\nAda\tB-PER\nEve\tI-PER\n" * 5 + "\nOslo\tB-LOC\nat\tO\n" * 4
"""So that a defect in `REGULAR` is one of many tags."""
DEFECTS = {
    "trailing blanks and tabs": ("Lee\tI-PER\n", "Lee\tI-PER\t \n", 2, "irregular columns"),
    "a blank after a tag": ("Lee\tI-PER\n", "Lee\tI-PER \n", 2, "irregular columns"),
    "several tabs": ("saw\tO", "saw\t\t O", 3, "irregular columns"),
    "spaces for a tab": ("saw\tO", "saw   O", 3, "irregular columns"),
    "a blank in front": ("saw\tO", "\tsaw\tO", 3, "irregular columns"),
    "a trailing tab in the first line": ("Ann\tB-PER", "Ann\tB-PER\t", 1, "irregular columns"),
    "a non-breaking blank": ("Bob\tB-PER", "Bob\u00a0\tB-PER\u200b", 5, "invisible blanks"),
    "a second byte-order mark": ("Bob\t", "\ufeffBob\t", 5, "byte-order marks"),
    "a blank line that is not empty": ("\n\nBob", "\n\u00a0\nBob", 4, "invisible blanks"),
    "lower case prefixes": ("Bob\tB-PER", "Bob\tb-PER", 5, "spelling of a tag"),
    "a lower case tag": ("Lee\tI-PER", "Lee\ti-per", 2, "spelling of a tag"),
    "a lower case O": ("and\tO", "and\to", 6, "spelling of a tag"),
    "a chunk of one word in IOBES": ("Rome\tB-LOC", "Rome\tS-LOC", 7, "tag of another scheme"),
    "a chunk of two words in BILOU": ("Lee\tI-PER", "Lee\tL-PER", 2, "tag of another scheme"),
    "a chunk in IOB1": ("Bob\tB-PER", "Bob\tI-PER", 5, "stray I- tag"),
    "a tag that marks no chunk": ("and\tO", "and\tPER", 6, "tag that marks no chunk"),
    "a tag without a type": ("saw\tO", "saw\tB", 3, "tag that marks no chunk"),
    "a comment": ("\nBob", "\n# sent_id = 2\nBob", 5, "comments"),
    "a comment with the columns of the file": ("Ann\t", "# a\tb\nAnn\t", 1, "comments"),
    "comments that end with a blank line": ("Ann\t", "# newdoc\n\n#text\nAnn\t", 1, "comments"),
    "a comment at the end": ("LOC\n", "LOC\n\n# the end\n", 9, "comments"),
}
NO_DEFECTS = {
    "no final line end": (REGULAR, REGULAR[:-1]),
    "several blank lines": ("\n\n", "\n\n \n\n"),
    "Windows line ends": ("\n", "\r\n"),
    "a byte-order mark": ("Ann", "\ufeffAnn"),
    "final blank lines": ("LOC\n", "LOC\n\n\n"),
}


def read_both(folder: Path, text: str, **options) -> tuple[list[tuple[list[str], list[str]]], Repairs]:
    path, repairs = folder / "a.conll", Repairs()
    path.write_bytes(text.encode())
    found = list(read_sentences(find_sources(str(path)), repairs=repairs, **options))
    return [(one.words, one.tags) for one in found], repairs


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_with_one_meaning_is_repaired_and_named(tmp_path: Path, defect: str) -> None:
    clean, damaged, line, kind = DEFECTS[defect]
    more = "" if "at the end" in defect else MORE
    expected, nothing = read_both(tmp_path, REGULAR + more)
    assert not list(nothing)
    assert clean in REGULAR
    for labels in (None, ["B-LOC", "B-PER", "I-PER", "O"]):
        found, repairs = read_both(tmp_path, REGULAR.replace(clean, damaged) + more, labels=labels)
        assert found == expected
        assert {each.kind: each.line for each in repairs} == {kind: line}
    with refused("malformed", f"a.conll:{line}"):
        list(read_sentences(find_sources(str(tmp_path / "a.conll"))))


@pytest.mark.parametrize("case", NO_DEFECTS)
def test_line_ends_and_blank_lines_need_no_repair(tmp_path: Path, case: str) -> None:
    expected, _ = read_both(tmp_path, REGULAR)
    found, repairs = read_both(tmp_path, REGULAR.replace(*NO_DEFECTS[case]))
    assert found[: len(expected) - 1] == expected[:-1]
    assert found[-1][0][:2] == ["Bob", "and"]
    assert not list(repairs)


@pytest.mark.parametrize(
    "line",
    ["New York\tO", "saw x\tN\tO", "saw", "\tO", "saw\t", "saw\tthe sea", "saw\tB-"],
)
def test_a_line_with_more_than_one_meaning_is_refused(tmp_path: Path, line: str) -> None:
    text = "Ann\tN\tB-PER\nX\tN\tO\n" if line.startswith("New") else "Ann\tB-PER\nX\tO\n"
    with refused("malformed", "a.conll:3"):
        read_both(tmp_path, f"{text}{line}\n")


def test_strict_names_the_first_sentence_that_needs_a_repair(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text("a\tO\nb\to\n\nc\tO\t\n" + "d\tO\n" * 9)
    with refused("malformed", "a.conll:2"):
        list(read_sentences(find_sources(str(tmp_path / "a.conll"))))


def test_a_file_without_tags_is_refused(tmp_path: Path) -> None:
    with refused("malformed", "a.conll:1"):
        read_both(tmp_path, "Ann\nsaw\n\nBob\n")


def test_columns_of_conllu_are_repaired_but_not_the_case_of_language_specific_tags(tmp_path: Path) -> None:
    words = "abcdefghijkl"
    regular = "# text = a b c\n" + "".join(f"{i}\t{w}\t_\tNOUN\tN\t_\t0\tx\t_\t_\n" for i, w in enumerate(words, 1))
    path = tmp_path / "a.conllu"
    damaged = regular.replace("1\ta\t", "1  a  ").replace("1  a  _\tNOUN\tN\t_\t0\tx\t_\t_", "1  a _ NOUN N _ 0 x _ _")
    damaged = damaged.replace("2\tb\t_\tNOUN", "2\tb\t_\tnoun").replace("N\t_\t0\tx\t_\t_\n3", "n\t_\t0\tx\t_\t_\t\n3")
    path.write_text(damaged)
    repairs = Repairs()
    (found,) = read_sentences(find_sources(str(path)), repairs=repairs)
    assert (found.words, found.tags) == (list(words), ["NOUN"] * len(words))
    assert {each.kind: (each.line, each.count) for each in repairs} == {
        "irregular columns": (2, 2),
        "spelling of a tag": (3, 1),
    }
    (found,) = read_sentences(find_sources(str(path)), repairs=Repairs(), column="xpos")
    assert found.tags == ["N", "n", *["N"] * (len(words) - 2)]


def test_scores_of_mixed_schemes_are_those_of_conlleval(files: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "mixed.conll"
    path.write_text("Bob\tU-PER\nx\tO\n\nAnn\tB-LOC\nYork\tE-LOC\n\nCity\tI-PER\nAnn\tI-LOC\nb\tO\n\n")
    run = seriatim.load(files["run"])
    with pytest.warns(UserWarning, match="PER") as warned:
        data = run.task.reader.read(str(path), "test", run.vocabulary)
    assert {str(one.message).split(": ")[0].split(":")[-1] for one in warned} >= {"1", "7"}
    _, guessed = run.task.evaluator.tagged(run.model, data)
    metrics = run.task.evaluator.evaluate(run.model, data)
    in_bio = [["B-PER", "O"], ["B-LOC", "I-LOC"], ["B-PER", "B-LOC", "O"]]
    expected = conlleval(in_bio, guessed)
    assert {name: metrics[name] for name in ("precision", "recall", "f1")} == pytest.approx(
        {name: expected[name] for name in ("precision", "recall", "f1")}
    )


def test_predict_reads_what_training_reads(files: dict[str, Path], tmp_path: Path, capsys) -> None:
    path, lines = tmp_path / "odd.conll", "a\tO\t\nBob  B-PER\nx\tO \n\u00a0\nb\u200b\tO\n"
    path.write_text(lines)
    with pytest.warns(UserWarning, match=r"odd\.conll:") as warned:
        assert main(["predict", str(files["run"]), str(path)]) == 0
    assert {str(one.message).split(": ")[0].split(":")[-1] for one in warned} == {"2", "4"}
    answers = capsys.readouterr().out.split("\n")
    assert [line.split("\t")[0].strip("\u200b") for line in answers] == ["a", "Bob", "x", "\u00a0", "b", ""]
    assert main(["predict", str(files["run"]), str(path), "--strict"]) == 2
    assert "odd.conll:" in capsys.readouterr().err


def test_without_a_record_nothing_is_repaired(files: dict[str, Path]) -> None:
    with refused("malformed", "stray.conll:2"):
        list(read_sentences(find_sources(str(files["stray"]))))
