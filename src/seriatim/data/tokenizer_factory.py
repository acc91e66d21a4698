"""Tokenizers of every kind, learned from a text or read from the files of a run; and those of bytes and characters."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ..config import Fields
from ..config import Tokenizer as TokenizerConfig
from ..core.errors import InputError
from ..storage.safe_files import is_text, read_text
from .tokenizers import END, MAX_FILE_BYTES, UNKNOWN_TEXT, Spelling, Tokenizer, most_common
from .word_tokenizer import RESERVED, WordTokenizer

BLOCK = 1 << 20  # the number of characters that are encoded together; a line can be very long


class ByteTokenizer(Tokenizer):
    """Every byte of the UTF-8 text is a token; its id is the byte's value plus one."""

    kind = "byte"

    def __init__(self, *, lowercase: bool = False) -> None:
        self.lowercase = lowercase
        self.vocabulary_size = 257

    def encode(self, text: str) -> np.ndarray:
        """Return the value of each byte plus one ``(tokens,)``, int32."""
        return np.frombuffer(self.prepare(text).encode(), dtype=np.uint8).astype(np.int32) + 1

    def token_bytes(self, token: int) -> bytes:
        """Return the byte itself."""
        return b"" if token == END else bytes([token - 1])

    def payload(self) -> dict[str, object]:
        """Return no fields: nothing is learned."""
        return {}


class CharTokenizer(Tokenizer):
    """Every Unicode character of the training text is a token; the ids of ``characters`` start at 2.

    ``begin`` is the token that begins a text, in a model of another program.
    """

    kind = "char"
    unknown_id = 1

    def __init__(self, characters: str, spelling: Spelling, *, lowercase: bool = False, begin: int = END) -> None:
        self.characters, self.spelling, self.lowercase, self.begin = characters, spelling, lowercase, begin
        self.vocabulary_size = 2 + len(characters)
        points = np.array([ord(c) for c in characters], dtype=np.uint32)
        self._order = np.argsort(points)
        self._points = points[self._order]

    def encode(self, text: str) -> np.ndarray:
        """Return the id of each character ``(tokens,)``, int32."""
        text = self.prepare(text)
        parts = [self._encode(text[i : i + BLOCK]) for i in range(0, len(text), BLOCK)]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)

    def _encode(self, text: str) -> np.ndarray:
        points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
        if not len(self._points):
            return np.full(len(points), self.unknown_id, dtype=np.int32)
        place = np.searchsorted(self._points, points).clip(max=len(self._points) - 1)
        return np.where(self._points[place] == points, self._order[place] + 2, self.unknown_id).astype(np.int32)

    def token_bytes(self, token: int) -> bytes:
        """Return the UTF-8 bytes of the character."""
        if token < 2:
            return b"" if token == END else UNKNOWN_TEXT.encode()
        return self.characters[token - 2].encode()

    def token_ends(self, text: str, ids: np.ndarray) -> np.ndarray:
        """Return after which byte each character ends; see `Tokenizer.token_ends`."""
        return np.cumsum([len(character.encode()) for character in text], dtype=np.int64)

    def unknown_pieces(self, text: str) -> list[str]:
        """Return the characters that are not in the vocabulary."""
        known = set(self.characters)
        return [c for c in self.prepare(text) if c not in known]

    def payload(self) -> dict[str, object]:
        """Return the characters and the counts of the spelling, and the token that begins a text if it is not 0."""
        return {"characters": self.characters, "spelling": self.spelling.counts, **self.own_begin()}


def fit_tokenizer(config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
    """Learn a vocabulary from a text in pieces, which are cut at white space if possible.

    Raises:
        InputError: the vocabulary size is too small for its kind.
    """
    if config.kind == "pretrained":
        return ByteTokenizer()  # in the place of the tokenizer of the run that training starts from
    if config.kind == "byte":
        return ByteTokenizer(lowercase=config.lowercase)
    if config.kind in ("bpe", "unigram"):
        from .subword_tokenizer import SubwordTokenizer

        return SubwordTokenizer.fit(config, texts)
    counts: Counter[str] = Counter()
    for text in texts:
        text = text.lower() if config.lowercase else text
        counts.update(text if config.kind == "char" else text.split())
    if config.kind == "word":
        return WordTokenizer.from_counts(counts, config)
    ranked = most_common(counts, config)
    return CharTokenizer("".join(sorted(ranked)), Spelling.fit(counts), lowercase=config.lowercase)


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a `tokenizer.json`; raise InputError if it is missing or damaged, or another program wrote it."""
    text = read_text(path, max_bytes=MAX_FILE_BYTES, remedy="check that this is the folder of a run")
    try:
        return tokenizer_from_json(text)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        problem = "damaged, or not a tokenizer of Seriatim; restore it from the run it belongs to"
        raise InputError(f"{path}: {problem}") from None


def tokenizer_from_json(text: str) -> Tokenizer:
    """Return the tokenizer of the content of a `tokenizer.json`.

    Raises:
        ValueError, KeyError, TypeError, AttributeError, RecursionError: no tokenizer of Seriatim has this content.
    """
    tokenizer = _from_json(json.loads(text))
    tokenizer.__dict__["_json"] = text
    return tokenizer


def _from_json(fields: dict[str, Any]) -> Tokenizer:
    """Return the tokenizer of the fields that `Tokenizer.to_json` writes; refuse all other fields."""
    kind, lowercase = fields["kind"], fields["lowercase"]
    if fields["seriatim"] != 1 or not isinstance(lowercase, bool):
        raise ValueError("not a tokenizer of Seriatim")
    if kind == "byte":
        return ByteTokenizer(lowercase=lowercase)
    if kind in ("bpe", "unigram"):
        from .subword_tokenizer import SubwordTokenizer

        return SubwordTokenizer(kind, fields["model"], lowercase=lowercase)
    if kind == "pretrained":
        from .pretrained_tokenizer import PretrainedTokenizer

        end, begin, size = (fields[name] for name in ("end", "begin", "size"))
        mask = fields.get("mask")
        if {int} != {*map(type, (end, begin, size, mask or 0))} or lowercase:
            raise ValueError("ids that are not integers")
        return PretrainedTokenizer(fields["tokenizer"], end=end, begin=begin, size=size, mask=mask)

    # Symbols become ids by their places, so each must be text and occur once.
    if kind == "char":
        characters = fields["characters"]
        if not isinstance(characters, str):
            raise ValueError("the characters are not a text")
        begin = _begin(fields, characters)
        return CharTokenizer(characters, Spelling.from_json(fields["spelling"]), lowercase=lowercase, begin=begin)
    words = fields["words"]
    if kind != "word" or not isinstance(words, list) or not {str}.issuperset(map(type, words)):
        raise ValueError("the words are not a list of texts")
    begin = _begin(fields, words)
    if RESERVED.intersection(words):
        raise ValueError("a reserved word")
    return WordTokenizer(words, Spelling.from_json(fields["spelling"]), lowercase=lowercase, begin=begin)


def _begin(fields: Fields, symbols: str | list[str]) -> int:
    """Check the words or characters, and return the token that begins a text."""
    if not is_text("".join(symbols)) or len(set(symbols)) < len(symbols):
        raise ValueError("symbols that are not text, or duplicate symbols")
    begin = fields.get("begin", END)
    if type(begin) is not int or not 0 <= begin < 2 + len(symbols):
        raise ValueError("a token that begins a text and is not in the vocabulary")
    return begin
