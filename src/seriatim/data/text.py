"""How the bytes of a source become text: chunks of documents, lines, items, and objects of JSONL.

Text is UTF-8. A line ends with LF, with CR LF, or with CR, which files of old Macintosh programs have; no other
character ends a line (U+0085 and U+2028 do not). Every line end becomes LF: a CR alone where a file is opened, so that
no reader meets one. Byte-order marks are dropped; nothing else is changed. What cannot be read is refused by file and
line, and the message says what it may be.

Files are read in chunks and need not fit in memory, nor need a line of running text. A line in unit ``line`` and an
object of JSONL are read as a whole. A reader records the repairs that it makes in ``repairs``; None records nothing.
"""

import codecs
import gzip
import itertools
import json
import re
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from typing import BinaryIO, NamedTuple, TypeVar

from ..core.errors import DuplicateError, EmptyError, InputError, MalformedError, MissingError, UnreadableError, is_text
from ..storage.files import DuplicateFieldError, unique_fields
from .repairs import Markers, Repairs

MARK = b"\xef\xbb\xbf"
WRONG_MARKS = {  # the longer ones first, because one begins with another
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
PACKED = {
    b"\x1f\x8b": ("a gzip file", "end its name in .gz, or unpack it: gunzip"),
    b"BZh": ("a bzip2 file", "unpack it: bunzip2"),
    b"\xfd7zXZ\0": ("an xz file", "unpack it: unxz"),
    b"\x28\xb5\x2f\xfd": ("a Zstandard file", "unpack it: unzstd"),
    b"7z\xbc\xaf\x27\x1c": ("a 7-Zip file", "unpack it: 7z x"),
    b"PK\x03\x04": ("a ZIP file, as .xlsx and .docx are", "save a table as TSV or CSV, or unpack the text: unzip"),
    b"\xd0\xcf\x11\xe0": ("an old document of Microsoft Office", "save a table as TSV or CSV, or a text as plain text"),
    b"%PDF-": ("a PDF file", "extract its text: pdftotext"),
}
"""What other files begin with, what they are, and how they become text."""
BINARY = re.compile(rb"BZh[1-9]1AY&SY|BZh[1-9]\x17\x72\x45\x38\x50\x90|%PDF-[0-9]\.[0-9]\s|(?!BZh|%PDF-)", re.DOTALL)
"""What the first bytes must also look like: a text may begin with those of bzip2 or PDF."""
ENCODINGS = ("UTF-32LE", "UTF-32BE", "UTF-16LE", "UTF-16BE")
SAMPLE_BYTES = 4096
"""The number of bytes at the beginning of a file that tell an encoding."""
LINE_BYTES = 1 << 20  # the number of bytes that are read at once to find lines
SPARSE = 100
"""Text has at least one character of ASCII among so many."""
NO_TEXT, SPACES = ("Cc", "Cn", "Co", "Cs"), "\t\n\v\f\r"
"""Categories of characters that text does not have, and those that it has nevertheless."""
LONE_RETURN = re.compile(rb"\r(?!\n)")
C1 = re.compile(rb"\xc2[\x80-\x9f]")
MARKS = re.compile("^\ufeff+(?![\t ])", re.MULTILINE)  # in a column of its own it is a word
UTF8 = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")
ASCII, NO_C1 = bytes(range(0x80)), bytes(byte for byte in range(0x100) if not 0x80 <= byte <= 0x9F)
UNDEFINED = frozenset(b"\x81\x8d\x8f\x90\x9d")
"""Bytes that are no character of WINDOWS-1252."""
FEW_NULS = 4
"""At most one of so many bytes is NUL in a damaged text, but in UTF-16 and UTF-32 every character of ASCII has one."""


class TextFile:
    """An open file without a CR that is not followed by LF; such a CR is read as LF. The number of bytes is the same.

    Args:
        opened: the file, which ends with this one.
        longest: the number of bytes after which a line is yielded in several blocks; None for whole lines.

    Attributes:
        returns: the number of CRs that were read as LF so far.
        line: the number of the line that the first of them ends, from 1.
    """

    def __init__(self, opened: AbstractContextManager[BinaryIO], longest: int | None = None) -> None:
        self._opened = opened
        self._longest = longest
        self._held = b""  # a CR at the end of a block, of which only the next block says what follows
        self.returns, self.line = 0, 1
        self._recorded = 0

    def __enter__(self) -> "TextFile":
        self._file = self._opened.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.__exit__(None, None, None)

    def read(self, size: int = -1) -> bytes:
        """Read about ``size`` bytes, one more at most; none at the end of the file."""
        block = b""
        while not block:
            new = self._file.read(size)
            block, self._held = self._held + new, b""
            if not new:
                break
            if block.endswith(b"\r"):
                block, self._held = block[:-1], b"\r"

        # Most files have no CR alone. They are passed on as they are, which costs two counts of a block.
        returns = block.count(b"\r") - block.count(b"\r\n")
        if not self.returns:
            until = LONE_RETURN.search(block) if returns else None
            self.line += block.count(b"\n", 0, until.start() if until else len(block))
        self.returns += returns
        if not returns:
            return block
        return b"\r\n".join(lines.replace(b"\r", b"\n") for lines in block.split(b"\r\n"))

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over the lines, with their ends."""
        unfinished: list[bytes] = []
        while block := self.read(LINE_BYTES):
            first, *others = block.splitlines(keepends=True)
            unfinished.append(first)
            if first.endswith(b"\n") or (self._longest is not None and sum(map(len, unfinished)) >= self._longest):
                yield b"".join(unfinished)
                unfinished = []
            if others:
                yield from others[:-1]
                if others[-1].endswith(b"\n"):
                    yield others[-1]
                else:
                    unfinished = [others[-1]]
        if unfinished:
            yield b"".join(unfinished)

    def seekable(self) -> bool:
        """Return whether the file can be read from another position on."""
        return self._file.seekable()

    def seek(self, position: int) -> int:
        """Read on at the byte ``position``; `line` counts from there."""
        self._held = b""
        return self._file.seek(position)

    def record(self, name: str, repairs: Repairs) -> None:
        """Record the CRs that were read since the last call."""
        if self.returns > self._recorded:
            add_returns(repairs, name, self.line, self.returns - self._recorded)
            self._recorded = self.returns


def add_returns(repairs: Repairs, name: str, line: int, count: int = 1) -> None:
    """Record lines that end with a CR alone."""
    repairs.add(
        "CR line ends",
        *(name, line),
        problem="a CR without LF, with which old Macintosh programs end a line",
        reading="read as a line end",
        remedy="save the file with LF line ends",
        count=count,
    )


def find_control_characters(raw: bytes, name: str, line: int, repairs: Repairs) -> None:
    """Note the characters U+0080 to U+009F in UTF-8, whose first line is ``line``."""
    if found := C1.search(raw):
        count = len(C1.findall(raw))
        _note_control_character(found[0].decode(), name, line + line_ends(raw[: found.start()]), count, repairs)


def _note_control_character(character: str, name: str, line: int, count: int, repairs: Repairs) -> None:
    repairs.note(
        "C1 control characters",
        *(name, line),
        problem=f"a C1 control character (U+{ord(character):04X}), which is kept",
        remedy="if the text was converted from ISO-8859-1, convert the original again, from WINDOWS-1252",
        count=count,
    )


def without_marks(text: str, name: str, line: int, repairs: Repairs, *, at_line: bool = True) -> str:
    """Return a text without byte-order marks where a line begins, as files have them that were joined.

    ``at_line`` says whether the text begins a line.
    """

    def drop(found: re.Match[str]) -> str:
        if not found.start() and not at_line:
            return found[0]
        repairs.add(
            "byte-order marks",
            *(name, line + text.count("\n", 0, found.start())),
            problem="a byte-order mark, although the file does not begin here",
            reading="read without",
            remedy="delete it",
            count=len(found[0]),
        )
        return ""

    return MARKS.sub(drop, text)


def line_ends(raw: bytes) -> int:
    """Return how many lines end in a block of a `TextFile`."""
    return raw.count(b"\n")


def normal_line_ends(text: str) -> str:
    """Return a text in which every line ends with LF."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def plain_text(text: str, name: str, line: int, repairs: Repairs) -> str:
    """Return a string of JSON, in which any character can be escaped, as if its characters were those of a file."""
    if "\r" in text:
        if count := text.count("\r") - text.count("\r\n"):
            add_returns(repairs, name, line, count)
        text = normal_line_ends(text)
    if not text.isascii():
        find_control_characters(text.encode("utf-8", "surrogatepass"), name, line, repairs)
    return text


def first_bytes(name: str, file: BinaryIO, size: int) -> bytes:
    """Read the first bytes without the byte-order mark, which a pipe may return in several reads, and alone.

    Raises:
        InputError: they are text in UTF-16 or UTF-32, with or without a mark, or no text but a file of `PACKED`.
    """
    marks = (MARK, *WRONG_MARKS, *PACKED)
    held = block = file.read(size)
    while block and (held == MARK or any(len(held) < len(mark) and mark.startswith(held) for mark in marks)):
        block = file.read(size)
        held += block
    for mark, encoding in WRONG_MARKS.items():
        if held.startswith(mark):
            raise MalformedError(f"{name}:1: {encoding}, not UTF-8; convert it: iconv -f {encoding} -t UTF-8")
    for mark, (kind, remedy) in PACKED.items():
        if held.startswith(mark) and BINARY.match(held):
            raise MalformedError(f"{name}:1: {kind}, not text; {remedy}")
    if encoding := _encoding_with_nuls(held[:SAMPLE_BYTES]):
        problem = f"{encoding[:6]} without a byte-order mark, not UTF-8"
        raise MalformedError(f"{name}:1: {problem}; convert it: iconv -f {encoding} -t UTF-8")
    return held.removeprefix(MARK)


def split_at_damage(raw: bytes) -> Iterator[bytes]:
    """Yield the lines before the first damaged one, if there are any, and then the rest."""
    end = raw.find(b"\0")
    try:
        (raw if end < 0 else raw[:end]).decode("utf-8")
    except UnicodeDecodeError as error:
        end = error.start
    cut = raw.rfind(b"\n", 0, end) + 1 if end >= 0 else 0
    if cut:
        yield raw[:cut]
    yield raw[cut:]


def decode(raw: bytes, name: str, line: int, *, following: Iterable[bytes], known: bool) -> str:
    """Decode a block of a file.

    Args:
        raw: the block.
        name: the name of the file in messages.
        line: the number of the first line of the block.
        following: what follows in the file, which is read only if the block is no UTF-8 text.
        known: whether there are characters before that are UTF-8 and not ASCII.

    Raises:
        InputError: the block is no UTF-8 text; the message says what it may be.
    """
    nul = raw.find(b"\0")
    try:
        text = (raw if nul < 0 else raw[:nul]).decode("utf-8")
        if nul < 0:
            return text
        damage, reason = nul, ""
    except UnicodeDecodeError as error:
        damage, reason = error.start, error.reason

    # The remedy depends on the other characters: if some of them are UTF-8, the damage is a single mistake.
    where = f"{name}:{line + line_ends(raw[:damage])}"
    if not reason:
        raise MalformedError(f"{where}: a NUL byte: the file is binary or damaged; give plain UTF-8 text")
    remedies = [_remedy(itertools.chain([raw[damage:]], following), known=known or not raw[:damage].isascii())]
    problem = f"not UTF-8 (byte 0x{raw[damage]:02X})"
    if reason == "unexpected end of data":
        problem = f"{problem}: the file ends inside a character"
        remedies.insert(0, "if it was cut there, get all of it")
    raise MalformedError(f"{where}: {problem}; {', or '.join(remedies)}")


def _remedy(blocks: Iterable[bytes], *, known: bool) -> str:
    """Return what to do with text of which some bytes are not UTF-8; ``known`` says whether characters before are.

    In WINDOWS-1252 the bytes 0x80 to 0x9F, without `UNDEFINED`, are quotes, dashes and the like; ISO-8859-1 has control
    characters there.
    """
    c1 = set[int]()

    # A large file may follow, so reading ends with the first block that decides.
    for raw in blocks:
        rest, characters = UTF8.subn(b"", raw)
        known = known or characters > len(rest.translate(None, ASCII))
        c1 |= {*rest.translate(None, NO_C1)}
        if known or c1 & UNDEFINED:
            break

    encoding = "" if c1 & UNDEFINED else "WINDOWS-1252" if c1 else "ISO-8859-1"
    if known:
        return f"other characters are UTF-8, correct this one{f' (it may be {encoding})' * bool(encoding)}"
    if not encoding:
        byte = min(c1 & UNDEFINED)
        unlike = f"0x{byte:02X} is no character of Latin-1 or Windows-1252"
        return f"find out its encoding ({unlike}), and convert it: iconv -f ENCODING -t UTF-8"
    name = "Latin-1" if encoding == "ISO-8859-1" else "Windows"
    return f"if it is {name} text, convert it: iconv -f {encoding} -t UTF-8"


def _encoding_with_nuls(beginning: bytes) -> str:
    """Return an encoding in which a file begins with text, although it has NUL bytes; empty if there is none.

    Of the encodings that give text of any script, it is the one that gives the most characters of ASCII, such as spaces
    and line ends: those are what has NUL bytes. There is none if a few NUL bytes are all that a UTF-8 text has wrong.
    """
    best, most = "", 1
    others = beginning.replace(b"\0", b"")
    if FEW_NULS * (len(beginning) - len(others)) <= len(beginning):
        with suppress(UnicodeDecodeError):
            if _is_text(codecs.getincrementaldecoder("utf-8")().decode(others)):
                return ""
    for encoding in ENCODINGS if b"\0" in beginning else ():
        try:
            text = codecs.getincrementaldecoder(encoding)().decode(beginning)
        except UnicodeDecodeError:
            continue
        ascii_count = sum(character < "\x80" for character in text)
        if _is_text(text) and ascii_count > most and ascii_count * SPARSE >= len(text):
            best, most = encoding, ascii_count
    return best


def _is_text(text: str) -> bool:
    return all(unicodedata.category(character) not in NO_TEXT or character in SPACES for character in set(text))


CHUNK_BYTES = 1 << 20
UNREADABLE = (OSError, EOFError, zlib.error)
WHITE_SPACE = (b" ", b"\t", b"\v", b"\f")
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


class TextChunk(NamedTuple):
    """Some text of a document, which ends after a line end, or else after a space, or else anywhere."""

    text: str
    begins_document: bool


def read_chunks(sources: Iterable[Source], repairs: Repairs | None = None) -> Iterator[TextChunk]:
    """Read the documents chunk by chunk. Blank lines of JSONL are left out.

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
                yield TextChunk(text, True)
        else:
            yield from _text_chunks(source, repairs)


def read_lines(sources: Iterable[Source], repairs: Repairs | None = None) -> Iterator[str]:
    """Read line by line, without line ends. The last line of a document needs no line end."""
    for lines in read_whole_lines(sources, repairs):
        yield from lines.split("\n")[:-1]


def read_items(sources: Iterable[Source], repairs: Repairs | None = None, *, one_line: bool = False) -> Iterator[str]:
    """Read the texts that are answered one by one: the lines of a text, and the ``text`` of each object of JSONL.

    Raises:
        InputError: as for `read_chunks`; with ``one_line`` also if the text of an object holds a line end.
    """
    for where, text in located_items(sources, repairs):
        if one_line and "\n" in text:
            raise MalformedError(f'{where}: a line end in "text", whose answer would be two lines; split the text')
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
        raise EmptyError(problem)


def read_whole_lines(sources: Iterable[Source], repairs: Repairs | None = None) -> Iterator[str]:
    """Read some lines at a time, all with their line ends; otherwise as `read_lines`."""
    unfinished: list[str] = []
    for text, begins_document in read_chunks(sources, repairs):
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


def grouped(texts: Iterable[str], characters: int) -> Iterator[list[str]]:
    """Group texts that follow each other, until a group has so many characters."""
    group, size = list[str](), 0
    for text in texts:
        group.append(text)
        size += len(text)
        if size >= characters:
            yield group
            group, size = [], 0
    if group:
        yield group


def read_objects(source: Source, repairs: Repairs | None = None) -> Iterator[tuple[int, dict[str, object]]]:
    """Read the objects of a JSONL file with their line numbers; raise InputError for a line that is not one object.

    ``repairs`` records blank lines, which are left out; if None, they are refused.
    """
    repairs = repairs or Repairs(strict=True)
    for number, line in numbered_lines(source, repairs):
        where = f"{source.name}:{number}"
        if not line.strip():
            problem, remedy = "an empty line", "every line of JSONL holds one object, delete it"
            repairs.add("blank lines", source.name, number, problem=problem, reading="left out", remedy=remedy)
            continue

        # Python would take the last of two fields with one name, and nobody would know of the first.
        try:
            record = DECODER.decode(line)
        except DuplicateFieldError as error:
            raise DuplicateError(f"{where}: {error}; delete one") from None
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", "a number is too long, or values are nested too deeply")
            raise MalformedError(f"{where}: not JSON ({reason}); correct this line") from None
        if not isinstance(record, dict):
            raise MalformedError(f"{where}: not an object; write {{...}} with a field for each value")
        if "\\r" in line or "\\u00" in line:  # else the line itself has no such characters any more
            for name, value in record.items():
                if isinstance(value, str):
                    record[name] = plain_text(value, source.name, number, repairs)
        yield number, record


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
        raise MissingError(f'{where}: no string field {quoted}; write {{{quoted}: "..."}}{other}')
    if not is_text(value):
        raise MalformedError(f"{where}: half of a surrogate pair in {quoted}; write both halves")
    if "\0" in value:
        raise MalformedError(f"{where}: a NUL character in {quoted}; remove it")
    return value


def unreadable(source: Source, error: Exception) -> InputError:
    """Return the error for a file that cannot be opened or decompressed."""
    reason = getattr(error, "strerror", None) or str(error)
    is_damaged = isinstance(error, gzip.BadGzipFile) or not isinstance(error, OSError)
    return (InputError if is_damaged else UnreadableError)(f"{source.name}: cannot be read ({reason}); check the file")


def _text_chunks(source: Source, repairs: Repairs | None) -> Iterator[TextChunk]:
    try:
        with source.open() as file:
            yield from _decoded_chunks(source, file, repairs or Repairs())
    except UNREADABLE as error:
        raise unreadable(source, error) from None


def _decoded_chunks(source: Source, file: BinaryIO, repairs: Repairs) -> Iterator[TextChunk]:
    begins, line, at_line, known = True, 1, True, False
    chunks = _byte_chunks(source, file)
    for raw in chunks:  # none is empty
        following = () if source.is_live else chunks
        for lines in split_at_damage(raw):  # so that lines before a damaged one are read
            text = decode(lines, source.name, line, following=following, known=known)
            if isinstance(file, TextFile):
                file.record(source.name, repairs)
            find_control_characters(lines, source.name, line, repairs)

            # Line ends become equal before anything else is looked for at the beginning of a line.
            text = text.replace("\r\n", "\n")
            if "\ufeff" in text:
                text = without_marks(text, source.name, line, repairs, at_line=at_line)
            is_mark = not text
            if source.markers is None and repairs.markers is None:
                repairs.note_markers(text, source.name, line)
            elif source.markers is not None and source.format != "lines":
                text = repairs.without_markers(text, source.markers, source.name, line)

            # A chunk that was nothing but a byte-order mark is no text, and begins no document.
            if not is_mark:
                yield TextChunk(text, begins)
                begins = False
            known = known or not text.isascii()
            line, at_line = line + line_ends(lines), lines.endswith(b"\n") or (at_line and is_mark)


def _byte_chunks(source: Source, file: BinaryIO) -> Iterator[bytes]:
    """Read bytes in chunks that end where text may be cut, without the byte-order mark."""
    held, block = b"", first_bytes(source.name, file, CHUNK_BYTES)
    while block:
        held += block
        if cut := _cut(held) if source.markers is None else held.rfind(b"\n") + 1:
            yield held[:cut]
            held = held[cut:]
        block = file.read(CHUNK_BYTES)
    if held:
        yield held


def _cut(held: bytes) -> int:
    """Return where to cut: after the last line end, else the last space, else between characters; 0 for nowhere."""
    cut = held.rfind(b"\n") + 1 or max(map(held.rfind, WHITE_SPACE)) + 1
    if cut or len(held) < CHUNK_BYTES:
        return cut
    cut = len(held) - 1  # the last character may be incomplete
    starts = (at for at in range(cut, max(0, cut - CONTINUATION_BYTES) - 1, -1) if held[at] & 0xC0 != 0x80)
    return next(starts, cut)
