"""Blocks of a text encoded as token ids, in this process or in others."""

from typing import NamedTuple

import numpy as np

from ..config import Tokenizer as TokenizerConfig
from .text_blocks import Block, Statistics, measure_block
from .tokenizer_factory import tokenizer_from_json
from .tokenizers import BOUNDARY, END, Spelling, Tokenizer
from .word_tokenizer import WordNumbers


class EncodedBlock(NamedTuple):
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

    def __call__(self, block: Block) -> EncodedBlock:
        """Return the tokens of a block."""
        return encode_block(block, self.tokenizer, self.unit)

    def __reduce__(self) -> tuple[object, ...]:
        """Return how to make an equal encoder in another process, from the file of the tokenizer."""
        return _encoder, (self.tokenizer.to_json(), self.unit)


class WordNumberer:
    """Numbers the words of each block from the beginning, for a tokenizer that will be learned from them."""

    def __init__(self, config: TokenizerConfig, unit: str) -> None:
        self.config, self.unit = config, unit

    def __call__(self, block: Block) -> EncodedBlock:
        """Return the numbers of the words of a block, which are those of this block only."""
        numbers = WordNumbers(self.config)
        encoded = encode_block(block, numbers, self.unit)._replace(words=list(numbers.numbered()))
        numbers.close()
        return encoded


def encode_block(block: Block, tokenizer: Tokenizer, unit: str) -> EncodedBlock:
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
    return EncodedBlock(np.concatenate(parts[1:]), np.concatenate(line_sizes), total, symbols)


def id_type(tokenizer: Tokenizer) -> type[np.integer]:
    """Return the type of the ids in a file."""
    if isinstance(tokenizer, WordNumbers):
        return np.int32
    return np.uint16 if tokenizer.vocabulary_size <= 1 << 16 else np.uint32


def _encoder(tokenizer: str, unit: str) -> BlockEncoder:
    return BlockEncoder(tokenizer_from_json(tokenizer), unit)
