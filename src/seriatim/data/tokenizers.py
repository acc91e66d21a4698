"""How text becomes tokens: bytes, characters, words, or pieces learned from the text.

Token 0 is the boundary symbol ``</s>``: as an input it begins a sequence, as an output it ends one. Every token but
the boundary and the unknown stands for some bytes, and text is given back by joining them.
"""

import codecs
import functools
import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ..config import Tokenizer as TokenizerConfig
from ..core.errors import InputError

END = 0
BOUNDARY = np.array([END], dtype=np.int32)
BYTES = 256
END_TEXT, UNKNOWN_TEXT = "</s>", "<unk>"
MOST = 1 << 27
"""Bytes of the file of a vocabulary, at most: about ten million words."""


class Spelling:
    """A unigram distribution over the 256 bytes and an end.

    Args:
        counts: how often each of the 257 symbols was seen.
    """

    def __init__(self, counts: list[int] | None = None) -> None:
        self.counts = counts or [0] * (BYTES + 1)
        assert len(self.counts) == 257
        total = math.log(sum(self.counts) + 257)
        self.cost = [total - math.log(count + 1) for count in self.counts]

    @classmethod
    def of_json(cls, counts: Any) -> "Spelling":
        """That of a file.

        Raises:
            ValueError: its counts are none.
        """
        whole = isinstance(counts, list) and len(counts) == BYTES + 1 and {int}.issuperset(map(type, counts))
        if not whole or not all(0 <= count < 2**53 for count in counts):
            raise ValueError("counts that are none")
        return cls(counts)

    @classmethod
    def fit(cls, words: Iterable[str]) -> "Spelling":
        """Counts the bytes of every word type once."""
        return cls(cls.letters(list(words)).tolist())

    @staticmethod
    def letters(words: Sequence[str], times: Sequence[int] | None = None) -> np.ndarray:
        """How often each symbol stands in words, of which each stands so many ``times``, or once ``(257,)``."""
        symbols, weights = np.frombuffer("".join(words).encode(), dtype=np.uint8), None
        if times is not None:
            weights = np.repeat(np.asarray(times, dtype=float), [len(word.encode()) for word in words])
        found = np.bincount(symbols, weights, minlength=BYTES + 1).astype(np.int64)
        found[BYTES] = len(words) if times is None else sum(times)
        return found

    def nats(self, letters: np.ndarray) -> float:
        """What letters cost, in nats; in whatever order they were counted."""
        return float(letters @ np.array(self.cost))


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
