"""The verb surprisal: the table on standard output and in a file, one run and several, and bad input."""

import csv
import io

import pytest

from seriatim.cli.main import main

TEXT = "the cat sees a dog .\n\nshe likes the cat\n"


def call(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main(["surprisal", *arguments])
    return (code, *capsys.readouterr())


@pytest.fixture
def text(tmp_path) -> str:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return str(path)


def rows(out: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(out)))


def test_one_row_for_each_word(runs, text, capsys) -> None:
    run = runs["char-line"]
    code, out, error = call(capsys, str(run.path), text)
    assert (code, error) == (0, "")
    head, *table = rows(out)
    assert head == ["line", "index", "word", "bits", "entropy", "rank", "tokens", "unknown"]
    assert [row[2] for row in table] == TEXT.split()
    assert [row[0] for row in table] == ["1"] * 6 + ["3"] * 4
    assert [row[1] for row in table] == [*"123456", *"1234"]
    expected = [unit for units in run.surprisal(TEXT.split("\n")[:-1]) for unit in units]
    assert [float(row[3]) for row in table] == pytest.approx([unit.bits for unit in expected], abs=1e-6)


def test_several_runs_stand_side_by_side(runs, text, capsys, tmp_path) -> None:
    paths = [str(runs[name].path) for name in ("char-line", "word-line", "bpe-line")]
    out = tmp_path / "table.csv"
    code, printed, _ = call(capsys, *paths, text, "--out", str(out))
    assert (code, printed) == (0, "")
    head, *table = rows(out.read_text())
    assert head[3::5] == ["char-line.bits", "word-line.bits", "bpe-line.bits"]
    assert len(table) == len(TEXT.split())
    code, alone, _ = call(capsys, paths[1], text)
    assert [row[8:13] for row in table] == [row[3:] for row in rows(alone)[1:]]
    assert call(capsys, *paths, text, "--out", str(out))[0] == 0  # its own table may be replaced


def test_standard_input_and_jsonl(runs, capsys, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, texts = str(runs["char-line"].path), tmp_path / "texts.jsonl"
    texts.write_text('{"text": "the cat"}\n{"text": "a dog"}\n')
    _, from_file, _ = call(capsys, path, str(texts))

    class Input:
        buffer = io.BytesIO(b"the cat\na dog\n")

    monkeypatch.setattr("sys.stdin", Input)
    code, from_pipe, _ = call(capsys, path)
    assert code == 0
    assert from_pipe == from_file


def test_bad_input(runs, text, capsys, tmp_path) -> None:
    run, words = str(runs["char-line"].path), str(runs["word-line"].path)
    other = tmp_path / "notes.csv"
    other.write_text("my,own,table\n")
    for arguments, message in (
        ([str(tmp_path / "missing")], "missing"),
        ([run, str(tmp_path / "missing.txt")], "missing.txt"),
        ([run, run, text], "a run is given twice"),
        ([run, words, text, "--by", "token"], "the runs have different tokens; use --by word"),
        ([words, text, "--by", "character"], "is one token of two characters"),
        ([run, text, "--context", "text"], "was trained on separate lines"),
        ([run, text, "--by", "sentence"], "--by"),
        ([run, text, "--out", str(other)], "exists and is not a table that seriatim surprisal wrote"),
        ([run, text, "--out", text], "one of the files that are read"),
        ([run, text, "--out", str(tmp_path / "no" / "table.csv")], "does not exist; create it"),
        ([], "RUN"),
    ):
        code, out, error = call(capsys, *arguments)
        assert code == 2, arguments
        assert message in error
        assert error.startswith("seriatim: error: ")
        assert error.count("\n") == 1
        assert not out or out.startswith("line,index,")
    assert other.read_text() == "my,own,table\n"
