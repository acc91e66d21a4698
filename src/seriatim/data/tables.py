"""Readers of labelled texts for classification, row by row: TSV and CSV with a header, and JSONL.

In TSV every tab separates, and a quote is an ordinary character. CSV is quoted as in RFC 4180, with commas, semicolons
or tabs. In JSONL a label is a string, an integer or a truth value. The text may be empty, but not the label. Blank
lines, separators after the last column, and another spelling of the header or of a label are recorded as repairs.
"""

import csv
import json
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from ..core.errors import InputError, closest, nearest, shown
from .paths import plain_name
from .readers import Source, numbered_lines, object_fields, read_objects, read_pieces, require_items, string_field
from .repairs import Repairs
from .spellings import BLANKS, Spellings, folded

FORMATS = ("auto", "tsv", "csv", "jsonl", "text")
SUFFIXES = {".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
SHOWN_COLUMNS = 8
"""The number of columns that a message names; a file without a header may have a whole document in its first line."""
SEPARATORS = (",", ";", "\t")  # the possible separators of CSV fields
MAX_FIELDS = 10_000  # the largest number of fields of a row; splitting a longer row would take many times its memory
QUOTED = re.compile('"[^"]*"')


class Labelled(NamedTuple):
    """A text with its label (empty if labels were not read), its file, and the line on which it begins."""

    text: str
    label: str
    name: str
    line: int


Row = tuple[int, list[str]]  # the line on which a row begins, and its fields


def read_labelled(
    sources: Iterable[Source],
    *,
    file_format: str = "auto",
    text: str = "text",
    label: str | None = "label",
    repairs: Repairs | None = None,
) -> Iterator[Labelled]:
    """Read row by row; only one row is held in memory.

    Args:
        sources: from `find_sources`.
        file_format: ``tsv``, ``csv``, ``jsonl``, or ``auto`` to choose by the name and then by the first line. Without
            labels also ``text``: every line is a text. Then ``auto`` chooses by the name or else ``text``, so that the
            first line of a pipe cannot change how it is read, and warns if it looks like a header or like JSON.
        text: the column or field of the text.
        label: the column or field of the label; None to read no labels.
        repairs: records the repairs; if None, data that needs a repair is refused.

    Raises:
        InputError: no such format or column, no rows, or a row that does not fit, by file and line.
    """
    if file_format not in FORMATS:
        raise InputError(f"{file_format}: not a format of labelled texts; {nearest(file_format, list(FORMATS))}")
    repairs = repairs or Repairs(strict=True)
    for source in sources:
        chosen = _format(source, file_format, label)
        items: Iterator[Labelled]
        if chosen == "text":
            items = _from_lines(source, text, repairs)
        elif chosen == "jsonl":
            items = _from_objects(source, text, label, repairs)
        else:
            separator = "\t" if chosen == "tsv" else _separator(source, text, label)
            rows = _tab_separated(source, repairs) if chosen == "tsv" else _quoted(source, separator, repairs)
            items = _from_table(source.name, rows, text, label, repairs)
        if label is not None:
            problem = "no rows; give a text and its label on every line"
            items = require_items(items, f"{source.name}:1: {problem}")
        yield from items


def with_spellings(
    read: Callable[[Repairs], Iterator[Labelled]],
    labels: Sequence[str] | None,
    repairs: Repairs,
    *,
    exact: bool = False,
) -> Iterator[Labelled]:
    """Read rows whose labels are spelled alike; see `Spellings` for which labels are one label.

    Args:
        read: reads the rows, as often as it is called.
        labels: the labels of a model; if None, the most frequent spelling stands for the others.
        repairs: records the labels that are spelled otherwise.
        exact: whether labels are spelled as they are in the file.
    """
    spellings = Spellings(labels or (), exact=exact)
    if labels is None and not exact:
        try:
            spellings = Spellings.learned(Counter(row.label for row in read(Repairs())))
        except InputError:
            if not repairs.strict:
                raise  # if strict, the second reading may name an earlier line
    for row in read(repairs):
        label = spellings(row.label)
        if label != row.label:
            repairs.add(
                "spelling of a label",
                *(row.name, row.line),
                problem=f"the label {shown(row.label)} is another spelling of {shown(label)}",
                reading=f"read as {shown(label)}",
                remedy=f"write {shown(label)}",
            )
            row = row._replace(label=label)
        yield row


def format_of(source: Source) -> str | None:
    """Return the format of a source as it is known or as its name says: ``tsv``, ``csv``, ``jsonl``, or None."""
    if source.format in SUFFIXES.values():
        return source.format
    name = plain_name(source.name)
    return next((file_format for suffix, file_format in SUFFIXES.items() if name.endswith(suffix)), None)


def peek_line(source: Source) -> str:
    """Return the first line of a source, or as much of it as is read at once; empty if there is none."""
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
    line = peek_line(source)
    if line.startswith("{"):
        return "jsonl"
    if "\t" in line:
        return "tsv"
    raise InputError(
        f"{source.name}:1: neither a header with tabs nor JSON; give TSV, CSV or JSONL with a text and a label, "
        "and name it .tsv, .csv or .jsonl or give its format"
    )


def _from_lines(source: Source, text: str, repairs: Repairs) -> Iterator[Labelled]:
    for number, line in numbered_lines(source, repairs):
        if number == 1 and (likely_format := _likely_format(line, text)):
            what = "an object of JSONL" if likely_format == "jsonl" else "the header of a table"
            warnings.warn(
                f"{source.name}:1: looks like {what}, but is read as a text, like every line; use --format "
                f"{likely_format} to read {shown(text)} of each row",
                stacklevel=2,
            )
        yield Labelled(line, "", source.name, number)


def _likely_format(line: str, text: str) -> str | None:
    """Return the format of a first line that does not look like text."""
    if text in object_fields(line):
        return "jsonl"
    separators = [separator for separator in SEPARATORS if separator in line and text in line.split(separator)]
    return {"\t": "tsv"}.get(separators[0], "csv") if separators else None


def _from_objects(source: Source, text: str, label: str | None, repairs: Repairs) -> Iterator[Labelled]:
    for number, record in read_objects(source, repairs):
        where = f"{source.name}:{number}"
        content = string_field(record, text, where, option="data.text")
        label_value = ""
        if label is not None:
            if isinstance(record.get(label), int):  # truth values are integers in Python
                record = {label: json.dumps(record[label])}
            label_value = _checked_label(string_field(record, label, where, option="data.label"), where)
        yield Labelled(content, label_value, source.name, number)


def _tab_separated(source: Source, repairs: Repairs) -> Iterator[Row]:
    return ((number, line.split("\t", MAX_FIELDS)) for number, line in numbered_lines(source, repairs))


def _separator(source: Source, text: str, label: str | None) -> str:
    """Return the separator that gives the header the required columns, else the one that gives the most columns."""
    line, counts = peek_line(source), {",": 0}
    for separator in SEPARATORS:
        try:
            header = next(csv.reader([line], delimiter=separator), [])
        except csv.Error:
            continue
        names = {folded(name) for name in header}
        if folded(text) in names and (label is None or folded(label) in names):
            return separator
        counts[separator] = len(header)
    return max(counts, key=counts.__getitem__)


def _quoted(source: Source, separator: str, repairs: Repairs) -> Iterator[Row]:
    reader = csv.reader(_ended_lines(source, separator, repairs), delimiter=separator, strict=True)
    first = 1
    try:
        for fields in reader:
            yield first, fields or [""]
            first = reader.line_num + 1
    except csv.Error as error:
        raise InputError(
            f"{source.name}:{first}: the row that begins here is not CSV ({error}, line {reader.line_num}); put "
            "quotes around a field that contains a quote, a separator or a line end, and double each quote in it; "
            f"a field has at most {csv.field_size_limit():,} characters"
        ) from None


def _ended_lines(source: Source, separator: str, repairs: Repairs) -> Iterator[str]:
    """Iterate over lines with their ends."""
    for number, line in numbered_lines(source, repairs):
        if line.count(separator) > MAX_FIELDS and QUOTED.sub("", line).count(separator) > MAX_FIELDS:
            raise InputError(f"{source.name}:{number}: more than {MAX_FIELDS:,} fields; check that it is a table")
        yield f"{line}\n"


def _from_table(name: str, rows: Iterator[Row], text: str, label: str | None, repairs: Repairs) -> Iterator[Labelled]:
    _, header = next(rows, (1, []))
    if len(header) > MAX_FIELDS:
        raise InputError(f"{name}:1: more than {MAX_FIELDS:,} columns; check that it is a table")
    as_text = "" if label is not None else ", or read every line as a text with --format text"
    text_column = _column(header, text, name, f"--data.text{{}}{as_text}", repairs)
    label_column = None if label is None else _column(header, label, name, "--data.label{}", repairs)
    for number, fields in rows:
        where = f"{name}:{number}"
        if len(header) > 1 and _is_blank(fields, label is not None):
            remedy = "delete it"
            repairs.add("blank lines", name, number, problem="a blank line", reading="left out", remedy=remedy)
            continue
        if len(fields) != len(header):
            problem = f"{len(fields)} field{'s' if len(fields) != 1 else ''}, but the header has {len(header)}"
            remedy = "correct this row (in TSV every tab separates, in CSV every separator outside quotes)"
            if any(field.strip(BLANKS) for field in fields[_width(header) :]) or len(fields) < _width(header):
                raise InputError(f"{where}: {problem}; {remedy}")
            reading = "read without the empty fields at its end"
            repairs.add("trailing separators", name, number, problem=problem, reading=reading, remedy=remedy)
        label_value = "" if label_column is None else _checked_label(fields[label_column], where)
        yield Labelled(fields[text_column], label_value, name, number)


def _is_blank(fields: list[str], labelled: bool) -> bool:
    """Return whether a row holds nothing; without labels, a row of several empty fields is an empty text."""
    return (labelled or len(fields) == 1) and not any(field.strip(BLANKS) for field in fields)


def _width(header: list[str]) -> int:
    """Return the number of columns without those at the end that have no name."""
    return max((i for i, name in enumerate(header, 1) if name.strip(BLANKS)), default=0)


def _column(header: list[str], column: str, name: str, option: str, repairs: Repairs) -> int:
    """Return the index of a column; ``option`` is a template of the option that names another one."""
    if header.count(column) == 1:
        return header.index(column)
    if column in header:
        raise InputError(f"{name}:1: the header names {shown(column)} more than once; rename a column")
    alike = [i for i, other in enumerate(header) if folded(other) == folded(column)]
    columns = ", ".join(repr(other[:40]) for other in header[:SHOWN_COLUMNS]) or "nothing"
    close = closest(column, header)
    hint = f"did you mean {close!r}? " if close else ""
    remedy = f"{hint}name the column with {option.format(f' {close}' if close else ' NAME')}"
    problem = f"no column {shown(column)} in the header, which has {columns}"
    if len(alike) != 1:
        raise InputError(f"{name}:1: {problem}; {remedy}")
    reading = f"read {shown(header[alike[0]])} as this column"
    repairs.add("spelling of the header", name, 1, problem=problem, reading=reading, remedy=remedy)
    return alike[0]


def _checked_label(value: str, where: str) -> str:
    if not value.strip(BLANKS).strip():
        raise InputError(f"{where}: the label is empty; write one, or delete the row")
    if "\n" in value:
        raise InputError(f"{where}: a line end in the label; labels are written one on each line, remove it")
    return value
