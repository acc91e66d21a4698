"""Labelled text: what csv and json write is read back; what does not fit is named by file and line."""

import csv
import gzip
import io
import itertools
import json
import os
import random
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seriatim.core.errors import InputError
from seriatim.data.repairs import Repairs
from seriatim.data.sources import find_sources, standard_input
from seriatim.data.spellings import BLANKS
from seriatim.data.tables import Labelled, read_labelled

from ..refusals import refused

TEXT = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0\r"), max_size=20)
LABEL = TEXT.filter(lambda label: label.strip(BLANKS).strip() and "\n" not in label)
in_one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)


def written(folder: Path, content: bytes | str, name: str) -> str:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def read(spec: str, **options: Any) -> Iterator[Labelled]:
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
        with refused("malformed"):
            next(reader)


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        ("", "a.tsv", ":1: the file is empty"),
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
        ("", "a.txt", ":1: the file is empty"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, content: bytes | str, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        rows(written(tmp_path, content, name))
    assert "\n" not in str(caught.value)


def test_formats_that_cannot_be(tmp_path: Path) -> None:
    spec = written(tmp_path, "a\n", "a.txt")
    with refused("unknown", "tvs"):
        rows(spec, file_format="tvs")
    with refused("unsupported", "a.txt:1"):
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


QUOTED = {
    "all texts": ('text\tlabel\n"a b"\tx\n"c"\ty\n', [("a b", "x"), ("c", "y")]),
    "all labels": ('text\tlabel\na "b"\t"x"\n"c\t"y"\n', [('a "b"', "x"), ('"c', "y")]),
    "everything": ('"text"\t"label"\n"a b"\t"x"\n"c"\t"y"\n', [("a b", "x"), ("c", "y")]),
    "tabs and line ends": ('text\tlabel\n"a\tb\nc"\tx\n\n"d\r\n"\ty', [("a\tb\nc", "x"), ("d\n", "y")]),
    "doubled quotes": ('text\tlabel\n"a ""b"""\tx\n""\ty\n', [('a "b"', "x"), ("", "y")]),
    "single quotes within": ('text\tlabel\n"a "b" c"\tx\n"d"\ty\n', [('a "b" c', "x"), ("d", "y")]),
    "blanks around": ('text\tlabel\n "a ""b""" \tx\n\u00a0"c"\ty\n', [('a "b"', "x"), ("c", "y")]),
    "blanks around, in rows": ('text\tlabel\n"a\tb" \t "x"\n "c\n\nd"\t"y" \n', [("a\tb", "x"), ("c\n\nd", "y")]),
    "one column in rows": ('text\tlabel\n"a\tb"\tx\n"c\nd"\t y\n', [("a\tb", "x"), ("c\nd", " y")]),
    "other columns": ('id\ttext\tlabel\n"1\t"a"\tx\n2\t"b"\ty\n', [("a", "x"), ("b", "y")]),
    "rows whose lines fit": ('text\tlabel\n"a\tb\nc"\tx\n"d\te\nf"\ty\n', [("a\tb\nc", "x"), ("d\te\nf", "y")]),
    "CR": ('text\tlabel\r"a\rb"\tx\r"c"\ty\r', [("a\nb", "x"), ("c", "y")]),
}


@pytest.mark.parametrize("case", QUOTED)
@pytest.mark.parametrize("name", ["a.tsv", "a.txt", "a.tsv.gz"])
def test_a_column_of_tsv_that_is_quoted_throughout_is_read_so(tmp_path: Path, case: str, name: str) -> None:
    content, expected = QUOTED[case]
    spec = written(tmp_path, gzip.compress(content.encode()) if name.endswith("gz") else content, name)
    repairs = Repairs()
    assert [(row.text, row.label) for row in read(spec, repairs=repairs)] == expected
    fields = len(expected) * (2 if case in ("everything", "blanks around, in rows") else 1)
    assert [(each.line, each.count) for each in repairs if each.kind == "quoted fields"] == [(2, fields)]
    assert not [each for each in repairs.found() if each.kind == "quotes in TSV"]
    with refused("malformed"):
        rows(spec)
    if case != "all labels":
        assert [text for text, _ in rows_without_labels(spec)] == [text for text, _ in expected]


def rows_without_labels(spec: str, **options: str) -> list[tuple[str, int]]:
    return [(row.text, row.line) for row in read(spec, label=None, file_format="tsv", repairs=Repairs(), **options)]


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ('text\tlabel\n"a ""b"""\tx\nplain\ty\n', {2}),
        ('text\tlabel\nplain\tx\n"a"\ty\n', {3}),
        ('text\tlabel\na\t"x"\nb\ty\n', {2}),
        ('text\tlabel\n"a" b\tx\n"c"\ty\n', {3}),
        ('text\tlabel\n"a" or "b"\tx\n"c" or "d"\ty\n', {2}),
        ("text\tlabel\n'a'\tx\n'b'\ty\n", set()),
        ('text\tlabel\na "b" c\tx\n"d\ty\n"\tz\n', set()),
    ],
)
def test_other_quotes_of_tsv_are_kept_and_noted(tmp_path: Path, content: str, lines: set[int]) -> None:
    spec, repairs = written(tmp_path, content, "a.tsv"), Repairs(strict=True)
    found = [(row.text, row.label) for row in read(spec, repairs=repairs)]
    assert found == [tuple(line.split("\t")) for line in content.split("\n")[1:-1]]
    assert {each.line for each in repairs.found()} == lines
    assert all("--data.format csv" in each.message for each in repairs.found())


def test_quotes_around_some_fields_are_kept_in_rows_of_several_lines_too(tmp_path: Path) -> None:
    spec, repairs = written(tmp_path, 'text\tlabel\n"a\nb"\t"x"\n"c"\ty\n', "a.tsv"), Repairs()
    assert [(row.text, row.label) for row in read(spec, repairs=repairs)] == [("a\nb", '"x"'), ("c", "y")]
    assert [(each.kind, each.line, each.count) for each in repairs.found()] == [
        *(("quoted fields", 2, 2), ("quotes in TSV", 2, 1))
    ]


@pytest.mark.parametrize("seed", range(30))
def test_quoted_tables_are_read_as_csv_reads_them(tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    texts = ["".join(choose.choices(["a", '"', "\t", "\n", " ", "é"], k=choose.randrange(6))) for _ in range(5)]
    texts.append("a\t\tb")  # so that the lines are no rows of two fields
    content = io.StringIO()
    writer = csv.writer(content, delimiter="\t", quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerows([["text", "label"], *([text, "x"] for text in texts)])
    spec, repairs = written(tmp_path, content.getvalue(), "a.tsv"), Repairs()
    assert [row.text for row in read(spec, repairs=repairs)] == texts
    assert [each.count for each in repairs if each.kind == "quoted fields"] == [12]


@pytest.mark.parametrize("content", [content for content, _ in QUOTED.values()] + ['text\n"a"\nb\n', "text\na\n"])
def test_tsv_is_read_from_a_pipe_as_from_a_file(tmp_path: Path, content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    reading, writing = os.pipe()
    with open(reading) as pipe, open(writing, "wb") as end:
        end.write(content.encode())
        end.close()
        monkeypatch.setattr("sys.stdin", pipe)
        spec = written(tmp_path, content, "a.tsv")
        for sources in (find_sources(spec), [standard_input()]):
            repairs = Repairs()
            texts = [row.text for row in read_labelled(sources, file_format="tsv", label=None, repairs=repairs)]
            found.append((texts, [(each.kind, each.line, each.count, each.problem) for each in repairs.found()]))
    assert found[0] == found[1]


def test_quotes_in_a_pipe_of_which_more_is_to_come_are_kept_and_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with open(reading) as pipe, open(writing, "wb", buffering=0) as end:
        monkeypatch.setattr("sys.stdin", pipe)
        end.write(b'text\tlabel\n"a"\tx\n')
        repairs, (source,) = Repairs(strict=True), [standard_input()]
        rows = read_labelled([source], file_format="tsv", label=None, repairs=repairs)
        assert next(rows).text == '"a"'
        end.close()
        assert not list(rows)
    (found,) = repairs.found()
    assert (found.line, "--format csv" in found.message, "pipe" in found.message) == (2, True, True)


def test_the_remedy_for_quoted_lines_is_named_where_rows_do_not_fit(tmp_path: Path) -> None:
    spec = written(tmp_path, 'text\tlabel\n"one\ntwo"\tx\nplain\ty\n', "a.tsv")
    for label, remedy in (("label", "--data.format csv"), (None, "--format csv")):
        with pytest.raises(InputError, match=rf"a\.tsv:2: 1 field, .*{remedy}"):
            rows(spec, label=label)
    assert rows(spec, file_format="csv") == [("one\ntwo", "x"), ("plain", "y")]


def test_a_header_in_quotes_names_the_columns(tmp_path: Path) -> None:
    repairs = Repairs()
    spec = written(tmp_path, '"text"\t"label"\na\tx\n', "a.tsv")
    assert [(row.text, row.label) for row in read(spec, repairs=repairs)] == [("a", "x")]
    assert [(each.kind, each.line) for each in repairs] == [("spelling of the header", 1)]


def test_tables_are_read_from_a_pipe_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for content, file_format in (("label;text\nx;a,b\n", "csv"), ("label\ttext\nx\ta,b\n", "tsv")):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
        found = read_labelled([standard_input()], file_format=file_format, label=None)
        assert [row.text for row in found] == ["a,b"]


FASTTEXT = {
    "usual": ("__label__a b c\n__label__d e\n", [("b c", "a"), ("e", "d")]),
    "tabs": ("__label__a\tb c\n__label__d\te\tf\n", [("b c", "a"), ("e\tf", "d")]),
    "at the end": ("__label__x y\nb c __label__a\n", [("y", "x"), ("b c", "a")]),
    "between": ("__label__x y\nb __label__a c\n", [("y", "x"), ("b c", "a")]),
    "commas, and no text": ("__label__a , b\n__label__d,e\n__label__f\n", [(", b", "a"), ("", "d,e"), ("", "f")]),
    "unicode": ("__label__é-ß 猫\u00a0は\n__label__d\u3000e f\n", [("猫\u00a0は", "é-ß"), ("f", "d\u3000e")]),
    "all at the end": ("b c __label__a\ne\t__label__d \n", [("b c", "a"), ("e", "d")]),
    "twice the same": ("__label__a __label__a b\n", [("b", "a")]),
    "a word that contains it": ("__label__a b__label__c\n", [("b__label__c", "a")]),
    "CR and blank lines": ("__label__a b\r\r__label__d e\r", [("b", "a"), ("e", "d")]),
}


@pytest.mark.parametrize("case", FASTTEXT)
@pytest.mark.parametrize("name", ["a.txt", "train", "a.csv", "a.txt.gz"])
def test_lines_of_fasttext_are_recognized_and_read(tmp_path: Path, case: str, name: str) -> None:
    content, expected = FASTTEXT[case]
    spec = written(tmp_path, gzip.compress(content.encode()) if name.endswith("gz") else content, name)
    for file_format in ("auto", "fasttext"):
        for label in ("label", None):
            found = read(spec, file_format=file_format, label=label, repairs=Repairs())
            texts = [row.text for row in found if row.text or label or "\r\r" not in content]
            assert texts == [text for text, _ in expected]
    assert [(row.text, row.label) for row in read(spec, repairs=Repairs())] == expected


@pytest.mark.parametrize(
    ("content", "kind", "place"),
    [
        ("__label__a b\n__label__c __label__d e\n", "unsupported", "a.txt:2"),
        ("__label__a b\nc __label__d e __label__f\n", "unsupported", "a.txt:2"),
        ("__label__a b\nc d\n", "malformed", "a.txt:2"),
        ("__label__a b\n__label__ c\n", "malformed", "a.txt:2"),
        ("__label__a b\n\n", "malformed", "a.txt:2"),
    ],
)
def test_what_is_no_line_of_fasttext_with_one_label_is_named(
    tmp_path: Path, content: str, kind: str, place: str
) -> None:
    with refused(kind, place):
        rows(written(tmp_path, content, "a.txt"))


@pytest.mark.parametrize("content", ["b __label__a c\n__label__d e\n", "b\t__label__a c\ne __label__d\n"])
def test_a_label_of_fasttext_may_be_anywhere(tmp_path: Path, content: str) -> None:
    spec = written(tmp_path, content, "train")
    assert [(row.text, row.label) for row in read(spec)] == [("b c", "a"), ("e", "d")]
    assert [row.text for row in read(spec, label=None)] == content.splitlines()  # a text may speak of __label__x


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.txt", "a.tsv.gz"])
@pytest.mark.parametrize("content", ["", "\n", " \t\n", "\ntext\tlabel\na\tx\n"])
def test_a_file_without_a_first_line_is_called_that(tmp_path: Path, name: str, content: str) -> None:
    spec = written(tmp_path, gzip.compress(content.encode()) if name.endswith("gz") else content, name)
    with pytest.raises(InputError, match=r":1: the file is empty, or its first line is; "):
        rows(spec)


def test_a_column_in_a_remedy_can_be_pasted_into_a_shell(tmp_path: Path) -> None:
    for column in (" texts", "text's", "$text", "text 1"):
        spec = written(tmp_path, f"{column}\tlabel\na\tx\n", "a.tsv")
        with refused("missing", "a.tsv:1") as caught:
            rows(spec)
        assert shlex.split(str(caught.value).partition("--data.text ")[2], posix=True)[0] == column


def test_lines_of_fasttext_in_a_pipe_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"__label__a b\n")))
    with pytest.warns(UserWarning, match="<stdin>:1: looks like a line of fastText.*--format fasttext"):
        assert [row.text for row in read_labelled([standard_input()], label=None)] == ["__label__a b"]
