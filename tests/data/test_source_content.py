"""The remembered content of files: they are read again exactly if they may have changed."""

import gzip
import os
import time
from pathlib import Path

import pytest

from seriatim.data.source_content import TextDigest, content_of, expected_size, listening
from seriatim.data.sources import find_sources
from seriatim.data.text import Source
from seriatim.tasks.data_files import end_split, line_split

from ..refusals import refused


@pytest.fixture
def text(tmp_path: Path, monkeypatch) -> Path:
    """A file that is not racy, because this test's clock is ahead."""
    monkeypatch.setenv("SERIATIM_CACHE", str(tmp_path / "cache"))
    real = time.time_ns
    monkeypatch.setattr("seriatim.data.source_content.time.time_ns", lambda: real() + 60_000_000_000)
    (tmp_path / "a.txt").write_text("one two\n" * 10)
    return tmp_path / "a.txt"


def watched(sources: list[Source], reads: list[str]) -> list[Source]:
    def opened(source: Source):
        reads.append(source.name)
        return source.open()

    return [source._replace(open=lambda source=source: opened(source)) for source in sources]


def test_unchanged_files_are_read_once(text: Path) -> None:
    reads: list[str] = []
    sources = watched(find_sources(str(text)), reads)
    first = content_of(sources)
    assert first.bytes == 80
    assert content_of(sources) == first
    assert len(reads) == 1


@pytest.mark.parametrize("how", ["longer", "same size", "old time", "replaced"])
def test_changed_files_are_read_again(text: Path, how: str) -> None:
    sources = find_sources(str(text))
    before, status = content_of(sources), text.stat()
    if how == "replaced":
        (text.parent / "b.txt").write_text("two one\n" * 10)
        os.utime(text.parent / "b.txt", ns=(status.st_atime_ns, status.st_mtime_ns))
        (text.parent / "b.txt").replace(text)
    else:
        text.write_text(("two one\n" if how != "longer" else "one two\n\n") * 10)
    if how == "old time":
        os.utime(text, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert content_of(sources) != before
    text.write_text("one two\n" * 10)
    assert content_of(sources) == before


def test_files_that_were_just_written_are_not_trusted(text: Path, monkeypatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("SERIATIM_CACHE", str(text.parent / "cache"))
    reads: list[str] = []
    sources = watched(find_sources(str(text)), reads)
    assert content_of(sources) == content_of(sources)
    assert len(reads) == 2


def test_parts_formats_and_compression_are_told_apart(text: Path) -> None:
    with gzip.open(text.parent / "a.txt.gz", "wb") as file:
        file.write(text.read_bytes())
    (plain,), (packed,) = find_sources(str(text)), find_sources(str(text.parent / "a.txt.gz"))
    parts = [
        *(end_split([plain], share, held_out=held_out) for share in (0.1, 0.5) for held_out in (False, True)),
        *([line_split(plain, 0.5, held_out=held_out)] for held_out in (False, True)),
        [plain._replace(format="jsonl")],
        [plain, plain],
        [plain],
    ]
    for part in parts:
        read = content_of([source._replace(origin=()) for source in part])
        assert [content_of(part), content_of(part)] == [read, read]
    assert content_of([packed]) == content_of([plain])


def test_a_text_that_is_not_on_the_disk_is_always_read(text: Path) -> None:
    reads: list[str] = []
    (source,) = watched(find_sources(str(text)), reads)
    assert content_of([source._replace(origin=())]) == content_of([source._replace(origin=())])
    assert len(reads) == 2


def test_a_file_that_was_removed_is_named(text: Path) -> None:
    sources = find_sources(str(text))
    text.unlink()
    with refused("unreadable", "a.txt"):
        content_of(sources)


def test_a_file_that_changes_while_it_is_read_is_refused(text: Path) -> None:
    (source,) = find_sources(str(text))

    def changing():
        text.write_text("more " * 100)
        return source.open()

    with refused("busy", "a.txt"):
        content_of([source._replace(open=changing)])
    assert isinstance(content_of([source]), TextDigest)


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_progress_is_shown_while_a_large_text_is_hashed(tmp_path: Path, name: str, monkeypatch) -> None:
    monkeypatch.setattr("seriatim.data.source_content.SECONDS", 0.0)
    monkeypatch.setattr("seriatim.data.source_content.BLOCK", 10)
    content, reports = b"one two\n" * 10, []
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    sources = find_sources(str(tmp_path / name))
    with listening(lambda *report: reports.append(report)):
        content_of(sources)
        assert not reports, "a small text is read at once"
        monkeypatch.setattr("seriatim.data.source_content.LARGE_BYTES", 1)
        content_of(sources)
    assert len(reports) == 8
    assert reports[-1][1] == (0 if name.endswith("gz") else 1)
    assert all(f"{name}: 0.0" in text and text.endswith("MB/s") for text, _ in reports)


@pytest.mark.parametrize("held_out", [False, True])
def test_the_size_of_a_text_is_expected_without_its_held_out_part(text: Path, held_out: bool, monkeypatch) -> None:
    monkeypatch.setattr("seriatim.data.source_content.LARGE_BYTES", 1)
    sources = end_split(find_sources(str(text)), 0.1, held_out=held_out)
    assert expected_size(sources) == (None if held_out else 80)
