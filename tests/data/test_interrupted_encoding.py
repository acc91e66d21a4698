"""An encoding that was killed, or whose text, disk or cache failed: what is done is used, and nothing wrong is kept."""

import errno
import functools
import itertools
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from seriatim.config import Tokenizer as TokenizerConfig
from seriatim.core.errors import TrainingError
from seriatim.data import encoding
from seriatim.data.corpus import encode_corpus, fit_corpus_tokenizer
from seriatim.data.encoding import JOURNAL, JournaledFiles
from seriatim.data.source_content import content_of
from seriatim.data.sources import find_sources
from seriatim.storage import disk_cache
from seriatim.storage.disk_cache import SCRATCH

from ..refusals import refused
from .encoded_texts import (
    TEXT,
    UNITS,
    Failing,
    files_of,
    in_this_process,
    many_files,
    small_blocks,
    tokenizer_of,
    written,
)

_small_blocks = pytest.fixture(autouse=True)(small_blocks)


class Killed(BaseException):
    """Stands for the end of the process."""


def write_half(files: JournaledFiles) -> None:
    with open(files.folder / files.names[0], "ab") as file:
        file.write(b"half a part")


def kill_at(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let the process end while it appends a part: after the first file, and before the journal."""
    calls, append = itertools.count(), JournaledFiles.append

    def killed(self: JournaledFiles, *arguments: object) -> None:
        if next(calls) == count:
            write_half(self)
            raise Killed
        append(self, *arguments)

    monkeypatch.setattr(JournaledFiles, "append", killed)


@pytest.mark.parametrize("unit", UNITS)
def test_what_a_killed_process_wrote_is_used(tmp_path: Path, unit: str, monkeypatch) -> None:
    in_this_process(monkeypatch)
    sources = many_files(tmp_path / "texts")
    tokenizer = tokenizer_of("word")
    expected = written(tmp_path / "whole", sources, tokenizer, unit)
    with monkeypatch.context() as patched:
        kill_at(patched, 5)
        with pytest.raises(Killed):
            written(tmp_path / "killed", sources, tokenizer, unit)
    encoded, encode = [], encoding.encode_block
    monkeypatch.setattr(
        "seriatim.data.encoding.encode_block", lambda *given: (encoded.append(given), encode(*given))[1]
    )
    assert written(tmp_path / "killed", sources, tokenizer, unit) == expected
    resumed = len(encoded)
    written(tmp_path / "again", sources, tokenizer, unit)
    assert len(encoded) - resumed == resumed + 5


@pytest.mark.parametrize("damage", ["ids.bin", JOURNAL])
@pytest.mark.parametrize("how", ["cut", "changed", "removed"])
def test_damaged_parts_are_encoded_again(tmp_path: Path, damage: str, how: str, monkeypatch) -> None:
    in_this_process(monkeypatch)
    sources = many_files(tmp_path / "texts")
    expected = written(tmp_path / "whole", sources, tokenizer_of("char"), "stream")
    with monkeypatch.context() as patched:
        kill_at(patched, 6)
        with pytest.raises(Killed):
            written(tmp_path / "killed", sources, tokenizer_of("char"), "stream")
    path = tmp_path / "killed" / damage
    content = path.read_bytes()
    if how == "removed":
        path.unlink()
    else:
        middle = len(content) // 2
        path.write_bytes(content[:middle] + (b"" if how == "cut" else b"##" + content[middle + 2 :]))
    assert written(tmp_path / "killed", sources, tokenizer_of("char"), "stream") == expected


@pytest.mark.parametrize("kind", ["byte", "word"])
def test_parts_of_another_text_are_not_used(tmp_path: Path, kind: str, monkeypatch) -> None:
    in_this_process(monkeypatch)
    texts = []
    for name, text in {"one": TEXT, "two": TEXT[:1000] + "changed" + TEXT[1007:]}.items():
        (tmp_path / f"{name}.txt").write_text(text)
        texts.append(find_sources(str(tmp_path / f"{name}.txt")))
    tokenizer = tokenizer_of(kind)
    expected = written(tmp_path / "whole", texts[1], tokenizer, "stream")
    with monkeypatch.context() as patched:
        kill_at(patched, 4)
        with pytest.raises(Killed):
            written(tmp_path / "killed", texts[0], tokenizer, "stream")
    assert written(tmp_path / "killed", texts[1], tokenizer, "stream") == expected


@pytest.mark.parametrize("kind", ["word", "bpe", "char"])
def test_a_text_that_changes_while_it_is_read_is_not_cached(tmp_path: Path, kind: str, monkeypatch) -> None:
    monkeypatch.setenv("SERIATIM_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "a.txt"
    (source,) = find_sources(str(path)) if path.write_text(TEXT) else ()
    opened = itertools.count()

    def changing():
        if next(opened):  # not while it is hashed
            path.write_text(TEXT.replace("five", "nine"))
        return source.open()

    config, sources = TokenizerConfig(kind=kind), [source._replace(open=changing)]
    with refused("busy", "a.txt"):
        encode_corpus(sources, fit_corpus_tokenizer(sources, config, unit="stream"), unit="stream")
    assert not [path for path in (tmp_path / "cache").iterdir() if path.name.startswith(("corpus", "tokenizer"))]
    corpus = encode_corpus([source], fit_corpus_tokenizer([source], config, unit="stream"), unit="stream")
    assert "nine" in corpus.tokenizer.decode(corpus.ids)


def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("SERIATIM_CACHE", str(tmp_path / "cache"))
    in_this_process(monkeypatch)
    (tmp_path / "a.txt").write_text(TEXT)
    sources, tokenizer = find_sources(str(tmp_path / "a.txt")), tokenizer_of("byte")
    append, calls = JournaledFiles.append, []

    def full(self: JournaledFiles, *arguments: object) -> None:
        calls.append(arguments)
        if len(calls) == 4:
            write_half(self)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(JournaledFiles, "append", full)
        with pytest.raises(OSError, match="No space left on device") as error:
            encode_corpus(sources, tokenizer, unit="stream")
        assert "set $SERIATIM_CACHE to move it" in error.value.filename
        corpus = encode_corpus(sources, tokenizer, unit="stream")
        assert len(calls) < 2 * 4 + len(corpus.ids) // 300
    assert tokenizer.decode(corpus.ids) == TEXT.replace("\r\n", "\n")
    assert not list((tmp_path / "cache").glob("*.partial"))


@pytest.mark.parametrize("place", ["seal", "flush", "_remove_scratch"])
@pytest.mark.parametrize("unit", UNITS)
def test_what_was_killed_after_the_last_block_is_not_encoded_again(
    tmp_path: Path, unit: str, place: str, monkeypatch
) -> None:
    monkeypatch.setenv("SERIATIM_CACHE", str(tmp_path / "cache"))
    in_this_process(monkeypatch)
    sources, encoded = many_files(tmp_path / "texts"), []
    encode = encoding.encode_block
    monkeypatch.setattr(encoding, "encode_block", lambda *given: (encoded.append(given), encode(*given))[1])

    def read() -> dict[str, bytes]:
        return files_of(Path(encode_corpus(sources, tokenizer_of("char"), unit=unit).ids.filename).parent)

    def die(path: Path) -> None:
        if (path if path.is_dir() else path.parent).joinpath("ids.bin").exists():
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(disk_cache, place, die)
        with pytest.raises(Killed):
            read()
    blocks = len(encoded)
    files = read()
    assert len(encoded) == blocks
    assert not [*(tmp_path / "cache").rglob(f"*{SCRATCH}"), *(tmp_path / "cache").glob("*.partial")]
    monkeypatch.setenv("SERIATIM_CACHE", str(tmp_path / "other"))
    assert read() == files


def test_a_file_that_is_unreadable_for_a_moment_loses_nothing(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("SERIATIM_CACHE", str(tmp_path / "cache"))
    in_this_process(monkeypatch)
    broken, encoded = [False], []
    sources = [
        source._replace(open=functools.partial(Failing, source, broken)) for source in many_files(tmp_path / "a")
    ]
    encode = encoding.encode_block
    monkeypatch.setattr(encoding, "encode_block", lambda *given: (encoded.append(given), encode(*given))[1])

    def read() -> object:
        return encode_corpus(sources, tokenizer_of("char"), unit="stream").ids

    content = content_of(sources)
    broken[0] = True
    with monkeypatch.context() as patched:
        patched.setattr("seriatim.data.corpus.content_of", lambda _: content)
        with refused("unreadable", "e.txt"):
            read()
    before = len(encoded)
    assert before > 4
    broken[0] = False
    read()
    all_blocks = len(encoded)
    monkeypatch.setenv("SERIATIM_CACHE", str(tmp_path / "other"))
    read()
    assert len(encoded) - all_blocks == all_blocks


def test_too_small_a_disk_is_refused_before_it_is_full(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    sources = find_sources(str(tmp_path / "a.txt"))
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=100))
    with pytest.raises(TrainingError, match=r"MB are needed for the encoded text, 0\.0 MB are free; make room"):
        written(tmp_path / "out", sources, tokenizer_of("byte"), "stream")
