"""Labelled text: what csv and json write is read back; what does not fit is named by file and line."""

import csv
import gzip
import io
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seriatim.core.errors import InputError
from seriatim.data.readers import find_sources
from seriatim.data.tables import Labelled, read_labelled

TEXT = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0\r"), max_size=20)
LABEL = TEXT.filter(lambda label: label.strip() and "\n" not in label)
in_one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)


def written(folder: Path, content: bytes | str, name: str) -> str:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def read(spec: str, **options: str | None) -> Iterator[Labelled]:
    return read_labelled(find_sources(spec), **options)


def rows(spec: str, **options: str | None) -> list[tuple[str, str]]:
    return [(row.text, row.label) for row in read(spec, **options)]


@in_one_folder
@given(st.lists(st.tuples(TEXT, LABEL), min_size=1))
def test_what_csv_writes_is_read_back(tmp_path: Path, given_rows: list[tuple[str, str]]) -> None:
    out = io.StringIO()
    csv.writer(out).writerows([("text", "label"), *given_rows])
    spec = written(tmp_path, out.getvalue(), "a.csv")
    assert rows(spec) == given_rows
    lines = out.getvalue().split("\n")
    for row in read(spec):  # a row is called by the line on which it begins
        begins = row.text.replace('"', '""').split("\n")[0]
        assert lines[row.line - 1].removeprefix('"').startswith(begins)


@in_one_folder
@given(st.lists(st.tuples(TEXT, LABEL), min_size=1))
def test_what_json_writes_is_read_back(tmp_path: Path, given_rows: list[tuple[str, str]]) -> None:
    content = "".join(json.dumps({"label": label, "text": text, "n": 1}) + "\n" for text, label in given_rows)
    assert rows(written(tmp_path, content, "a.jsonl")) == given_rows


@in_one_folder
@given(st.lists(st.tuples(TEXT, LABEL), min_size=1))
def test_tab_separated_fields_are_taken_as_they_stand(tmp_path: Path, given_rows: list[tuple[str, str]]) -> None:
    clean = [tuple(field.translate({9: " ", 10: " "}) for field in row) for row in given_rows]
    clean = [(text, label) for text, label in clean if label.strip()]
    content = "".join(f"{label}\t{text}\n" for text, label in [("text", "label"), *clean, ('"it', 'a"')])
    assert rows(written(tmp_path, content, "a.tsv")) == [*clean, ('"it', 'a"')]


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_marks_line_ends_and_columns_in_any_order(tmp_path: Path, ending: str, mark: str) -> None:
    for separator, name in (("\t", "a.tsv"), (",", "a.csv")):
        table = [("id", "label", "text"), ("1", "yes", " a b "), ("2", "no", "")]
        spec = written(tmp_path, mark + ending.join(separator.join(row) for row in table), name)
        assert list(read(spec)) == [Labelled(" a b ", "yes", spec, 2), Labelled("", "no", spec, 3)]
        assert rows(spec, text="label", label="id") == [("yes", "1"), ("no", "2")]
        assert rows(spec, label=None) == [(" a b ", ""), ("", "")]


def test_auto_goes_by_the_name_then_by_the_first_line(tmp_path: Path) -> None:
    tsv, table, objects = "label\ttext\nx\ta,b\n", 'label,text\nx,"a,b"\n', '{"label": "x", "text": "a,b"}\n'
    contents = {"a.tsv": tsv, "b.csv": table, "c.jsonl": objects, "d.ndjson": objects, "e": tsv, "f": objects}
    for name, content in contents.items():
        assert rows(written(tmp_path, content, name)) == [("a,b", "x")]
        assert rows(written(tmp_path, gzip.compress(content.encode()), name + ".gz")) == [("a,b", "x")]
    assert rows(written(tmp_path, table, "g"), file_format="csv") == [("a,b", "x")]
    assert next(read_labelled(find_sources(str(tmp_path / "g"), file_format="csv"))).label == "x"


def test_plain_lines_are_texts_without_labels(tmp_path: Path) -> None:
    spec = written(tmp_path, "{one\n\ntwo\tthree\n", "a.txt")
    expected = [("{one", ""), ("", ""), ("two\tthree", "")]
    assert rows(spec, label=None) == rows(spec, label=None, file_format="text") == expected
    assert rows(written(tmp_path, "", "b.txt"), label=None) == []
    assert rows(written(tmp_path, "text\n", "b.tsv"), label=None) == []
    assert rows(written(tmp_path, "text\n\nx\n", "b.csv"), label=None) == [("", ""), ("x", "")]


def test_labels_of_json_are_as_json_writes_them(tmp_path: Path) -> None:
    values = ["a", 3, -1, True, False]
    content = "".join(json.dumps({"text": "", "label": value}) + "\n" for value in values)
    assert [label for _, label in rows(written(tmp_path, content, "a.jsonl"))] == ["a", "3", "-1", "true", "false"]


def test_rows_come_one_by_one(tmp_path: Path) -> None:
    for content, name in (("label\ttext\nx\ta\nb\n", "a.tsv"), ("label,text\nx,a\nb\n", "a.csv")):
        reader = read(written(tmp_path, content, name))
        assert next(reader).text == "a"
        with pytest.raises(InputError, match=r":3: 1 field, but the header has 2"):
            next(reader)


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        ("", "a.tsv", ":1: no column 'text' in the header, which has nothing"),
        ("label\ttxt\n", "a.tsv", ":1: no column 'text'.*'label', 'txt'; did you mean 'txt'"),
        ("good film\tpos\n", "a.tsv", ":1: no column 'text'.*name the column with --data.text NAME"),
        ("kind;text\nx;a\n", "a.csv", ":1: no column 'label' in the header, which has 'kind', 'text'; .*--data.label"),
        ('{"words": "a", "label": "x"}\n', "a.jsonl", ':1: no string field "text".*--data.text'),
        ('{"text": "a"}\n', "a.jsonl", ':1: no string field "label".*--data.label'),
        ("text\ttext\tlabel\na\tb\tc\n", "a.tsv", ":1: the header names 'text' more than once"),
        ("text\tlabel\n", "a.tsv", ":1: no rows"),
        ("text,label\n", "a.csv", ":1: no rows"),
        ("", "a.jsonl", ":1: no rows"),
        ("text\tlabel\na\tx\nb\n", "a.tsv", ":3: 1 field, but the header has 2"),
        ("text\tlabel\na\tx\ty\n", "a.tsv", ":2: 3 fields, but the header has 2"),
        ('text,label\n"a\nb",x\na,x,y\n', "a.csv", ":4: 3 fields"),
        ("text\tlabel\na\t\n", "a.tsv", ":2: the label is empty"),
        ("text,label\na, \n", "a.csv", ":2: the label is empty"),
        ('{"text": "a", "label": ""}', "a.jsonl", ":1: the label is empty"),
        ('{"text": "a", "label": "b\\nc"}', "a.jsonl", ":1: a line end in the label"),
        ('{"text": "a"}', "a.jsonl", ':1: no string field "label"'),
        ('{"text": "a", "label": 1.5}', "a.jsonl", ':1: no string field "label"'),
        ('{"text": "a", "label": null}', "a.jsonl", ':1: no string field "label"'),
        ('{"text": 1, "label": "x"}', "a.jsonl", ':1: no string field "text"'),
        ('{"text": "a", "label": "x"}\n[]', "a.jsonl", ":2: not an object"),
        ('{"text": "a", "label": "x"}\n\n', "a.jsonl", ":2: an empty line"),
        ('{"text": "a\\u0000", "label": "x"}', "a.jsonl", ":1: a NUL"),
        ('{"text": "a", "label": "\\ud800"}', "a.jsonl", ":1: half of a surrogate"),
        ("text\tlabel\na\tx\0\n", "a.tsv", ":2: a NUL"),
        (b"text\tlabel\n\xe9\tx\n", "a.tsv", ":2: not UTF-8"),
        (
            'text,label\na,x\n"b\nc,x\nd,x\n',
            "a.csv",
            ":3: the row that begins here is not CSV.*put quotes around",
        ),
        ('text,label\n"b"c,x\n', "a.csv", ":2: the row that begins here is not CSV"),
        ('"text,label\n', "a.csv", ":1: the row that begins here is not CSV"),
        (f"text,label\n{'a' * 140_000},x\n", "a.csv", ":2: the row that begins here is not CSV.*131,072"),
        ("a line\n", "a.txt", ":1: neither a header with tabs nor JSON"),
        ("", "a.txt", ":1: neither a header with tabs nor JSON"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, content: bytes | str, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        rows(written(tmp_path, content, name))
    assert "\n" not in str(caught.value)


def test_formats_that_cannot_be(tmp_path: Path) -> None:
    spec = written(tmp_path, "a\n", "a.txt")
    with pytest.raises(InputError, match="did you mean 'tsv'"):
        rows(spec, file_format="tvs")
    with pytest.raises(InputError, match=r"a\.txt:1: lines of text have no labels"):
        rows(spec, file_format="text")


FRAGMENTS = [
    *(b"text", b"label", b"\t", b",", b'"', b"\n", b"\r", b"x"),
    *(b"\0", b"\xff", b'{"text": "', b"}", b"\xc2\x85"),
]
HOSTILE = st.lists(st.sampled_from(FRAGMENTS) | st.binary(max_size=3), max_size=30).map(b"".join)


@pytest.mark.filterwarnings("ignore:.*looks like the header")
@in_one_folder
@given(HOSTILE, st.booleans())
def test_any_bytes_are_read_or_refused_by_line(tmp_path: Path, content: bytes, headed: bool) -> None:
    spec = written(tmp_path, b"text\tlabel\n" * headed + content, "a")
    for file_format, label in itertools.product(("auto", "tsv", "csv", "jsonl"), ("label", None)):
        message = ""
        try:
            for row in read(spec, file_format=file_format, label=label):
                assert row.label.strip() or label is None
        except InputError as error:
            message = str(error).removeprefix(spec)
        assert re.fullmatch(r"|:\d+: .+", message)
        assert len(message.splitlines()) < 2


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("name", ["a.csv", "A.CSV"])
def test_the_header_says_what_separates_the_fields_of_csv(tmp_path: Path, separator: str, name: str) -> None:
    rows = [("id", "label", "text"), ("1", "x", f'"a{separator} ""b"" "'), ("2", "y", '"two\nlines"'), ("3", "z", "")]
    spec = written(tmp_path, "".join(separator.join(row) + "\n" for row in rows).encode(), name)
    found = [(row.label, row.text) for row in read(spec)]
    assert found == [("x", f'a{separator} "b" '), ("y", "two\nlines"), ("z", "")]
    assert [row.text for row in read(spec, label=None)] == [text for _, text in found]


def test_a_comma_in_a_header_of_semicolons_is_part_of_a_name(tmp_path: Path) -> None:
    spec = written(tmp_path, b"label;text;a, b\nx;one, two;three\n", "a.csv")
    assert [(row.label, row.text) for row in read(spec)] == [("x", "one, two")]


@pytest.mark.parametrize(
    ("content", "what", "name"),
    [
        (b"label\ttext\nx\ta\n", "the header of a table", "tsv"),
        (b"label,text\nx,a\n", "the header of a table", "csv"),
        (b'{"text": "a"}\n{"text": "b"}\n', "an object of JSONL", "jsonl"),
    ],
)
def test_plain_lines_that_look_like_a_table_are_warned_of(tmp_path: Path, content: bytes, what: str, name: str) -> None:
    spec = written(tmp_path, content, "a.txt")
    with pytest.warns(UserWarning, match=rf"a\.txt:1: looks like {what}.*--format {name} to read"):
        assert len(list(read(spec, label=None))) == 2


@pytest.mark.parametrize("line", [b"the text, and more", b"{text", b"[1]", b"{" * 9999, b'{"other": 1}', b"text"])
def test_other_lines_are_texts(tmp_path: Path, line: bytes) -> None:
    assert [row.text for row in read(written(tmp_path, line + b"\n", "a.txt"), label=None)] == [line.decode()]
