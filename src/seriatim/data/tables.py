"""Labelled text in, for classification: TSV and CSV with a header, and JSONL; one row at a time.

- TSV: a tab separates two fields wherever it stands, and a quote is a character like any other.
- CSV: quoted as RFC 4180 says; a quoted field may hold line ends. Fields are separated by commas, or by semicolons or
  tabs where that gives the header the columns that are read.
- JSONL: an object a line; a label is a string, an integer or true or false, which are labels as JSON writes them.

The text may be empty, a label may not. What cannot be read is refused by file and line, and nothing is left out.
"""

import contextlib
import csv
import json
import re
import warnings
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ..core.errors import InputError, closest, nearest, shown
from .paths import plain_name
from .readers import Source, read_lines, read_objects, read_pieces, string_field

FORMATS = ("auto", "tsv", "csv", "jsonl", "text")
SUFFIXES = {".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
SHOWN = 8
"""So many names of a header are shown in a message; a file without a header may have a whole document there."""
SEPARATORS = (",", ";", "\t")
"""What may separate the fields of CSV."""
MOST_FIELDS = 10_000
"""Of a row: what has more is no table, and parting it would take many times its memory."""

QUOTED = re.compile('"[^"]*"')


class Labelled(NamedTuple):
    """A text with its label (empty where labels were not asked for), its file and the line on which it begins."""

    text: str
    label: str
    name: str
    line: int


class Row(NamedTuple):
    """The fields of one row and the line on which it begins."""

    line: int
    fields: list[str]


def read_labelled(
    sources: Iterable[Source], *, file_format: str = "auto", text: str = "text", label: str | None = "label"
) -> Iterator[Labelled]:
    """Reads row by row; only one row is held in memory.

    Args:
        sources: from `find_sources`.
        file_format: ``tsv``, ``csv``, ``jsonl``, or ``auto`` to go by the name and then by the first line. ``text``,
            for reading without labels, takes every line as a text; there ``auto`` means it for any name that does not
            say otherwise, so that what a pipe's first line holds cannot change how it is read; a first line that looks
            like the header of a table is warned of.
        text: the column or field that holds the text.
        label: the one that holds the label; None to read no labels.

    Raises:
        InputError: no such format or column, no rows to learn from, or a row that does not fit, by file and line.
    """
    if file_format not in FORMATS:
        raise InputError(f"{file_format}: no such format of labelled text; {nearest(file_format, list(FORMATS))}")
    for source in sources:
        chosen = _format(source, file_format, label)
        items: Iterator[Labelled]
        if chosen == "text":
            items = _from_lines(source, text)
        elif chosen == "jsonl":
            items = _from_objects(source, text, label)
        else:
            rows = _tab_separated(source) if chosen == "tsv" else _quoted(source, _separator(source, text, label))
            items = _from_table(source.name, rows, text, label)
        found = False
        for item in items:
            found = True
            yield item
        if not found and label is not None:
            raise InputError(f"{source.name}:1: no rows to learn from; give a text and its label on every line")


def format_of(source: Source) -> str | None:
    """What a source is known to hold, or what its name says: ``tsv``, ``csv``, ``jsonl``, or None for neither."""
    if source.format in SUFFIXES.values():
        return source.format
    name = plain_name(source.name)
    return next((found for suffix, found in SUFFIXES.items() if name.endswith(suffix)), None)


def first_line(source: Source) -> str:
    """The first line, or as much of it as is read at once; empty where there is none."""
    piece = next(read_pieces([source._replace(format="text")]), None)
    return piece.text.partition("\n")[0] if piece else ""


def _format(source: Source, wanted: str, label: str | None) -> str:
    if wanted == "text" and label is not None:
        raise InputError(f"{source.name}:1: plain lines have no labels; give the format tsv, csv or jsonl")
    if wanted != "auto":
        return wanted
    known = format_of(source)
    if known or label is None:
        return known or "text"
    line = first_line(source)
    if line.startswith("{"):
        return "jsonl"
    if "\t" in line:
        return "tsv"
    raise InputError(
        f"{source.name}:1: neither a header with tabs nor JSON; give TSV, CSV or JSONL with a text and a label, "
        "and name it .tsv, .csv or .jsonl or give its format"
    )


def _numbered(source: Source) -> Iterator[tuple[int, str]]:
    return enumerate(read_lines([source._replace(format="text")]), start=1)


def _from_lines(source: Source, text: str) -> Iterator[Labelled]:
    for at, line in _numbered(source):
        if at == 1 and (found := _looks_like(line, text)):
            warnings.warn(
                f"{source.name}:1: looks like {found[0]}, and is answered as a text like every other line; --format "
                f"{found[1]} reads the {found[2]} {shown(text)}",
                stacklevel=2,
            )
        yield Labelled(line, "", source.name, at)


def _looks_like(line: str, text: str) -> tuple[str, str, str] | None:
    """What a first line seems to be, its format, and what holds the text there; None for a text."""
    if line.startswith("{"):
        with contextlib.suppress(ValueError, RecursionError):
            if text in json.loads(line):
                return "an object of JSONL", "jsonl", "field"
    for separator in SEPARATORS:
        if separator in line and text in line.split(separator):
            return "the header of a table", "tsv" if separator == "\t" else "csv", "column"
    return None


def _from_objects(source: Source, text: str, label: str | None) -> Iterator[Labelled]:
    for number, record in read_objects(source):
        where = f"{source.name}:{number}"
        given = string_field(record, text, where, option="data.text")
        found = ""
        if label is not None:
            value = record.get(label)
            if isinstance(value, int):  # true and false are integers to Python
                record = {label: json.dumps(value)}
            found = _label(string_field(record, label, where, option="data.label"), where)
        yield Labelled(given, found, source.name, number)


def _tab_separated(source: Source) -> Iterator[Row]:
    return (Row(number, line.split("\t", MOST_FIELDS)) for number, line in _numbered(source))


def _separator(source: Source, text: str, label: str | None) -> str:
    """What separates fields: what gives the header the wanted columns, else the most columns."""
    line, most = first_line(source), {}
    for separator in SEPARATORS:
        try:
            header = next(csv.reader([line], delimiter=separator), [])
        except csv.Error:
            continue
        if text in header and (label is None or label in header):
            return separator
        most[separator] = len(header)
    return max(most, key=lambda separator: most[separator], default=",")


def _quoted(source: Source, separator: str) -> Iterator[Row]:
    held: list[str] = []
    reader = csv.reader(_remembered(source, separator, held), delimiter=separator, strict=True)
    begins = 1
    while True:
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise InputError(
                f"{source.name}:{begins}: the row that begins here is not CSV ({error}, line {reader.line_num}); quote "
                "a field that holds a quote, a separator or a line end, double each quote in it, and end it with a "
                f"quote; at most {csv.field_size_limit():,} characters"
            ) from None
        if sum(line.count("\r") for line in held) != sum(field.count("\r") for field in fields):
            raise InputError(f"{source.name}:{begins}: a lone CR outside quotes; delete it, or quote its field")
        held.clear()
        yield Row(begins, fields or [""])
        begins = reader.line_num + 1


def _remembered(source: Source, separator: str, held: list[str]) -> Iterator[str]:
    """Lines with their ends; they are added to ``held``, as the csv module drops a CR before a line end."""
    for number, line in _numbered(source):
        if line.count(separator) > MOST_FIELDS and QUOTED.sub("", line).count(separator) > MOST_FIELDS:
            raise InputError(f"{source.name}:{number}: more than {MOST_FIELDS:,} fields; is it a table of texts?")
        held.append(line)
        yield f"{line}\n"


def _from_table(name: str, rows: Iterator[Row], text: str, label: str | None) -> Iterator[Labelled]:
    header = next(rows, Row(1, [])).fields
    if len(header) > MOST_FIELDS:
        raise InputError(f"{name}:1: more than {MOST_FIELDS:,} columns; is it a table of texts?")
    lines = "" if label is not None else ", or read every line as a text with --format text"
    text_at = _column(header, text, name, f"--data.text{{}}{lines}")
    label_at = None if label is None else _column(header, label, name, "--data.label{}")
    for number, fields in rows:
        where = f"{name}:{number}"
        if len(fields) != len(header):
            raise InputError(
                f"{where}: {len(fields)} {'field' if len(fields) == 1 else 'fields'} where the header has "
                f"{len(header)}; mend this row (in TSV every tab separates, in CSV every separator outside quotes)"
            )
        found = "" if label_at is None else _label(fields[label_at], where)
        yield Labelled(fields[text_at], found, name, number)


def _column(header: list[str], wanted: str, name: str, option: str) -> int:
    """Where a column is; ``option`` says how to name another one."""
    if header.count(wanted) == 1:
        return header.index(wanted)
    if wanted in header:
        raise InputError(f"{name}:1: the header names {shown(wanted)} more than once; rename a column")
    named = ", ".join(repr(column[:40]) for column in header[:SHOWN]) or "nothing"
    close = closest(wanted, header)
    step = f"did you mean {close!r}? " if close else ""
    raise InputError(
        f"{name}:1: no column {shown(wanted)} in the header, which has {named}; {step}name the column with "
        f"{option.format(f' {close}' if close else ' NAME')}"
    )


def _label(value: str, where: str) -> str:
    if not value.strip():
        raise InputError(f"{where}: the label is empty; write one, or delete the row")
    if "\n" in value or "\r" in value:
        raise InputError(f"{where}: a line end in the label; labels are written one a line, take it out")
    return value
