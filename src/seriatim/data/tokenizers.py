"""Tokenizers, which convert text to token ids and back: their base class, and those of bytes, characters and words.

Token 0 is the boundary symbol ``</s>``: as an input it begins a sequence, as an output it ends one. Every token except
the boundary and the unknown token stands for some bytes; joining the bytes gives the text.
"""

import codecs
import contextlib
import functools
import hashlib
import itertools
import json
import math
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np

from ..config import Tokenizer as TokenizerConfig
from ..core.errors import RangeError, SizeError, UnknownNameError, check_text

END = 0
BOUNDARY = np.array([END], dtype=np.int32)
END_TEXT, UNKNOWN_TEXT = "</s>", "<unk>"
BYTES = 256
MAX_FILE_BYTES = 1 << 27  # the largest size of the file of a vocabulary: about ten million words


class Spelling:
    """The cost of spelling out an unknown word.

    A model with a closed vocabulary predicts ``<unk>`` for a word that it does not know, whichever word it was. For a
    comparison per word or per byte with models that predict every letter, the model must also pay for the spelling.
    The code is a unigram distribution over the 256 bytes and an end symbol: ``−log P(word) = −Σ log p(byte) − log
    p(end)``, where p is estimated from the word types of the training text with add-one smoothing.

    Args:
        counts: the number of occurrences of each of the 257 symbols.
    """

    def __init__(self, counts: list[int] | None = None) -> None:
        self.counts = counts or [0] * (BYTES + 1)
        assert len(self.counts) == BYTES + 1
        total = math.log(sum(self.counts) + BYTES + 1)
        self.cost = [total - math.log(count + 1) for count in self.counts]

    @classmethod
    def from_json(cls, counts: object) -> "Spelling":
        """Return the distribution of the counts in a file; raise ValueError if they are not 257 counts."""
        if not isinstance(counts, list) or len(counts) != BYTES + 1 or not {int}.issuperset(map(type, counts)):
            raise ValueError("not the counts of a spelling")
        if not all(0 <= count < 2**53 for count in counts):
            raise ValueError("a count of a spelling is out of range")
        return cls(counts)

    @classmethod
    def fit(cls, words: Iterable[str]) -> "Spelling":
        """Return the distribution of some word types, each counted once."""
        return cls(cls.count_symbols(list(words)).tolist())

    @staticmethod
    def count_symbols(words: Sequence[str]) -> np.ndarray:
        """Count each symbol in some words ``(257,)``, each of which occurs once."""
        counts = np.bincount(np.frombuffer("".join(words).encode(), dtype=np.uint8), minlength=BYTES + 1)
        counts[BYTES] = len(words)
        return counts

    def nats(self, symbol_counts: np.ndarray) -> float:
        """Return the cost in nats of symbols that were counted by `count_symbols`."""
        return float(symbol_counts @ np.array(self.cost))


class Tokenizer(ABC):
    """Converts text to token ids and back.

    Attributes:
        vocabulary_size: the number of token ids, with the boundary symbol 0.
        unknown_id: the token for text that is not in the vocabulary; None if all text can be encoded.
        spelling: the cost of spelling out unknown text, if there is an unknown token.
        ends_lines: whether a line end in the text is the boundary symbol.
        begin: the token that begins a sequence as an input: the boundary symbol, or another one in a model that comes
            from another library.
        frames: whether a masked language model puts ``begin`` and the boundary symbol around every text; lines then
            have no boundary symbol of their own.
        reserved: tokens that are no part of a text, as far as they are known, besides the boundary and the unknown one.
    """

    kind: str
    ends_lines: ClassVar[bool] = False
    vocabulary_size: int
    unknown_id: int | None = None
    begin: int = END
    frames: bool = False
    reserved: frozenset[int] = frozenset()
    spelling: Spelling
    lowercase: bool = False

    @abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """Return token ids ``(tokens,)``, int32; no boundary symbols are added."""

    def encode_continued(self, text: str) -> np.ndarray:
        """Return token ids of a text that continues another one; some tokenizers put a space before other texts."""
        return self.encode(text)

    @abstractmethod
    def token_bytes(self, token: int) -> bytes:
        """Return the UTF-8 bytes of a token, which may be part of a character."""

    def starts_word(self, token: int) -> bool:
        """Return whether a token begins with a space."""
        return self.token_bytes(token).startswith(b" ")

    def token_ends(self, text: str, ids: np.ndarray) -> np.ndarray:
        """Return after which byte of a text each of its tokens ends ``(tokens,)``.

        The text is the result of `prepare`, and ``ids`` is what `encode` returns for it.
        """
        return np.cumsum([len(self.token_bytes(token)) for token in ids.tolist()], dtype=np.int64)

    @abstractmethod
    def payload(self) -> dict[str, object]:
        """Return the fields of `tokenizer.json` that this kind of tokenizer adds."""

    def find_unknown(self, text: str) -> list[str]:
        """Return the words or characters of ``text`` that are not in the vocabulary."""
        return []

    def count_unknown(self, ids: np.ndarray) -> int:
        """Return how many of some token ids are the unknown token."""
        return 0 if self.unknown_id is None else int(np.count_nonzero(ids == self.unknown_id))

    def check_known(self, text: str) -> None:
        """Raise InputError if a text is not a string, or has symbols that do not occur in training."""
        check_text(text, "the text")
        unknown = list(dict.fromkeys(self.find_unknown(text)))
        if unknown:
            names = ", ".join(repr(symbol) for symbol in unknown[:3])
            more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
            kind = "words" if self.kind == "word" else "characters"
            raise UnknownNameError(f"the text has {kind} never seen in training: {names}{more}; leave them out")

    def encode_lines(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Encode lines that all have a line end, which becomes the boundary symbol unless the tokenizer ``frames``.

        Returns:
            Token ids ``(tokens,)``, int32, and the number of tokens of each line ``(lines,)``, int64.
        """
        end = BOUNDARY[:0] if self.frames else BOUNDARY
        ids = [tokens for line in text.split("\n")[:-1] for tokens in (self.encode(line), end)]
        sizes = np.array([len(tokens) + len(end) for tokens in ids[::2]], dtype=np.int64)
        return np.concatenate([BOUNDARY[:0], *ids]), sizes

    def prepare(self, text: str) -> str:
        """Return the text that is encoded: in lower case if ``lowercase`` is set."""
        return text.lower() if self.lowercase else text

    def decoder(self, after: int = END) -> "Decoder":
        """Return a decoder for one token at a time; ``after`` is the token before the first."""
        return Decoder(self, after)

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of some tokens. Bytes that are not UTF-8 become the replacement character."""
        decoder = self.decoder()
        return "".join(decoder.feed(int(token)) for token in tokens) + decoder.finish()

    def describe(self, token: int) -> str:
        """Return a readable name of a token; see `name_of_bytes` for a part of a character."""
        if token == END:
            return END_TEXT
        return UNKNOWN_TEXT if token == self.unknown_id else name_of_bytes(self.token_bytes(token))

    def to_json(self) -> str:
        """Return the content of `tokenizer.json`; raise InputError if the vocabulary is too large for a file."""
        return self._json

    def fingerprint(self) -> str:
        """Return a digest that is equal exactly for tokenizers with the same `tokenizer.json`."""
        return hashlib.sha256(self._json.encode()).hexdigest()

    @functools.cached_property
    def _json(self) -> str:
        """The content of the file; `load_tokenizer` sets it to what it read, which saves time for large files."""
        text = lines_of_json({"seriatim": 1, "kind": self.kind, "lowercase": self.lowercase, **self.payload()})
        if len(text) > MAX_FILE_BYTES // 4 and len(text.encode()) > MAX_FILE_BYTES:
            problem = f"{self.vocabulary_size:,} tokens take more than {MAX_FILE_BYTES:,} bytes"
            raise SizeError(f"tokenizer.vocabulary_size: {problem}; set it, or raise tokenizer.min_count")
        return text


def _begin_field(begin: int) -> dict[str, object]:
    """Return the field ``begin`` of `tokenizer.json`; nothing if the boundary symbol begins a text."""
    return {} if begin == END else {"begin": begin}


def name_of_bytes(raw: bytes) -> str:
    r"""Return a text; for bytes that are no text, such as parts of a character, a name such as ``bytes:\xf0``."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + raw.replace(b"\\", b"\\\\").decode("ascii", "backslashreplace")


def whole_characters(names: Iterable[str]) -> list[str]:
    r"""Return the names of consecutive tokens, with a character of several tokens at the token that completes it.

    A dot stands for the bytes before it: ``caf``, ``bytes:\xc3``, ``bytes:\xa9`` give ``caf``, ``·``, ``é``.
    """
    decoder, shown = codecs.getincrementaldecoder("utf-8")("backslashreplace"), []
    for name in names:
        text = name
        if name.startswith("bytes:") and "\\x" in name:
            with contextlib.suppress(UnicodeError):  # of a word that only looks like such a name
                raw = name.removeprefix("bytes:").encode().decode("unicode_escape").encode("latin-1")
                text = decoder.decode(raw)
                text += "·" if decoder.getstate()[0] else ""
        else:
            decoder.reset()
        shown.append(text)
    return shown


class Decoder:
    """Decodes one token at a time; the first bytes of a UTF-8 character wait for the others."""

    def __init__(self, tokenizer: Tokenizer, after: int) -> None:
        self.tokenizer = tokenizer
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.at_line_start = after == END

    def feed(self, token: int) -> str:
        """Return the text that this token completes."""
        raw = self.tokenizer.token_bytes(token)
        if self.tokenizer.ends_lines:  # words are joined by spaces, except at the start of a line
            if not self.at_line_start and token != END:
                raw = b" " + raw
            self.at_line_start = token == END
        return self.decoder.decode(raw)

    def copy(self) -> "Decoder":
        """Return a decoder that continues the same text."""
        other = Decoder(self.tokenizer, END)
        other.decoder.setstate(self.decoder.getstate())
        other.at_line_start = self.at_line_start
        return other

    def finish(self) -> str:
        """Return the replacement character if a character is incomplete at the end; else nothing."""
        return self.decoder.decode(b"", final=True)


def most_common(counts: Mapping[str, int], config: TokenizerConfig) -> list[str]:
    """Return the words or characters of a vocabulary, the most common first; equal counts in alphabetical order.

    Raises:
        InputError: the vocabulary size leaves no room.
    """
    ranked = sorted(word for word, count in counts.items() if count >= config.min_count)
    ranked.sort(key=counts.__getitem__, reverse=True)
    if config.vocabulary_size is None:
        return ranked
    if config.vocabulary_size < 3:
        problem = f"{config.vocabulary_size} leaves no room beside the two special symbols"
        raise RangeError(f"tokenizer.vocabulary_size: {problem}; give at least 3")
    return ranked[: config.vocabulary_size - 2]


def lines_of_json(value: object) -> str:
    """Return the same as ``json.dumps`` with ``indent=0``, many times faster for long lists."""
    if isinstance(value, dict) and value:
        lines = (f"{json.dumps(str(key), ensure_ascii=False)}: {lines_of_json(item)}" for key, item in value.items())
        return "{\n" + ",\n".join(lines) + "\n}"
    if isinstance(value, list) and value:
        if {list, dict} & set(map(type, value)):
            return "[\n" + ",\n".join(map(lines_of_json, value)) + "\n]"
        return "[\n" + json.dumps(value, ensure_ascii=False, separators=(",\n", ": "))[1:-1] + "\n]"
    return json.dumps(value, ensure_ascii=False)


BLOCK_CHARACTERS = 1 << 20  # the number of characters that are encoded together; a line can be very long


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
        self._ids_of = np.full(int(points.max(initial=0)) + 2, self.unknown_id, dtype=np.int32)  # the last for others
        self._ids_of[points] = np.arange(2, self.vocabulary_size)

    def encode(self, text: str) -> np.ndarray:
        """Return the id of each character ``(tokens,)``, int32."""
        text = self.prepare(text)
        blocks = [self._encode(text[i : i + BLOCK_CHARACTERS]) for i in range(0, len(text), BLOCK_CHARACTERS)]
        return blocks[0] if len(blocks) == 1 else np.concatenate([np.zeros(0, dtype=np.int32), *blocks])

    def _encode(self, text: str) -> np.ndarray:
        points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
        return np.asarray(self._ids_of[np.minimum(points, len(self._ids_of) - 1)])

    def token_bytes(self, token: int) -> bytes:
        """Return the UTF-8 bytes of the character."""
        if token < 2:
            return b"" if token == END else UNKNOWN_TEXT.encode()
        return self.characters[token - 2].encode()

    def token_ends(self, text: str, ids: np.ndarray) -> np.ndarray:
        """Return after which byte each character ends; see `Tokenizer.token_ends`."""
        return np.cumsum([len(character.encode()) for character in text], dtype=np.int64)

    def find_unknown(self, text: str) -> list[str]:
        """Return the characters that are not in the vocabulary."""
        known = set(self.characters)
        return [c for c in self.prepare(text) if c not in known]

    def payload(self) -> dict[str, object]:
        """Return the characters and the counts of the spelling, and the token that begins a text if it is not 0."""
        return {"characters": self.characters, "spelling": self.spelling.counts, **_begin_field(self.begin)}


class PartsTokenizer(CharTokenizer):
    """Characters are the parts of letters, as in Unicode's form NFD; a text that is decoded is composed of them."""

    def prepare(self, text: str) -> str:
        """Return the characters that are encoded; see `Tokenizer.prepare`."""
        return unicodedata.normalize("NFD", super().prepare(text))

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of some tokens."""
        return unicodedata.normalize("NFC", super().decode(tokens))

    def payload(self) -> dict[str, object]:
        """Return the fields of characters, and that they are parts."""
        return {**super().payload(), "parts": True}


LINE_END, REPLACEMENT = "\0", "\N{REPLACEMENT CHARACTER}"
"""``LINE_END`` stands for a line end while words are looked up. Readers refuse it, so that no text contains it."""
TOKEN = re.compile(r"\n|\S+")
RESERVED = frozenset({LINE_END, UNKNOWN_TEXT})  # words that no vocabulary lists, because every vocabulary has them


class WordTokenizer(Tokenizer):
    """Words are separated by white space; a line end is the boundary symbol; ``<unk>`` is the unknown word.

    The ids of ``words`` start at 2. ``begin`` is the token that begins a text, in a model of another program.
    """

    kind = "word"
    ends_lines = True
    unknown_id = 1

    def __init__(self, words: Sequence[str], spelling: Spelling, *, lowercase: bool = False, begin: int = END) -> None:
        self.words, self.spelling, self.lowercase, self.begin = words, spelling, lowercase, begin
        self.vocabulary_size = 2 + len(self.words)

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        ids = {LINE_END: END, UNKNOWN_TEXT: 1, **dict(zip(self.words, itertools.count(2), strict=False))}
        ids[LINE_END] = END  # even if the model of another program has this word
        return ids

    @classmethod
    def from_counts(cls, counts: Mapping[str, int], config: TokenizerConfig) -> "WordTokenizer":
        """Return a tokenizer of the most common words; raise InputError if the vocabulary has no room."""
        if UNKNOWN_TEXT in counts:
            counts = {word: count for word, count in counts.items() if word != UNKNOWN_TEXT}
        return cls(most_common(counts, config), Spelling.fit(counts), lowercase=config.lowercase)

    def encode(self, text: str) -> np.ndarray:
        """Return the id of each word ``(tokens,)``, int32, and 0 for each line end."""
        text = self.prepare(text).replace(LINE_END, REPLACEMENT).replace("\n", f" {LINE_END} ")
        words = text.split()
        return np.fromiter(self.ids(words), dtype=np.int32, count=len(words))

    def ids(self, words: Iterable[str]) -> Iterator[int]:
        """Iterate over the ids of some words."""
        return map(self._ids.get, words, itertools.repeat(self.unknown_id))

    def encode_lines(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Encode lines as every tokenizer does, but all at once."""
        tokens = self.encode(text)
        return tokens, np.diff(np.flatnonzero(tokens == END), prepend=-1)

    def token_bytes(self, token: int) -> bytes:
        """Return the UTF-8 bytes of the word; a line end for token 0."""
        if token < 2:
            return b"\n" if token == END else UNKNOWN_TEXT.encode()
        return self.words[token - 2].encode()

    def token_ends(self, text: str, ids: np.ndarray) -> np.ndarray:
        """Return after which byte each word or line end ends; see `Tokenizer.token_ends`."""
        ends = [match.end() for match in TOKEN.finditer(text)]
        tokens = [text[start:end] for start, end in itertools.pairwise([0, *ends])]
        return np.cumsum([len(token.encode()) for token in tokens], dtype=np.int64)

    def find_unknown(self, text: str) -> list[str]:
        """Return the words that are not in the vocabulary; the word ``<unk>`` is in it."""
        return [word for word in self.prepare(text).split() if word not in self._ids]

    def payload(self) -> dict[str, object]:
        """Return the words, the counts of the spelling, and the token that begins a text if it is not token 0."""
        return {"words": self.words, "spelling": self.spelling.counts, **_begin_field(self.begin)}
