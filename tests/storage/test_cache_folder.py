"""The folder of the cache: entries that can only be read are used, and another folder for new ones is told."""

import errno
import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from seriatim.data.corpus import encode_corpus
from seriatim.data.sources import find_sources
from seriatim.data.tokenizers import ByteTokenizer
from seriatim.storage import disk_cache
from seriatim.storage.disk_cache import cached, cached_resumable

from ..refusals import refused

Make = Callable[..., Path]


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the user named."""
    monkeypatch.setenv("SERIATIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(disk_cache, "_told", set())
    return tmp_path / "cache"


def make_read_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse all that writes below a folder, as the system does where it is mounted read-only."""
    temporary_file, mkdir, make_temporary = tempfile.TemporaryFile, Path.mkdir, tempfile.mkdtemp

    def check(path: Path) -> None:
        if path == folder or folder in path.parents:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr("tempfile.TemporaryFile", lambda **fields: (check(fields["dir"]), temporary_file(**fields))[1])
    monkeypatch.setattr(
        "tempfile.mkdtemp", lambda *given, **fields: (check(fields["dir"]), make_temporary(**fields))[1]
    )
    monkeypatch.setattr(
        Path, "mkdir", lambda path, *given, **fields: path.is_dir() or (check(path), mkdir(path, *given, **fields))[1]
    )


def write(folder: Path) -> None:
    (folder / "file").write_text("whole")


@pytest.mark.parametrize("make", [cached, cached_resumable])
def test_an_entry_that_can_only_be_read_is_used(named: Path, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make("name", write)
    make_read_only(named, monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert make("name", write) == folder == named / "name"


def test_an_encoded_text_in_a_cache_that_can_only_be_read_is_used(named: Path, monkeypatch) -> None:
    (named.parent / "a.txt").write_text("one two\n" * 10)
    sources, tokenizer = find_sources(str(named.parent / "a.txt")), ByteTokenizer()
    before = encode_corpus(sources, tokenizer, unit="line")
    make_read_only(named, monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert encode_corpus(sources, tokenizer, unit="line").ids.filename == before.ids.filename
    (named.parent / "a.txt").write_text("three\n")
    with refused("unwritable", "SERIATIM_CACHE"):
        encode_corpus(sources, tokenizer, unit="line")


@pytest.mark.parametrize("make", [cached, cached_resumable])
def test_another_folder_than_the_default_is_told_once(named: Path, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SERIATIM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(named))
    make_read_only(named, monkeypatch)
    with pytest.warns(UserWarning, match=rf"in {named.parent}/seriatim-cache-.*{named}/seriatim cannot be written: Re"):
        folder = make("name", write)
    assert folder.parent.parent == named.parent
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert make("name", write) == folder
        make("other", write)


def test_small_entries_need_no_cache_that_can_be_written(named: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled programs are made although a service names a cache that can only be read."""
    named.mkdir()
    make_read_only(named, monkeypatch)
    with pytest.warns(UserWarning, match="cannot be written"):
        assert (cached("name", write) / "file").read_text() == "whole"


@pytest.mark.parametrize("make", [cached, cached_resumable])
def test_a_cache_that_is_no_folder_is_refused_in_one_line(named: Path, make: Make) -> None:
    for create in (named.touch, lambda: named.symlink_to(named.parent / "missing"), lambda: named.symlink_to(named)):
        create()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with refused("unwritable", "SERIATIM_CACHE", f"{named}"):
                make("name", write)
        named.unlink()
