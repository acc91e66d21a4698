"""Folders of the cache that are made in parts: by one process at a time, and continued after it was killed."""

import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from seriatim.core.errors import InputError, TrainingError
from seriatim.data.encoding import JournaledFiles
from seriatim.storage.disk_cache import DAY, cached, cached_resumable


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("SERIATIM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Killed(BaseException):
    """Stands for the end of the process."""


def write_first_and_die(folder: Path) -> None:
    (folder / "first").write_text("1")
    raise Killed


def test_what_was_written_is_found_again(cache: Path) -> None:
    with pytest.raises(Killed):
        cached_resumable("name", write_first_and_die)
    assert not (cache / "name").exists()
    seen = []
    folder = cached_resumable("name", lambda partial: seen.append((partial / "first").read_text()))
    assert seen == ["1"]
    assert (folder / "first").read_text() == "1"
    assert cached_resumable("name", seen.append) == folder
    assert len(seen) == 1
    assert not list(cache.glob("*.partial"))


def test_what_failed_for_its_input_is_removed(cache: Path) -> None:
    def refuse(folder: Path) -> None:
        (folder / "first").write_text("1")
        raise InputError("a bad line")

    with pytest.raises(InputError, match="a bad line"):
        cached_resumable("name", refuse)
    assert not list(cache.glob("name*"))


@pytest.mark.parametrize("make_folder", [cached, cached_resumable])
def test_a_cache_that_is_removed_while_it_is_used_is_named(cache: Path, make_folder) -> None:
    def make(folder: Path) -> None:
        shutil.rmtree(cache)
        (folder / "file").write_text("")

    with pytest.raises(TrainingError, match=r"cache: the cache was removed while it was used; run again"):
        make_folder("name", make)
    assert make_folder("name", lambda folder: None) == cache / "name"


def test_an_error_within_a_cache_that_is_there_is_not_that_of_its_removal() -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        cached_resumable("name", lambda folder: (folder / "missing").read_text() and None)


@pytest.mark.parametrize("parts", [0, 1])
def test_an_interrupted_user_is_told_whether_the_next_run_continues(parts: int) -> None:
    def make(folder: Path) -> None:
        (folder / "inner").mkdir()
        for _ in range(parts):
            JournaledFiles(folder / "inner", (), []).__exit__(None, None, None)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as error:
        cached_resumable("name", make)
    assert ("the same command continues" in str(error.value)) == bool(parts)


def test_of_two_that_make_a_folder_one_waits(monkeypatch) -> None:
    monkeypatch.setattr("seriatim.storage.disk_cache.POLL_SECONDS", 0.02)
    made, waited, begun = [], [], threading.Event()

    def make(folder: Path) -> None:
        begun.set()
        while not waited:
            time.sleep(0.01)
        made.append(folder)
        (folder / "file").write_text("whole")

    first = threading.Thread(target=lambda: cached_resumable("name", make))
    first.start()
    begun.wait()
    folder = cached_resumable("name", make, lambda: waited.append(True))
    first.join()
    assert len(made) == 1
    assert (folder / "file").read_text() == "whole"


def test_without_locks_a_folder_is_made_from_the_beginning(monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr("seriatim.storage.disk_cache.FileLock.acquire", refuse)
    with pytest.raises(Killed):
        cached_resumable("name", write_first_and_die)
    folder = cached_resumable("name", lambda partial: (partial / "second").write_text("2") and None)
    assert sorted(path.name for path in folder.iterdir()) == ["checksums.json", "second"]


@pytest.mark.parametrize("age", [DAY / 2, 2 * DAY])
def test_what_nobody_continues_is_removed_after_a_day(cache: Path, age: float) -> None:
    with pytest.raises(Killed):
        cached_resumable("name", write_first_and_die)
    then = time.time() - age
    for path in (cache / "name.partial", *(cache / "name.partial").iterdir()):
        os.utime(path, (then, then))
    cached("other", lambda folder: None)
    assert (cache / "name.partial").exists() == (age < DAY)


def test_a_folder_that_is_written_is_not_old(cache: Path) -> None:
    with pytest.raises(Killed):
        cached_resumable("name", write_first_and_die)
    os.utime(cache / "name.partial", (0, 0))  # only its files were appended to since
    cached("other", lambda folder: None)
    assert (cache / "name.partial" / "first").exists()


def test_parts_of_other_settings_are_not_used(tmp_path: Path) -> None:
    with JournaledFiles(tmp_path, ("a", "b"), [1]) as files:
        files.append("one", {"a": b"xy", "b": b""}, "facts")
    for settings, parts in ([1], ["one"]), ([2], []), ([1], []):
        with JournaledFiles(tmp_path, ("a", "b"), settings) as files:
            assert [entry.digest for entry in files.entries] == parts
            assert [entry.facts for entry in files.entries] == ["facts"] * len(parts)
            assert (tmp_path / "a").stat().st_size == 2 * len(parts)
