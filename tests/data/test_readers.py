"""Text in: what is accepted is normalised and nothing is lost; what is refused is named by file and line."""

import gzip
import io
import json
import os
import re
import sys
import threading
import types
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seriatim.core.errors import InputError
from seriatim.data import pipes
from seriatim.data.sources import find_sources
from seriatim.data.text import CHUNK_BYTES, read_chunks, read_lines

from ..refusals import refused

PACKED = gzip.compress(b"hello world" * 99, mtime=0)
"""Without the time: parallel workers must name the same tests."""


def text_of(spec: str, **options: str) -> str:
    return "".join(chunk.text for chunk in read_chunks(find_sources(spec, **options)))


def lines_of(spec: str) -> list[str]:
    return list(read_lines(find_sources(spec)))


def written(folder: Path, content: bytes | str, name: str = "a.txt") -> str:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), size=st.sampled_from([4, 7, 64])
)
def test_whatever_the_pieces_nothing_is_lost(tmp_path: Path, text: str, size: int) -> None:
    spec = written(tmp_path, text)
    normal = re.sub("^\ufeff+", "", text.replace("\r\n", "\n").replace("\r", "\n"), flags=re.MULTILINE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("seriatim.data.text.CHUNK_BYTES", size)
        assert text_of(spec) == normal
        expected = normal.split("\n")
        assert lines_of(spec) == (expected[:-1] if expected[-1] == "" else expected)


def test_mark_and_line_ends_are_normalised(tmp_path: Path) -> None:
    assert text_of(written(tmp_path, b"\xef\xbb\xbfone\r\ntwo")) == "one\ntwo"
    assert lines_of(written(tmp_path, "one\r\n\r\ntwo\u2028three\x85four")) == ["one", "", "two\u2028three\x85four"]


def test_one_line_of_fifty_megabytes(tmp_path: Path) -> None:
    spec = written(tmp_path, b"ab" * 25_000_000)
    assert [len(line) for line in lines_of(spec)] == [50_000_000]
    assert max(len(chunk.text) for chunk in read_chunks(find_sources(spec))) <= 2 * CHUNK_BYTES


def test_folders_globs_gzip_and_jsonl(tmp_path: Path) -> None:
    written(tmp_path, "a\n", "1.txt")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "2.txt.gz").write_bytes(gzip.compress(b"b\n"))
    written(tmp_path, json.dumps({"text": "c\nd", "id": 3}) + "\n" + json.dumps({"text": "e"}), "3.jsonl")
    written(tmp_path, b"\0\0", "picture.png")
    with pytest.warns(UserWarning, match=r"1 file was not read .*: picture\.png"):
        assert lines_of(str(tmp_path)) == ["a", "c", "d", "e", "b"]
    assert lines_of(str(tmp_path / "*.txt")) == ["a"]
    chunks = list(read_chunks(find_sources(str(tmp_path / "3.jsonl"))))
    assert [chunk.begins_document for chunk in chunks] == [True, True]
    assert text_of(str(tmp_path / "3.jsonl"), file_format="text").startswith('{"text"')


def test_standard_input_is_read_once_and_used_often(monkeypatch: pytest.MonkeyPatch) -> None:
    pipes.spool.cache_clear()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n")))
    assert lines_of("-") == ["one", "two"]
    assert lines_of("-") == ["one", "two"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_goes_by_its_own_name(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    os.mkfifo(path)
    content = '{"text": "a"}\n{"txt": 1}\n'
    writer = threading.Thread(target=path.write_text, args=(content,))
    writer.start()
    (source,) = find_sources(str(path))
    writer.join()
    assert (source.name, source.format) == (str(path), "jsonl")
    with refused("missing", "texts.jsonl:2"):
        list(read_chunks([source]))


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (b"ok\ncaf\xe9\n", "a.txt", r"a\.txt:2: not UTF-8 \(byte 0xE9\).*iconv"),
        (b"ok\n\nb\0d\n", "a.txt", r"a\.txt:3: a NUL byte"),
        (b"\x7fELF\x02\x01\0\0", "a.txt", r"a\.txt:1: a NUL byte"),
        (b"\xff\xfea\0", "a.txt", "UTF-16"),
        (b"\xe2\x82", "a.txt", "not UTF-8"),
        (b'{"text": "a"}\n{"txt": 1}\n', "a.jsonl", r"a\.jsonl:2: no string field"),
        (b'{"text": "a"}\n{"text": 1\n', "a.jsonl", r"a\.jsonl:2: not JSON"),
        (b'{"text": "\\ud800"}\n', "a.jsonl", r"a\.jsonl:1: half of a surrogate"),
        (b'{"text": "a\\u0000"}\n', "a.jsonl", r"a\.jsonl:1: a NUL"),
        (b"[" * 100_000, "a.jsonl", r"a\.jsonl:1: not JSON"),
        (b"not gzip", "a.txt.gz", r"a\.txt\.gz: cannot be read"),
        (PACKED[:12] + b"\xff" * 40, "a.txt.gz", r"a\.txt\.gz: cannot be read"),
        (b'{"text": "a", "n": ' + b"9" * 5000 + b"}", "a.jsonl", r"a\.jsonl:1: not JSON"),
        (PACKED[:-9], "a.txt.gz", r"a\.txt\.gz: cannot be read"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, content: bytes, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        text_of(written(tmp_path, content, name))


def test_an_empty_document_is_an_empty_line(tmp_path: Path) -> None:
    spec = written(tmp_path, '{"text": ""}\n{"text": "a"}\n{"text": ""}\n', "a.jsonl")
    assert lines_of(spec) == ["", "a", ""]
    assert text_of(spec) == "a"


def test_a_pipe_is_read_once_and_used_often(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(b"one\ntwo\n",))
    writer.start()
    sources = find_sources(str(tmp_path / "pipe"))
    writer.join()
    assert list(read_lines(sources)) == list(read_lines(sources)) == ["one", "two"]


@pytest.mark.parametrize(
    ("spec", "kind", "place", "value"),
    [
        ("nothing.txt", "missing", "nothing.txt", ""),
        ("*.nothing", "missing", "*.nothing", ""),
        ("", "required", "", ""),
        ("a" * 300, "missing", "", ""),
        ("builtin:python-dogs", "unknown", "builtin:python-dogs", "python-docs"),
        ("builtin:python-docs:dev", "unknown", "builtin:python-docs:dev", ""),
    ],
)
def test_what_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, kind: str, place: str, value: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with refused(kind, place, value):
        text_of(spec)


@pytest.mark.exhaustive
def test_the_built_in_corpus_is_english_in_three_parts() -> None:
    parts = {split: text_of("builtin:python-docs", split=split) for split in ("train", "valid", "test")}
    assert len(parts["train"]) > 1_000_000
    assert min(len(part) for part in parts.values()) > 50_000
    assert "Return" in parts["test"]
    assert text_of("builtin:python-docs:valid") == parts["valid"]


class Column(dict):
    """One part of a data set, as the datasets package gives it."""

    column_names = property(list)


def test_a_data_set_of_the_hub_by_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(name: str, config: str | None) -> dict[str, Column]:
        if name != "some/corpus":
            raise FileNotFoundError("no such data set")
        return {
            "train": Column(text=["one", "two\nthree"]),
            "validation": Column(text=[config]),
            "test": Column(line=[]),
        }

    module = types.ModuleType("datasets")
    module.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    assert lines_of("hf:some/corpus") == ["one", "two", "three"]
    assert text_of("hf:some/corpus:small", split="valid") == "small"
    with refused("empty", "corpus"):
        text_of("hf:some/corpus", split="test")
    with refused("unavailable", "hf:other"):
        text_of("hf:other")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with refused("unavailable", "corpus"):
        text_of("hf:some/corpus")


def test_a_data_set_of_the_hub(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    written(tmp_path, '{"text": "one"}\n{"text": "two"}\n', "train.jsonl")
    assert lines_of(f"hf:{tmp_path}") == ["one", "two"]
