"""A text written to disk as token ids: it is read once, block by block, and counted at the same time.

A large text is read and cut into blocks in this process, and the blocks are encoded in several. The files hold the same
bytes however many processes there are. A folder in which an earlier process was killed is continued.
"""

import itertools
import json
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..config import Tokenizer as TokenizerConfig
from ..core.errors import InputError, TrainingError
from ..processes.executors import InlineExecutor, LocalExecutor, ProcessEndedError, worker_count
from ..storage.disk_cache import SCRATCH
from ..storage.journal import JournaledFiles
from . import text_blocks
from .block_encoding import BlockEncoder, EncodedBlock, WordNumberer, id_type
from .pipes import PIECE_BYTES
from .readers import Source
from .reading_progress import ReadingProgress
from .source_content import LARGE_BYTES, Content, HashedSources, name_text
from .text_blocks import Block, Statistics, cut_blocks, last_of, measure_block
from .tokenizers import BOUNDARY, Spelling, Tokenizer
from .word_tokenizer import WordNumbers

BLOCK = 1 << 20  # the number of token ids that are processed together
PARALLEL_BYTES = LARGE_BYTES  # the size of a text from which on it is encoded in several processes
NUMBERS, WORDS = f"numbers{SCRATCH}", f"words{SCRATCH}"  # the numbers of the words of a text, and the words
VERSION = 1  # increased whenever the blocks change, so that a text which was begun before is begun again


def write_encoded(
    folder: Path, sources: Sequence[Source], tokenizer: Tokenizer, *, unit: str, content: Content | None = None
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
    names = ("ids.bin", "ends.bin") if unit == "line" else ("ids.bin",)

    def contents(encoded: EncodedBlock, before: int) -> dict[str, bytes]:
        ends = (before + encoded.sizes.cumsum()).astype(np.int64)
        return {"ids.bin": encoded.ids.tobytes(), "ends.bin": ends.tobytes()}

    with _opened(folder, names) as files:
        ending = _write_blocks(files, sources, BlockEncoder(tokenizer, unit), contents, unit=unit, content=content)
    statistics, symbols = _finish(folder / "ids.bin", files, ending, tokenizer, sources, unit=unit)
    if statistics.unknown_tokens:
        statistics.spelling_nats = tokenizer.spelling.nats(symbols)
    _save(folder, statistics)


def write_words(
    folder: Path, sources: Sequence[Source], config: TokenizerConfig, *, unit: str, content: Content | None = None
) -> Tokenizer:
    """Learn words and write the same files as `write_encoded`, but read the text only once.

    The arguments and errors are those of `write_encoded`.
    """
    names = (NUMBERS, WORDS, *(("ends.bin",) if unit == "line" else ()))
    numberer = WordNumberer(config, unit)
    with _opened(folder, names) as files:
        word_numbers = WordNumbers(config)
        if files.parts:
            known = (folder / WORDS).read_bytes().decode().split("\n")[:-1]
            deque(word_numbers.ids(known), maxlen=0)

        def contents(encoded: EncodedBlock, before: int) -> dict[str, bytes]:
            count = len(word_numbers)
            assert encoded.words is not None
            numbers = np.fromiter(word_numbers.ids(encoded.words), dtype=np.int32, count=len(encoded.words))
            new = "".join(f"{word}\n" for word in word_numbers.numbered(count))
            ends = (before + encoded.sizes.cumsum()).astype(np.int64)
            written = numbers[encoded.ids].tobytes()
            return {NUMBERS: written, WORDS: new.encode(), "ends.bin": ends.tobytes()}

        ending = _write_blocks(files, sources, numberer, contents, unit=unit, content=content, copies=2)
    statistics, _ = _finish(folder / NUMBERS, files, ending, word_numbers, sources, unit=unit)
    if not statistics.words:
        raise no_text(sources)
    counts = np.zeros(len(word_numbers), dtype=np.int64)
    for block in _numbers(folder):
        counts += np.bincount(block, minlength=len(word_numbers))
    tokenizer, tokens, symbols = word_numbers.tokenizer(counts.tolist())
    tokens = tokens.astype(id_type(tokenizer))
    with (folder / "ids.bin").open("wb") as file:
        for block in _numbers(folder):
            file.write(tokens[block].tobytes())
    statistics.unknown_tokens = int(counts[tokens == tokenizer.unknown_id].sum())
    statistics.spelling_nats = tokenizer.spelling.nats(symbols)
    _save(folder, statistics)
    return tokenizer


def _numbers(folder: Path) -> Iterator[np.ndarray]:
    """Iterate over the numbers of the words of a text, many at a time."""
    with (folder / NUMBERS).open("rb") as file:
        while len(block := np.fromfile(file, dtype=np.int32, count=BLOCK)):
            yield block


def measure(sources: Sequence[Source], *, unit: str, words: bool = True) -> Iterator[tuple[str, Statistics]]:
    """Iterate over the parts of a text as they are encoded, and count each.

    Each part is some lines with their line ends, or a piece of the stream (see `encode_corpus`). If ``words`` are not
    counted, a correction is returned that the caller adds to its own count.
    """
    last = "\n"
    for block in cut_blocks(sources, unit=unit):
        yield from measure_block(block, unit=unit, words=words)
        last = block.pieces[-1].text[-1:] or "\n"
    if last != "\n":
        yield "", Statistics(lines=1)


def no_text(sources: Sequence[Source]) -> InputError:
    """Return the error for an empty text."""
    names = f"{sources[0].name}:1" if len(sources) == 1 else ", ".join(source.name for source in sources[:3])
    return InputError(f"{names}: empty, no text to read; check the file")


@dataclass
class _Totals:
    """What is known of the part of a text that is written."""

    statistics: Statistics = field(default_factory=Statistics)  # its counts, without the cost of spelling
    symbols: np.ndarray | None = None  # the symbols of its unknown words or characters (257,), if there are any
    bytes: int = 0  # its size in the sources

    @classmethod
    def of(cls, files: JournaledFiles) -> "_Totals":
        if not files.facts:
            return cls()
        fields = json.loads(files.facts)
        symbols = None if fields["symbols"] is None else np.array(fields["symbols"])
        return cls(Statistics(**fields["statistics"]), symbols, fields["bytes"])

    def add(self, encoded: EncodedBlock, read: int) -> None:
        self.statistics.add(encoded.statistics)
        if encoded.symbols is not None:
            self.symbols = encoded.symbols + (0 if self.symbols is None else self.symbols)
        self.bytes = read

    def to_json(self) -> str:
        symbols = None if self.symbols is None else self.symbols.tolist()
        return json.dumps({"statistics": vars(self.statistics), "symbols": symbols, "bytes": self.bytes})


class _OtherTextError(Exception):
    """Blocks in a folder are not those of the text."""


def _opened(folder: Path, names: tuple[str, ...]) -> JournaledFiles:
    sizes = (text_blocks.BLOCK_CHARACTERS, text_blocks.MIN_CHARACTERS, PIECE_BYTES)
    return JournaledFiles(folder, names, [VERSION, *sizes])


def _write_blocks(
    files: JournaledFiles,
    sources: Sequence[Source],
    encode: Callable[[Block], EncodedBlock],
    contents: Callable[[EncodedBlock, int], Mapping[str, bytes]],
    *,
    unit: str,
    content: Content | None,
    copies: int = 1,
) -> tuple[str, str]:
    """Encode a text and append it to files, except what they hold already; ``contents`` returns the bytes of a block.

    Returns:
        The last character of the last piece, or a line end if it has none; and the last character of all.
    """
    try:
        return _write_missing(files, sources, encode, contents, unit=unit, content=content, copies=copies)
    except _OtherTextError:
        files.clear()
        return _write_missing(files, sources, encode, contents, unit=unit, content=content, copies=copies)


def _write_missing(
    files: JournaledFiles,
    sources: Sequence[Source],
    encode: Callable[[Block], EncodedBlock],
    contents: Callable[[EncodedBlock, int], Mapping[str, bytes]],
    *,
    unit: str,
    content: Content | None,
    copies: int,
) -> tuple[str, str]:
    hashed, done, totals = HashedSources(sources), len(files.parts), _Totals.of(files)
    total = content.bytes if content is not None and content.bytes >= PARALLEL_BYTES else 0
    progress = ReadingProgress(f"reading {name_text(sources)}", total)
    cuts: deque[Content] = deque()  # what was read up to the end of each block that is being encoded
    ending = ["\n", "\n"]

    def missing() -> Iterator[Block]:
        for i, block in enumerate(cut_blocks(hashed.sources, unit=unit)):
            ending[:] = block.pieces[-1].text[-1:] or "\n", last_of(block.pieces, block.last_character)
            if i >= done:
                cuts.append(hashed.content)
                yield block
            elif hashed.content.digest != files.parts[i]:
                raise _OtherTextError
            else:
                progress.skip(hashed.bytes)

    def append(encoded: EncodedBlock) -> None:
        cut, written = cuts.popleft(), contents(encoded, totals.statistics.tokens)
        totals.add(encoded, cut.bytes)
        files.append(cut.digest, written, totals.to_json())
        progress.update(cut.bytes)

    blocks = missing()
    for block in blocks:
        if totals.statistics.tokens:
            rest = (other._replace(is_first=False) for other in itertools.chain([block], blocks))
            if total:
                _check_space(files, total / totals.bytes, copies)
            for encoded in _encode_blocks(encode, rest, worker_count() if total else 1):
                append(encoded)
            break
        append(encode(block))  # in this process, to know whether a token comes before the next
    hashed.require(content)
    return ending[0], ending[1]


def _encode_blocks(
    encode: Callable[[Block], EncodedBlock], blocks: Iterable[Block], processes: int
) -> Iterator[EncodedBlock]:
    """Encode blocks in several processes, or in this one."""
    with LocalExecutor(processes) if processes > 1 else InlineExecutor() as executor:
        try:
            yield from executor.map_in_order(encode, blocks)
        except ProcessEndedError as error:
            memory = ", with more memory free" if error.was_killed else ""
            raise TrainingError(f"a process that encodes the text {error.how}; run again to continue{memory}") from None


def _check_space(files: JournaledFiles, parts: float, copies: int) -> None:
    """Raise TrainingError if the disk has no room for ``copies`` of the files with ``parts`` times what is written."""
    written = sum(files.sizes.values())
    needed = round(written * copies * parts - written)
    free = shutil.disk_usage(files.folder).free
    if needed > free:
        raise TrainingError(
            f"{files.folder.parent}: {needed / 1e6:,.1f} MB are needed for the encoded text, {free / 1e6:,.1f} MB are "
            "free; make room, or move the cache to another disk with $SERIATIM_CACHE"
        )


def _finish(
    path: Path,
    files: JournaledFiles,
    ending: tuple[str, str],
    tokenizer: Tokenizer,
    sources: Sequence[Source],
    *,
    unit: str,
) -> tuple[Statistics, np.ndarray]:
    """Write the end of a text; return its counts, and those of the symbols of unknown words and characters.

    Raises:
        InputError: there is no text.
    """
    totals = _Totals.of(files)
    total, symbols = totals.statistics, totals.symbols
    total.lines += int(unit == "stream" and ending[0] != "\n")
    if unit == "stream" and tokenizer.ends_lines and ending[1] != "\n":
        total.tokens += 1
        with path.open("ab") as file:
            file.write(BOUNDARY.astype(id_type(tokenizer)).tobytes())
    if not total.tokens or (unit == "line" and total.empty_lines == total.lines):
        raise no_text(sources)
    return total, Spelling.count_symbols([]) if symbols is None else symbols


def _save(folder: Path, statistics: Statistics) -> None:
    """Write the counts of a text, which is then complete."""
    (folder / "statistics.json").write_text(json.dumps(vars(statistics)))
