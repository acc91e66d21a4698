"""Text in: plain files, folders, globs, standard input, gzip, JSONL and built-in corpora.

Text is UTF-8. A byte-order mark is dropped and CRLF becomes LF; nothing else is changed, and what cannot be read is
refused by file and line. Files are read in pieces, so that neither a file nor a line has to fit in memory.
"""

import functools
import gzip
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ..core.errors import InputError, shown
from ..storage.safe_files import is_text
from .builtin import builtin_format, builtin_text
from .paths import PIECE_BYTES, find_paths, plain_name, spool

TEXT_SUFFIXES = (".txt", ".text", ".md", ".rst", ".jsonl", ".ndjson")
TAGGED_SUFFIXES = (".conllu", ".conll")
LABELLED_SUFFIXES = (".tsv", ".csv", ".jsonl", ".ndjson", ".txt", ".text")
PAIRED_SUFFIXES = (".tsv", ".jsonl", ".ndjson", ".txt", ".text")
JSONL_SUFFIXES = (".jsonl", ".ndjson")
UNREADABLE = (OSError, EOFError, zlib.error)
SPACES = (b" ", b"\t", b"\v", b"\f")
MARK = b"\xef\xbb\xbf"
WRONG_MARKS = (b"\xff\xfe", b"\xfe\xff")
"""Of UTF-16, and of UTF-32."""
CONTINUED = 3
"""Bytes of a character after its first, at most."""


class Source(NamedTuple):
    """A readable file: what to call it in messages, how to open it, its format (``text`` unless more is known)."""

    name: str
    open: Callable[[], BinaryIO]
    format: str


class Piece(NamedTuple):
    """A stretch of a document, cut after a line end where there is one, or after a space, or anywhere."""

    text: str
    begins_document: bool


def find_sources(
    spec: str, *, file_format: str = "auto", split: str = "train", suffixes: Sequence[str] = TEXT_SUFFIXES
) -> list[Source]:
    """The files that ``spec`` names: a path, a folder, a glob, ``-``, ``builtin:NAME[:SPLIT]`` or ``hf:NAME``.

    Args:
        spec: what the user wrote.
        file_format: ``text``, ``jsonl``, or ``auto`` to go by the name.
        split: which part of a built-in corpus, where ``spec`` does not say.
        suffixes: which files of a folder are meant, packed (``.gz``) or not; hidden files never are.

    Raises:
        InputError: nothing there, or nothing that holds text.
    """
    if not spec:
        raise InputError("the name of the text is empty; give a file, a folder, a glob, - or builtin:python-docs")
    if spec.startswith("builtin:"):
        return [Source(spec, functools.partial(_open_builtin, spec, split), builtin_format(spec))]
    if spec.startswith("hf:"):
        from .hub import hub_source

        return [Source(spec, functools.partial(hub_source, spec, split), "jsonl")]
    if spec == "-":
        return [Source("<stdin>", functools.partial(_open, spool("-")), _format("", file_format))]
    paths = find_paths(spec, tuple(suffixes))
    if not Path(spec).is_file() and not Path(spec).is_dir() and Path(spec).exists():  # a pipe, of which this is a copy
        return [Source(spec, functools.partial(_open, paths[0]), _format(spec, file_format))]
    return [Source(str(path), functools.partial(_open, path), _format(path.name, file_format)) for path in paths]


def read_pieces(sources: Iterable[Source]) -> Iterator[Piece]:
    """Reads every document, piece by piece.

    Raises:
        InputError: bytes that are not UTF-8 text, or a line that is not a JSON object with a ``text``.
    """
    for source in sources:
        yield from _jsonl(source) if source.format == "jsonl" else _text(source)


def read_lines(sources: Iterable[Source]) -> Iterator[str]:
    """Reads line by line, without line ends. A last line needs no line end; a document never joins the next."""
    for lines in read_whole_lines(sources):
        yield from lines.split("\n")[:-1]


def read_items(sources: Iterable[Source], *, one_line: bool = False) -> Iterator[str]:
    """Reads what is answered one by one: the lines of a text; of JSONL the text of each object, one however long.

    Raises:
        InputError: as `read_pieces`, and with ``one_line`` for the text of an object that holds a line end.
    """
    for source in sources:
        if source.format != "jsonl":
            yield from read_lines([source])
            continue
        for number, record in read_objects(source):
            where = f"{source.name}:{number}"
            text = string_field(record, "text", where)
            if one_line and "\n" in text:
                raise InputError(f'{where}: a line end in "text", whose answer would be two lines; part it')
            yield text


def read_whole_lines(sources: Iterable[Source]) -> Iterator[str]:
    """Reads some lines at a time, all with their line ends; otherwise as `read_lines`."""
    unfinished: list[str] = []
    for text, begins_document in read_pieces(sources):
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


def read_objects(source: Source) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSONL file, each with its line.

    Raises:
        InputError: a line that is not one JSON object.
    """
    for number, line in enumerate(read_lines([source._replace(format="text")]), start=1):
        if not line.strip():
            raise InputError(f"{source.name}:{number}: an empty line; every line of JSONL holds one object, delete it")
        try:
            record = DECODER.decode(line)
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", "a number too long, or nested too deeply")
            raise InputError(f"{source.name}:{number}: not JSON ({reason}); mend this line") from None
        except _TwiceError as error:
            raise InputError(f"{source.name}:{number}: the field {error} stands there twice; delete one") from None
        if not isinstance(record, dict):
            raise InputError(f"{source.name}:{number}: not an object; write {{...}} with a field for each value")
        yield number, record


class _TwiceError(Exception):
    """A field of an object, of which JSON readers would keep one and drop the other."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(field for field, _ in pairs)
        raise _TwiceError(shown(counts.most_common(1)[0][0]))
    return found


DECODER = json.JSONDecoder(object_pairs_hook=_object)


def string_field(record: dict[str, Any], field: str, where: str, *, option: str = "") -> str:
    """A field of a JSON object that must be a string; CRLF becomes LF.

    Args:
        record: the object.
        field: the name of the field.
        where: file and line, for messages.
        option: the field of the configuration that names another, if any.

    Raises:
        InputError: it is missing or not a string, or holds what is not text; the message begins with ``where``.
    """
    value = record.get(field)
    named = json.dumps(field)
    if not isinstance(value, str):
        other = f", or name another field with --{option}" if option else ""
        raise InputError(f'{where}: no string field {named}; write {{{named}: "..."}}{other}')
    if not is_text(value):
        raise InputError(f"{where}: half a surrogate pair in {named}; escape it whole")
    if "\0" in value:
        raise InputError(f"{where}: a NUL character in {named}; remove it")
    return value.replace("\r\n", "\n")


def unreadable(source: Source, error: Exception) -> InputError:
    """What to say of a file that cannot be opened or unpacked."""
    reason = getattr(error, "strerror", None) or str(error)
    return InputError(f"{source.name}: cannot be read ({reason}); check the file")


def _text(source: Source) -> Iterator[Piece]:
    begins, line = True, 1
    for raw in _raw_pieces(source):
        text = _decode(raw, source.name, line).replace("\r\n", "\n")
        line += raw.count(b"\n")
        if text:
            yield Piece(text, begins)
            begins = False


def _jsonl(source: Source) -> Iterator[Piece]:
    for number, record in read_objects(source):
        yield Piece(string_field(record, "text", f"{source.name}:{number}"), True)


def _raw_pieces(source: Source) -> Iterator[bytes]:
    """Bytes in pieces cut where text may be cut, the byte-order mark dropped."""
    held = b""
    try:
        with source.open() as file:
            block = _first_bytes(source.name, file)
            while block:
                held += block
                cut = _cut(held)
                if cut:
                    yield held[:cut]
                    held = held[cut:]
                block = file.read(PIECE_BYTES)
    except UNREADABLE as error:
        raise unreadable(source, error) from None
    if held:
        yield held


def _first_bytes(name: str, file: BinaryIO) -> bytes:
    """What a file begins with, without its mark, of which a pipe may give a byte at a time."""
    held = block = file.read(PIECE_BYTES)
    while block and MARK.startswith(held):
        block = file.read(PIECE_BYTES)
        held += block
    if held.startswith(WRONG_MARKS):
        raise InputError(f"{name}:1: UTF-16, not UTF-8; convert it: iconv -f UTF-16 -t UTF-8")
    return held.removeprefix(MARK)


def _cut(held: bytes) -> int:
    """Where to cut: after the last line end, else after the last space, else between characters, else nowhere."""
    cut = held.rfind(b"\n") + 1 or max(map(held.rfind, SPACES)) + 1
    if cut or len(held) < PIECE_BYTES:
        return cut
    cut = len(held) - 1  # a CR may be the last byte before it, but no LF is behind it
    back = (at for at in range(cut, max(0, cut - CONTINUED) - 1, -1) if held[at] & 0xC0 != 0x80)
    return next(back, cut)


def _decode(raw: bytes, name: str, line: int) -> str:
    nul = raw.find(b"\0")
    if nul >= 0:
        at = line + raw.count(b"\n", 0, nul)
        raise InputError(f"{name}:{at}: a NUL byte: this is a binary file, or damaged; give plain UTF-8 text")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        at = line + raw.count(b"\n", 0, error.start)
        raise InputError(
            f"{name}:{at}: not UTF-8 (byte 0x{raw[error.start]:02X}); "
            "if it is Latin-1 text, convert it: iconv -f ISO-8859-1 -t UTF-8"
        ) from None


def _format(name: str, wanted: str) -> str:
    if wanted != "auto":
        return wanted
    return "jsonl" if plain_name(name).endswith(JSONL_SUFFIXES) else "text"


def _open(path: Path) -> BinaryIO:
    return gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb")  # type: ignore[return-value]


def _open_builtin(spec: str, split: str) -> BinaryIO:
    return builtin_text(spec, split).open("rb")
