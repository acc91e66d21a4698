"""Vectors made elsewhere: what is wanted is kept whatever the format, and what is damaged is named."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from seriatim.data.vectors import read_vectors

from ..refusals import refused

WORDS = ["the", "café", ".", "12", ". . .", "the the", "3.5"]


def rows(words: list[str], matrix: np.ndarray, end: str = "\n") -> str:
    return "".join(f"{word} {' '.join(map(repr, row.tolist()))}{end}" for word, row in zip(words, matrix, strict=True))


def written(folder: Path, text: str, name: str = "v.txt") -> Path:
    path = folder / name
    raw = text.encode()
    path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return path


@pytest.fixture
def matrix() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(len(WORDS), 5)).astype(np.float32)


@pytest.mark.parametrize("name", ["v.txt", "v.vec.gz"])
@pytest.mark.parametrize("end", ["\n", " \n", "\r\n"])
def test_wanted_words_come_back_with_their_numbers(tmp_path: Path, matrix: np.ndarray, name: str, end: str) -> None:
    path = written(tmp_path, rows(WORDS, matrix, end), name)
    words, vectors = read_vectors(path, {*WORDS, "absent"})
    assert words == WORDS
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors, matrix)
    words, vectors = read_vectors(path, ["the the", "café"])
    assert words == ["café", "the the"]
    np.testing.assert_array_equal(vectors, matrix[[1, 5]])


def test_a_header_says_count_and_size(tmp_path: Path, matrix: np.ndarray) -> None:
    plain = [word for word in WORDS if " " not in word]
    kept = matrix[: len(plain)]
    words, vectors = read_vectors(written(tmp_path, f"{len(plain)} 5\n" + rows(plain, kept)), WORDS)
    assert words == plain
    np.testing.assert_array_equal(vectors, kept)


def test_the_first_of_two_rows_counts(tmp_path: Path, matrix: np.ndarray) -> None:
    words, vectors = read_vectors(written(tmp_path, rows(["a", "b", "a"], matrix[:3])), {"a"})
    assert words == ["a"]
    np.testing.assert_array_equal(vectors, matrix[:1])


def test_nothing_wanted_is_nothing_found(tmp_path: Path, matrix: np.ndarray) -> None:
    words, vectors = read_vectors(written(tmp_path, rows(WORDS, matrix)), set())
    assert words == []
    assert vectors.shape == (0, 5)


@pytest.mark.parametrize(
    ("text", "kind", "place"),
    [
        ("", "malformed", "v.txt:1"),
        ("word\n", "malformed", "v.txt:1"),
        ("3 2\n", "empty", "v.txt:1"),
        ("a 1.5 2.5\nb 1.5\n", "malformed", "v.txt:2"),
        ("a 1.5 2.5\nb\n", "malformed", "v.txt:2"),
        ("a 1.5 2.5\n\n", "malformed", "v.txt:2"),
        ("a 1.5 2.5\nb 1.5 2.5 3.5\n", "malformed", "v.txt:2"),
        ("1 2\nb c 1.5 2.5\n", "malformed", "v.txt:2"),
        ("a 1.5 2.5\nb 1.5 2,5\n", "malformed", "v.txt:2"),
        ("a 1.5 2.5\nb nan 2.5\n", "malformed", "v.txt:2"),
        ("a 1.5 2.5\nb 1 1e99\n", "malformed", "v.txt:2"),
        ("3 2\na 1.5 2.5\nb 1 2\n", "malformed", "v.txt:1"),
    ],
)
def test_what_is_damaged_is_named(tmp_path: Path, text: str, kind: str, place: str) -> None:
    with refused(kind, place) as raised:
        read_vectors(written(tmp_path, text), {"a", "b"})
    assert "; " in str(raised.value)
