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
from seriatim.data import pipes, sources
from seriatim.data.sources import (
    LABELLED_SUFFIXES,
    PAIRED_SUFFIXES,
    TAGGED_SUFFIXES,
    TEXT_SUFFIXES,
    check_named_by_run,
    find_sources,
)
from seriatim.inspection.inspected_run import prepare
from seriatim.inspection.mistakes import mistakes_section
from seriatim.runs.ensembles import interpolate
from seriatim.storage.disk_cache import cached
from seriatim.tasks.explainer import NotOfferedError

from ..conftest import FULL_DISK, needs_full_disk, small_config
from ..refusals import refused


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


GOLDEN = Path(__file__).parents[1] / "golden"
ALL_SUFFIXES = dict.fromkeys((*TEXT_SUFFIXES, *LABELLED_SUFFIXES, *PAIRED_SUFFIXES, *TAGGED_SUFFIXES))


@pytest.fixture
def mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of texts in which a run, a comparison and two caches lie, with files of every kind that is read."""
    folder = tmp_path / "data"
    monkeypatch.setenv("SERIATIM_CACHE", str(folder / "deep" / "cache"))
    shutil.copytree(GOLDEN / "lm-gru", folder / "a run")
    (folder / "a run" / ".seriatim.files").write_text('{"format": "seriatim files 1", "kind": "run", "files": []}')
    shutil.copytree(GOLDEN / "lm-gru", folder / "deep" / "old run")
    (folder / "compared" / "runs").mkdir(parents=True)
    (folder / "compared" / "comparison.yaml").write_text("format: seriatim comparison 1\n")
    monkeypatch.setenv("SERIATIM_CACHE", str(folder / "other cache"))
    cached("entry", lambda entry: (entry / "some.txt").write_text("text\n"))
    monkeypatch.setenv("SERIATIM_CACHE", str(folder / "deep" / "cache"))
    cached("entry", lambda entry: (entry / "some.txt").write_text("text\n"))
    for place in ("", "deep", "a run/mine", "compared/runs", "deep/cache", "deep/texts"):
        (folder / place).mkdir(exist_ok=True)
        for suffix in ALL_SUFFIXES:
            (folder / place / f"text{suffix}").write_text("text\n")
    return folder


@pytest.mark.parametrize("suffixes", [TEXT_SUFFIXES, LABELLED_SUFFIXES, PAIRED_SUFFIXES, TAGGED_SUFFIXES])
@pytest.mark.filterwarnings("ignore:.*not named")
def test_folders_that_seriatim_wrote_are_no_data(mixed: Path, suffixes: tuple[str, ...]) -> None:
    with pytest.warns(UserWarning, match="5 runs, comparisons or caches were left out: .*a run and 4 more"):
        found = find_sources(str(mixed), suffixes=suffixes)
    places = [Path(source.name).parent.relative_to(mixed).as_posix() for source in found]
    assert sorted(places) == sorted(len(suffixes) * [".", "deep", "deep/texts"])


def test_wildcards_do_not_lead_into_them(mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(mixed)
    for spec in ("**/*.txt", f"{mixed}/**/*.txt"):
        with pytest.warns(UserWarning, match="4 runs, comparisons or caches were left out"):
            found = find_sources(spec)
        assert {Path(source.name).absolute().parent.name for source in found} == {"data", "deep", "texts"}
    with refused("missing", "*.md"):
        find_sources("*run*/*.md")


@pytest.mark.filterwarnings("ignore:.*not named")
def test_what_is_named_is_read_wherever_it_lies(mixed: Path) -> None:
    for spec in (
        "a run/README.md",
        "a run/mine",
        "a run/*.md",
        "compared/runs/*.txt",
        "deep/cache/entry",
    ):
        assert find_sources(str(mixed / spec), suffixes=(".md", ".txt"))


@pytest.mark.filterwarnings("ignore:.*not named")
def test_of_a_run_that_is_named_the_files_of_the_user_are_read(mixed: Path) -> None:
    run = mixed / "deep" / "old run"
    with refused("missing"):
        find_sources(str(run))
    (run / "notes.txt").write_text("text\n")
    with pytest.warns(UserWarning, match="1 run, comparison or cache were left out"):
        (found,) = find_sources(str(run))
    assert Path(found.name).name == "notes.txt"


def test_a_folder_that_only_looks_alike_is_data(tmp_path: Path) -> None:
    for name, text in {"config.yaml": "lr: 1\n", "tokenizer.json": "{}", "checksums.json": '{"a": "f00d"}'}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "a.txt").write_text("text\n")
    with pytest.warns(UserWarning, match="3 files were not read"):
        assert len(find_sources(str(tmp_path))) == 1


@pytest.mark.parametrize("descriptor", [1, 2])
def test_what_the_output_is_written_to_is_not_read(descriptor: int, tmp_path: Path, capfd) -> None:
    (tmp_path / "a.txt").write_text("text\n")
    before = os.dup(descriptor)
    try:
        with (tmp_path / "log.txt").open("a") as log:
            os.dup2(log.fileno(), descriptor)
            for spec in (tmp_path, tmp_path / "*.txt", tmp_path / "log.txt"):
                with refused("exists", "log.txt"):
                    find_sources(str(spec))
            assert len(find_sources(str(tmp_path / "a.txt"))) == 1
    finally:
        os.dup2(before, descriptor)
        os.close(before)


def test_what_is_no_file_of_a_folder_is_told(folder: Path) -> None:
    """A pipe would be waited for, and what a link led to is missing."""
    os.mkfifo(folder / "pipe.txt")
    (folder / "link.txt").symlink_to("nowhere")
    (folder / "zero.txt").symlink_to("/dev/zero")
    with pytest.warns(UserWarning, match=r"files were not read \(.*no regular file") as caught:
        names = {Path(source.name).name for source in find_sources(str(folder))}
    assert names
    assert not names & {"pipe.txt", "link.txt", "zero.txt"}
    assert "link.txt" in sources.skipped_files(str(folder), (".txt",))
    assert len(caught) == 1


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/urandom", pytest.param(FULL_DISK, marks=needs_full_disk)])
def test_a_device_without_an_end_is_refused(device: str) -> None:
    with refused("unreadable"):
        find_sources(device)
    with refused("unreadable"):
        find_sources("/dev/./" + Path(device).name)


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


@pytest.mark.parametrize("spare", [50, 120, 1 << 28], ids=["a large disk", "the same", "a small disk"])
def test_a_pipe_leaves_some_of_the_disk_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spare: int) -> None:
    """256 MB, of a large disk; a hundredth, 120 bytes here, of a small one."""
    monkeypatch.setattr(pipes, "SPARE_BYTES", spare)
    with_free_space(12_000, monkeypatch)
    most = 12_000 - min(spare, 120)
    assert copied(tmp_path / "pipe", b"x" * most) == b"x" * most
    with refused("size", "pipe"):
        copied(tmp_path / "pipe", b"x" * (most + 1))


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
                with refused("size", "-"):
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
    monkeypatch.setattr(sources, "MAX_ENTRIES", 1000)
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
    monkeypatch.setattr(sources, "MAX_ENTRIES", 1000)
    run = seriatim.train(small_config(texts, tmp_path / "run", model={"layer": "window"}, training={"steps": 2}))
    os.mkfifo(tmp_path / "pipe")
    config = run.path / "config.yaml"
    for device in ("/dev/zero", str(tmp_path / "pipe"), "/**"):
        given = config.read_text()
        config.write_text(given.replace(texts["train"], device).replace(texts["valid"], device))
        assert main(["train", "--resume", str(run.path), "--training.steps", "3"]) == 2
        assert "data.train: the run's configuration names" in capsys.readouterr().err
        opened = seriatim.load(run.path)
        with refused("forbidden", "run"):
            interpolate([opened, opened])
        looked_at = prepare(opened, "the cat", beam=1, data=None, file_format=None)
        with pytest.raises(NotOfferedError, match="the run's configuration names"):
            mistakes_section(looked_at)
        config.write_text(given)
