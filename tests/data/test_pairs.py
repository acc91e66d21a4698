"""Pairs of texts: three ways to write them read the same; what has no partner is named by file and line."""

import gzip
import json
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from seriatim.cli.main import main
from seriatim.core.errors import InputError
from seriatim.data.pairs import Pair, read_pairs, read_unpaired
from seriatim.data.repairs import Repairs
from seriatim.data.sources import find_sources

from ..refusals import refused

TEXT = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0\r\n\t"), max_size=20)
in_one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)


def written(folder: Path, content: bytes | str, name: str) -> str:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def pairs(spec: str, **options) -> list[tuple[str, str]]:
    return [(pair.source, pair.target) for pair in read_pairs(spec, **options)]


@in_one_folder
@given(st.lists(st.tuples(TEXT, TEXT), min_size=1), st.sampled_from(["\n", "\r\n"]))
def test_three_ways_to_write_pairs_read_the_same(tmp_path: Path, wanted: list[tuple[str, str]], ending: str) -> None:
    # A column of fields in quotes is one of a table in CSV, which is read without them.
    assume(not any(field[:1] == field[-1:] == '"' for pair in wanted for field in pair))
    tabs = "".join(f"{source}\t{target}{ending}" for source, target in wanted)
    objects = "".join(json.dumps({"source": s, "target": t}) + ending for s, t in wanted)
    assert pairs(written(tmp_path, tabs, "a.tsv")) == wanted
    assert pairs(written(tmp_path, tabs, "a.txt"), file_format="tsv") == wanted
    assert pairs(written(tmp_path, objects, "a.jsonl")) == wanted
    sides = [written(tmp_path, "".join(pair[i] + ending for pair in wanted), f"a.{i}") for i in (0, 1)]
    assert pairs(",".join(sides)) == wanted


def test_pairs_know_where_they_stand(tmp_path: Path) -> None:
    spec = written(tmp_path, "a\tb\n\tc\n d \t", "a.tsv")
    assert list(read_pairs(spec)) == [Pair("a", "b", spec, 1), Pair("", "c", spec, 2), Pair(" d ", "", spec, 3)]
    left, right = written(tmp_path, "a\n\n", "a.en"), written(tmp_path, gzip.compress(b"\nb"), "a.de.gz")
    assert list(read_pairs(f"{left},{right}")) == [Pair("a", "", left, 1), Pair("", "b", left, 2)]


def test_auto_looks_at_the_first_line(tmp_path: Path) -> None:
    assert pairs(written(tmp_path, '{"source": "a", "target": "b"}\n', "a")) == [("a", "b")]
    assert pairs(written(tmp_path, "{a\tb\n", "a")) == [("{a", "b")]
    assert pairs(written(tmp_path, "a\tb\n", "a,b")) == [("a", "b")]  # a name with a comma is one file, if it is there


@pytest.mark.parametrize(
    ("content", "name", "kind", "place"),
    [
        ("a\tb\nc\n", "a.tsv", "malformed", "a.tsv:2"),
        ("a\tb\tc\n", "a.tsv", "malformed", "a.tsv:1"),
        ("a line\n", "a.txt", "malformed", "a.txt:1"),
        ("source\ttarget\na\tb\n", "a.tsv", "malformed", "a.tsv:1"),
        ("Source\tTARGET \na\tb\n", "a.tsv", "malformed", "a.tsv:1"),
        ("", "a.tsv", "empty", "a.tsv:1"),
        ("", "a.jsonl", "empty", "a.jsonl:1"),
        ('{"source": "a"}\n', "a.jsonl", "missing", "a.jsonl:1"),
        ('{"source": 1, "target": ""}\n', "a.jsonl", "missing", "a.jsonl:1"),
        ("a\tb\nc\0\td\n", "a.tsv", "malformed", "a.tsv:2"),
        ("text,label\n", "a.csv", "unsupported", "a.csv:1"),
    ],
)
def test_what_is_no_pair_is_named(tmp_path: Path, content: str, name: str, kind: str, place: str) -> None:
    with refused(kind, place):
        pairs(written(tmp_path, content, name))


@pytest.mark.parametrize("more", [1, 3])
def test_parallel_files_of_unequal_length(tmp_path: Path, more: int) -> None:
    short, long = written(tmp_path, "a\nb\n", "short"), written(tmp_path, "a\nb\n" + "c\n" * more, "long")
    message = rf"long:3: no partner in .*short; the files have {2 + more} and 2 lines"
    for spec in (f"{short},{long}", f"{long},{short}"):
        with pytest.raises(InputError, match=message):
            pairs(spec)


def test_parallel_files_that_are_not_there(tmp_path: Path) -> None:
    spec = written(tmp_path, "a\n", "a")
    for wrong, message in (
        (f"{spec},{spec}2", "a2: no such file"),
        (f"{spec},", "is empty; give SOURCES"),
        (f"{spec},{'b' * 300}", "not the name of a file|no such file"),
        (f"{spec},{spec},{spec}", "no such file"),
    ):
        with pytest.raises(InputError, match=message):
            pairs(wrong)
    written(tmp_path, "b\n", "b")
    with refused("mismatch", "*"):
        pairs(f"{spec},{tmp_path}/*")
    with refused("empty", "c:1"):
        pairs(f"{written(tmp_path, '', 'c')},{tmp_path}/c")
    with refused("unknown", "json"):
        pairs(spec, file_format="json")
    with refused("mismatch", "builtin:copy"):
        pairs("builtin:copy")


def test_more_columns_than_two_are_refused_with_an_example_of_a_pair(tmp_path: Path) -> None:
    lines = {"go\twent\tV;PST\n": 3, "go\twent\tV\tPST\t\n": 4, "go\t\twent\n": 3}
    for line, columns in lines.items():
        message = rf"a\.tsv:1: {columns} columns, but a pair has 2; write SOURCE<TAB>TARGET, for example the lemma and"
        with pytest.raises(InputError, match=message):
            pairs(written(tmp_path, line, "a.tsv"))


@pytest.mark.parametrize(
    ("content", "name", "line", "kind"),
    [
        ("a\tb\n\nc\td\n", "a.tsv", 2, "blank lines"),
        ("a\tb\n \u00a0\nc\td\n", "a.tsv", 2, "blank lines"),
        ("a\tb\nc\td\t\t \n", "a.tsv", 2, "trailing separators"),
        ('{"source": "a", "target": "b"}\n{"source": "c", "target": "d"}\n\n', "a.jsonl", 3, "blank lines"),
    ],
)
def test_a_defect_with_one_meaning_is_repaired_and_named(
    tmp_path: Path, content: str, name: str, line: int, kind: str
) -> None:
    repairs, path = Repairs(), written(tmp_path, content, name)
    assert pairs(path, repairs=repairs) == [("a", "b"), ("c", "d")]
    assert [(each.kind, each.line, each.count) for each in repairs] == [(kind, line, 1)]
    with refused("malformed", f"{name}:{line}"):
        pairs(path)
    repairs = Repairs()
    answered = [text for text in read_unpaired(find_sources(path), repairs=repairs) if text.strip()]
    assert answered == ["a", "c"]


def test_every_verb_reads_the_same_pairs_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, run = written(tmp_path, "\ufeffa b\tb a\t\r\n\r\nc d\td c\r\nb\tb", "odd.tsv"), str(tmp_path / "run")
    sizes = ["--layer", "window", "--embedding_size", "4", "--hidden_size", "4", "--steps", "2", "--quiet"]
    with pytest.warns(UserWarning, match=r"odd\.tsv:[12]: ") as warned:
        assert main(["train", "seq2seq", "--data", path, "--out", run, *sizes]) == 0
    assert len(warned) == 2
    with pytest.warns(UserWarning, match=r"odd\.tsv:[12]: "):
        assert main(["evaluate", run, "--data", path, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["pairs"] == 3
    assert {repair["kind"]: repair["line"] for repair in found["repairs"]} == {
        "trailing separators": 1,
        "blank lines": 2,
    }
    with pytest.warns(UserWarning, match=r"odd\.tsv:1: "):
        assert main(["predict", run, path]) == 0
    assert capsys.readouterr().out.count("\n") == 4  # an empty line is an empty source
    with pytest.warns(UserWarning, match=r"odd\.tsv:[12]: "):
        assert main(["check", "seq2seq", "--data", path]) == 0
    assert main(["evaluate", run, "--data", path, "--strict"]) == 2
    assert "odd.tsv:1: 2 tabs" in capsys.readouterr().err


FRAGMENTS = [
    b"a",
    b"\t",
    b"\n",
    b"\r",
    b"\r\n",
    b"\0",
    b"\xff",
    b"\xc3",
    b"\xa9",
    b"\xef\xbb\xbf",
    b'{"source": "',
    b'"}',
]
HOSTILE = st.lists(st.sampled_from(FRAGMENTS) | st.binary(max_size=2), max_size=30).map(b"".join)


@in_one_folder
@given(HOSTILE)
def test_any_bytes_are_read_or_refused_by_line(tmp_path: Path, content: bytes) -> None:
    spec, other = written(tmp_path, content, "a"), written(tmp_path, "a\n\n", "b")
    for asked, file_format in ((spec, "auto"), (spec, "tsv"), (spec, "jsonl"), (f"{spec},{other}", "auto")):
        message = ""
        try:
            pairs(asked, file_format=file_format)
        except InputError as error:
            message = str(error).removeprefix(str(tmp_path))
        assert re.fullmatch(r"|/[ab]:\d+: .+", message)
        assert len(message.splitlines()) < 2


@pytest.mark.parametrize("field", ["source", "text"])
def test_sources_that_look_like_jsonl_give_a_warning(tmp_path: Path, field: str) -> None:
    line = f'{{"{field}": "a"}}'
    spec = written(tmp_path, f"{line}\n", "a.txt")
    with pytest.warns(UserWarning, match=r"a\.txt:1: looks like JSONL, but is read as text; use --format jsonl"):
        assert list(read_unpaired(find_sources(spec))) == [line]
    assert list(read_unpaired(find_sources(spec), file_format="text")) == [line]
    assert list(read_unpaired(find_sources(spec), file_format="jsonl")) == ["a"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('"a b"\tx\n"c ""d"""\ty\n', [("a b", "x"), ('c "d"', "y")]),
        ('a\t"x\ty"\nb\t"z\n"\n', [("a", "x\ty"), ("b", "z\n")]),
        ('"a\t"x"\nb\t"y"\n', [('"a', "x"), ("b", "y")]),
    ],
)
def test_sources_or_targets_that_are_all_quoted_are_read_so(tmp_path: Path, content: str, expected: list) -> None:
    spec, repairs = written(tmp_path, content, "a.tsv"), Repairs()
    assert [(pair.source, pair.target) for pair in read_pairs(spec, repairs=repairs)] == expected
    assert [(each.kind, each.line, each.count) for each in repairs.found()] == [("quoted fields", 1, 2)]
    with refused("malformed", "a.tsv:1"):
        list(read_pairs(spec))


def test_other_quotes_of_pairs_are_kept_and_noted(tmp_path: Path) -> None:
    spec, repairs = written(tmp_path, 'a\t"x"\n"b"\ty\n"c" d\tz\n', "a.tsv"), Repairs(strict=True)
    found = [(pair.source, pair.target) for pair in read_pairs(spec, repairs=repairs)]
    assert found == [("a", '"x"'), ('"b"', "y"), ('"c" d', "z")]
    assert [(each.kind, each.line, each.count) for each in repairs.found()] == [("quotes in TSV", 1, 2)]
