"""Pieces of words learned from the text, through the ``tokenizers`` library.

``bpe``: R. Sennrich, B. Haddow and A. Birch, "Neural machine translation of rare words with subword units", ACL 2016.
``unigram``: T. Kudo, "Subword regularization", ACL 2018. Both work on bytes, so that no text is unknown.
"""

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from ..config import Tokenizer as TokenizerConfig
from ..core.errors import InputError
from .tokenizers import END, Tokenizer

DEFAULT_SIZE = 8000
PIECE_CHARACTERS = 20_000
PIECES_TOGETHER = 64
AROUND = ("truncation", "padding", "added_tokens", "normalizer", "post_processor")
SETTINGS = (
    *("dropout", "unk_token", "unk_id", "continuing_subword_prefix", "end_of_word_suffix"),
    *("fuse_unk", "byte_fallback", "ignore_merges"),
)
"""What the library's tokenizers and models can have, and ours have not."""


class SubwordTokenizer(Tokenizer):
    """Byte-level BPE or unigram pieces.

    Args:
        kind: ``bpe`` or ``unigram``.
        model: the tokenizer in the JSON of the ``tokenizers`` library.
        lowercase: whether text is put in lower case first.
    """

    def __init__(self, kind: str, model: dict[str, Any], *, lowercase: bool = False) -> None:
        self.kind, self.lowercase = kind, lowercase  # type: ignore[misc]
        self._bytes = _bytes_by_symbol()
        self.inner = _whole(_pieces_alone(kind, model, self._bytes))
        self.vocabulary_size = self.inner.get_vocab_size() + 1

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
            inner = _whole(models.BPE())
            trainer: Any = trainers.BpeTrainer(min_frequency=max(2, config.min_count), **common)
        else:
            inner = _whole(models.Unigram())
            trainer = trainers.UnigramTrainer(**common)
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


def _whole(model: Any) -> tokenizers.Tokenizer:
    """A model of pieces with what stands around it: it works on bytes."""
    inner = tokenizers.Tokenizer(model)
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return inner


def _pieces_alone(kind: str, kept: Any, alphabet: Mapping[str, int]) -> Any:
    """The pieces of a kept tokenizer as a model, all that is taken of it.

    The rest, in which patterns and rules of any kind could stand, must be what `fit` writes.

    Raises:
        KeyError, TypeError, ValueError: it is not.
    """
    model, before, after = kept["model"], kept["pre_tokenizer"], kept["decoder"]
    if any(kept[name] for name in AROUND) or any(model.get(name) for name in SETTINGS):
        raise ValueError("more than pieces")
    if (before["type"], before["add_prefix_space"], before.get("use_regex", True)) != ("ByteLevel", False, True):
        raise ValueError("another way to cut words")
    if after["type"] != "ByteLevel" or model["type"] != {"bpe": "BPE", "unigram": "Unigram"}[kind]:
        raise ValueError("another kind of pieces")
    scores = [] if kind == "bpe" else [(piece, score) for piece, score in model["vocab"]]
    ids = model["vocab"] if kind == "bpe" else {piece: i for i, (piece, _) in enumerate(scores)}
    if not isinstance(ids, dict) or len(ids) != len(model["vocab"]) or not alphabet.keys() <= ids.keys():
        raise ValueError("pieces that stand there twice, or bytes that have none")
    if not alphabet.keys() >= set("".join(ids)) or "" in ids:
        raise ValueError("a piece that is not made of bytes")
    if {type(place) for place in ids.values()} != {int} or sorted(ids.values()) != list(range(len(ids))):
        raise ValueError("ids that do not count the pieces")
    if kind == "unigram":
        if not all(type(score) is float and math.isfinite(score) for _, score in scores):
            raise ValueError("scores that are no numbers")
        return models.Unigram(scores)
    merges = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
    if any(len(pair) != 2 or not {*pair, "".join(pair)} <= ids.keys() for pair in merges):
        raise ValueError("a merge of other pieces")
    return models.BPE(ids, [(first, second) for first, second in merges])


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
