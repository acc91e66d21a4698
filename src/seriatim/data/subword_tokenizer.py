"""The tokenizer whose tokens are subwords learned from the text, by the ``tokenizers`` library.

``bpe``: R. Sennrich, B. Haddow and A. Birch, "Neural machine translation of rare words with subword units", ACL 2016.
``unigram``: T. Kudo, "Subword regularization", ACL 2018. Both work on bytes, so that no text is unknown.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from ..config import Tokenizer as TokenizerConfig
from ..core.errors import InputError
from .tokenizers import BOUNDARY, END, Tokenizer

DEFAULT_SIZE = 8000
PIECE_CHARACTERS = 20_000
CHARACTERS_TOGETHER = 64 * PIECE_CHARACTERS
WRAPPERS = ("truncation", "padding", "added_tokens", "normalizer", "post_processor")
MODEL_SETTINGS = (
    *("dropout", "unk_token", "unk_id", "continuing_subword_prefix", "end_of_word_suffix"),
    *("fuse_unk", "byte_fallback", "ignore_merges"),
)
"""Fields that tokenizers and models of the library may have, but ours may not."""


class SubwordTokenizer(Tokenizer):
    """Byte-level BPE or unigram subwords, from a tokenizer in the JSON format of the ``tokenizers`` library.

    Raises:
        KeyError, TypeError, ValueError: ``model`` is not what `fit` writes.
    """

    def __init__(self, kind: str, model: Mapping[str, Any], *, lowercase: bool = False) -> None:
        self.kind, self.lowercase = kind, lowercase  # type: ignore[misc]
        self._bytes = bytes_by_symbol()
        self.inner = _byte_level(_checked_model(kind, model, self._bytes))
        self.vocabulary_size = self.inner.get_vocab_size() + 1

    @classmethod
    def fit(cls, config: TokenizerConfig, texts: Iterable[str]) -> "SubwordTokenizer":
        """Learn the subwords of a text; raise InputError if the vocabulary size is less than the number of bytes."""
        size = config.vocabulary_size or DEFAULT_SIZE
        if size < 257:
            raise InputError(f"tokenizer.vocabulary_size: the bytes alone need 257, got {size}; give at least 257")
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        if config.kind == "bpe":
            inner = _byte_level(models.BPE())
            trainer: trainers.Trainer = trainers.BpeTrainer(
                vocab_size=size - 1,
                min_frequency=max(2, config.min_count),
                initial_alphabet=alphabet,
                show_progress=False,
            )
        else:
            inner = _byte_level(models.Unigram())
            trainer = trainers.UnigramTrainer(vocab_size=size - 1, initial_alphabet=alphabet, show_progress=False)

        # Long texts are cut, because the library holds each piece in memory as a whole.
        pieces = (piece.lower() if config.lowercase else piece for text in texts for piece in _pieces(text))
        inner.train_from_iterator(pieces, trainer)
        model = json.loads(inner.to_str())
        if config.kind == "unigram":
            vocabulary = model["model"]["vocab"]
            for piece in vocabulary:  # for an empty text the library learns scores that are not numbers
                piece[1] = -math.log(len(vocabulary)) if piece[1] is None else piece[1]
        return cls(str(config.kind), model, lowercase=config.lowercase)

    def encode(self, text: str) -> np.ndarray:
        """Return the id of each subword plus one ``(tokens,)``, int32."""
        parts = self._encode_pieces(_pieces(self.prepare(text)))
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)

    def encode_lines(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Encode lines as every tokenizer does, but many at once."""
        lines = [list(_pieces(self.prepare(line))) for line in text.split("\n")[:-1]]
        parts = self._encode_pieces(piece for line in lines for piece in line)
        lengths = np.cumsum([0, *map(len, parts)])
        counts = np.cumsum([0, *map(len, lines)])  # of pieces
        sizes = np.diff(lengths[counts]) + 1
        ids = np.full(int(sizes.sum()), END, dtype=np.int32)
        is_end = np.zeros(len(ids), dtype=bool)
        is_end[np.cumsum(sizes) - 1] = True
        ids[~is_end] = np.concatenate([BOUNDARY[:0], *parts])
        return ids, sizes

    def _encode_pieces(self, pieces: Iterable[str]) -> list[np.ndarray]:
        """Return the ids of each piece."""
        parts: list[np.ndarray] = []
        for group in _groups(pieces):
            encoded = self.inner.encode_batch_fast(group, add_special_tokens=False)
            parts += [np.array(part.ids, dtype=np.int32) + np.int32(1) for part in encoded]
        return parts

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a subword, which may be part of a character."""
        if token == END:
            return b""
        return bytes(self._bytes[symbol] for symbol in self.inner.id_to_token(token - 1) or "")

    def payload(self) -> dict[str, object]:
        """Return the JSON format of the ``tokenizers`` library."""
        return {"model": json.loads(self.inner.to_str())}


def _byte_level(model: models.Model) -> tokenizers.Tokenizer:
    """Return a tokenizer of the library that applies a model to bytes."""
    inner = tokenizers.Tokenizer(model)
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return inner


def _checked_model(kind: str, stored: Mapping[str, Any], alphabet: Mapping[str, int]) -> models.Model:
    """Return the model of a stored tokenizer; raise KeyError, TypeError or ValueError if `fit` did not write it so.

    Only the subwords are taken from the file: all other fields could hold patterns and rules of any kind.
    """
    model, before, after = stored["model"], stored["pre_tokenizer"], stored["decoder"]
    if any(stored[name] for name in WRAPPERS) or any(model.get(name) for name in MODEL_SETTINGS):
        raise ValueError("fields other than the subwords are set")
    if (before["type"], before["add_prefix_space"], before.get("use_regex", True)) != ("ByteLevel", False, True):
        raise ValueError("another pre-tokenizer")
    if after["type"] != "ByteLevel" or model["type"] != {"bpe": "BPE", "unigram": "Unigram"}[kind]:
        raise ValueError("another kind of model")

    # Every byte must have a subword, or some text could not be encoded; and the ids must be rows of the model's tables.
    scores = [] if kind == "bpe" else [(piece, score) for piece, score in model["vocab"]]
    ids = model["vocab"] if kind == "bpe" else {piece: i for i, (piece, _) in enumerate(scores)}
    if not isinstance(ids, dict) or len(ids) != len(model["vocab"]) or not alphabet.keys() <= ids.keys():
        raise ValueError("duplicate subwords, or bytes without a subword")
    if not alphabet.keys() >= set("".join(ids)) or "" in ids:
        raise ValueError("a subword that does not consist of bytes")
    if {type(place) for place in ids.values()} != {int} or sorted(ids.values()) != list(range(len(ids))):
        raise ValueError("the ids do not number the subwords")
    if kind == "unigram":
        if not all(type(score) is float and math.isfinite(score) for _, score in scores):
            raise ValueError("scores that are not finite numbers")
        return models.Unigram(scores)
    merges = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
    if any(len(pair) != 2 or not {*pair, "".join(pair)} <= ids.keys() for pair in merges):
        raise ValueError("a merge of unknown subwords")
    return models.BPE(ids, [(first, second) for first, second in merges])


def _pieces(text: str) -> Iterable[str]:
    """Cut a long text after line ends, so that its pieces are encoded in parallel and in bounded memory."""
    start = 0
    while len(text) - start > PIECE_CHARACTERS:
        cut = text.rfind("\n", start, start + PIECE_CHARACTERS) + 1 or start + PIECE_CHARACTERS
        yield text[start:cut]
        start = cut
    if start < len(text):
        yield text[start:]


def _groups(pieces: Iterable[str]) -> Iterator[list[str]]:
    """Group pieces that are encoded together."""
    group: list[str] = []
    characters = 0
    for piece in pieces:
        group.append(piece)
        characters += len(piece)
        if characters >= CHARACTERS_TOGETHER:
            yield group
            group, characters = [], 0
    if group:
        yield group


def bytes_by_symbol() -> dict[str, int]:
    """Return the byte of each symbol of byte-level vocabularies.

    Printable Latin-1 characters stand for themselves. The code points from 256 stand for the other bytes, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
