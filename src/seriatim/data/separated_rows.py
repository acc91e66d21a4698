"""The rows of TSV and CSV: their fields, with the line on which each row begins.

In TSV every tab separates, and a quote is an ordinary character, unless every field of a column is in quotes. CSV is
quoted as in RFC 4180, with commas, semicolons or tabs.
"""

import csv
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from ..core.errors import InputError
from .pipes import live_input
from .readers import Source, numbered_lines, read_pieces
from .repairs import Repairs
from .spellings import BLANKS, folded

TAB = "\t"
SEPARATORS = (",", ";", TAB)  # the possible separators of CSV fields
MAX_FIELDS = 10_000  # the largest number of fields of a row; splitting a longer row would take many times its memory
QUOTED = re.compile('"[^"]*"')

Row = tuple[int, list[str]]  # the line on which a row begins, and its fields


def tab_separated(
    source: Source, find: Callable[[Sequence[str]], list[int]], repairs: Repairs, *, headed: bool, remedy: str
) -> Iterator[Row]:
    """Read the rows of TSV, without the quotes around fields if every field of a column has them.

    Args:
        source: the file.
        find: returns the indices of the columns that are read, given the fields of the first line.
        repairs: records the quotes.
        headed: whether the first line is a header.
        remedy: what to do if some fields of a column are in quotes, and others are not.
    """
    columns = find(_fields(peek_line(source))) if source.open is not live_input else []  # which cannot be read twice
    in_rows = columns and not _fits_in_lines(source) and _quoted_in_rows(source, columns, headed)
    in_lines = [] if in_rows else [place for place in columns if _quoted_in_lines(source, place, headed)]
    rows = quoted_rows(source, (), repairs, TAB) if in_rows else _plain_rows(source, repairs)
    for i, (number, fields) in enumerate(rows):
        columns = columns or find(fields)
        for place in columns if i >= headed and not in_rows else ():
            if place in in_lines and place < len(fields):
                fields[place] = unquoted(fields[place])
            elif place < len(fields) and _in_quotes(fields[place]):
                problem = "a field begins and ends with a quote, and others do not; it is read with its quotes"
                repairs.note("quotes in TSV", source.name, number, problem=problem, remedy=remedy)
        if i == headed and (in_rows or in_lines):
            repairs.add(
                "quoted fields",
                *(source.name, number),
                problem="a field in quotes, which TSV does not have, and so is every other of its column",
                reading="read without the quotes",
                remedy="delete the quotes",
            )
        yield number, fields


def _plain_rows(source: Source, repairs: Repairs | None = None) -> Iterator[Row]:
    return ((number, _fields(line)) for number, line in numbered_lines(source, repairs))


def _fields(line: str) -> list[str]:
    return line.split(TAB, MAX_FIELDS)


def _fits_in_lines(source: Source) -> bool:
    """Return whether every line of TSV that is not blank has as many fields as the first one."""
    rows = (fields for _, fields in _plain_rows(source) if any(field.strip(BLANKS) for field in fields))
    return len({len(fields) for fields in rows}) <= 1


def _quoted_in_lines(source: Source, place: int, headed: bool) -> bool:
    """Return whether every line of TSV has quotes around the field at an index."""
    found = False
    for _, fields in itertools.islice(_plain_rows(source), headed, None):
        if any(field.strip(BLANKS) for field in fields):
            found = place < len(fields) and _in_quotes(fields[place])
            if not found:
                break
    return found


def _quoted_in_rows(source: Source, columns: Sequence[int], headed: bool) -> bool:
    """Return whether TSV can be read as CSV, with quotes around every field of one of some columns.

    Then a field in quotes may contain tabs and line ends.
    """
    left, lines = set(columns), list[str]()
    reader = csv.reader(_ended_lines(source.name, numbered_lines(source), TAB, lines), delimiter=TAB, strict=True)
    try:
        for i, fields in enumerate(reader):
            row = "".join(lines)
            lines.clear()
            left &= set(_places_in_quotes(row, fields)) if i >= headed and fields else left
            if not left:
                return False
    except (csv.Error, InputError):  # whoever reads the rows says what is wrong
        return False
    return reader.line_num > headed


def _places_in_quotes(row: str, fields: Sequence[str]) -> Iterator[int]:
    """Yield the indices of the fields of a row of TSV that are in quotes there."""
    start = 0
    for i, field in enumerate(fields):
        quoted = '"' + field.replace('"', '""') + '"'
        if row.startswith(quoted, start):
            yield i
        start += len(quoted if row.startswith(quoted, start) else field) + 1


def unquoted(field: str) -> str:
    """Return a field without the quotes around it, if it has any; pairs of quotes in it are single ones."""
    if not _in_quotes(field):
        return field
    content = field[1:-1]
    return content if '"' in content.replace('""', "") else content.replace('""', '"')


def _in_quotes(field: str) -> bool:
    return len(field) > 1 and field[0] == field[-1] == '"'


def quoted_rows(
    source: Source, columns: Sequence[str], repairs: Repairs, separator: str | None = None
) -> Iterator[Row]:
    """Read the rows of CSV; the header tells what separates the fields unless it is given."""
    first = 1
    lines = numbered_lines(source, repairs)
    header = next(lines, None)
    separator = separator or _separator("" if header is None else header[1], columns)
    lines = itertools.chain([] if header is None else [header], lines)
    reader = csv.reader(_ended_lines(source.name, lines, separator), delimiter=separator, strict=True)
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


def _ended_lines(
    name: str, lines: Iterable[tuple[int, str]], separator: str, record: list[str] | None = None
) -> Iterator[str]:
    """Iterate over lines with their ends, and append them to a record."""
    for number, line in lines:
        if line.count(separator) > MAX_FIELDS and QUOTED.sub("", line).count(separator) > MAX_FIELDS:
            raise InputError(f"{name}:{number}: more than {MAX_FIELDS:,} fields; check that it is a table")
        if record is not None:
            record.append(f"{line}\n")
        yield f"{line}\n"


def peek_line(source: Source) -> str:
    """Return the first line of a source, or as much of it as is read at once; empty if there is none."""
    piece = next(read_pieces([source._replace(format="text")]), None)
    return piece.text.partition("\n")[0] if piece else ""
