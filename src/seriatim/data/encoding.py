"""A text written as token ids: read once, piece by piece, and counted on the way."""

import json
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ..config import Tokenizer as TokenizerConfig
from ..core.errors import InputError
from .readers import Source, read_pieces, read_whole_lines
from .tokenizers import BOUNDARY, END, Spelling, Tokenizer
from .word_tokenizer import WordNumbers

BLOCK = 1 << 20
"""Token ids that are looked at together."""
TOGETHER = 1 << 16
"""Characters of lines that are encoded together, at least."""
EMPTY_LINE = re.compile(r"(?<=\n)\n")


@dataclass
class Statistics:
    """What a text holds. ``spelling_nats`` is what its unknown words or characters cost to spell out.

    ``words`` are what white space separates; ``lines`` counts line ends, a last line without one included;
    ``bytes`` is UTF-8 after CRLF became LF; in unit ``line`` every line has its line end, and is a document.
    """

    tokens: int = 0
    documents: int = 0
    lines: int = 0
    empty_lines: int = 0
    words: int = 0
    characters: int = 0
    bytes: int = 0
    unknown_tokens: int = 0
    spelling_nats: float = 0.0


def write_encoded(folder: Path, sources: Sequence[Source], tokenizer: Tokenizer, *, unit: str) -> None:
    """Writes ``ids.bin`` (see `id_type`), ``statistics.json``, and for unit ``line`` ``ends.bin``, where lines end.

    Raises:
        InputError: the text cannot be read, or there is none.
    """
    statistics, letters = Statistics(), Spelling.letters([])
    with (folder / "ids.bin").open("wb") as file:
        for text, ids in _encoded(folder, sources, tokenizer, unit, statistics):
            file.write(ids.astype(id_type(tokenizer)).tobytes())
            if tokenizer.unknown_id is not None and (unknown := int((ids == tokenizer.unknown_id).sum())):
                statistics.unknown_tokens += unknown
                letters += Spelling.letters(_unknown_pieces(tokenizer, text, unit))
    if statistics.unknown_tokens:
        statistics.spelling_nats = tokenizer.spelling.nats(letters)
    _write_statistics(folder, statistics)


def write_words(folder: Path, sources: Sequence[Source], config: TokenizerConfig, *, unit: str) -> Tokenizer:
    """Learns words and writes what `write_encoded` would, in one reading.

    Raises:
        InputError: the text cannot be read, or there is none.
    """
    numbers, statistics = WordNumbers(config), Statistics()
    aside = folder / "numbers.bin"
    with aside.open("wb") as file:
        for _, ids in _encoded(folder, sources, numbers, unit, statistics):
            file.write(ids.tobytes())
    if not statistics.words:
        raise no_text(sources)
    found = np.memmap(aside, dtype=np.int32, mode="r")
    blocks = [found[start : start + BLOCK] for start in range(0, len(found), BLOCK)]
    counts = np.zeros(len(numbers), dtype=np.int64)
    for block in blocks:
        counts += np.bincount(block, minlength=len(numbers))
    tokenizer, tokens, letters = numbers.tokenizer(counts.tolist())
    tokens = tokens.astype(id_type(tokenizer))
    with (folder / "ids.bin").open("wb") as file:
        for block in blocks:
            file.write(tokens[block].tobytes())
    aside.unlink()
    statistics.unknown_tokens = int(counts[tokens == tokenizer.unknown_id].sum())
    statistics.spelling_nats = tokenizer.spelling.nats(letters)
    _write_statistics(folder, statistics)
    return tokenizer


def _unknown_pieces(tokenizer: Tokenizer, text: str, unit: str) -> list[str]:
    """The parts of a text that have no token of their own.

    In unit ``line`` the boundary symbol stands for every line end, so a line end is never unknown.
    """
    pieces = tokenizer.unknown_pieces(text)
    return [piece for piece in pieces if piece != "\n"] if unit == "line" else pieces


def id_type(tokenizer: Tokenizer) -> type[np.unsignedinteger]:
    """The type of ids in a file."""
    return np.uint16 if tokenizer.vocabulary_size <= 1 << 16 else np.uint32


def measure(sources: Sequence[Source], *, unit: str, words: bool = True) -> Iterator[tuple[str, Statistics]]:
    """Yields the text as it will be encoded (some lines with their line ends, or a piece of the stream) and counts it.

    Without ``words`` these are left to be counted by whoever parts them; what is given then is to be added.
    """
    if unit == "line":
        for text in _together(read_whole_lines(sources)):
            ended = text.split("\n")[:-1]
            blank = ended.count("") + sum(map(str.isspace, ended))
            parted = len(text.split()) if words else 0
            yield text, Statistics(0, len(ended), len(ended), blank, parted, len(text), len(text.encode()))
        return
    last = "\n"
    for piece in read_pieces(sources):
        text, documents = piece.text, int(piece.begins_document)
        lines = text.count("\n") + int(documents and last != "\n")
        before = "\n" if documents else last[-1:]
        empty = len(EMPTY_LINE.findall(before + text))
        joined = last[-1:].isspace() or documents or text[:1].isspace()  # a cut inside a word does not make two
        parted = (len(text.split()) if words else 0) - int(not joined)
        yield text, Statistics(0, documents, lines, empty, parted, len(text), len(text.encode()))
        last = text[-1:] or "\n"
    if last != "\n":
        yield "", Statistics(lines=1)


def add(total: Statistics, part: Statistics) -> None:
    """Adds the counts of ``part`` to ``total``."""
    for name, value in vars(part).items():
        setattr(total, name, getattr(total, name) + value)


def no_text(sources: Sequence[Source]) -> InputError:
    """What to say where there is none."""
    names = ", ".join(source.name for source in sources[:3])
    return InputError(f"{names}: empty, no text to read; check the file")


def _encoded(
    folder: Path, sources: Sequence[Source], tokenizer: Tokenizer, unit: str, total: Statistics
) -> Iterator[tuple[str, np.ndarray]]:
    """Texts and their tokens, those that part documents among them; fills ``total`` and writes ``ends.bin``."""
    ends, last, ends_lines = array("q"), "\n", tokenizer.ends_lines
    for text, statistics in measure(sources, unit=unit, words=not ends_lines):
        if unit == "line":
            ids, sizes = tokenizer.encode_lines(text)
            ends.extend((total.tokens + sizes.cumsum()).tolist())
        else:
            ids = tokenizer.encode(text)
            if statistics.documents and total.tokens and not (ends_lines and last == "\n"):
                ids = np.concatenate([BOUNDARY, ids])  # where line ends are tokens, one is there already
            last = text[-1:] or last
        statistics.tokens = len(ids)
        statistics.words += int(np.count_nonzero(ids != END)) if ends_lines else 0
        add(total, statistics)
        yield text, ids
    if unit == "stream" and ends_lines and last != "\n":
        total.tokens += 1
        yield "", BOUNDARY
    if not total.bytes or (unit == "line" and total.empty_lines == total.lines):
        raise no_text(sources)
    if unit == "line":
        np.frombuffer(ends, dtype=np.int64).tofile(folder / "ends.bin")


def _together(texts: Iterable[str]) -> Iterator[str]:
    """Short texts joined."""
    held: list[str] = []
    size = 0
    for text in texts:
        held.append(text)
        size += len(text)
        if size >= TOGETHER:
            yield "".join(held)
            held, size = [], 0
    if held:
        yield "".join(held)


def _write_statistics(folder: Path, statistics: Statistics) -> None:
    (folder / "statistics.json").write_text(json.dumps(asdict(statistics)))
