"""Readers of labelled texts for classification, row by row: TSV and CSV with a header, JSONL, and lines of fastText.

In TSV every tab separates, and a quote is an ordinary character, unless every field of the text or of the label is in
quotes. CSV is quoted as in RFC 4180, with commas, semicolons or tabs. In JSONL a label is a string, an integer or a
truth value. A line of fastText has its label as a word that begins with ``__label__``. The text may be empty, but not
the label. Blank lines, separators after the last column, quotes in TSV, and another spelling of the header or of a
label are recorded as repairs.
"""

import csv
import functools
import itertools
import json
import re
import shlex
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from ..core.errors import (
    DuplicateError,
    EmptyError,
    InputError,
    MalformedError,
    MissingError,
    NotSupportedError,
    SizeError,
    UnknownNameError,
    closest,
    nearest,
    shown,
)
from .repairs import Repairs
from .sources import plain_name
from .spellings import BLANKS, LabelSpellings, folded, other_spelling
from .text import Source, numbered_lines, object_fields, read_chunks, read_objects, require_items, string_field

TAB = "\t"
SEPARATORS = (",", ";", TAB)  # the possible separators of CSV fields
MAX_FIELDS = 10_000  # the largest number of fields of a row; splitting a longer row would take many times its memory
QUOTED = re.compile('"[^"]*"')
EDGE = re.compile(f"[{BLANKS.replace(TAB, '')}]*")
OPENING, INSIDE = re.compile(f'{EDGE.pattern}"'), re.compile('(?:[^"]++|"")*+')
"""Blanks around a field in quotes, its beginning, and what is in the quotes."""
FIELD = f'(?:"[^"\t]*+"|[^"{BLANKS}][^\t]*+)?+'
SIMPLE = re.compile(f"{FIELD}(?:\t{FIELD})*+")
"""A line whose fields are whole: in quotes, with no quote or tab within, or beginning with no quote and no blank."""

Row = tuple[int, list[str]]  # the line on which a row begins, and its fields


def tab_separated(
    source: Source, find: Callable[[Sequence[str]], list[int]], repairs: Repairs, *, headed: bool, remedy: str
) -> Iterator[Row]:
    """Read the rows of TSV, without the quotes around fields if every field of a column has them.

    Of a pipe of which more is to come nothing is known, so that quotes are kept.

    Args:
        source: the file.
        find: returns the indices of the columns that are read, given the fields of the first line.
        repairs: records the quotes.
        headed: whether the first line is a header.
        remedy: what to do if some fields of a column are in quotes, and others are not.
    """
    columns, quoted, split = list[int](), set[int](), _lines_as_rows
    why = "but not every field of its column is in quotes"
    if source.is_live:
        why = "but a pipe does not tell yet whether every field of its column is in quotes"

    # The file is read twice, because only all rows tell whether quotes are part of the fields. Fields may hold tabs and
    # line ends only if a whole column is in quotes; otherwise every tab separates.
    if not source.is_live:
        columns = find(_fields(peek_line(source)))
        if quoted := _quoted_columns(_rows_of_lines(source), columns, headed):
            split = _rows_of_lines
        else:
            quoted = _quoted_columns(_lines_as_rows(source), columns, headed)

    # Quotes of a column that is quoted as a whole are left out, and other quotes are kept and noted.
    for i, (number, fields) in enumerate(split(source, repairs)):
        columns = columns or find(fields)
        here = [column for column in columns if i >= headed and column < len(fields)]
        quoted_fields = [column for column in here if _in_quotes(fields[column])]
        if bare := quoted.intersection(quoted_fields):
            repairs.add(
                "quoted fields",
                *(source.name, number),
                problem="a field in quotes, which TSV does not have, and so is every other of its column",
                reading="read without the quotes",
                remedy="delete the quotes",
                count=len(bare),
            )
        for column in quoted_fields:
            if column in bare:
                fields[column] = unquoted(fields[column])
            else:
                problem = f"a field begins and ends with a quote, {why}; it is read with its quotes"
                repairs.note("quotes in TSV", source.name, number, problem=problem, remedy=remedy)
        yield number, fields


def _lines_as_rows(source: Source, repairs: Repairs | None = None) -> Iterator[Row]:
    return ((number, _fields(line)) for number, line in numbered_lines(source, repairs))


def _rows_of_lines(source: Source, repairs: Repairs | None = None) -> Iterator[Row]:
    """Read the rows of TSV in which a field that begins with a quote ends with one, and may have tabs and line ends.

    Quotes within it are doubled. Fields are returned with their quotes.

    Raises:
        InputError: a quote does not end, a field goes on after it, or a row is too long.
    """
    first, fields, opened = 1, list[str](), ""  # what was read of a field whose quote is still to come
    for number, line in numbered_lines(source, repairs):
        if not opened and SIMPLE.fullmatch(line):
            yield number, _fields(line)
            continue

        # A field in quotes goes on in the next line until its quote ends; other fields end at the next tab.
        first, at = first if opened else number, 0
        while at <= len(line):
            quote = None if opened else OPENING.match(line, at)
            if opened or quote:
                end = _end_of(INSIDE, line, 0 if quote is None else quote.end())
                if end == len(line):
                    opened += line[at:] + "\n"
                    break
                end = _end_of(EDGE, line, end + 1)
                if line[end : end + 1] not in ("", TAB):
                    raise MalformedError(
                        f"{source.name}:{number}: text after a field in quotes; write each quote within it twice"
                    )
            else:
                end = found if (found := line.find(TAB, at)) >= 0 else len(line)
            fields.append(opened + line[at:end])
            opened, at = "", end + 1
            if len(fields) > MAX_FIELDS:
                raise SizeError(f"{source.name}:{first}: more than {MAX_FIELDS:,} fields; check that it is a table")

        # A quote that never ends would take the rest of the file into one field.
        if len(opened) > csv.field_size_limit():
            raise MalformedError(f"{source.name}:{first}: a quote without an end; add it, or delete the quote")
        if not opened:
            yield first, fields
            fields = []
    if opened:
        raise MalformedError(f"{source.name}:{first}: a quote without an end; add it, or delete the quote")


def _end_of(pattern: re.Pattern[str], line: str, start: int) -> int:
    """Return where what a pattern matches ends, which may be nothing."""
    found = pattern.match(line, start)
    return start if found is None else found.end()


def _fields(line: str) -> list[str]:
    return line.split(TAB, MAX_FIELDS)


def _is_blank(fields: Iterable[str]) -> bool:
    return not any(field.strip(BLANKS) for field in fields)


def _quoted_columns(rows: Iterable[Row], columns: Iterable[int], headed: bool) -> set[int]:
    """Return those of some columns in which every field is in quotes; none if the rows cannot be read.

    Where quotes inside most fields are not doubled, as in ``"foo" and "bar"``, those around them are text, too.
    """
    left, count, odd = set(columns), 0, Counter[int]()
    try:
        for _, fields in itertools.islice(rows, headed, None):
            if not _is_blank(fields):
                count += 1
                left = {column for column in left if column < len(fields) and _in_quotes(fields[column])}
                odd.update(column for column in left if '"' in _content(fields[column]).replace('""', ""))
            if not left:
                break
    except InputError:  # whoever reads the rows says what is wrong
        return set()
    return {column for column in left if 2 * odd[column] <= count}


def unquoted(field: str) -> str:
    """Return a field without the quotes around it, if it has any; pairs of quotes in it are single ones."""
    if not _in_quotes(field):
        return field
    content = _content(field)
    return content if '"' in content.replace('""', "") else content.replace('""', '"')


def _content(field: str) -> str:
    """Return what is in the quotes around a field."""
    return field.strip(BLANKS)[1:-1]


def _in_quotes(field: str) -> bool:
    if '"' not in field:
        return False
    field = field.strip(BLANKS)
    return len(field) > 1 and field[0] == field[-1] == '"'


def quoted_rows(source: Source, columns: Sequence[str], repairs: Repairs) -> Iterator[Row]:
    """Read the rows of CSV; the header tells what separates the fields."""
    first = 1
    lines = numbered_lines(source, repairs)
    header = next(lines, None)
    separator = _separator("" if header is None else header[1], columns)
    lines = itertools.chain([] if header is None else [header], lines)

    # A row may go on over several lines, and messages name the first of them.
    reader = csv.reader(_ended_lines(source.name, lines, separator), delimiter=separator, strict=True)
    try:
        for fields in reader:
            yield first, fields or [""]
            first = reader.line_num + 1
    except csv.Error as error:
        raise MalformedError(
            f"{source.name}:{first}: the row that begins here is not CSV ({error}, line {reader.line_num}); put "
            "quotes around a field that contains a quote, a separator or a line end, write each quote in it twice, and "
            f"give a field at most {csv.field_size_limit():,} characters"
        ) from None


def _separator(header: str, columns: Sequence[str]) -> str:
    """Return the separator that gives the header the required columns, else the one that gives the most columns."""
    counts = {",": 0}
    for separator in SEPARATORS:
        try:
            fields = next(csv.reader([header], delimiter=separator), [])
        except csv.Error:
            continue
        if {folded(name) for name in columns} <= {folded(name) for name in fields}:
            return separator
        counts[separator] = len(fields)
    return max(counts, key=counts.__getitem__)


def _ended_lines(name: str, lines: Iterable[tuple[int, str]], separator: str) -> Iterator[str]:
    """Iterate over lines with their ends."""
    for number, line in lines:
        if line.count(separator) > MAX_FIELDS and QUOTED.sub("", line).count(separator) > MAX_FIELDS:
            raise SizeError(f"{name}:{number}: more than {MAX_FIELDS:,} fields; check that it is a table")
        yield f"{line}\n"


def peek_line(source: Source) -> str:
    """Return the first line of a source, or as much of it as is read at once; empty if there is none."""
    chunk = next(read_chunks([source._replace(format="text")]), None)
    return chunk.text.partition("\n")[0] if chunk else ""


FORMATS = ("auto", "tsv", "csv", "jsonl", "fasttext", "text")
SUFFIXES = {".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
LOOKS = {"jsonl": "an object of JSONL", "fasttext": "a line of fastText"}
SHOWN_COLUMNS = 8
"""The number of columns that a message names; a file without a header may have a whole document in its first line."""
EMPTY_LINE = "the file is empty, or its first line is"
FASTTEXT_LABEL = re.compile(r"(?:^|[ \t\v\f]+)__label__([^ \t\v\f]*)")
FASTTEXT_WORD = "__label__[^ \t\v\f]+"
FASTTEXT_LINE = re.compile(rf"{FASTTEXT_WORD}([ \t\v\f]|$)|.*[ \t\v\f]{FASTTEXT_WORD}[ \t\v\f]*$")
"""A line that begins or ends with a label. In a line without another format it may also be within."""


class Labelled(NamedTuple):
    """A text with its label (empty if labels were not read), its file, and the line on which it begins."""

    text: str
    label: str
    name: str
    line: int


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
        file_format: ``tsv``, ``csv``, ``jsonl``, ``fasttext``, or ``auto`` to choose by the name and then by the first
            line. Without labels also ``text``: every line is a text. Then ``auto`` chooses by the name or else
            ``text``, so that the first line of a pipe cannot change how it is read, and warns if it looks like another
            format.
        text: the column or field of the text.
        label: the column or field of the label; None to read no labels.
        repairs: records the repairs; if None, data that needs a repair is refused.

    Raises:
        InputError: no such format or column, no rows, or a row that does not fit, by file and line.
    """
    if file_format not in FORMATS:
        raise UnknownNameError(f"{file_format}: not a format of labelled texts; {nearest(file_format, list(FORMATS))}")
    repairs = repairs or Repairs(strict=True)
    for source in sources:
        chosen = _format(source, file_format, label)
        items: Iterator[Labelled]
        if chosen == "text":
            items = _from_lines(source, text, repairs)
        elif chosen == "jsonl":
            items = _from_objects(source, text, label, repairs)
        elif chosen == "fasttext":
            items = _from_fasttext(source, label, repairs)
        else:
            columns, quoting = ([text], "--format csv") if label is None else ([text, label], "--data.format csv")
            if chosen == "tsv":
                remedy = f"if the fields are quoted, read them with {quoting}"
                find = functools.partial(_column_indices, columns=columns)
                rows = tab_separated(source, find, repairs, headed=True, remedy=remedy)
                items = _from_table(source.name, rows, text, label, repairs, quoting)
            else:
                items = _from_table(source.name, quoted_rows(source, columns, repairs), text, label, repairs)

        # Data to learn from must have rows; an input without lines has no answers.
        if label is not None:
            problem = "no rows; give a text and its label on every line"
            items = require_items(items, f"{source.name}:1: {problem}")
        for row in items:
            content = repairs.text(row.text, row.name, row.line)
            yield row if content is row.text else row._replace(text=content)


def with_spellings(
    read: Callable[[Repairs], Iterator[Labelled]],
    labels: Sequence[str] | None,
    repairs: Repairs,
    *,
    exact: bool = False,
) -> Iterator[Labelled]:
    """Read rows whose labels are spelled alike; see `LabelSpellings` for which labels are one label.

    Args:
        read: reads the rows, as often as it is called.
        labels: the labels of a model; if None, the most frequent spelling stands for the others.
        repairs: records the labels that are spelled otherwise.
        exact: whether labels are spelled as they are in the file.
    """
    spellings = LabelSpellings(labels or (), exact=exact)
    if labels is None and not exact:
        try:
            spellings = LabelSpellings.learned(Counter(row.label for row in read(Repairs())))
        except InputError:
            if not repairs.strict:
                raise  # if strict, the second reading may name an earlier line

    # The second reading reports the repairs, once it is known which spelling stands for the others.
    for row in read(repairs):
        label = spellings(row.label)
        if label != row.label:
            repairs.add(
                "spelling of a label",
                *(row.name, row.line),
                problem=f"the label {other_spelling(row.label, label)}",
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


def _format(source: Source, requested: str, label: str | None) -> str:
    if requested == "text" and label is not None:
        raise NotSupportedError(f"{source.name}:1: lines of text have no labels; give the format tsv, csv or jsonl")
    if requested != "auto":
        return requested

    # What is answered line by line must not be read by what its first line happens to be.
    known = format_of(source)
    line = "" if known == "jsonl" or source.is_input else peek_line(source)
    if FASTTEXT_LINE.match(line):
        return "fasttext"
    if known or label is None:
        return known or "text"

    # Only data with labels may be recognized by their content: without labels, every line could be a text.
    if re.search(rf"[ \t\v\f]{FASTTEXT_WORD}", line):
        return "fasttext"
    if line.startswith("{"):
        return "jsonl"
    if TAB in line:
        return "tsv"
    problem = "neither a header with tabs nor JSON nor a word with __label__" if line.strip(BLANKS) else EMPTY_LINE
    raise MalformedError(
        f"{source.name}:1: {problem}; give TSV, CSV, JSONL or lines of fastText with a text and a label, and name it "
        ".tsv, .csv or .jsonl or give its format"
    )


def _from_lines(source: Source, text: str, repairs: Repairs) -> Iterator[Labelled]:
    for number, line in numbered_lines(source, repairs):
        if number == 1 and (likely_format := _likely_format(line, text)):
            what = LOOKS.get(likely_format, "the header of a table")
            columns = "texts without labels" if likely_format == "fasttext" else f"{shown(text)} of each row"
            warnings.warn(
                f"{source.name}:1: looks like {what}, but is read as a text, like every line; use --format "
                f"{likely_format} to read {columns}",
                stacklevel=2,
            )
        yield Labelled(line, "", source.name, number)


def _likely_format(line: str, text: str) -> str | None:
    """Return the format of a first line that does not look like text."""
    if text in object_fields(line):
        return "jsonl"
    if FASTTEXT_LINE.match(line):
        return "fasttext"
    separators = [separator for separator in SEPARATORS if separator in line and text in line.split(separator)]
    return {TAB: "tsv"}.get(separators[0], "csv") if separators else None


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


def _from_fasttext(source: Source, label: str | None, repairs: Repairs) -> Iterator[Labelled]:
    for number, line in numbered_lines(source, repairs):
        where = f"{source.name}:{number}"
        content = FASTTEXT_LABEL.sub("", line).strip(" \t\v\f")
        if label is None:
            yield Labelled(content, "", source.name, number)
            continue
        if not line.strip(BLANKS):
            _leave_out(repairs, source.name, number)
            continue

        # A label that is repeated is still one label; several are a task that this one cannot learn.
        labels = list(dict.fromkeys(FASTTEXT_LABEL.findall(line)))
        if not labels:
            raise MalformedError(f"{where}: no word begins with __label__; write the label before or after the text")
        if len(labels) > 1:
            listed = ", ".join(map(shown, labels[:SHOWN_COLUMNS]))
            raise NotSupportedError(
                f"{where}: {len(labels)} labels ({listed}), but classify gives a text one label; leave one, or use a "
                "tool that gives several, such as fastText itself (-loss ova)"
            )
        yield Labelled(content, _checked_label(labels[0], where), source.name, number)


def _column_indices(header: Sequence[str], columns: Sequence[str]) -> list[int]:
    """Return the indices of the columns with some names."""
    return [i for i, name in enumerate(header) if folded(unquoted(name)) in map(folded, columns)]


def _from_table(
    name: str, rows: Iterator[Row], text: str, label: str | None, repairs: Repairs, quoting: str = ""
) -> Iterator[Labelled]:
    _, header = next(rows, (1, []))
    if not any(field.strip(BLANKS) for field in header):
        names = " and ".join(shown(column) for column in (text, label) if column is not None)
        raise EmptyError(f"{name}:1: {EMPTY_LINE}; begin with a header that names {names}, and write the rows below")
    if len(header) > MAX_FIELDS:
        raise SizeError(f"{name}:1: more than {MAX_FIELDS:,} columns; check that it is a table")
    as_text = "" if label is not None else ", or read every line as a text with --format text"
    text_column = _column(header, text, name, f"--data.text{{}}{as_text}", repairs)
    label_column = None if label is None else _column(header, label, name, "--data.label{}", repairs)

    # A row has as many fields as the header; only empty ones at the end can be left out without loss.
    for number, fields in rows:
        where = f"{name}:{number}"
        # Without labels, a row of several empty fields is an empty text.
        if len(header) > 1 and _is_blank(fields) and (label is not None or len(fields) == 1):
            _leave_out(repairs, name, number)
            continue
        if len(fields) != len(header):
            problem = f"{len(fields)} field{'s' if len(fields) != 1 else ''}, but the header has {len(header)}"
            remedy = "correct this row (in TSV every tab separates, in CSV every separator outside quotes)"
            if quoting and any(field.startswith('"') for field in fields):
                remedy = f"if its fields are quoted, read the file with {quoting}; else {remedy}"
            if any(field.strip(BLANKS) for field in fields[_width(header) :]) or len(fields) < _width(header):
                raise MalformedError(f"{where}: {problem}; {remedy}")
            reading = "read without the empty fields at its end"
            repairs.add("trailing separators", name, number, problem=problem, reading=reading, remedy=remedy)
        label_value = "" if label_column is None else _checked_label(fields[label_column], where)
        yield Labelled(fields[text_column], label_value, name, number)


def _leave_out(repairs: Repairs, name: str, number: int) -> None:
    repairs.add("blank lines", name, number, problem="a blank line", reading="left out", remedy="delete it")


def _width(header: list[str]) -> int:
    """Return the number of columns without those at the end that have no name."""
    return max((i for i, name in enumerate(header, 1) if name.strip(BLANKS)), default=0)


def _column(header: list[str], column: str, name: str, option: str, repairs: Repairs) -> int:
    """Return the index of a column; ``option`` is a template of the option that names another one."""
    if header.count(column) == 1:
        return header.index(column)
    if column in header:
        raise DuplicateError(f"{name}:1: the header names {shown(column)} more than once; rename a column")
    alike = [i for i, other in enumerate(header) if folded(unquoted(other)) == folded(column)]
    columns = ", ".join(repr(other[:40]) for other in header[:SHOWN_COLUMNS]) or "nothing"
    close = closest(column, header)
    hint = f"did you mean {close!r}? " if close else ""
    remedy = f"{hint}name the column with {option.format(f' {shlex.quote(close)}' if close else ' NAME')}"
    problem = f"no column {shown(column)} in the header, which has {columns}"
    if len(alike) != 1:
        raise MissingError(f"{name}:1: {problem}; {remedy}")
    reading = f"read {shown(header[alike[0]])} as this column"
    repairs.add("spelling of the header", name, 1, problem=problem, reading=reading, remedy=remedy)
    return alike[0]


def _checked_label(value: str, where: str) -> str:
    if not value.strip(BLANKS).strip():
        raise MalformedError(f"{where}: the label is empty; write one, or delete the row")
    if "\n" in value:
        raise MalformedError(f"{where}: a line end in the label, and labels are written one on each line; remove it")
    return value
