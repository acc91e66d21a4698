"""Text from plain files, folders, globs, pipes, gzip, JSONL, built-in corpora and the hub.

Text is UTF-8. Byte-order marks are dropped, and every line end becomes LF (see `text_bytes`); nothing else is changed.
What cannot be read is refused by file and line. Files are read in pieces and need not fit in memory, nor need a line of
running text. A line in unit ``line`` and an object of JSONL are read as a whole.

A reader records the repairs that it makes in ``repairs``; None records nothing.
"""

import functools
import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar, cast

from ..core.errors import InputError, UnreadableError
from ..storage.safe_files import DuplicateFieldError, is_text, unique_fields
from .boundary_markers import Markers
from .builtin import builtin_format, builtin_text
from .hub import hub_source
from .paths import find_paths, plain_name
from .pipes import PIECE_BYTES, arrived
from .repairs import Repairs
from .text_bytes import (
    TextFile,
    decode,
    find_control_characters,
    first_bytes,
    line_ends,
    plain_text,
    split_at_damage,
    without_marks,
)

TEXT_SUFFIXES = (".txt", ".text", ".md", ".rst", ".jsonl", ".ndjson")
TAGGED_SUFFIXES = (".conllu", ".conll")
LABELLED_SUFFIXES = (".tsv", ".csv", ".jsonl", ".ndjson", ".txt", ".text")
PAIRED_SUFFIXES = (".tsv", ".jsonl", ".ndjson", ".txt", ".text")
JSONL_SUFFIXES = (".jsonl", ".ndjson")
UNREADABLE = (OSError, EOFError, zlib.error)
SPACES = (b" ", b"\t", b"\v", b"\f")
DECODER = json.JSONDecoder(object_pairs_hook=unique_fields)
CONTINUATION_BYTES = 3  # the largest number of bytes of a UTF-8 character after its first byte
Item = TypeVar("Item")


class Source(NamedTuple):
    """A readable file."""

    name: str  # its name in messages
    open: Callable[[], AbstractContextManager[BinaryIO]]  # opens it
    format: str  # text, jsonl or tsv, as far as it is known; else text; lines for those of JSONL as they are written
    origin: tuple[str, ...] = ()  # the path of a file on the disk, and what says which part of it; empty if unknown
    markers: Markers | None = None  # the boundary markers that are left out of its lines
    is_input: bool = False  # whether its lines are answered one by one, so that none changes the format of the others
    is_live: bool = False  # whether more is to come, so that it can be read once only


class Piece(NamedTuple):
    """A part of a document, which ends after a line end, or else after a space, or else anywhere."""

    text: str
    begins_document: bool


def find_sources(
    spec: str, *, file_format: str = "auto", split: str = "train", suffixes: Sequence[str] = TEXT_SUFFIXES
) -> list[Source]:
    """Find the files that ``spec`` names.

    Args:
        spec: a path, a folder, a glob, ``-``, ``builtin:NAME[:SPLIT]`` or ``hf:NAME``.
        file_format: ``text``, ``jsonl``, or ``auto`` to choose by the name.
        split: the part of a built-in corpus or a hub data set, if ``spec`` does not name one.
        suffixes: the files of a folder that are read, compressed (``.gz``) or not; hidden files are skipped.

    Raises:
        InputError: no file is found.
    """
    if not spec:
        raise InputError("the name of the text is empty; give a file, a folder, a glob, - or builtin:python-docs")
    if spec.startswith("builtin:"):
        return [Source(spec, lambda: builtin_text(spec, split).open("rb"), builtin_format(spec))]
    if spec.startswith("hf:"):
        return [Source(spec, functools.partial(hub_source, spec, split), "jsonl")]
    sources = []
    for name, path in find_paths(spec, suffixes).items():
        named = "jsonl" if plain_name(name).endswith(JSONL_SUFFIXES) else "text"
        chosen = named if file_format == "auto" else file_format
        sources.append(Source(name, functools.partial(_open, path), chosen, (str(path.absolute()),)))
    return sources


def standard_input(file_format: str = "text") -> Source:
    """Return standard input, which is answered while it is being written.

    It can be read as often as a file if all of it has arrived, and once otherwise.
    """
    beginning = arrived()
    return Source("<stdin>", beginning.open, file_format, is_input=True, is_live=not beginning.is_all)


def read_pieces(sources: Iterable[Source], repairs: Repairs | None = None) -> Iterator[Piece]:
    """Read the documents piece by piece. Blank lines of JSONL are left out.

    Raises:
        InputError: bytes that are not UTF-8 text, or a line that is not a JSON object with a field ``text``.
    """
    repairs = repairs or Repairs()
    for source in sources:
        if source.format == "jsonl":
            for number, record in read_objects(source, repairs):
                text = string_field(record, "text", f"{source.name}:{number}")
                if source.markers is not None:
                    text = repairs.without_markers(text, source.markers, source.name, number, is_item=True)
                yield Piece(text, True)
        else:
            yield from _text_pieces(source, repairs)


def read_lines(sources: Iterable[Source], repairs: Repairs | None = None) -> Iterator[str]:
    """Read line by line, without line ends. The last line of a document needs no line end."""
    for lines in read_whole_lines(sources, repairs):
        yield from lines.split("\n")[:-1]


def read_items(sources: Iterable[Source], repairs: Repairs | None = None, *, one_line: bool = False) -> Iterator[str]:
    """Read the texts that are answered one by one: the lines of a text, and the ``text`` of each object of JSONL.

    Raises:
        InputError: as for `read_pieces`; with ``one_line`` also if the text of an object holds a line end.
    """
    for where, text in located_items(sources, repairs):
        if one_line and "\n" in text:
            raise InputError(f'{where}: a line end in "text", whose answer would be two lines; split the text')
        yield text


def located_items(sources: Iterable[Source], repairs: Repairs | None = None) -> Iterator[tuple[str, str]]:
    """Read the same texts, each after its file and line."""
    repairs = repairs or Repairs()
    for source in sources:
        if source.format != "jsonl":
            for number, line in numbered_lines(source, repairs):
                yield f"{source.name}:{number}", repairs.text(line, source.name, number)
            continue
        for number, record in read_objects(source, repairs):
            where = f"{source.name}:{number}"
            yield where, repairs.text(string_field(record, "text", where), source.name, number)


def located_lines(sources: Iterable[Source]) -> Iterator[tuple[str, str]]:
    """Read as `read_lines`, each line after its file and line; the lines of an object of JSONL have the same."""
    for where, text in located_items(sources, Repairs()):
        for line in text.removesuffix("\n").split("\n"):
            yield where, line


def numbered_lines(source: Source, repairs: Repairs | None = None) -> Iterator[tuple[int, str]]:
    """Read the lines of a file, whatever its format, with their numbers from 1."""
    lines = source._replace(format="lines" if source.format == "jsonl" else "text")
    return enumerate(read_lines([lines], repairs), start=1)


def require_items(items: Iterable[Item], problem: str) -> Iterator[Item]:
    """Yield all items; raise InputError if there are none."""
    empty = True
    for item in items:
        empty = False
        yield item
    if empty:
        raise InputError(problem)


def read_whole_lines(sources: Iterable[Source], repairs: Repairs | None = None) -> Iterator[str]:
    """Read some lines at a time, all with their line ends; otherwise as `read_lines`."""
    unfinished: list[str] = []
    for text, begins_document in read_pieces(sources, repairs):
        if begins_document and unfinished:
            yield "".join([*unfinished, "\n"])
            unfinished = []
        if not text:  # an empty document is an empty line
            yield "\n"
        cut = text.rfind("\n") + 1
        if cut:
            yield "".join([*unfinished, text[:cut]])
            unfinished = []
        if cut < len(text):
            unfinished.append(text[cut:])
    if unfinished:
        yield "".join([*unfinished, "\n"])


def is_compressed(path: Path) -> bool:
    """Return whether a file is decompressed while it is read."""
    return path.suffix.lower() == ".gz"


def read_objects(source: Source, repairs: Repairs | None = None) -> Iterator[tuple[int, dict[str, object]]]:
    """Read the objects of a JSONL file with their line numbers; raise InputError for a line that is not one object.

    ``repairs`` records blank lines, which are left out; if None, they are refused.
    """
    repairs = repairs or Repairs(strict=True)
    for number, line in numbered_lines(source, repairs):
        where = f"{source.name}:{number}"
        if not line.strip():
            add_blank_line(repairs, source.name, number)
            continue
        try:
            record = DECODER.decode(line)
        except DuplicateFieldError as error:
            raise InputError(f"{where}: {error}; delete one") from None
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", "a number is too long, or values are nested too deeply")
            raise InputError(f"{where}: not JSON ({reason}); correct this line") from None
        if not isinstance(record, dict):
            raise InputError(f"{where}: not an object; write {{...}} with a field for each value")
        if "\\r" in line or "\\u00" in line:  # else the line itself has no such characters any more
            for name, value in record.items():
                if isinstance(value, str):
                    record[name] = plain_text(value, source.name, number, repairs)
        yield number, record


def add_blank_line(repairs: Repairs, file: str, number: int, count: int = 1) -> None:
    """Record a blank line of a JSONL file, or the first of several."""
    problem, remedy = "an empty line", "every line of JSONL holds one object, delete it"
    repairs.add("blank lines", file, number, problem=problem, reading="left out", remedy=remedy, count=count)


def object_fields(line: str) -> list[str]:
    """Return the names of the fields if a line is a JSON object; else an empty list."""
    if line.startswith("{"):
        with suppress(ValueError, RecursionError):
            return list(json.loads(line))
    return []


def string_field(record: dict[str, object], field: str, where: str, *, option: str = "") -> str:
    """Return a field of a JSON object that must be a string.

    ``where`` is the file and line for messages, and ``option`` the field of the configuration that names another field.

    Raises:
        InputError: the field is missing, not a string, or not valid text.
    """
    value = record.get(field)
    quoted = json.dumps(field)
    if not isinstance(value, str):
        other = f", or name another field with --{option}" if option else ""
        raise InputError(f'{where}: no string field {quoted}; write {{{quoted}: "..."}}{other}')
    if not is_text(value):
        raise InputError(f"{where}: half of a surrogate pair in {quoted}; write both halves")
    if "\0" in value:
        raise InputError(f"{where}: a NUL character in {quoted}; remove it")
    return value


def unreadable(source: Source, error: Exception) -> InputError:
    """Return the error for a file that cannot be opened or decompressed."""
    reason = getattr(error, "strerror", None) or str(error)
    is_damaged = isinstance(error, gzip.BadGzipFile) or not isinstance(error, OSError)
    return (InputError if is_damaged else UnreadableError)(f"{source.name}: cannot be read ({reason}); check the file")


def _text_pieces(source: Source, repairs: Repairs | None) -> Iterator[Piece]:
    try:
        with source.open() as file:
            yield from _decoded_pieces(source, file, repairs or Repairs())
    except UNREADABLE as error:
        raise unreadable(source, error) from None


def _decoded_pieces(source: Source, file: BinaryIO, repairs: Repairs) -> Iterator[Piece]:
    begins, line, at_line, known = True, 1, True, False
    pieces = _raw_pieces(source, file)
    for raw in pieces:  # none is empty
        following = () if source.is_live else pieces
        for part in split_at_damage(raw):  # so that lines before a damaged one are read
            text = decode(part, source.name, line, following=following, known=known)
            if isinstance(file, TextFile):
                file.record(source.name, repairs)
            find_control_characters(part, source.name, line, repairs)

            # Line ends become equal before anything else is looked for at the beginning of a line.
            text = text.replace("\r\n", "\n")
            if "\ufeff" in text:
                text = without_marks(text, source.name, line, repairs, at_line=at_line)
            is_mark = not text
            if source.markers is None and repairs.markers is None:
                repairs.note_markers(text, source.name, line)
            elif source.markers is not None and source.format != "lines":
                text = repairs.without_markers(text, source.markers, source.name, line)

            # A piece that was nothing but a byte-order mark is no text, and begins no document.
            if not is_mark:
                yield Piece(text, begins)
                begins = False
            known = known or not text.isascii()
            line, at_line = line + line_ends(part), part.endswith(b"\n") or (at_line and is_mark)


def _raw_pieces(source: Source, file: BinaryIO) -> Iterator[bytes]:
    """Read bytes in pieces that end where text may be cut, without the byte-order mark."""
    held, block = b"", first_bytes(source.name, file, PIECE_BYTES)
    while block:
        held += block
        if cut := _cut(held) if source.markers is None else held.rfind(b"\n") + 1:
            yield held[:cut]
            held = held[cut:]
        block = file.read(PIECE_BYTES)
    if held:
        yield held


def _cut(held: bytes) -> int:
    """Return where to cut: after the last line end, else the last space, else between characters; 0 for nowhere."""
    cut = held.rfind(b"\n") + 1 or max(map(held.rfind, SPACES)) + 1
    if cut or len(held) < PIECE_BYTES:
        return cut
    cut = len(held) - 1  # the last character may be incomplete
    starts = (at for at in range(cut, max(0, cut - CONTINUATION_BYTES) - 1, -1) if held[at] & 0xC0 != 0x80)
    return next(starts, cut)


def _open(path: Path) -> BinaryIO:
    open_file = gzip.open if is_compressed(path) else open
    return cast(BinaryIO, TextFile(cast(BinaryIO, open_file(path, "rb"))))
