"""A text written to disk as token ids: it is read once, piece by piece, and counted at the same time."""

import json
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..config import Tokenizer as TokenizerConfig
from ..core.errors import InputError
from .readers import Source, read_pieces, read_whole_lines
from .tokenizers import BOUNDARY, END, Spelling, Tokenizer
from .word_tokenizer import WordNumbers

BLOCK = 1 << 20  # the number of token ids that are processed together
MIN_CHARACTERS = 1 << 16  # the smallest number of characters of lines that are encoded together
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

    def add(self, part: "Statistics") -> None:
        """Add the counts of a part of the text."""
        for name, value in vars(part).items():
            setattr(self, name, getattr(self, name) + value)

    def save(self, folder: Path) -> None:
        """Write ``statistics.json``."""
        (folder / "statistics.json").write_text(json.dumps(vars(self)))


def write_encoded(folder: Path, sources: Sequence[Source], tokenizer: Tokenizer, *, unit: str) -> None:
    """Write ``ids.bin`` (see `id_type`), ``statistics.json``, and for unit ``line`` the ends of lines, ``ends.bin``.

    Raises:
        InputError: the text cannot be read, or it is empty.
    """
    statistics, symbols = Statistics(), Spelling.count_symbols([])
    with (folder / "ids.bin").open("wb") as file:
        for text, ids in _encoded(folder, sources, tokenizer, unit, statistics):
            file.write(ids.astype(id_type(tokenizer)).tobytes())
            if unknown := tokenizer.count_unknown(ids):
                statistics.unknown_tokens += unknown
                pieces = tokenizer.unknown_pieces(text)
                if unit == "line":  # the boundary symbol stands for every line end, so that none is unknown
                    pieces = [piece for piece in pieces if piece != "\n"]
                symbols += Spelling.count_symbols(pieces)
    if statistics.unknown_tokens:
        statistics.spelling_nats = tokenizer.spelling.nats(symbols)
    statistics.save(folder)


def write_words(folder: Path, sources: Sequence[Source], config: TokenizerConfig, *, unit: str) -> Tokenizer:
    """Learn words and write the same files as `write_encoded`, but read the text only once.

    Raises:
        InputError: the text cannot be read, or it is empty.
    """
    word_numbers, statistics = WordNumbers(config), Statistics()
    numbers_file = folder / "numbers.bin"
    with numbers_file.open("wb") as file:
        for _, ids in _encoded(folder, sources, word_numbers, unit, statistics):
            file.write(ids.tobytes())
    if not statistics.words:
        raise no_text(sources)
    numbers = np.memmap(numbers_file, dtype=np.int32, mode="r")
    blocks = [numbers[start : start + BLOCK] for start in range(0, len(numbers), BLOCK)]
    none = np.zeros(len(word_numbers), dtype=np.int64)
    counts = sum((np.bincount(block, minlength=len(word_numbers)) for block in blocks), start=none)
    tokenizer, tokens, symbols = word_numbers.tokenizer(counts.tolist())
    tokens = tokens.astype(id_type(tokenizer))
    with (folder / "ids.bin").open("wb") as file:
        for block in blocks:
            file.write(tokens[block].tobytes())
    numbers_file.unlink()
    statistics.unknown_tokens = int(counts[tokens == tokenizer.unknown_id].sum())
    statistics.spelling_nats = tokenizer.spelling.nats(symbols)
    statistics.save(folder)
    return tokenizer


def id_type(tokenizer: Tokenizer) -> type[np.unsignedinteger]:
    """Return the type of the ids in a file."""
    return np.uint16 if tokenizer.vocabulary_size <= 1 << 16 else np.uint32


def measure(sources: Sequence[Source], *, unit: str, words: bool = True) -> Iterator[tuple[str, Statistics]]:
    """Iterate over the parts of a text as they are encoded, and count each.

    Each part is some lines with their line ends, or a piece of the stream (see `encode_corpus`). If ``words`` are not
    counted, a correction is returned that the caller adds to its own count.
    """
    if unit == "line":
        for text in _joined(read_whole_lines(sources)):
            lines = text.split("\n")[:-1]
            empty = lines.count("") + sum(map(str.isspace, lines))
            word_count = len(text.split()) if words else 0
            yield text, Statistics(0, len(lines), len(lines), empty, word_count, len(text), len(text.encode()))
        return
    last = "\n"
    for text, begins_document in read_pieces(sources):
        line_ends = text.count("\n") + int(begins_document and last != "\n")
        empty = len(EMPTY_LINE.findall(("\n" if begins_document else last) + text))
        continues_word = not (begins_document or last.isspace() or text[:1].isspace())
        word_count = (len(text.split()) if words else 0) - int(continues_word)
        yield text, Statistics(0, int(begins_document), line_ends, empty, word_count, len(text), len(text.encode()))
        last = text[-1:] or "\n"
    if last != "\n":
        yield "", Statistics(lines=1)


def no_text(sources: Sequence[Source]) -> InputError:
    """Return the error for an empty text."""
    names = ", ".join(source.name for source in sources[:3])
    return InputError(f"{names}: empty, no text to read; check the file")


def _encoded(
    folder: Path, sources: Sequence[Source], tokenizer: Tokenizer, unit: str, total: Statistics
) -> Iterator[tuple[str, np.ndarray]]:
    """Iterate over texts and their tokens, with boundaries between documents; fill ``total`` and write ``ends.bin``."""
    ends, last, ends_lines = array("q"), "\n", tokenizer.ends_lines
    for text, statistics in measure(sources, unit=unit, words=not ends_lines):
        if unit == "line":
            ids, sizes = tokenizer.encode_lines(text)
            ends.extend((total.tokens + sizes.cumsum()).tolist())
        else:
            is_new = bool(statistics.documents) or not total.tokens
            ids = tokenizer.encode(text) if is_new else tokenizer.encode_continued(text)
            if statistics.documents and total.tokens and not (ends_lines and last == "\n"):
                ids = np.concatenate([BOUNDARY, ids])  # not if a line end is the boundary symbol already
            last = text[-1:] or last
        statistics.tokens = len(ids)
        statistics.words += int(np.count_nonzero(ids != END)) if ends_lines else 0
        total.add(statistics)
        yield text, ids
    if unit == "stream" and ends_lines and last != "\n":
        total.tokens += 1
        yield "", BOUNDARY
    if not total.tokens or (unit == "line" and total.empty_lines == total.lines):
        raise no_text(sources)
    if unit == "line":
        np.frombuffer(ends, dtype=np.int64).tofile(folder / "ends.bin")


def _joined(texts: Iterable[str]) -> Iterator[str]:
    """Join short texts until they have ``MIN_CHARACTERS``."""
    parts: list[str] = []
    size = 0
    for text in texts:
        parts.append(text)
        size += len(text)
        if size >= MIN_CHARACTERS:
            yield "".join(parts)
            parts, size = [], 0
    if parts:
        yield "".join(parts)
