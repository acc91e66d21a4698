"""One rule for every reader: what ends a line, and what bytes are that are no UTF-8 text."""

import bz2
import gzip
import io
import itertools
import json
import lzma
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seriatim.core.errors import InputError
from seriatim.data.conll import read_sentences, read_untagged
from seriatim.data.pairs import read_pairs, read_unpaired
from seriatim.data.repairs import Repairs
from seriatim.data.source_content import content_of, find_repairs
from seriatim.data.sources import find_sources, standard_input
from seriatim.data.tables import read_labelled
from seriatim.data.text import read_chunks, read_items, read_lines
from seriatim.data.vectors import read_vectors
from seriatim.evaluation.minimal_pairs import read_pairs as read_minimal_pairs
from seriatim.runs.generation import read_prompts
from seriatim.tasks.data_files import end_split, line_split

from ..refusals import refused

Reader = Callable[[str, Repairs], Any]
WORDS = ["Anna", "ruft", "sehr", "laut", "schön", "猫", "a\u2028b", "a\x0cb", "x"]
LABELS = "AB" * 4 + "A"


def objects(*fields: str) -> list[str]:
    return [json.dumps({name: f"{word} {name}" for name in fields}, ensure_ascii=False) for word in WORDS]


def of(read: Callable, **options: Any) -> Reader:
    return lambda path, repairs: list(read(find_sources(path), repairs=repairs, **options))


def parallel(path: str, repairs: Repairs) -> Any:
    right = Path(path).with_name("right")
    right.write_text("y\n" * len(WORDS))
    return list(read_pairs(f"{path},{right}", repairs=repairs))


READERS: dict[str, tuple[list[str], str, Reader]] = {
    "pieces": (WORDS, "a.txt", lambda *given: "".join(chunk.text for chunk in of(read_chunks)(*given)).strip()),
    "lines": (WORDS, "a.txt", of(read_lines)),
    "items": (WORDS, "a.txt", of(read_items)),
    "items of JSONL": (objects("text"), "a.jsonl", of(read_items)),
    "running text of JSONL": (objects("text"), "a.jsonl", of(read_chunks)),
    "texts": (WORDS, "a.txt", of(read_labelled, label=None)),
    "TSV": (["label\ttext", *map("\t".join, zip(LABELS, WORDS, strict=True))], "a.tsv", of(read_labelled)),
    "CSV": (["label,text", *map('{},"{}, so"'.format, LABELS, WORDS)], "a.csv", of(read_labelled)),
    "labelled JSONL": (objects("text", "label"), "a.jsonl", of(read_labelled)),
    "pairs": (
        [f"{word}\t{word} too" for word in WORDS],
        "a.tsv",
        lambda *given: list(read_pairs(given[0], repairs=given[1])),
    ),
    "pairs of JSONL": (
        objects("source", "target"),
        "a.jsonl",
        lambda *given: list(read_pairs(given[0], repairs=given[1])),
    ),
    "parallel files": (WORDS, "a.txt", parallel),
    "sources": (WORDS, "a.txt", of(read_unpaired)),
    "columns": ([f"{word}\tO" if word != "laut" else "" for word in WORDS], "a.conll", of(read_sentences)),
    "CoNLL-U": ([f"{i}\t{word}" + "\tX" * 8 for i, word in enumerate(WORDS, 1)], "a.conllu", of(read_sentences)),
    "sentences": (WORDS, "a.txt", of(read_untagged)),
    "prompts": (WORDS, "a.txt", lambda path, repairs: list(read_prompts(path, "auto", repairs))),
    "minimal pairs": (objects("sentence_good", "sentence_bad"), "a.jsonl", of(read_minimal_pairs)),
    "vectors": (
        [f"{word} 1.5 2.5" for word in WORDS],
        "a.vec",
        lambda path, repairs: [
            part if isinstance(part, list) else part.tolist() for part in read_vectors(path, WORDS, repairs)
        ],
    ),
}


def joined(lines: list[str], ends: list[str]) -> bytes:
    return "".join(map("".join, zip(lines, ends, strict=True))).encode()


@pytest.fixture(params=[1 << 20, 5], ids=["at once", "in pieces"])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The number of bytes that are read at once: few let a line end fall on a border."""
    monkeypatch.setattr("seriatim.data.text.CHUNK_BYTES", request.param)
    monkeypatch.setattr("seriatim.data.text.LINE_BYTES", request.param)
    return request.param


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("packed", ["", ".gz"])
def test_lf_crlf_and_cr_end_a_line_for_every_reader(tmp_path: Path, name: str, packed: str, pieces: int) -> None:
    lines, file, read = READERS[name]
    path, draw = tmp_path / (file + packed), random.Random(name)
    write = gzip.compress if packed else bytes
    path.write_bytes(write(joined(lines, ["\n"] * len(lines))))
    expected = read(str(path), Repairs(strict=True))
    for ends in (["\r\n"], ["\r"], draw.choices(["\n", "\r\n", "\r"], k=5), ["\r", "\r", "\n"]):
        several = list(itertools.islice(itertools.cycle(ends), len(lines)))
        for last in (several[-1], ""):
            content, repairs = joined(lines, [*several[:-1], last]), Repairs()
            path.write_bytes(write(content))
            assert read(str(path), repairs) == expected
            returns = content.count(b"\r") - content.count(b"\r\n")
            first = content.replace(b"\r\n", b"\n").partition(b"\r")[0].count(b"\n") + 1
            found = [(each.kind, each.line, each.count) for each in repairs.found()]
            assert found == ([("CR line ends", first, returns)] if returns else [])
            if returns:
                with refused("malformed", f":{first}"):
                    read(str(path), Repairs(strict=True))


def test_blank_lines_between_mac_line_ends_are_lines(tmp_path: Path, pieces: int) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"a\r\rb\r\n\r\n\rc\n\rd")
    assert list(read_lines(find_sources(str(path)))) == ["a", "", "b", "", "", "c", "", "d"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
        assert list(read_lines([standard_input()])) == ["a", "", "b", "", "", "c", "", "d"]


def test_no_other_character_ends_a_line(tmp_path: Path, pieces: int) -> None:
    text = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\x1dh\x1ei"
    path = tmp_path / "a.txt"
    path.write_text(f"{text}\n{text}")
    for read in (read_lines, read_items, read_unpaired, read_untagged):
        assert list(read(find_sources(str(path)))) == [text, text]


def test_escaped_line_ends_of_json_are_those_of_a_file(tmp_path: Path) -> None:
    path, repairs = tmp_path / "a.jsonl", Repairs()
    path.write_text('{"text": "a"}\n{"text": "b\\rc\\r\\nd\\ne\\r"}\n')
    assert list(read_items(find_sources(str(path)), repairs)) == ["a", "b\nc\nd\ne\n"]
    assert [(each.line, each.count) for each in repairs] == [(2, 2)]


@pytest.mark.parametrize("unit", ["lines", "end"])
def test_parts_and_their_digests_are_those_of_a_file_with_lf(tmp_path: Path, unit: str, pieces: int) -> None:
    """A held-out part is cut where a line ends, and a text has one digest whatever ends its lines in one byte."""
    text, found = "".join(f"line {i} of the text\n" for i in range(200)), []
    for name, end in (("a.txt", "\n"), ("b.txt", "\r")):
        (tmp_path / name).write_bytes(text.replace("\n", end).encode())
        (source,) = find_sources(str(tmp_path / name))
        sides = [
            [line_split(source, 0.2, held_out=side)] if unit == "lines" else end_split([source], 0.2, held_out=side)
            for side in (False, True)
        ]
        found.append([(list(read_lines(side)), content_of(side)) for side in sides])
    assert found[0] == found[1]
    assert sorted(found[0][0][0] + found[0][1][0]) == sorted(text.split("\n")[:-1])


def test_marks_of_joined_files_are_dropped_where_a_line_begins(tmp_path: Path, pieces: int) -> None:
    path, repairs = tmp_path / "a.txt", Repairs()
    path.write_text("\ufeffone\n\ufefftwo \ufeff x\n\ufeff\ufeffthree\n\ufeff")
    assert list(read_lines(find_sources(str(path)), repairs)) == ["one", "two \ufeff x", "three"]
    assert [(each.kind, each.line, each.count) for each in repairs] == [("byte-order marks", 2, 4)]
    (tmp_path / "b.txt").write_text("\ufefffour\n")
    assert list(read_lines(find_sources(str(tmp_path)), Repairs(strict=False)))[-1] == "four"
    with refused("malformed", "a.txt:2"):
        list(read_lines(find_sources(str(path)), Repairs(strict=True)))


@pytest.mark.parametrize("name", READERS)
def test_control_characters_are_noted_and_kept_by_every_reader(tmp_path: Path, name: str) -> None:
    lines, file, read = READERS[name]
    path, expected = tmp_path / file, None
    for letters in ("ö–", "ö\x96"):
        several = [line.replace("schön", f"sch{letters}n").replace("猫", f"{letters[1]}…") for line in lines]
        path.write_text("\n".join(several))
        repairs = Repairs(strict=True)
        found = repr(read(str(path), repairs))
        expected = expected or found
        if name != "vectors":
            assert found.replace("\\x96", "–") == expected
        notes = [(each.kind, each.count >= 2, several[each.line - 1].count("\x96")) for each in repairs.found()]
        assert [(kind, twice, bool(count)) for kind, twice, count in notes] == (
            [("C1 control characters", True, True)] if "\x96" in letters else []
        )


ENCODINGS = {
    "utf-16": (r":1: UTF-16, ", "iconv -f UTF-16 "),
    "utf-16-le": (r":1: UTF-16 without", "iconv -f UTF-16LE "),
    "utf-16-be": (r":1: UTF-16 without", "iconv -f UTF-16BE "),
    "utf-32": (r":1: UTF-32, ", "iconv -f UTF-32 "),
    "utf-32-le": (r":1: UTF-32 without", "iconv -f UTF-32LE "),
    "utf-32-be": (r":1: UTF-32 without", "iconv -f UTF-32BE "),
}
TEXTS = ["a cat\nsees a dog\n", "Это не всё.\r\nДа\r\n", "猫は好きです。\n犬も好きです。\n", "🙂 so\n", "Größe\tA\n"]


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_wide_encodings_are_named_by_every_reader(tmp_path: Path, name: str, encoding: str) -> None:
    lines, file, read = READERS[name]
    for text in ("\n".join(lines), *TEXTS):
        (tmp_path / file).write_bytes(text.encode(encoding))
        for strict in (False, True):
            with pytest.raises(InputError, match=r"a\.[a-z]+" + ENCODINGS[encoding][0]) as caught:
                read(str(tmp_path / file), Repairs(strict=strict))
            assert ENCODINGS[encoding][1] in str(caught.value)


@pytest.mark.parametrize(
    ("content", "kind", "place"),
    [
        (b"ok\ncaf\xe9\n", "malformed", "a.txt:2"),
        (b"ok\nsch\xf6n \x96 gut\n", "malformed", "a.txt:2"),
        (b"caf\xe9\n" + b"a\n" * 9 + b"\x93so\x94\n", "malformed", "a.txt:1"),
        (b"caf\xe9", "malformed", "a.txt:1"),
        ("é è\n猫".encode()[:-1], "malformed", "a.txt:2"),
        ("é è\n".encode() + b"caf\xe9\n" + "é\n".encode(), "malformed", "a.txt:2"),
        (b"ok\n" + b"caf\xe9\n" + "é à è\n".encode(), "malformed", "a.txt:2"),
        (b"\x80" * 40, "malformed", "a.txt:1"),
        (b"caf\xe9 \x96\n" * 9 + b"\x9d\n", "malformed", "a.txt:1"),
        ("日本語。\n".encode("shift-jis") * 3, "malformed", "a.txt:1"),
        ("é è\n".encode() + b"a\x81b\n", "malformed", "a.txt:2"),
        (b"ok\n\nb\0d\n", "malformed", "a.txt:3"),
        (b"text\0", "malformed", "a.txt:1"),
        (b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0>\0\x01\0\0\0", "malformed", "a.txt:1"),
        (b"\0" * 100, "malformed", "a.txt:1"),
    ],
)
def test_other_bytes_are_named_with_the_remedy(
    tmp_path: Path, content: bytes, kind: str, place: str, pieces: int
) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    for read in (of(read_lines), of(read_items), of(read_unpaired), of(read_labelled, label=None)):
        with refused(kind, place):
            read(str(tmp_path / "a.txt"), Repairs())


NUL_TEXTS = [
    "a cat\nsees a dog\n" * 30,
    "so\n" * 5,
    "Größe\tA\n" * 9,
    "ab" * 40,
    "Это не всё.\n" * 20,
    "猫は好きです。\n" * 20,
]


@pytest.mark.parametrize("text", NUL_TEXTS)
def test_nul_bytes_in_utf8_are_no_other_encoding(tmp_path: Path, text: str, pieces: int) -> None:
    choose, path = random.Random(text), tmp_path / "a.txt"
    for count in [1, 1, 1, 1, 2, 2, 3, 3, 3]:
        damaged = text.encode()
        places = sorted(choose.choices([i for i, c in enumerate(text) if c == "\n"] or range(len(text)), k=count))
        for place in reversed([len(text[:place].encode()) for place in places]):
            damaged = damaged[:place] + b"\0" + damaged[place + choose.randrange(2) :]
        path.write_bytes(damaged)
        line = damaged[: damaged.index(b"\0")].count(b"\n") + 1
        with refused("malformed", f":{line}"):
            list(read_lines(find_sources(str(path))))


CONTAINERS = {
    "gzip": (gzip.compress(b"a\tb\n" * 9), "gunzip"),
    "bzip2": (bz2.compress(b"a\tb\n" * 9), "bunzip2"),
    "bzip2 of nothing": (bz2.compress(b""), "bunzip2"),
    "xz": (lzma.compress(b"a\tb\n" * 9), "unxz"),
    "Zstandard": (b"\x28\xb5\x2f\xfd\x24\x03\x19\0\0a\tb", "unzstd"),
    "ZIP": (b"PK\x03\x04\x14\0\0\0\x08\0", "TSV or CSV"),
    "Office": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 16, "TSV or CSV"),
    "PDF": (b"%PDF-1.4\n%\xe2\xe3\n1 0 obj\n", "pdftotext"),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("kind", CONTAINERS)
def test_files_that_are_no_text_are_named_by_every_reader(tmp_path: Path, name: str, kind: str) -> None:
    _, file, read = READERS[name]
    (tmp_path / file).write_bytes(CONTAINERS[kind][0])
    for strict in (False, True):
        with pytest.raises(
            InputError, match=rf"a\.[a-z]+:1: a.* {kind.split()[0]}.* not text; .*{CONTAINERS[kind][1]}"
        ):
            read(str(tmp_path / file), Repairs(strict=strict))


@pytest.mark.parametrize("text", ["BZh\n", "PK\n", "%PDF\n", "%PDF-1 is\n", "B", "7z is a program\n"])
def test_texts_that_begin_alike_are_texts(tmp_path: Path, text: str, pieces: int) -> None:
    (tmp_path / "a.txt").write_text(text)
    assert list(read_lines(find_sources(str(tmp_path / "a.txt")))) == [text.strip()]


def test_running_text_is_examined_once_for_all_defects(tmp_path: Path) -> None:
    path, repairs = tmp_path / "a.txt", Repairs()
    path.write_bytes("one\rtwo\n\ufeffthree \x80\n".encode())
    find_repairs(find_sources(str(path)), repairs)
    assert {each.kind: (each.line, each.count) for each in repairs.found()} == {
        "CR line ends": (1, 1),
        "byte-order marks": (3, 1),
        "C1 control characters": (3, 1),
    }
    assert [each["kind"] for each in repairs.facts()["repairs"]] == ["CR line ends", "byte-order marks"]
    with refused("malformed", "a.txt:1"):
        find_repairs(find_sources(str(path)), Repairs(strict=True))
