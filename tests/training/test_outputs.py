"""What a command writes has a name that other commands take, and destroys no run and no input."""

import gzip
import os
from pathlib import Path

import pytest

import seriatim
from seriatim.cli.main import main
from seriatim.storage.written_folders import COMPARISON, RUN
from seriatim.training.run_files import ARPA, PAGE, check_file, check_out

from ..golden.answers import GOLDEN
from ..refusals import refused

NAMES = ("a,b", "-", "--out", "a\nb", os.fsdecode(b"a\xff"), "a\0b")


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_commands_could_not_be_given_is_refused(name: str, texts, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for form in (RUN, COMPARISON):
        with refused("unwritable"):
            check_out(name, overwrite=False, form=form)
    with refused("unwritable"):
        seriatim.train({"data": {"train": texts["train"]}, "training": {"steps": 1}, "out": name})
    assert not list(tmp_path.iterdir())


def test_a_run_whose_name_is_not_utf8_is_refused_at_once() -> None:
    with refused("malformed"):
        seriatim.load(os.fsdecode(b"a\xff"))


@pytest.mark.parametrize(
    "name", ["config.yaml", "tokenizer.json", "model.safetensors", "checkpoints/step-1/x", "new.gz"]
)
def test_a_file_of_a_run_is_not_overwritten(name: str, tmp_path: Path, monkeypatch) -> None:
    run = tmp_path / "run"
    (run / "checkpoints" / "step-1").mkdir(parents=True)
    for mark in ("config.yaml", "tokenizer.json"):
        (run / mark).touch()
    monkeypatch.chdir(run)
    for out in (run / name, name, Path("..") / "run" / name):
        if name == "new.gz":
            check_file(out, PAGE)
        else:
            with refused("exists", "--out"):
                check_file(out, PAGE)
    check_file(tmp_path / "config.yaml", PAGE)


def test_a_file_of_a_comparison_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "comparison.yaml").touch()
    for name in ("comparison.yaml", "results.json", "runs", "rows/lstm-0.json"):
        with refused("exists", "--out"):
            check_file(tmp_path / name, PAGE)
    check_file(tmp_path / "report.html", PAGE)


def test_a_file_that_is_read_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    (tmp_path / "link").symlink_to(tmp_path / "a.txt")
    for spec in (str(tmp_path / "a.txt"), f"x,{tmp_path / 'a.txt'}"):
        for out in ("a.txt", "link"):
            with refused("exists", "--out"):
                check_file(tmp_path / out, PAGE, (None, spec))
    check_file(tmp_path / "b.txt", PAGE, (str(tmp_path / "a.txt"),))


def test_only_files_of_the_kind_that_is_written_are_replaced(tmp_path: Path) -> None:
    page = b'<!DOCTYPE html>\n<meta name="generator" content="seriatim">\n'
    arpa = b"# written by Seriatim\n\\data\\\nngram 1=2\n"
    kept = {"a.html": b"<html>mine</html>", "a.tsv": b"a\tb\n", "a.gz": gzip.compress(b"text"), "b.gz": b"\x1f\x8bno"}
    replaced = (
        {"page.html": page, "page": page, "empty.txt": b""},
        {"model": arpa, "m.gz": gzip.compress(arpa), "e": b""},
    )
    for kind, files in zip((PAGE, ARPA), replaced, strict=True):
        for name, content in files.items():
            (tmp_path / name).write_bytes(content)
            check_file(tmp_path / name, kind)
        for name, content in kept.items():
            (tmp_path / name).write_bytes(content)
            with refused("exists", "--out", kind.name):
                check_file(tmp_path / name, kind)
        check_file(tmp_path / "new.html", kind)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="a pipe")
def test_a_pipe_or_a_device_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.arpa")
    for out in (tmp_path / "pipe.arpa", Path(os.devnull)):
        for kind in (PAGE, ARPA):
            with refused("exists", "--out"):
                check_file(out, kind)


@pytest.mark.filterwarnings("ignore:too few n-grams")
def test_the_commands_refuse_them_and_say_what_they_wrote(texts, tmp_path: Path, capsys) -> None:
    data = {"train": texts["train"], "unit": "line"}
    run = seriatim.train(
        {"data": data, "tokenizer": {"kind": "word"}, "model": {"layer": "ngram"}, "out": str(tmp_path / "run")}
    )
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    for name in ("config.yaml", "model.safetensors"):
        for verb in (["export", "--format", "arpa"], ["inspect", "--text", "the cat"]):
            assert main([verb[0], str(run.path), *verb[1:], "--out", str(run.path / name)]) == 2
            assert "lies inside the run" in capsys.readouterr().err
    assert main(["export", str(run.path), "--format", "arpa", "--out", texts["train"]]) == 2
    mine = tmp_path / "mine.tsv"
    mine.write_text("a\tb\n")
    for verb in (["export", "--format", "arpa"], ["inspect", "--text", "the cat"]):
        assert main([verb[0], str(run.path), *verb[1:], "--out", str(mine)]) == 2
        assert mine.read_text() == "a\tb\n"
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before
    capsys.readouterr()

    arpa, again = str(tmp_path / "x.arpa"), str(tmp_path / "again")
    assert main(["export", str(run.path), "--format", "arpa", "--out", arpa]) == 0
    written = capsys.readouterr().out
    counts = [len(order.probability) for order in run.model.table.orders]
    assert written.startswith(
        f"wrote {arpa}: arpa, order {len(counts)}, {sum(counts):,} n-grams ({counts[0]:,} 1-grams"
    )
    assert main(["import", arpa, "--out", again]) == 0
    assert capsys.readouterr().out.startswith(f"wrote the run {again}: order {len(counts)}, {sum(counts):,} n-grams")


@pytest.mark.parametrize("name", ["folder", "missing/file", "gone/file", "loop", "loop/file", "file/file"])
def test_a_file_that_cannot_be_written_is_refused_by_every_verb(tmp_path: Path, monkeypatch, capsys, name: str) -> None:
    make_links(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    for command in (
        ["export", str(GOLDEN / "lm-gru"), "--format", "torch"],
        ["surprisal", str(GOLDEN / "lm-gru"), str(GOLDEN / "data" / "valid-text.txt")],
        ["inspect", str(GOLDEN / "lm-gru"), "--text", "the cat"],
    ):
        assert main([*command, "--out", name]) == 2, command
        error = capsys.readouterr().err
        assert (error.count("\n"), "--out" in error) == (1, True), error
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["gone", "gone/run", "loop", "loop/run", "file", "file/run"])
def test_a_folder_that_cannot_be_written_is_refused_by_every_verb(
    tmp_path: Path, monkeypatch, capsys, name: str
) -> None:
    make_links(tmp_path)
    monkeypatch.chdir(tmp_path)
    data = str(GOLDEN / "data" / "text.txt")
    before = sorted(tmp_path.rglob("*"))
    for command in (
        ["train", "lm", "--data", data, "--training.steps", "1"],
        ["compare", "lm", "--data", data, "--valid", data, "--layers", "rnn", "--steps", "1"],
        ["import", str(tmp_path / "any"), "--overwrite"],
        ["export", str(GOLDEN / "lm-gru"), "--format", "onnx"],
    ):
        assert main([*command, "--out", name]) == 2, command
        error = capsys.readouterr().err
        assert (error.count("\n"), "Error" in error) == (1, False), error
    assert sorted(tmp_path.rglob("*")) == before


def make_links(folder: Path) -> None:
    """A link to what does not exist, one to itself, a folder and a file."""
    (folder / "gone").symlink_to(folder / "nothing")
    (folder / "loop").symlink_to("loop")
    (folder / "folder").mkdir()
    (folder / "file").write_text("mine")
