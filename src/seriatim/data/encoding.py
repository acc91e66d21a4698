"""A text written to disk as token ids: it is read once, block by block, and counted at the same time.

A large text is read and cut into blocks in this process, and the blocks are encoded in several. The files hold the same
bytes however many processes there are. A folder in which an earlier process was killed is continued.
"""

import itertools
import json
import os
import re
import shutil
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..core.errors import EmptyError, InputError, TrainingError
from ..processes.executors import InlineExecutor, LocalExecutor, ProcessEndedError, worker_count
from ..storage.disk_cache import SCRATCH
from ..storage.files import open_regular, write_all
from .source_content import LARGE_BYTES, HashedSources, ReadingProgress, TextDigest, name_text
from .text import CHUNK_BYTES, Source, TextChunk, grouped, read_chunks, read_whole_lines
from .tokenizers import BOUNDARY, END, Spelling, Tokenizer
from .vocabulary import tokenizer_from_json

BLOCK_CHARACTERS = 1 << 22  # the number of characters from which on a block ends
MIN_CHARACTERS = 1 << 16  # the smallest number of characters of lines that are encoded together
CHUNK_COST = 64  # the number of characters that a chunk counts besides its own
EMPTY_LINE = re.compile(r"(?<=\n)\n")


@dataclass
class Statistics:
    """Counts of a text."""

    tokens: int = 0  # tokens, with boundary symbols
    documents: int = 0  # documents; in unit line every line is a document
    lines: int = 0  # line ends; a last line without a line end counts too
    empty_lines: int = 0  # lines without content
    words: int = 0  # words separated by white space
    characters: int = 0  # characters, with line ends
    bytes: int = 0  # bytes in UTF-8 after CRLF became LF
    unknown_tokens: int = 0  # tokens that are not in the vocabulary
    spelling_nats: float = 0.0  # the cost in nats of spelling out the unknown words or characters

    def add(self, counts: "Statistics") -> None:
        """Add the counts of more of the text."""
        for name, value in vars(counts).items():
            setattr(self, name, getattr(self, name) + value)


class TextBlock(NamedTuple):
    """Some chunks of a stream, or some lines, with what comes before them."""

    chunks: list[TextChunk]  # in unit line, the text of each is some lines with their line ends
    last: str = "\n"  # the last character of the chunk before, if it has one; else a line end
    last_character: str = "\n"  # the last character before, in whichever chunk
    is_first: bool = True  # whether no token comes before; the encoder sets it


def cut_blocks(sources: Iterable[Source], *, unit: str) -> Iterator[TextBlock]:
    """Cut a text into blocks of about `BLOCK_CHARACTERS`, always at the same positions."""
    chunks: list[TextChunk] = []
    last, last_character, size = "\n", "\n", 0
    of_lines = (TextChunk("".join(group), True) for group in grouped(read_whole_lines(sources), MIN_CHARACTERS))
    for chunk in read_chunks(sources) if unit == "stream" else of_lines:
        chunks.append(chunk)
        size += len(chunk.text) + CHUNK_COST
        if size >= BLOCK_CHARACTERS:
            yield TextBlock(chunks, last, last_character)
            last, last_character = chunks[-1].text[-1:] or "\n", last_of(chunks, last_character)
            chunks, size = [], 0
    if chunks:
        yield TextBlock(chunks, last, last_character)


def last_of(chunks: Iterable[TextChunk], before: str) -> str:
    """Return the last character of some chunks; ``before`` if they have none."""
    return next((chunk.text[-1] for chunk in reversed(list(chunks)) if chunk.text), before)


def measure_block(block: TextBlock, *, unit: str, words: bool = True) -> Iterator[tuple[str, Statistics]]:
    """Iterate over the chunks of a block, and count each.

    If ``words`` are not counted, a correction is returned that the caller adds to its own count.
    """
    last = block.last
    for text, begins_document in block.chunks:
        if unit == "line":
            lines = text.split("\n")[:-1]
            empty = lines.count("") + sum(map(str.isspace, lines))
            word_count = len(text.split()) if words else 0
            yield text, Statistics(0, len(lines), len(lines), empty, word_count, len(text), len(text.encode()))
            continue
        line_ends = text.count("\n") + int(begins_document and last != "\n")
        empty = len(EMPTY_LINE.findall(("\n" if begins_document else last) + text))
        continues_word = not (begins_document or last.isspace() or text[:1].isspace())
        word_count = (len(text.split()) if words else 0) - int(continues_word)
        yield text, Statistics(0, int(begins_document), line_ends, empty, word_count, len(text), len(text.encode()))
        last = text[-1:] or "\n"


class BlockTokens(NamedTuple):
    """The tokens of a block."""

    ids: np.ndarray  # token ids (tokens,), of the type that `id_type` returns
    sizes: np.ndarray  # in unit line, the number of tokens of each line (lines,); else empty
    statistics: Statistics  # counts of the block, without the cost of spelling
    symbols: np.ndarray | None  # the symbols of the unknown words or characters (257,), if there are any


class BlockEncoder:
    """Encodes blocks with a tokenizer."""

    def __init__(self, tokenizer: Tokenizer, unit: str) -> None:
        self.tokenizer, self.unit = tokenizer, unit

    def __call__(self, block: TextBlock) -> BlockTokens:
        """Return the tokens of a block."""
        return encode_block(block, self.tokenizer, self.unit)

    def __reduce__(self) -> tuple[object, ...]:
        """Return how to make an equal encoder in another process, from the file of the tokenizer."""
        return _encoder, (self.tokenizer.to_json(), self.unit)


def encode_block(block: TextBlock, tokenizer: Tokenizer, unit: str) -> BlockTokens:
    """Return the tokens of a block, with the boundary symbol between documents or, in unit ``line``, after lines."""
    total, last, ends_lines = Statistics(), block.last_character, tokenizer.ends_lines
    ids_of_chunks, line_sizes, symbols = [BOUNDARY[:0]], [np.zeros(0, dtype=np.int64)], None
    for text, statistics in measure_block(block, unit=unit, words=not ends_lines):
        if unit == "line":
            ids, sizes = tokenizer.encode_lines(text)
            line_sizes.append(sizes)
        else:
            begins_text = block.is_first and not total.tokens
            is_new = bool(statistics.documents) or begins_text
            ids = tokenizer.encode(text) if is_new else tokenizer.encode_continued(text)
            if statistics.documents and not begins_text and not (ends_lines and last == "\n"):
                ids = np.concatenate([BOUNDARY, ids])  # not if a line end is the boundary symbol already
            last = text[-1:] or last

        # Of unknown words, the symbols are counted here, because their cost is known only when the whole text is read.
        statistics.tokens = len(ids)
        statistics.words += int(np.count_nonzero(ids != END)) if ends_lines else 0
        statistics.unknown_tokens = tokenizer.count_unknown(ids)
        if statistics.unknown_tokens:
            unknown = tokenizer.find_unknown(text)
            if unit == "line":  # the boundary symbol stands for every line end, so that none is unknown
                unknown = [character for character in unknown if character != "\n"]
            counts = Spelling.count_symbols(unknown)
            symbols = counts if symbols is None else symbols + counts
        total.add(statistics)
        ids_of_chunks.append(ids.astype(id_type(tokenizer)))
    return BlockTokens(np.concatenate(ids_of_chunks[1:]), np.concatenate(line_sizes), total, symbols)


def id_type(tokenizer: Tokenizer) -> type[np.integer]:
    """Return the type of the ids in a file."""
    return np.uint16 if tokenizer.vocabulary_size <= 1 << 16 else np.uint32


def _encoder(tokenizer: str, unit: str) -> BlockEncoder:
    return BlockEncoder(tokenizer_from_json(tokenizer), unit)


BLOCK = 1 << 20  # the number of token ids that are processed together
PARALLEL_BYTES = LARGE_BYTES  # the size of a text from which on it is encoded in several processes
JOURNAL = f"journal{SCRATCH}"
MAX_LINE = 1 << 20  # the number of bytes of a line of the journal
VERSION = 1  # increased whenever the blocks change, so that a text which was begun before is begun again


class _JournalEntry(NamedTuple):
    """A block that was appended to some files, as the journal has it."""

    digest: str  # of what it was made from
    sizes: dict[str, int]  # the number of bytes of each file up to the end of the block
    facts: str  # what is known of all blocks until here
    journal_size: int  # the number of bytes of the journal up to the end of the block


class JournaledFiles:
    """Some files of a folder that are appended to together, block by block: complete blocks survive a crash.

    Every block is appended to the files first and to the journal afterwards, with its sizes and checksums. A block that
    is not in the journal, or that differs from its checksums, is cut off when the files are opened again. So is
    everything after a line of the journal that differs from its own checksum.

    Args:
        folder: the folder.
        names: the files.
        settings: what the blocks depend on. Files that were written with other settings are written again from the
            beginning.
    """

    def __init__(self, folder: Path, names: tuple[str, ...], settings: object) -> None:
        self.folder, self.names = folder, names
        self._first_line = json.dumps({"files": names, "settings": settings}).encode() + b"\n"
        self.entries: list[_JournalEntry] = []
        with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):  # missing, or of another program
            self.entries.extend(self._intact_entries())
        self._files = {name: (folder / name).open("ab", buffering=0) for name in (*names, JOURNAL)}
        self.keep(len(self.entries))

    def __enter__(self) -> "JournaledFiles":
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    @property
    def sizes(self) -> dict[str, int]:
        """The number of bytes of each file."""
        return self.entries[-1].sizes if self.entries else dict.fromkeys(self.names, 0)

    def append(self, digest: str, contents: Mapping[str, bytes], facts: str) -> None:
        """Append the bytes of a block to each file; see `_JournalEntry`."""
        checksums = {name: zlib.crc32(contents[name]) for name in self.names}
        sizes = {name: size + len(contents[name]) for name, size in self.sizes.items()}
        for name in self.names:
            write_all(self._files[name], contents[name])
        entry = json.dumps({"part": digest, "sizes": sizes, "checksums": checksums, "facts": facts}).encode()
        line = b"%08x %s\n" % (zlib.crc32(entry), entry)
        before = self.entries[-1].journal_size if self.entries else len(self._first_line)
        write_all(self._files[JOURNAL], line)
        self.entries.append(_JournalEntry(digest, sizes, facts, before + len(line)))

    def keep(self, count: int) -> None:
        """Keep so many blocks, and remove the others."""
        del self.entries[count:]
        for name, size in self.sizes.items():
            self._files[name].truncate(size)
        self._files[JOURNAL].truncate(self.entries[-1].journal_size if self.entries else 0)
        if not self.entries:
            write_all(self._files[JOURNAL], self._first_line)

    def _intact_entries(self) -> Iterator[_JournalEntry]:
        """Read the journal up to the first block that is missing or damaged."""
        with ExitStack() as stack:
            journal, *files = (
                stack.enter_context(open(open_regular(self.folder / name), "rb")) for name in (JOURNAL, *self.names)
            )
            if journal.readline(MAX_LINE) != self._first_line:
                return
            sizes, journal_size = dict.fromkeys(self.names, 0), len(self._first_line)

            # A line of the journal is written after its block, but the system may have put it on the disk first.
            # Therefore the block is read, too.
            while line := journal.readline(MAX_LINE):
                checksum, _, text = line.removesuffix(b"\n").partition(b" ")
                if not line.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(text):
                    return
                entry = json.loads(text)
                for name, file in zip(self.names, files, strict=True):
                    added = entry["sizes"][name] - sizes[name]
                    is_there = entry["sizes"][name] <= os.fstat(file.fileno()).st_size
                    content = file.read(added) if is_there else b""
                    if len(content) < added or zlib.crc32(content) != entry["checksums"][name]:
                        return
                sizes, journal_size = entry["sizes"], journal_size + len(line)
                yield _JournalEntry(entry["part"], sizes, entry["facts"], journal_size)


def write_encoded(
    folder: Path, sources: Sequence[Source], tokenizer: Tokenizer, *, unit: str, content: TextDigest | None = None
) -> None:
    """Write ``ids.bin`` (see `id_type`), ``statistics.json``, and for unit ``line`` the ends of lines, ``ends.bin``.

    What serves to continue, were the process killed, stays in files that end in `SCRATCH`.

    Args:
        folder: the folder to write, which may hold what a killed process wrote of the same text.
        sources: the text.
        tokenizer: encodes the text.
        unit: ``stream`` or ``line``.
        content: the content of the text, as `content_of` returns it; None if it is not known.

    Raises:
        InputError: the text cannot be read, it is empty, or it changed.
        TrainingError: the disk has no room for the encoded text.
    """
    text = _WrittenText(folder, sources, tokenizer, unit)
    text.write(content)
    text.finish()


def no_text(sources: Sequence[Source]) -> InputError:
    """Return the error for an empty text."""
    names = f"{sources[0].name}:1" if len(sources) == 1 else ", ".join(source.name for source in sources[:3])
    return EmptyError(f"{names}: empty, no text to read; check the file")


class _WrittenText:
    """A text that is appended to journaled files block by block, and its counts.

    The files are ``ids.bin`` and, for unit ``line``, ``ends.bin``, the ends of lines.
    """

    def __init__(self, folder: Path, sources: Sequence[Source], tokenizer: Tokenizer, unit: str) -> None:
        self.folder, self.sources, self.tokenizer, self.unit = folder, sources, tokenizer, unit
        self.last = "\n"  # the last character of the last chunk, or a line end if it has none
        self.last_character = "\n"  # the last character of all

    def write(self, content: TextDigest | None) -> None:
        """Encode the text and append it to the files, except what they hold already.

        ``content`` is the content of the text, if it is known.
        """
        encode, names = BlockEncoder(self.tokenizer, self.unit), ("ids.bin", "ends.bin")[: 1 + (self.unit == "line")]
        sizes = (BLOCK_CHARACTERS, MIN_CHARACTERS, CHUNK_BYTES)
        with JournaledFiles(self.folder, names, [VERSION, *sizes]) as files:
            self._restore(files)
            hashed, done = HashedSources(self.sources), len(files.entries)
            total = content.bytes if content is not None and content.bytes >= PARALLEL_BYTES else 0
            progress = ReadingProgress(f"reading {name_text(self.sources)}", total)
            cuts: deque[TextDigest] = deque()  # what was read up to the end of each block that is being encoded

            # The whole text is read, also what is encoded already: only its digest says that it is the same text.
            def missing() -> Iterator[TextBlock]:
                nonlocal done
                for i, block in enumerate(cut_blocks(hashed.sources, unit=self.unit)):
                    self.last = block.chunks[-1].text[-1:] or "\n"
                    self.last_character = last_of(block.chunks, block.last_character)
                    if i < done and hashed.content.digest == files.entries[i].digest:
                        progress.skip(hashed.bytes)
                        continue
                    if i < done:  # from here on, the blocks are those of another text
                        files.keep(i)
                        done = i
                        self._restore(files)
                    cuts.append(hashed.content)
                    yield block

            def append(encoded: BlockTokens) -> None:
                self._append(files, encoded, cuts.popleft())
                progress.update(self.bytes)

            # Blocks are encoded here until one has a token, because the encoder must know whether a block is the first.
            blocks = missing()
            for block in blocks:
                if self.statistics.tokens:
                    rest = (other._replace(is_first=False) for other in itertools.chain([block], blocks))
                    if total:
                        _check_space(files, total / self.bytes)
                    for encoded in _encode_blocks(encode, rest, worker_count() if total else 1):
                        append(encoded)
                    break
                append(encode(block))
        hashed.require(content)

    def _restore(self, files: JournaledFiles) -> None:
        """Take the counts of the blocks that the files hold."""
        known = (
            json.loads(files.entries[-1].facts) if files.entries else {"statistics": {}, "symbols": None, "bytes": 0}
        )
        self.statistics = Statistics(**known["statistics"])  # without the cost of spelling
        self.symbols = known["symbols"] and np.array(known["symbols"])  # of unknown words or characters (257,), or None
        self.bytes = known["bytes"]  # in the sources

    def _append(self, files: JournaledFiles, encoded: BlockTokens, cut: TextDigest) -> None:
        """Append the bytes of a block to the files, with the counts up to its end."""
        ends = (self.statistics.tokens + encoded.sizes.cumsum()).astype(np.int64)
        self.statistics.add(encoded.statistics)
        if encoded.symbols is not None:
            self.symbols = encoded.symbols + (0 if self.symbols is None else self.symbols)
        self.bytes = cut.bytes
        symbols = None if self.symbols is None else self.symbols.tolist()
        facts = {"statistics": vars(self.statistics), "symbols": symbols, "bytes": self.bytes}
        files.append(cut.digest, {"ids.bin": encoded.ids.tobytes(), "ends.bin": ends.tobytes()}, json.dumps(facts))

    def finish(self) -> None:
        """Write the end of the text, and its counts, by which it is complete; raise InputError if there is no text."""
        total = self.statistics
        total.lines += int(self.unit == "stream" and self.last != "\n")
        if self.unit == "stream" and self.tokenizer.ends_lines and self.last_character != "\n":
            total.tokens += 1
            with (self.folder / "ids.bin").open("ab") as file:
                file.write(BOUNDARY.astype(id_type(self.tokenizer)).tobytes())
        if not total.tokens or (self.unit == "line" and total.empty_lines == total.lines):
            raise no_text(self.sources)
        if self.symbols is not None:
            total.spelling_nats = self.tokenizer.spelling.nats(self.symbols)
        (self.folder / "statistics.json").write_text(json.dumps(vars(total)))


def _encode_blocks(
    encode: Callable[[TextBlock], BlockTokens], blocks: Iterable[TextBlock], processes: int
) -> Iterator[BlockTokens]:
    """Encode blocks in several processes, or in this one."""
    with LocalExecutor(processes) if processes > 1 else InlineExecutor() as executor:
        try:
            yield from executor.map_in_order(encode, blocks)
        except ProcessEndedError as error:
            memory = ", with more memory free" if error.was_killed else ""
            raise TrainingError(f"a process that encodes the text {error.how}; run again to continue{memory}") from None


def _check_space(files: JournaledFiles, factor: float) -> None:
    """Raise TrainingError if the disk has no room for the files with ``factor`` times what is written."""
    needed = round(sum(files.sizes.values()) * (factor - 1))
    free = shutil.disk_usage(files.folder).free
    if needed > free:
        raise TrainingError(
            f"{files.folder.parent}: {needed / 1e6:,.1f} MB are needed for the encoded text, {free / 1e6:,.1f} MB are "
            "free; make room, or move the cache to another disk with $SERIATIM_CACHE"
        )
