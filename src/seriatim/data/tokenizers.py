"""How text becomes tokens: bytes, characters, words, or pieces learned from the text.

Token 0 is the boundary symbol ``</s>``: as an input it begins a sequence, as an output it ends one. Every token but
the boundary and the unknown stands for some bytes, and text is given back by joining them.
"""

import codecs
import functools
import hashlib
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ..config import Tokenizer as TokenizerConfig
from ..core.errors import InputError
from ..storage.safe_files import is_text, read_text
from .spelling import Spelling

END = 0
BOUNDARY = np.array([END], dtype=np.int32)
STRETCH = 1 << 20
END_TEXT, UNKNOWN_TEXT = "</s>", "<unk>"
MOST = 1 << 27
"""Bytes of the file of a vocabulary, at most: about ten million words."""


class Tokenizer(ABC):
    """Text to token ids and back.

    Attributes:
        vocabulary_size: number of token ids, the boundary symbol 0 included.
        unknown_id: the token for what is not in the vocabulary; None where everything can be written.
        spelling: what it costs to spell that out, where there is such a token.
        ends_lines: whether a line end in the text is the boundary symbol.
    """

    kind: ClassVar[str]
    ends_lines: ClassVar[bool] = False
    vocabulary_size: int
    unknown_id: int | None = None
    spelling: Spelling
    lowercase: bool = False

    @abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """Token ids ``(tokens,)``, int32; no boundary symbols are added."""

    @abstractmethod
    def token_bytes(self, token: int) -> bytes:
        """The UTF-8 bytes a token stands for; possibly part of a character."""

    @abstractmethod
    def payload(self) -> dict[str, Any]:
        """What `tokenizer.json` keeps beside the kind."""

    def unknown_pieces(self, text: str) -> list[str]:
        """The parts of ``text`` that `encode` cannot write."""
        return []

    def encode_lines(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Lines that each have their line end, for which stands the boundary symbol; and how many tokens each has."""
        ids = [part for line in text.split("\n")[:-1] for part in (self.encode(line), BOUNDARY)]
        sizes = np.array([len(part) + 1 for part in ids[::2]], dtype=np.int64)
        return np.concatenate([BOUNDARY[:0], *ids]), sizes

    def prepare(self, text: str) -> str:
        """The text as the tokenizer sees it."""
        return text.lower() if self.lowercase else text

    def decoder(self, after: int = END) -> "Decoder":
        """Turns tokens to text one by one; ``after`` is the token that stands before the first."""
        return Decoder(self, after)

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of some tokens. Bytes that are not UTF-8 become the replacement character."""
        decoder = self.decoder()
        return "".join(decoder.feed(int(token)) for token in tokens) + decoder.finish()

    def describe(self, token: int) -> str:
        """A token as a person would name it."""
        if token == END:
            return END_TEXT
        return UNKNOWN_TEXT if token == self.unknown_id else self.token_bytes(token).decode("utf-8", "replace")

    def to_json(self) -> str:
        """What `tokenizer.json` holds."""
        return self._json

    def fingerprint(self) -> str:
        """The same for tokenizers whose `tokenizer.json` is the same, and only for them."""
        return hashlib.sha256(self._json.encode()).hexdigest()

    @functools.cached_property
    def _json(self) -> str:
        head = {"seriatim": 1, "kind": self.kind, "lowercase": self.lowercase}
        text = lines_of_json({**head, **self.payload()})
        if len(text) > MOST // 4 and len(text.encode()) > MOST:
            raise InputError(
                f"tokenizer.vocabulary_size: {self.vocabulary_size:,} tokens take more than {MOST:,} bytes; set it, or "
                "raise tokenizer.min_count"
            )
        return text


class Decoder:
    """Text from tokens as they come; half a UTF-8 character waits for its other half."""

    def __init__(self, tokenizer: Tokenizer, after: int) -> None:
        self.tokenizer = tokenizer
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.at_line_start = after == END

    def feed(self, token: int) -> str:
        """The text that this token completes."""
        raw = self.tokenizer.token_bytes(token)
        if self.tokenizer.ends_lines:  # words are joined by spaces, except at the start of a line
            if not self.at_line_start and token != END:
                raw = b" " + raw
            self.at_line_start = token == END
        return self.decoder.decode(raw)

    def finish(self) -> str:
        """What is left at the end: the replacement character, or nothing."""
        return self.decoder.decode(b"", final=True)


class ByteTokenizer(Tokenizer):
    """Every byte of the UTF-8 text is a token."""

    kind = "byte"

    def __init__(self, *, lowercase: bool = False) -> None:
        self.lowercase = lowercase
        self.vocabulary_size = 257

    def encode(self, text: str) -> np.ndarray:
        """Each byte's value, plus one."""
        return np.frombuffer(self.prepare(text).encode(), dtype=np.uint8).astype(np.int32) + 1

    def token_bytes(self, token: int) -> bytes:
        """The byte itself."""
        return b"" if token == END else bytes([token - 1])

    def payload(self) -> dict[str, Any]:
        """Nothing to learn, nothing to keep."""
        return {}


class CharTokenizer(Tokenizer):
    """Every Unicode character seen in training is a token.

    Args:
        characters: the vocabulary, in order; ids start at 2.
        spelling: what an unknown character costs.
        lowercase: whether text is put in lower case first.
    """

    kind = "char"
    unknown_id = 1

    def __init__(self, characters: str, spelling: Spelling, *, lowercase: bool = False) -> None:
        self.characters, self.spelling, self.lowercase = characters, spelling, lowercase
        self.vocabulary_size = 2 + len(characters)
        points = np.array([ord(c) for c in characters], dtype=np.uint32)
        self._order = np.argsort(points)
        self._points = points[self._order]

    def encode(self, text: str) -> np.ndarray:
        """Looks every character up, a stretch at a time: a line can be very long."""
        text = self.prepare(text)
        parts = [self._encode(text[i : i + STRETCH]) for i in range(0, len(text), STRETCH)]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)

    def _encode(self, text: str) -> np.ndarray:
        points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
        if not len(self._points):
            return np.full(len(points), self.unknown_id, dtype=np.int32)
        place = np.searchsorted(self._points, points).clip(max=len(self._points) - 1)
        return np.where(self._points[place] == points, self._order[place] + 2, self.unknown_id).astype(np.int32)

    def token_bytes(self, token: int) -> bytes:
        """The character's UTF-8 bytes."""
        if token < 2:
            return b"" if token == END else UNKNOWN_TEXT.encode()
        return self.characters[token - 2].encode()

    def unknown_pieces(self, text: str) -> list[str]:
        """The characters not in the vocabulary."""
        known = set(self.characters)
        return [c for c in self.prepare(text) if c not in known]

    def payload(self) -> dict[str, Any]:
        """The characters, and the counts of the spelling."""
        return {"characters": self.characters, "spelling": self.spelling.counts}


def fit_tokenizer(config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
    """Learns a vocabulary.

    Args:
        config: kind, size and minimum count.
        texts: the training text in pieces, cut at white space where there is any.

    Raises:
        InputError: a vocabulary too small for its kind.
    """
    if config.kind == "byte":
        return ByteTokenizer(lowercase=config.lowercase)
    if config.kind in ("bpe", "unigram"):
        from .subwords import SubwordTokenizer

        return SubwordTokenizer.fit(config, texts)
    counts: Counter[str] = Counter()
    for text in texts:
        text = text.lower() if config.lowercase else text
        counts.update(text if config.kind == "char" else text.split())
    if config.kind == "word":
        from .words import WordTokenizer

        return WordTokenizer.of_counts(counts, config)
    ranked = most_common(counts, config)
    return CharTokenizer("".join(sorted(ranked)), Spelling.fit(counts), lowercase=config.lowercase)


def most_common(counts: Mapping[str, int], config: TokenizerConfig) -> list[str]:
    """The words or characters of a vocabulary, the most common first, those as common in order.

    Raises:
        InputError: no room for any.
    """
    ranked = sorted(word for word, count in counts.items() if count >= config.min_count)
    ranked.sort(key=counts.__getitem__, reverse=True)
    if config.vocabulary_size is None:
        return ranked
    if config.vocabulary_size < 3:
        raise InputError(
            f"tokenizer.vocabulary_size: {config.vocabulary_size} leaves no room beside two symbols; at least 3"
        )
    return ranked[: config.vocabulary_size - 2]


def lines_of_json(value: Any) -> str:
    """What ``json.dumps`` gives with ``indent=0``, many times faster where lists are long."""
    if isinstance(value, dict) and value:
        lines = (f"{json.dumps(str(key), ensure_ascii=False)}: {lines_of_json(each)}" for key, each in value.items())
        return "{\n" + ",\n".join(lines) + "\n}"
    if isinstance(value, list) and value:
        if {list, dict} & set(map(type, value)):
            return "[\n" + ",\n".join(map(lines_of_json, value)) + "\n]"
        return "[\n" + json.dumps(value, ensure_ascii=False, separators=(",\n", ": "))[1:-1] + "\n]"
    return json.dumps(value, ensure_ascii=False)


def load_tokenizer(path: Path) -> Tokenizer:
    """Opens a `tokenizer.json`.

    Raises:
        InputError: missing, damaged, or of another program.
    """
    text = read_text(path, most=MOST, hint="is this the folder of a run?")
    try:
        found = _of_json(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InputError(
            f"{path}: not a tokenizer of this program, or damaged; restore it from the run it belongs to"
        ) from None
    found.__dict__["_json"] = text  # which a large vocabulary takes long to write
    return found


def _of_json(kept: Any) -> Tokenizer:
    """A tokenizer of what `Tokenizer.to_json` writes, and of nothing else."""
    kind, lowercase = kept["kind"], kept["lowercase"]
    if kept["seriatim"] != 1 or not isinstance(lowercase, bool):
        raise ValueError("not of this program")
    if kind == "byte":
        return ByteTokenizer(lowercase=lowercase)
    if kind in ("bpe", "unigram"):
        from .subwords import SubwordTokenizer

        return SubwordTokenizer(kind, kept["model"], lowercase=lowercase)
    symbols: Any = kept[{"char": "characters", "word": "words"}[kind]]
    if type(symbols) is not {"char": str, "word": list}[kind] or not {str}.issuperset(map(type, symbols)):
        raise ValueError("symbols that are none")
    if not is_text("".join(symbols)) or len(set(symbols)) < len(symbols):
        raise ValueError("symbols that are no text, or stand there twice")
    if kind == "char":
        return CharTokenizer(symbols, Spelling.of_json(kept["spelling"]), lowercase=lowercase)
    from .words import SPECIAL, WordTokenizer

    if SPECIAL.intersection(symbols):
        raise ValueError("a word that stands for something else")
    return WordTokenizer(symbols, Spelling.of_json(kept["spelling"]), lowercase=lowercase)
