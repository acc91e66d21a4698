"""Readers of pairs of texts for sequence to sequence: TSV, JSONL, or two files whose lines belong together.

TSV has no header, and no quoting unless every source or every target is in quotes. JSONL has the fields ``source`` and
``target``. Two files are ``train.en,train.de``.
Either text may be empty (the correct answer may be nothing), and white space is kept except at line ends. Blank lines
and trailing tabs are recorded as repairs.
"""

import os
import warnings
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import NamedTuple

from ..core.errors import InputError, nearest
from .readers import (
    PAIRED_SUFFIXES,
    Source,
    find_sources,
    numbered_lines,
    object_fields,
    read_lines,
    read_objects,
    require_items,
    string_field,
)
from .repairs import Repairs
from .separated_rows import TAB, peek_line, tab_separated
from .spellings import BLANKS, folded
from .tables import format_of

FORMATS = ("auto", "tsv", "jsonl")
HEADERS = ({"source", "target"}, {"text", "label"})


class Pair(NamedTuple):
    """A source, its target (empty if targets were not read), the file of the source and the line number."""

    source: str
    target: str
    name: str
    line: int


def read_pairs(
    spec: str,
    *,
    file_format: str = "auto",
    split: str = "train",
    labelled: bool = True,
    repairs: Repairs | None = None,
) -> Iterator[Pair]:
    """Read pairs one by one; only one is held in memory.

    Args:
        spec: as for `find_sources`, or two files separated by a comma.
        file_format: ``tsv``, ``jsonl``, or ``auto`` to choose by the name and then by the first line.
        split: the part of a built-in corpus, if ``spec`` does not name one.
        labelled: whether targets are required. If not, they may be missing, and are returned empty.
        repairs: records the repairs; if None, data that needs a repair is refused.

    Raises:
        InputError: no such file or format, no pairs, or a line without its partner, by file and line.
    """
    if file_format not in FORMATS:
        raise InputError(f"{file_format}: not a format of pairs; {nearest(file_format, list(FORMATS))}")
    names, repairs = spec.split(","), repairs or Repairs(strict=True)
    files: Iterable[tuple[str, Iterator[Pair]]]
    if len(names) == 2 and not os.path.exists(spec):
        left, right = (_single_file(name, spec, split) for name in names)
        files = [(names[0], _aligned_lines(left, right, repairs))]
    else:
        sources = find_sources(spec, file_format=file_format, split=split, suffixes=PAIRED_SUFFIXES)
        files = ((source.name, _pairs(source, file_format, labelled, repairs)) for source in sources)
    for name, pairs in files:
        problem = f"{name}:1: no pairs to learn from; write SOURCE<TAB>TARGET on every line"
        for pair in require_items(pairs, problem) if labelled else pairs:
            source = repairs.text(pair.source, pair.name, pair.line)
            target = repairs.text(pair.target, pair.name, pair.line, target=True)
            yield pair._replace(source=source, target=target)


def read_unpaired(
    sources: Iterable[Source], file_format: str | None = None, repairs: Repairs | None = None
) -> Iterator[str]:
    """Read the sources that a model is to answer, one by one.

    In the format ``text`` every line is a source; in ``tsv`` the text before the tab of a line, or the whole line; in
    ``jsonl`` the field ``source`` of each object, or else ``text``. With None or ``auto`` the name decides.

    Raises:
        InputError: another format, or a line that does not fit the format.
    """
    if file_format not in (None, "text", *FORMATS):
        raise InputError(f"--format {file_format}: sources are not read from it; give text, tsv or jsonl")
    repairs = repairs or Repairs(strict=True)
    for source in sources:
        chosen = format_of(source) if file_format in (None, "auto") else file_format
        if chosen == "tsv":
            pairs = _tab_separated(source, False, repairs)
        elif chosen == "jsonl":
            pairs = _from_objects(source, False, repairs)
        else:
            pairs = _whole_lines(source, repairs, warn=file_format != "text")
        for pair in pairs:
            yield repairs.text(pair.source, pair.name, pair.line)


def _whole_lines(source: Source, repairs: Repairs, *, warn: bool) -> Iterator[Pair]:
    for number, line in numbered_lines(source, repairs):
        hint = ""
        if number == 1 and TAB in line:
            hint = "the tab is read as part of the source; use --format tsv to read only the text before it"
        elif number == 1 and warn and {"source", "text"} & set(object_fields(line)):
            hint = "looks like JSONL, but is read as text; use --format jsonl for JSONL"
        if hint:
            warnings.warn(f"{source.name}:1: {hint}", stacklevel=2)
        yield Pair(line, "", source.name, number)


def _pairs(source: Source, requested: str, labelled: bool, repairs: Repairs) -> Iterator[Pair]:
    known = format_of(source) if requested == "auto" else requested
    if known == "csv":
        raise InputError(f"{source.name}:1: pairs are not read from CSV; write SOURCE<TAB>TARGET, or JSONL")
    if not known:
        line = peek_line(source)
        known = "jsonl" if line.startswith("{") and TAB not in line else "tsv"
    return (_from_objects if known == "jsonl" else _tab_separated)(source, labelled, repairs)


def _tab_separated(source: Source, labelled: bool, repairs: Repairs) -> Iterator[Pair]:
    read, remedy = [0, 1] if labelled else [0], "if it is quoted, delete the quotes, or write JSONL"
    for number, fields in tab_separated(source, lambda _: read, repairs, headed=False, remedy=remedy):
        where = f"{source.name}:{number}"
        if number == 1 and {folded(field) for field in fields} in HEADERS:
            remedy = "delete it (a pair of these words may be on another line)"
            if source.name.startswith("builtin:"):
                raise InputError(f"{source.name}: texts with labels, not pairs; give this data to the task classify")
            raise InputError(f"{where}: a header, but files of pairs have none; {remedy}")

        # Empty columns at the end lose nothing; any other third column could be part of a pair.
        if len(fields) > 2:
            if any(field.strip(BLANKS) for field in fields[2:]):
                remedy = "for example the lemma and the features joined by a space, then a tab and the form"
                columns = f"{TAB.join(fields).rstrip(BLANKS).count(TAB) + 1} columns, but a pair has 2"
                raise InputError(f"{where}: {columns}; write SOURCE<TAB>TARGET, {remedy}")
            problem = f"{TAB.join(fields).count(TAB)} tabs, but only one may separate source and target"
            remedy = "delete the others, or write JSONL"
            reading = "read without the tabs at the end"
            repairs.add("trailing separators", source.name, number, problem=problem, reading=reading, remedy=remedy)

        # A blank line is no pair of empty texts, which has a tab.
        if len(fields) < 2 and labelled and not fields[0].strip(BLANKS):
            problem, remedy = "a blank line", "delete it, or write the tab of a pair of empty texts"
            repairs.add("blank lines", source.name, number, problem=problem, reading="left out", remedy=remedy)
            continue
        if len(fields) < 2 and labelled:
            raise InputError(f"{where}: no tab; write SOURCE<TAB>TARGET, or give two files as SOURCES,TARGETS")
        yield Pair(fields[0], fields[1] if labelled else "", source.name, number)


def _from_objects(source: Source, labelled: bool, repairs: Repairs) -> Iterator[Pair]:
    for number, record in read_objects(source, repairs):
        where = f"{source.name}:{number}"
        target = string_field(record, "target", where) if labelled else ""
        field = "text" if not labelled and "source" not in record and "text" in record else "source"
        yield Pair(string_field(record, field, where), target, source.name, number)


def _single_file(name: str, spec: str, split: str) -> Source:
    if not name:
        raise InputError(f"{spec}: one of the two files has no name; give SOURCES,TARGETS")
    sources = find_sources(name, split=split)
    if len(sources) != 1:
        raise InputError(f"{name}: {len(sources)} files; give one file for each side")
    return sources[0]._replace(format="text")


def _aligned_lines(left: Source, right: Source, repairs: Repairs) -> Iterator[Pair]:
    lines = zip_longest(read_lines([left], repairs), read_lines([right], repairs))
    for number, (source, target) in enumerate(lines, start=1):
        if source is None or target is None:
            longer, shorter = (left, right) if target is None else (right, left)
            total = number + sum(1 for _ in lines)
            remedy = f"the files have {total} and {number - 1} lines, align them"
            raise InputError(f"{longer.name}:{number}: no partner in {shorter.name}; {remedy}")
        yield Pair(source, target, left.name, number)
