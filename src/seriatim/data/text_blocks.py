"""A text cut into blocks that are encoded independently, and what is known of each block before it is encoded."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from .readers import Piece, Source, read_pieces, read_whole_lines

BLOCK_CHARACTERS = 1 << 22  # the number of characters from which on a block ends
MIN_CHARACTERS = 1 << 16  # the smallest number of characters of lines that are encoded together
PIECE_COST = 64  # the number of characters that a piece counts besides its own
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


class Block(NamedTuple):
    """Some pieces of a stream, or some lines, with what comes before them."""

    pieces: list[Piece]  # in unit line, the text of each is some lines with their line ends
    last: str = "\n"  # the last character of the piece before, if it has one; else a line end
    last_character: str = "\n"  # the last character before, in whichever piece
    is_first: bool = True  # whether no token comes before; the encoder sets it


def cut_blocks(sources: Iterable[Source], *, unit: str) -> Iterator[Block]:
    """Cut a text into blocks of about `BLOCK_CHARACTERS`, always at the same places."""
    pieces: list[Piece] = []
    last, last_character, size = "\n", "\n", 0
    for piece in read_pieces(sources) if unit == "stream" else _joined(read_whole_lines(sources)):
        pieces.append(piece)
        size += len(piece.text) + PIECE_COST
        if size >= BLOCK_CHARACTERS:
            yield Block(pieces, last, last_character)
            last, last_character = pieces[-1].text[-1:] or "\n", last_of(pieces, last_character)
            pieces, size = [], 0
    if pieces:
        yield Block(pieces, last, last_character)


def last_of(pieces: Iterable[Piece], before: str) -> str:
    """Return the last character of some pieces; ``before`` if they have none."""
    return next((piece.text[-1] for piece in reversed(list(pieces)) if piece.text), before)


def measure_block(block: Block, *, unit: str, words: bool = True) -> Iterator[tuple[str, Statistics]]:
    """Iterate over the pieces of a block, and count each; see `seriatim.data.encoding.measure`."""
    last = block.last
    for text, begins_document in block.pieces:
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


def _joined(texts: Iterable[str]) -> Iterator[Piece]:
    """Join short texts until they have ``MIN_CHARACTERS``."""
    parts: list[str] = []
    size = 0
    for text in texts:
        parts.append(text)
        size += len(text)
        if size >= MIN_CHARACTERS:
            yield Piece("".join(parts), True)
            parts, size = [], 0
    if parts:
        yield Piece("".join(parts), True)
