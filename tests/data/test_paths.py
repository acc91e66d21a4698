"""Which files a name stands for, and what a run's own configuration may name."""

import os
import resource
import shutil
import threading
from pathlib import Path

import pytest

import seriatim
from seriatim.cli.main import main
from seriatim.core.errors import InputError
from seriatim.data import paths, pipes
from seriatim.data.paths import check_named_by_run
from seriatim.data.readers import find_sources
from seriatim.inspection.mistakes import mistakes_section
from seriatim.inspection.subject import prepare
from seriatim.runs.ensembles import interpolate
from seriatim.training.task_view import NotOfferedError

from ..conftest import small_config


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of several kinds, some of them hidden."""
    for name in ("a.txt", "B.TXT", "c.Txt.GZ", "deep/d.jsonl", "e.CONLLU", "f.png", ".hidden.txt", ".git/g.txt"):
        path = tmp_path / "data" / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(f"{name}\n")
    return tmp_path / "data"


def test_suffixes_match_in_any_case_and_hidden_files_are_not_read(folder: Path) -> None:
    with pytest.warns(UserWarning, match=r"3 files were not read .*\.hidden\.txt, e\.CONLLU, f\.png; use a glob"):
        sources = find_sources(str(folder))
    assert [Path(source.name).name for source in sources] == ["B.TXT", "a.txt", "c.Txt.GZ", "d.jsonl"]
    assert [source.format for source in sources] == ["text", "text", "text", "jsonl"]
    with pytest.warns(UserWarning, match="not read"):
        (source,) = find_sources(str(folder), suffixes=(".conllu",))
    assert Path(source.name).name == "e.CONLLU"


def test_check_lists_what_was_skipped(folder: Path, capsys) -> None:
    (folder / "c.Txt.GZ").unlink()
    (folder / "deep/d.jsonl").unlink()
    with pytest.warns(UserWarning, match="not read"):
        assert main(["check", "lm", "--data", str(folder), "--sequence_length", "1", "--batch_size", "1"]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("skipped files"))
    assert ".hidden.txt, e.CONLLU, f.png" in line


def test_a_folder_of_tables_is_read(tmp_path: Path, capsys) -> None:
    for name in ("a.tsv", "b.CSV"):
        separator = "\t" if name == "a.tsv" else ","
        (tmp_path / name).write_text(f"label{separator}text\nx{separator}one\ny{separator}two\n")
    assert main(["check", "classify", "--data", str(tmp_path)]) == 0
    assert "x 2 y 2" in capsys.readouterr().out


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/urandom", "/dev/full"])
def test_a_device_without_an_end_is_refused(device: str) -> None:
    with pytest.raises(InputError, match="a device without an end"):
        find_sources(device)
    with pytest.raises(InputError, match="a device without an end"):
        find_sources("/dev/./" + Path(device).name)


def test_an_endless_pipe_stops_before_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipes, "SPARE_BYTES", 1 << 62)
    monkeypatch.setattr(pipes, "SPARE_SHARE", 1)
    with pytest.raises(InputError, match="copy of more than 5 bytes does not fit"):
        copied(tmp_path / "pipe", b"text\n")


def copied(pipe: Path, content: bytes) -> bytes:
    """What is read of a pipe."""
    pipes.spool.cache_clear()
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(content,))
    writer.start()
    try:
        (source,) = find_sources(str(pipe))
        with source.open() as file:
            return file.read()
    finally:
        writer.join()
        pipe.unlink()


def with_free_space(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk with so many free bytes, which are filled by the copies."""

    def usage(folder: str) -> tuple[int, int, int]:
        return Usage(0, 0, size - sum(path.stat().st_size for path in Path(folder).iterdir()))

    Usage = type(shutil.disk_usage("/"))  # noqa: N806
    monkeypatch.setattr("shutil.disk_usage", usage)


def test_a_pipe_may_fill_a_small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to a hundredth; 256 MB are left free on a large disk only."""
    with_free_space(12_000, monkeypatch)
    assert copied(tmp_path / "pipe", b"x" * 11_000) == b"x" * 11_000
    with pytest.raises(InputError, match=r"pipe: a copy of more than 11,990 bytes .* 12,000 bytes were free"):
        copied(tmp_path / "pipe", b"x" * 11_990)


def test_standard_input_that_is_a_file_is_measured_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_free_space(12_000, monkeypatch)
    (tmp_path / "a.txt").write_bytes(b"x" * 12_001)
    for skipped in (0, 1):
        pipes.spool.cache_clear()
        with (tmp_path / "a.txt").open() as file:
            file.buffer.read(skipped)
            monkeypatch.setattr("sys.stdin", file)
            if skipped:
                assert pipes.spool("-").stat().st_size == 12_000
            else:
                with pytest.raises(InputError, match="-: a copy of 12,001 bytes does not fit"):
                    pipes.spool("-")
    pipes.spool.cache_clear()


def test_a_copy_that_the_system_ends_is_named(tmp_path: Path) -> None:
    """By a quota, or because something else fills the disk; here by a limit of the process."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3, before[1]))
    try:
        with pytest.raises(InputError, match="a copy of more than 5 bytes does not fit"):
            copied(tmp_path / "pipe", b"text\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("/dev/zero", "a device or a pipe"),
        ("PIPE", "a device or a pipe"),
        ("LINK", "a device or a pipe"),
        ("/proc/self/environ", "not on any disk"),
        ("/proc/*/environ", "not on any disk"),
        ("/**", "more than 1,000 files"),
        ("/usr/**/*.nothing", "more than 1,000 files"),
        ("/usr", "more than 1,000 files"),
        ("FILE,PIPE", "a device or a pipe"),
        ("*/../../../**", "leaves the folder"),
        ("[,]/../../../**", "leaves the folder"),
        ("hf:somebody/something", "would be downloaded"),
    ],
)
def test_a_run_names_regular_files_and_small_folders_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, reason: str
) -> None:
    monkeypatch.setattr(paths, "MAX_ENTRIES", 1000)
    os.mkfifo(tmp_path / "PIPE")
    (tmp_path / "LINK").symlink_to("PIPE")
    (tmp_path / "FILE").write_text("text\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=f"data.valid: the run's configuration names .*{reason}.*command line"):
        check_named_by_run(name, "data.valid")


def test_a_run_may_name_its_own_files(folder: Path) -> None:
    for name in ("a.txt", "*.txt", "**", "deep", "a.txt,B.TXT", "nothing.txt", "*/*"):
        check_named_by_run(",".join(str(folder / part) for part in name.split(",")), "data.train")
    for name in ("-", "builtin:python-docs", str(folder)):
        check_named_by_run(name, "data.train")


def test_a_strangers_configuration_opens_no_device(texts, tmp_path: Path, capsys, monkeypatch) -> None:
    """Neither resuming, nor inspecting, nor interpolating reads what must not be read unasked."""
    monkeypatch.setattr(paths, "MAX_ENTRIES", 1000)
    run = seriatim.train(small_config(texts, tmp_path / "run", model={"layer": "window"}, training={"steps": 2}))
    os.mkfifo(tmp_path / "pipe")
    config = run.path / "config.yaml"
    for device in ("/dev/zero", str(tmp_path / "pipe"), "/**"):
        given = config.read_text()
        config.write_text(given.replace(texts["train"], device).replace(texts["valid"], device))
        assert main(["train", "--resume", str(run.path), "--training.steps", "3"]) == 2
        assert "data.train: the run's configuration names" in capsys.readouterr().err
        opened = seriatim.load(run.path)
        with pytest.raises(InputError, match=r"data\.valid: the run's configuration names"):
            interpolate([opened, opened])
        looked_at = prepare(opened, "the cat", beam=1, data=None, file_format=None)
        with pytest.raises(NotOfferedError, match="the run's configuration names"):
            mistakes_section(looked_at)
        config.write_text(given)
