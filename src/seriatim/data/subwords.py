"""Pieces of words learned from the text, through the ``tokenizers`` library.

``bpe``: R. Sennrich, B. Haddow and A. Birch, "Neural machine translation of rare words with subword units", ACL 2016.
``unigram``: T. Kudo, "Subword regularization", ACL 2018. Both work on bytes, so that no text is unknown.
"""

import itertools
import json
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from ..config import Tokenizer as TokenizerConfig
from ..errors import InputError
from .tokenizers import END, Tokenizer

DEFAULT_SIZE = 8000
PIECE_CHARACTERS = 20_000
PIECES_TOGETHER = 64


class SubwordTokenizer(Tokenizer):
    """Byte-level BPE or unigram pieces.

    Args:
        kind: ``bpe`` or ``unigram``.
        model: the tokenizer in the JSON of the ``tokenizers`` library.
        lowercase: whether text is put in lower case first.
    """

    def __init__(self, kind: str, model: dict[str, Any], *, lowercase: bool = False) -> None:
        self.kind, self.lowercase = kind, lowercase  # type: ignore[misc]
        try:
            self.inner = tokenizers.Tokenizer.from_str(json.dumps(model))
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(str(error)) from None
        self.vocabulary_size = self.inner.get_vocab_size() + 1
        self._bytes = _bytes_by_symbol()

    @classmethod
    def fit(cls, config: TokenizerConfig, texts: Iterable[str]) -> "SubwordTokenizer":
        """Learns the pieces of a text.

        Raises:
            InputError: a vocabulary smaller than the bytes.
        """
        size = config.vocabulary_size or DEFAULT_SIZE
        if size < 257:
            raise InputError(
                f"tokenizer.vocabulary_size: {size} is less than the 257 of bytes alone; give at least 257"
            )
        common: dict[str, Any] = {
            "vocab_size": size - 1,
            "initial_alphabet": pre_tokenizers.ByteLevel.alphabet(),
            "show_progress": False,
        }
        if config.kind == "bpe":
            inner = tokenizers.Tokenizer(models.BPE())
            trainer: Any = trainers.BpeTrainer(min_frequency=max(2, config.min_count), **common)
        else:
            inner = tokenizers.Tokenizer(models.Unigram())
            trainer = trainers.UnigramTrainer(**common)
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
        pieces = (piece.lower() if config.lowercase else piece for text in texts for piece in _pieces(text))
        inner.train_from_iterator(pieces, trainer)
        model = json.loads(inner.to_str())
        if config.kind == "unigram":
            _make_finite(model["model"]["vocab"])
        return cls(str(config.kind), model, lowercase=config.lowercase)

    def encode(self, text: str) -> np.ndarray:
        """The pieces' ids, plus one."""
        parts: list[np.ndarray] = []
        for group in _groups(_pieces(self.prepare(text))):
            encoded = self.inner.encode_batch_fast(group, add_special_tokens=False)
            parts += [np.array(part.ids, dtype=np.int32) for part in encoded]
        return np.concatenate(parts) + np.int32(1) if parts else np.zeros(0, dtype=np.int32)

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a piece, part of a character perhaps."""
        if token == END:
            return b""
        return bytes(self._bytes[symbol] for symbol in self.inner.id_to_token(token - 1) or "")

    def payload(self) -> dict[str, Any]:
        """The JSON of the ``tokenizers`` library."""
        return {"model": json.loads(self.inner.to_str())}


def _make_finite(vocabulary: list[list[Any]]) -> None:
    """Of an empty text the library learns scores that are no numbers; there no piece is likelier than another."""
    for piece in vocabulary:
        piece[1] = -math.log(len(vocabulary)) if piece[1] is None else piece[1]


def _pieces(text: str) -> Iterable[str]:
    """Cuts a long text after line ends, so that pieces are encoded in parallel and in bounded memory."""
    start = 0
    while len(text) - start > PIECE_CHARACTERS:
        cut = text.rfind("\n", start, start + PIECE_CHARACTERS) + 1 or start + PIECE_CHARACTERS
        yield text[start:cut]
        start = cut
    if start < len(text):
        yield text[start:]


def _groups(pieces: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(pieces)
    while group := list(itertools.islice(rest, PIECES_TOGETHER)):
        yield group


def _bytes_by_symbol() -> dict[str, int]:
    """The byte behind each symbol of byte-level vocabularies.

    Printable Latin-1 characters stand for themselves, the other bytes in order for the code points from 256 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
