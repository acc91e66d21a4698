"""Whatever stands in the cache in the place of a file or folder is made again; nothing hangs, or is lost elsewhere."""

import json
import os
import re
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from seriatim.config import Tokenizer
from seriatim.data.corpus import encode_corpus, fit_corpus_tokenizer
from seriatim.data.encoding import JOURNAL, JournaledFiles
from seriatim.data.source_content import remembered
from seriatim.data.sources import find_sources
from seriatim.data.tokenizers import ByteTokenizer
from seriatim.storage.disk_cache import CHECKSUMS, cached, cached_resumable, damage, seal

from ..promises.hostile import NOT_REGULAR, PLACED

SECONDS = 20
"""After which something hangs."""
PLACES = (
    *NOT_REGULAR,
    "a link to itself",
    "a link to nothing",
    "a link elsewhere",
    "deep lists",
    "deep objects",
    "null",
)
Make = Callable[[str, Callable[[Path], None]], Path]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of the test, whose hanging ends the process."""
    monkeypatch.setenv("SERIATIM_CACHE", str(tmp_path / "cache"))
    signal.alarm(SECONDS)
    yield tmp_path / "cache"
    signal.alarm(0)


def write(folder: Path) -> None:
    (folder / "file").write_text("whole")


def place(what: str, path: Path) -> None:
    """Put something in the place of a file or folder, or where there is none."""
    shutil.rmtree(path, ignore_errors=True)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    PLACED[what](path)


@pytest.mark.parametrize("what", PLACES)
@pytest.mark.parametrize("make", [cached, cached_resumable])
@pytest.mark.parametrize("name", ["entry", f"entry/{CHECKSUMS}", "entry/file", "entry/other"])
def test_a_damaged_entry_is_made_again_and_named(cache: Path, what: str, make: Make, name: str) -> None:
    make("entry", write)
    place(what, cache / name)
    is_folder = what in ("a folder", "a link to a folder")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        folder = make("entry", write)
    said = ["damaged" in str(warning.message) for warning in caught]
    assert said == [True] or (not said and is_folder and name in ("entry", "entry/other"))  # no checksums
    assert (folder / "file").read_text() == "whole"
    assert not folder.is_symlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert make("entry", lambda _: pytest.fail("made again")) == folder


@pytest.mark.parametrize("what", PLACES)
@pytest.mark.parametrize("name", ["entry.partial", "locks", "locks/entry.partial"])
def test_what_stands_where_a_folder_is_made(cache: Path, what: str, name: str) -> None:
    place(what, cache / name)
    assert (cached_resumable("entry", write) / "file").read_text() == "whole"


@pytest.mark.parametrize("what", [what for what in NOT_REGULAR if what != "a folder"])
@pytest.mark.parametrize("name", ["ids.bin", "ends.bin", JOURNAL, "statistics.json"])
def test_no_link_or_pipe_is_continued(cache: Path, tmp_path: Path, what: str, name: str) -> None:
    """Of an encoding that was interrupted; what a link leads to is not written."""
    (tmp_path / "a.txt").write_text("one two\n" * 10)
    sources = find_sources(str(tmp_path / "a.txt"))
    folder = Path(str(encode_corpus(sources, ByteTokenizer(), unit="line").ids.filename)).parent
    folder.rename(folder.with_name(f"{folder.name}.partial"))
    place(what, folder.with_name(f"{folder.name}.partial") / name)
    assert len(encode_corpus(sources, ByteTokenizer(), unit="line").ids) == 80


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "/dev/zero", "../pipe", "../../a", "pipe", "", ".", "x\0y", "a" * 5000]
)
def test_a_list_of_checksums_leads_nowhere_else(cache: Path, name: str) -> None:
    cached("entry", write)
    os.mkfifo(cache / "pipe")
    sums = json.loads((cache / "entry" / CHECKSUMS).read_text())
    (cache / "entry" / CHECKSUMS).write_text(json.dumps({**sums, name: 0}))
    assert damage(cache / "entry") == (CHECKSUMS if name[:1] in ("/", ".") and len(name) > 1 else name)
    with pytest.warns(UserWarning, match=re.escape(str(cache / "entry"))):
        assert (cached("entry", write) / "file").is_file()


@pytest.mark.parametrize("content", ["[", "[]", "null", "7", '{"file": null}', '{"file": [1]}', "{}", "[[1, 2, 3]]"])
def test_checksums_of_another_form_are_damage(cache: Path, content: str) -> None:
    cached("entry", write)
    (cache / "entry" / CHECKSUMS).write_text(content)
    assert damage(cache / "entry") in (CHECKSUMS, "file")


@pytest.mark.parametrize("content", ["[" * 100_000, "{}", "", "[1", "\udcff"])
def test_what_its_checksum_does_not_show(tmp_path: Path, cache: Path, content: str) -> None:
    """A file of another program, or of a version that wrote something else under this name."""
    text = tmp_path / "a.txt"
    text.write_text("one two\n" * 10)
    os.utime(text, (0, 0))
    sources = find_sources(str(text))
    config = Tokenizer(kind="word")
    uses: dict[str, Callable[[], object]] = {
        "statistics.json": lambda: len(encode_corpus(sources, ByteTokenizer(), unit="line").ids),
        "tokenizer.json": lambda: fit_corpus_tokenizer(sources, config, unit="line").to_json(),
    }
    for name, use in uses.items():
        before = use()
        (found,) = cache.glob(f"*/{name}")
        found.write_bytes(content.encode("utf-8", "surrogateescape"))
        seal(found.parent)
        with pytest.warns(UserWarning, match="damaged; this entry of the cache is built again"):
            assert use() == before


def test_facts_that_cannot_be_read_are_found_again(tmp_path: Path, cache: Path, monkeypatch) -> None:
    monkeypatch.setattr("seriatim.data.source_content.RACY_SECONDS", 0)
    text = tmp_path / "a.txt"
    text.write_text("one two\n")
    sources = find_sources(str(text))
    assert remembered("kind", sources, lambda: [1]) == [1]
    (found,) = cache.glob("*/kind.json")
    found.write_text("[" * 100_000)
    seal(found.parent)
    with pytest.warns(UserWarning, match=r"built again"):
        assert remembered("kind", sources, lambda: [2]) == [2]


def test_a_flipped_bit_in_a_journal_cuts_it(tmp_path: Path) -> None:
    for place in range(0, 400, 7):
        shutil.rmtree(tmp_path / "folder", ignore_errors=True)
        (tmp_path / "folder").mkdir()
        flip_and_continue(tmp_path / "folder", place)


def flip_and_continue(folder: Path, place: int) -> None:
    with JournaledFiles(folder, ("a", "b"), [1]) as files:
        for i in range(3):
            files.append(f"part {i}", {"a": b"xy", "b": b"z" * i}, f"facts {i}")
    content = bytearray((folder / JOURNAL).read_bytes())
    content[place % len(content)] ^= 4
    (folder / JOURNAL).write_bytes(content)
    with JournaledFiles(folder, ("a", "b"), [1]) as files:
        assert [entry.digest for entry in files.entries] == [f"part {i}" for i in range(len(files.entries))]
        assert len(files.entries) < 3
        assert [entry.facts for entry in files.entries] == [f"facts {i}" for i in range(len(files.entries))]
        assert (folder / "a").stat().st_size == 2 * len(files.entries)
