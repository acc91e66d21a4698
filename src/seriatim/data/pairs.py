"""Pairs of texts in, for sequence to sequence: TSV, JSONL, or two files whose lines belong together.

TSV here has no header and no quoting: a line is ``source<TAB>target``, with one tab. JSONL has the fields ``source``
and ``target``. Two files are given as ``train.en,train.de``, with the same number of lines. An empty source is kept, an
empty target allowed (the right answer may be nothing), and white space is kept as it is, line ends apart.
"""

import os
import warnings
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import NamedTuple

from ..core.errors import InputError, nearest
from .readers import PAIRED_SUFFIXES, Source, find_sources, read_lines, read_objects, string_field
from .tables import first_line, format_of

FORMATS = ("auto", "tsv", "jsonl")
TAB = "\t"
HEADERS = ({"source", "target"}, {"text", "label"})


class Pair(NamedTuple):
    """A source, its target (empty where none was asked for), the file of the source and the line."""

    source: str
    target: str
    name: str
    line: int


def read_pairs(spec: str, *, file_format: str = "auto", split: str = "train", labelled: bool = True) -> Iterator[Pair]:
    """Reads pair by pair; only one is held in memory.

    Args:
        spec: what `find_sources` takes, or two files with a comma between.
        file_format: ``tsv``, ``jsonl``, or ``auto`` to go by the name and then by the first line.
        split: which part of a built-in corpus, where ``spec`` does not say.
        labelled: whether there must be targets; else they may be missing, and are left empty.

    Raises:
        InputError: nothing there, no such format, no pairs to learn from, or a line without its partner, by file and
            line.
    """
    if file_format not in FORMATS:
        raise InputError(f"{file_format}: no such format of pairs; {nearest(file_format, list(FORMATS))}")
    names = spec.split(",")
    if len(names) == 2 and not os.path.exists(spec):
        return _checked(_parallel(*(_side(name, spec, split) for name in names)), names[0], labelled)
    sources = find_sources(spec, file_format=file_format, split=split, suffixes=PAIRED_SUFFIXES)
    return _every(sources, file_format, labelled)


def read_unpaired(sources: Iterable[Source], *, file_format: str | None = None) -> Iterator[str]:
    """Reads what is to be answered, source by source.

    Args:
        sources: from `find_sources`.
        file_format: ``text``: every line is a source; ``tsv``: what is before the tab of a line, or all of it;
            ``jsonl``: the field ``source`` of each object, or else ``text``; None or ``auto`` to go by the name.

    Raises:
        InputError: another format, or a line that does not fit it.
    """
    if file_format not in (None, "text", *FORMATS):
        raise InputError(f"--format {file_format}: not of sources; give text, tsv or jsonl")
    for source in sources:
        chosen = format_of(source) if file_format in (None, "auto") else file_format
        if chosen == "tsv":
            yield from (pair.source for pair in _tab_separated(source, labelled=False))
        elif chosen == "jsonl":
            yield from _sources_of_objects(source)
        else:
            yield from _whole_lines(source)


def _sources_of_objects(source: Source) -> Iterator[str]:
    for number, record in read_objects(source):
        field = "text" if "source" not in record and "text" in record else "source"
        yield string_field(record, field, f"{source.name}:{number}")


def _whole_lines(source: Source) -> Iterator[str]:
    for number, line in enumerate(read_lines([source._replace(format="text")]), start=1):
        if number == 1 and TAB in line:
            warnings.warn(
                f"{source.name}:1: a tab, which is read as part of the source here; --format tsv answers what is "
                "before it",
                stacklevel=2,
            )
        yield line


def _every(sources: list[Source], file_format: str, labelled: bool) -> Iterator[Pair]:
    for source in sources:
        read = _from_objects if _format(source, file_format) == "jsonl" else _tab_separated
        yield from _checked(read(source, labelled), source.name, labelled)


def _checked(pairs: Iterator[Pair], name: str, labelled: bool) -> Iterator[Pair]:
    found = False
    for pair in pairs:
        found = True
        yield pair
    if labelled and not found:
        raise InputError(f"{name}:1: no pairs to learn from; write SOURCE<TAB>TARGET on every line")


def _format(source: Source, wanted: str) -> str:
    known = format_of(source) if wanted == "auto" else wanted
    if known == "csv":
        raise InputError(f"{source.name}:1: pairs are not read from CSV; write SOURCE<TAB>TARGET, or JSONL")
    if known:
        return known
    line = first_line(source)
    return "jsonl" if line.startswith("{") and "\t" not in line else "tsv"


def _tab_separated(source: Source, labelled: bool) -> Iterator[Pair]:
    for number, line in enumerate(read_lines([source._replace(format="text")]), start=1):
        where = f"{source.name}:{number}"
        fields = line.split(TAB, 2)
        if number == 1 and set(fields) in HEADERS:
            raise InputError(
                f"{where}: a header, and pairs have none; delete it (a pair of these words may stand below)"
            )
        if len(fields) > 2:
            raise InputError(
                f"{where}: {line.count(TAB)} tabs where one parts source and target; delete some, or write JSONL"
            )
        if len(fields) < 2 and labelled:
            raise InputError(f"{where}: no tab; write SOURCE<TAB>TARGET, or give two files as SOURCES,TARGETS")
        yield Pair(fields[0], fields[1] if labelled else "", source.name, number)


def _from_objects(source: Source, labelled: bool) -> Iterator[Pair]:
    for number, record in read_objects(source):
        where = f"{source.name}:{number}"
        target = string_field(record, "target", where) if labelled else ""
        yield Pair(string_field(record, "source", where), target, source.name, number)


def _side(name: str, spec: str, split: str) -> Source:
    if not name:
        raise InputError(f"{spec}: one of two files has no name; give SOURCES,TARGETS")
    sources = find_sources(name, split=split)
    if len(sources) != 1:
        raise InputError(f"{name}: {len(sources)} files; each side of a parallel text is one file")
    return sources[0]._replace(format="text")


def _parallel(left: Source, right: Source) -> Iterator[Pair]:
    lines = zip_longest(read_lines([left]), read_lines([right]))
    for number, (source, target) in enumerate(lines, start=1):
        if source is None or target is None:
            longer, shorter = (left, right) if target is None else (right, left)
            whole = number + sum(1 for _ in lines)
            raise InputError(
                f"{longer.name}:{number}: no partner in {shorter.name}; the files have {whole} and {number - 1} lines, "
                "line up the two"
            )
        yield Pair(source, target, left.name, number)
