"""Standard input as it comes."""

import io
import os
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seriatim.core.errors import InputError
from seriatim.data.pipes import ready
from seriatim.data.sources import find_sources, standard_input
from seriatim.data.text import read_lines

from ..refusals import refused

FRAGMENTS = [b"a", b"\xc3\xa9", b"\xff", b"\0", b"\n", b"\r\n", b"\r", b"\t", b" ", b"\xef\xbb\xbf"]
HOSTILE = st.lists(st.sampled_from(FRAGMENTS) | st.binary(max_size=2), max_size=30).map(b"".join)
in_one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)


def from_stdin(content: bytes) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        return [line for lines in ready(read_lines([standard_input()]), 3) for line in lines]


@in_one_folder
@given(HOSTILE)
def test_standard_input_reads_as_a_file_does(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    try:
        expected = list(read_lines(find_sources(str(path))))
    except InputError:
        with refused("malformed"):
            from_stdin(content)
        return
    assert from_stdin(content) == expected


def test_a_byte_order_mark_that_arrives_alone_does_not_end_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with open(reading) as pipe, open(writing, "wb", buffering=0) as end:
        monkeypatch.setattr("sys.stdin", pipe)
        end.write(b"\xef\xbb\xbf")
        later = threading.Timer(0.2, lambda: (end.write(b"a\n"), end.close()))
        later.start()
        assert list(read_lines([standard_input()])) == ["a"]
        later.join()


def test_a_line_of_a_pipe_is_given_before_the_next_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with open(reading) as pipe, open(writing, "wb", buffering=0) as end:
        monkeypatch.setattr("sys.stdin", pipe)
        watch = threading.Timer(20, end.close)  # a reader that waits for more fails instead of hanging
        watch.start()
        end.write(b"first\n")
        source = standard_input()
        assert source.is_live
        found = ready(read_lines([source]), 8)
        assert next(found) == ["first"]
        for line in ("a", "", "longer than that", "b"):
            end.write(f"{line}\n".encode())
            assert next(found) == [line]
        assert not end.closed
        watch.cancel()
        end.close()
        assert list(found) == []


def test_standard_input_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def read(self, size: int) -> bytes:
            raise IsADirectoryError(21, "Is a directory")

    monkeypatch.setattr("sys.stdin", type("Stdin", (), {"buffer": Broken()}))
    with refused("unreadable", "<stdin>"):
        list(ready(read_lines([standard_input()]), 8))


def test_lists_hold_no_more_than_they_may_and_lose_nothing() -> None:
    lists = list(ready(iter(range(1000)), 7))
    assert max(map(len, lists)) <= 7
    assert [item for items in lists for item in items] == list(range(1000))
