"""What files hold, read in the most obvious way, and what every refusal must say."""

import csv
import io
import json
import re

from seriatim.core.errors import InputError

MARK = b"\xef\xbb\xbf"


def with_plain_ends(content: bytes) -> bytes:
    """With LF at the end of every line, and without the marks that begin one; before a blank a mark can be a word."""
    content = content.removeprefix(MARK).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return re.sub(b"(?m)^(" + MARK + b")+(?![\t ])", b"", content)


def expect_refusal(error: InputError, path: str, content: bytes) -> int | None:
    """The line that a refusal names, after the file; that there is one, a reason, and what to do, all in one line."""
    message = str(error)
    found = re.fullmatch(rf"{re.escape(path)}(?::([0-9]+))?: [^;].*; .+", message)
    assert found, message
    assert len(message) < len(path) + 600, message
    if found[1] is None:
        return None
    assert 1 <= int(found[1]) <= max(1, len(content.splitlines())), message
    return int(found[1])


def plain(content: bytes) -> str | None:
    """What a text file holds: without marks, line ends LF; None where that is no text. The obvious way."""
    if content[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in content:
        return None
    try:
        return with_plain_ends(content).decode("utf-8")
    except UnicodeDecodeError:
        return None


def lines_of(text: str) -> list[str]:
    """Lines without their ends; a last line needs none."""
    return text.removesuffix("\n").split("\n") if text else []


def objects(text: str, first: str = "text", second: str = "label") -> list[tuple[str, str]]:
    """The fields of the objects, a line each, each field there once."""
    found = []
    for line in lines_of(text):
        pairs = json.loads(line, object_pairs_hook=list)
        assert len(dict(pairs)) == len(pairs)
        one, other = dict(pairs)[first], dict(pairs)[second]
        other = other if isinstance(other, str) else json.dumps(other)
        found.append(tuple(re.sub("\r\n?", "\n", field) for field in (one, other)))
    return found


def rows(text: str, kind: str) -> list[tuple[str, str]]:
    """The columns called text and label."""
    separated = kind == "tsv"
    found = [line.split("\t") for line in lines_of(text)] if separated else [*csv.reader(io.StringIO(text, newline=""))]
    first, second = found[0].index("text"), found[0].index("label")
    assert {len(row) for row in found} == {len(found[0])}
    return [(row[first], row[second]) for row in found[1:]]


def n_grams(content: bytes) -> tuple[list[int], set[str]]:
    """How many n-grams of each order an ARPA file promises, and the names of its 1-grams."""
    text = content.removeprefix(MARK).replace(b"\r\n", b"\n").replace(b"\r", b"\n").decode()
    lines = [line for line in text.split("\n") if line.strip()]
    sections = [line.strip() for line in lines]
    top = sections.index("\\data\\") + 1
    first = top + sections[top:].index("\\1-grams:")
    counts = [int(line.partition("=")[2]) for line in lines[top:first]]
    return counts, {
        re.split(r"[ \t\v\f]+", line.strip(" \t\v\f"))[1] for line in lines[first + 1 : first + 1 + counts[0]]
    }
