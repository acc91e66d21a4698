"""The rows of TSV and CSV: their fields, with the line on which each row begins.

In TSV every tab separates, and a quote is an ordinary character, unless every field of a column is in quotes, with or
without blanks around them. Then those of this column are read without the quotes, and may contain tabs and line ends.
CSV is quoted as in RFC 4180, with commas, semicolons or tabs.
"""

import csv
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from ..core.errors import InputError
from .readers import Source, numbered_lines, read_pieces
from .repairs import Repairs
from .spellings import BLANKS, folded

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
        places = [place for place in columns if i >= headed and place < len(fields) and _in_quotes(fields[place])]
        if bare := quoted.intersection(places):
            repairs.add(
                "quoted fields",
                *(source.name, number),
                problem="a field in quotes, which TSV does not have, and so is every other of its column",
                reading="read without the quotes",
                remedy="delete the quotes",
                count=len(bare),
            )
        for place in places:
            if place in bare:
                fields[place] = unquoted(fields[place])
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
                    raise InputError(f"{source.name}:{number}: text after a field in quotes; double quotes within it")
            else:
                end = found if (found := line.find(TAB, at)) >= 0 else len(line)
            fields.append(opened + line[at:end])
            opened, at = "", end + 1
            if len(fields) > MAX_FIELDS:
                raise InputError(f"{source.name}:{first}: more than {MAX_FIELDS:,} fields; check that it is a table")

        # A quote that never ends would take the rest of the file into one field.
        if len(opened) > csv.field_size_limit():
            raise InputError(f"{source.name}:{first}: a quote without an end; add it, or delete the quote")
        if not opened:
            yield first, fields
            fields = []
    if opened:
        raise InputError(f"{source.name}:{first}: a quote without an end; add it, or delete the quote")


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
                left = {place for place in left if place < len(fields) and _in_quotes(fields[place])}
                odd.update(place for place in left if '"' in _content(fields[place]).replace('""', ""))
            if not left:
                break
    except InputError:  # whoever reads the rows says what is wrong
        return set()
    return {place for place in left if 2 * odd[place] <= count}


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


def _ended_lines(name: str, lines: Iterable[tuple[int, str]], separator: str) -> Iterator[str]:
    """Iterate over lines with their ends."""
    for number, line in lines:
        if line.count(separator) > MAX_FIELDS and QUOTED.sub("", line).count(separator) > MAX_FIELDS:
            raise InputError(f"{name}:{number}: more than {MAX_FIELDS:,} fields; check that it is a table")
        yield f"{line}\n"


def peek_line(source: Source) -> str:
    """Return the first line of a source, or as much of it as is read at once; empty if there is none."""
    piece = next(read_pieces([source._replace(format="text")]), None)
    return piece.text.partition("\n")[0] if piece else ""
