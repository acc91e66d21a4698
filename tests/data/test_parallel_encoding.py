"""A text that is encoded in blocks and in several processes is the text that one process encodes."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seriatim.core.errors import InputError
from seriatim.data.corpus import encode_corpus
from seriatim.data.source_content import listening
from seriatim.data.sources import find_sources

from .encoded_texts import (
    KINDS,
    TEXT,
    UNITS,
    in_this_process,
    many_files,
    set_sizes,
    small_blocks,
    tokenizer_of,
    written,
)

_small_blocks = pytest.fixture(autouse=True)(small_blocks)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.lists(st.text("ab\n \té", max_size=12), min_size=1, max_size=6), min_size=1, max_size=4),
    st.sampled_from(KINDS),
    st.sampled_from(UNITS),
    st.booleans(),
    st.integers(1, 300),
)
def test_the_size_of_blocks_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, texts: list[list[str]], kind: str, unit: str, jsonl: bool, size: int
) -> None:
    folder = tmp_path_factory.mktemp("blocks")
    for i, documents in enumerate(texts):
        content = "".join(json.dumps({"text": text}) + "\n" for text in documents) if jsonl else "".join(documents)
        (folder / f"{i}.{'jsonl' if jsonl else 'txt'}").write_text(content)
    (folder / "z.txt").write_text("a b")
    sources = find_sources(str(folder))
    found = []
    for block in (1 << 22, size):
        with pytest.MonkeyPatch.context() as patched:
            set_sizes(patched, chunk=8, block=block, parallel=1)
            in_this_process(patched)
            found.append(written(folder / str(block), sources, tokenizer_of(kind), unit))
    assert found[0] == found[1]


@pytest.mark.exhaustive
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    "kind", ["word", "bpe", *(pytest.param(kind, marks=pytest.mark.exhaustive) for kind in ("byte", "char", "unigram"))]
)
def test_several_processes_write_the_same_bytes(tmp_path: Path, kind: str, unit: str, monkeypatch) -> None:
    sources, found = many_files(tmp_path / "texts"), []
    for processes in (2, 1):
        monkeypatch.setattr("seriatim.data.encoding.worker_count", lambda processes=processes: processes)
        found.append(written(tmp_path / str(processes), sources, tokenizer_of(kind, lowercase=True), unit))
    assert found[0] == found[1]
    assert all(name in found[0] for name in ("ids.bin", "statistics.json", *(["ends.bin"] if unit == "line" else [])))


@pytest.mark.parametrize("bad", [b"\xff", b"\0"])
def test_errors_name_the_line_as_one_process_does(tmp_path: Path, bad: bytes, monkeypatch) -> None:
    sources = many_files(tmp_path / "texts")
    path = tmp_path / "texts" / "e.txt"
    path.write_bytes(path.read_bytes() + b"line\n" * 100 + b"before " + bad + b"\nafter\n")
    messages = []
    for processes in (2, 1):
        monkeypatch.setattr("seriatim.data.encoding.worker_count", lambda processes=processes: processes)
        with pytest.raises(InputError) as error:
            written(tmp_path / str(processes), sources, tokenizer_of("char"), "stream")
        messages.append(str(error.value))
    assert messages[0] == messages[1]
    assert f"e.txt:{TEXT.count(chr(10)) + 101}" in messages[0]


def test_progress_is_reported_and_ends_at_the_size(tmp_path: Path, monkeypatch) -> None:
    in_this_process(monkeypatch)
    monkeypatch.setattr("seriatim.data.source_content.SECONDS", 0.0)
    (tmp_path / "a.txt").write_text(TEXT)
    sources = find_sources(str(tmp_path / "a.txt"))
    reports: list[tuple[str, float]] = []
    with listening(lambda *given: reports.append(given)):
        written(tmp_path / "out", sources, tokenizer_of("byte"), "stream")
    shares = [share for _, share in reports]
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert all(text.startswith(f"reading {tmp_path / 'a.txt'}: ") and text.endswith("MB/s") for text, _ in reports)
    written(tmp_path / "again", sources, tokenizer_of("byte"), "stream")
    assert len(reports) == len(shares)


def test_a_listener_that_cannot_write_does_not_stop_the_reading(tmp_path: Path, monkeypatch) -> None:
    in_this_process(monkeypatch)
    monkeypatch.setattr("seriatim.data.source_content.SECONDS", 0.0)
    (tmp_path / "a.txt").write_text(TEXT)
    calls = []

    def broken(text: str, share: float) -> None:
        calls.append(text)
        raise BrokenPipeError

    with listening(broken):
        written(tmp_path / "out", find_sources(str(tmp_path / "a.txt")), tokenizer_of("byte"), "stream")
    assert len(calls) == 1


def test_the_encoded_text_is_mapped_and_not_loaded(tmp_path: Path) -> None:
    sources = many_files(tmp_path / "texts")
    corpus = encode_corpus(sources, tokenizer_of("char"), unit="line")
    assert isinstance(corpus.ids, np.memmap)
    assert isinstance(corpus.ends, np.memmap)
    assert len(corpus.ends) == corpus.statistics.lines
