"""Readers of labelled texts for classification: TSV and CSV with a header, and JSONL; one row at a time.

- TSV: every tab separates two fields, and a quote is an ordinary character.
- CSV: quoted as in RFC 4180; a quoted field may contain line ends. Fields are separated by commas, or by semicolons or
  tabs if that separator gives the header the required columns.
- JSONL: one object on each line; a label is a string, an integer or a truth value, written as in JSON.

The text may be empty, but not the label. What cannot be read is refused by file and line, and no row is left out.
"""

import csv
import json
import re
import warnings
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ..core.errors import InputError, closest, nearest, shown
from .paths import plain_name
from .readers import Source, object_fields, read_lines, read_objects, read_pieces, string_field

FORMATS = ("auto", "tsv", "csv", "jsonl", "text")
SUFFIXES = {".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
SHOWN_COLUMNS = 8
"""The number of columns that a message names; a file without a header may have a whole document in its first line."""
SEPARATORS = (",", ";", "\t")
"""The possible separators of CSV fields."""
MAX_FIELDS = 10_000
"""The largest number of fields of a row; splitting a longer row would take many times its memory."""
QUOTED = re.compile('"[^"]*"')


class Labelled(NamedTuple):
    """A text with its label (empty if labels were not read), its file, and the line on which it begins."""

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
    """Read row by row; only one row is held in memory.

    Args:
        sources: from `find_sources`.
        file_format: ``tsv``, ``csv``, ``jsonl``, or ``auto`` to choose by the name and then by the first line. When no
            labels are read, ``text`` reads every line as a text. In that case ``auto`` reads as text every file whose
            name does not say otherwise, so that the first line of a pipe cannot change how it is read; a first line
            that looks like a header or like JSON gives a warning.
        text: the column or field of the text.
        label: the column or field of the label; None to read no labels.

    Raises:
        InputError: no such format or column, no rows, or a row that does not fit, by file and line.
    """
    if file_format not in FORMATS:
        raise InputError(f"{file_format}: not a format of labelled texts; {nearest(file_format, list(FORMATS))}")
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
        empty = True
        for item in items:
            empty = False
            yield item
        if empty and label is not None:
            raise InputError(f"{source.name}:1: no rows to learn from; give a text and its label on every line")


def format_of(source: Source) -> str | None:
    """Return the format of a source as it is known or as its name says: ``tsv``, ``csv``, ``jsonl``, or None."""
    if source.format in SUFFIXES.values():
        return source.format
    name = plain_name(source.name)
    return next((file_format for suffix, file_format in SUFFIXES.items() if name.endswith(suffix)), None)


def first_line(source: Source) -> str:
    """Return the first line, or as much of it as is read at once; empty if there is none."""
    piece = next(read_pieces([source._replace(format="text")]), None)
    return piece.text.partition("\n")[0] if piece else ""


def _format(source: Source, requested: str, label: str | None) -> str:
    if requested == "text" and label is not None:
        raise InputError(f"{source.name}:1: lines of text have no labels; give the format tsv, csv or jsonl")
    if requested != "auto":
        return requested
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
    for number, line in _numbered(source):
        if number == 1 and (likely_format := _likely_format(line, text)):
            name, file_format = likely_format
            warnings.warn(
                f"{source.name}:1: looks like {name}, but is read as a text, like every line; use --format "
                f"{file_format} to read {shown(text)} of each row",
                stacklevel=2,
            )
        yield Labelled(line, "", source.name, number)


def _likely_format(line: str, text: str) -> tuple[str, str] | None:
    """Return what a first line looks like, and the format; None if it looks like text."""
    if text in object_fields(line):
        return "an object of JSONL", "jsonl"
    for separator in SEPARATORS:
        if separator in line and text in line.split(separator):
            return "the header of a table", "tsv" if separator == "\t" else "csv"
    return None


def _from_objects(source: Source, text: str, label: str | None) -> Iterator[Labelled]:
    for number, record in read_objects(source):
        where = f"{source.name}:{number}"
        content = string_field(record, text, where, option="data.text")
        label_value = ""
        if label is not None:
            value = record.get(label)
            if isinstance(value, int):  # truth values are integers in Python
                record = {label: json.dumps(value)}
            label_value = _checked_label(string_field(record, label, where, option="data.label"), where)
        yield Labelled(content, label_value, source.name, number)


def _tab_separated(source: Source) -> Iterator[Row]:
    return (Row(number, line.split("\t", MAX_FIELDS)) for number, line in _numbered(source))


def _separator(source: Source, text: str, label: str | None) -> str:
    """Return the separator that gives the header the required columns, else the one that gives the most columns."""
    line, counts = first_line(source), {}
    for separator in SEPARATORS:
        try:
            header = next(csv.reader([line], delimiter=separator), [])
        except csv.Error:
            continue
        if text in header and (label is None or label in header):
            return separator
        counts[separator] = len(header)
    return max(counts, key=lambda separator: counts[separator], default=",")


def _quoted(source: Source, separator: str) -> Iterator[Row]:
    lines: list[str] = []
    reader = csv.reader(_recorded_lines(source, separator, lines), delimiter=separator, strict=True)
    first = 1
    while True:
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise InputError(
                f"{source.name}:{first}: the row that begins here is not CSV ({error}, line {reader.line_num}); put "
                "quotes around a field that contains a quote, a separator or a line end, and double each quote in it; "
                f"a field has at most {csv.field_size_limit():,} characters"
            ) from None
        if sum(line.count("\r") for line in lines) != sum(field.count("\r") for field in fields):
            raise InputError(f"{source.name}:{first}: a lone CR outside quotes; delete it, or quote its field")
        lines.clear()
        yield Row(first, fields or [""])
        first = reader.line_num + 1


def _recorded_lines(source: Source, separator: str, lines: list[str]) -> Iterator[str]:
    """Iterate over lines with their ends, and append them to ``lines``: the csv module drops a CR before a line end."""
    for number, line in _numbered(source):
        if line.count(separator) > MAX_FIELDS and QUOTED.sub("", line).count(separator) > MAX_FIELDS:
            raise InputError(f"{source.name}:{number}: more than {MAX_FIELDS:,} fields; check that it is a table")
        lines.append(line)
        yield f"{line}\n"


def _from_table(name: str, rows: Iterator[Row], text: str, label: str | None) -> Iterator[Labelled]:
    header = next(rows, Row(1, [])).fields
    if len(header) > MAX_FIELDS:
        raise InputError(f"{name}:1: more than {MAX_FIELDS:,} columns; check that it is a table")
    as_text = "" if label is not None else ", or read every line as a text with --format text"
    text_column = _column(header, text, name, f"--data.text{{}}{as_text}")
    label_column = None if label is None else _column(header, label, name, "--data.label{}")
    for number, fields in rows:
        where = f"{name}:{number}"
        if len(fields) != len(header):
            raise InputError(
                f"{where}: {len(fields)} {'field' if len(fields) == 1 else 'fields'}, but the header has "
                f"{len(header)}; correct this row (in TSV every tab separates, in CSV every separator outside quotes)"
            )
        label_value = "" if label_column is None else _checked_label(fields[label_column], where)
        yield Labelled(fields[text_column], label_value, name, number)


def _column(header: list[str], column: str, name: str, option: str) -> int:
    """Return the index of a column; ``option`` is a template of the option that names another one."""
    if header.count(column) == 1:
        return header.index(column)
    if column in header:
        raise InputError(f"{name}:1: the header names {shown(column)} more than once; rename a column")
    columns = ", ".join(repr(other[:40]) for other in header[:SHOWN_COLUMNS]) or "nothing"
    close = closest(column, header)
    hint = f"did you mean {close!r}? " if close else ""
    raise InputError(
        f"{name}:1: no column {shown(column)} in the header, which has {columns}; {hint}name the column with "
        f"{option.format(f' {close}' if close else ' NAME')}"
    )


def _checked_label(value: str, where: str) -> str:
    if not value.strip():
        raise InputError(f"{where}: the label is empty; write one, or delete the row")
    if "\n" in value or "\r" in value:
        raise InputError(f"{where}: a line end in the label; labels are written one on each line, remove it")
    return value
