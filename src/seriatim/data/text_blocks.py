"""A text cut into blocks, each of which is measured and encoded independently, here or in another process."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..config import Tokenizer as TokenizerConfig
from .readers import Piece, Source, read_pieces, read_whole_lines
from .tokenizer_factory import tokenizer_from_json
from .tokenizers import BOUNDARY, END, Spelling, Tokenizer
from .word_tokenizer import WordNumbers

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


class TextBlock(NamedTuple):
    """Some pieces of a stream, or some lines, with what comes before them."""

    pieces: list[Piece]  # in unit line, the text of each is some lines with their line ends
    last: str = "\n"  # the last character of the piece before, if it has one; else a line end
    last_character: str = "\n"  # the last character before, in whichever piece
    is_first: bool = True  # whether no token comes before; the encoder sets it


def cut_blocks(sources: Iterable[Source], *, unit: str) -> Iterator[TextBlock]:
    """Cut a text into blocks of about `BLOCK_CHARACTERS`, always at the same places."""
    pieces: list[Piece] = []
    last, last_character, size = "\n", "\n", 0
    for piece in read_pieces(sources) if unit == "stream" else _joined(read_whole_lines(sources)):
        pieces.append(piece)
        size += len(piece.text) + PIECE_COST
        if size >= BLOCK_CHARACTERS:
            yield TextBlock(pieces, last, last_character)
            last, last_character = pieces[-1].text[-1:] or "\n", last_of(pieces, last_character)
            pieces, size = [], 0
    if pieces:
        yield TextBlock(pieces, last, last_character)


def last_of(pieces: Iterable[Piece], before: str) -> str:
    """Return the last character of some pieces; ``before`` if they have none."""
    return next((piece.text[-1] for piece in reversed(list(pieces)) if piece.text), before)


def measure_block(block: TextBlock, *, unit: str, words: bool = True) -> Iterator[tuple[str, Statistics]]:
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


class BlockTokens(NamedTuple):
    """The tokens of a block."""

    ids: np.ndarray  # token ids (tokens,), of the type that `id_type` returns
    sizes: np.ndarray  # in unit line, the number of tokens of each line (lines,); else empty
    statistics: Statistics  # counts of the block, without the cost of spelling
    symbols: np.ndarray | None  # the symbols of the unknown words or characters (257,), if there are any
    words: list[str] | None = None  # for `WordNumberer`, the word of each number


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


class WordNumberer:
    """Numbers the words of each block from the beginning, for a tokenizer that will be learned from them."""

    def __init__(self, config: TokenizerConfig, unit: str) -> None:
        self.config, self.unit = config, unit

    def __call__(self, block: TextBlock) -> BlockTokens:
        """Return the numbers of the words of a block, which are those of this block only."""
        numbers = WordNumbers(self.config)
        encoded = encode_block(block, numbers, self.unit)._replace(words=list(numbers.numbered()))
        numbers.close()
        return encoded


def encode_block(block: TextBlock, tokenizer: Tokenizer, unit: str) -> BlockTokens:
    """Return the tokens of a block, with the boundary symbol between documents or, in unit ``line``, after lines."""
    total, last, ends_lines = Statistics(), block.last_character, tokenizer.ends_lines
    parts, line_sizes, symbols = [BOUNDARY[:0]], [np.zeros(0, dtype=np.int64)], None
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
            pieces = tokenizer.unknown_pieces(text)
            if unit == "line":  # the boundary symbol stands for every line end, so that none is unknown
                pieces = [piece for piece in pieces if piece != "\n"]
            counts = Spelling.count_symbols(pieces)
            symbols = counts if symbols is None else symbols + counts
        total.add(statistics)
        parts.append(ids.astype(id_type(tokenizer)))
    return BlockTokens(np.concatenate(parts[1:]), np.concatenate(line_sizes), total, symbols)


def id_type(tokenizer: Tokenizer) -> type[np.integer]:
    """Return the type of the ids in a file."""
    if isinstance(tokenizer, WordNumbers):
        return np.int32
    return np.uint16 if tokenizer.vocabulary_size <= 1 << 16 else np.uint32


def _encoder(tokenizer: str, unit: str) -> BlockEncoder:
    return BlockEncoder(tokenizer_from_json(tokenizer), unit)
