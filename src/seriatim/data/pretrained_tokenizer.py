"""The tokenizer of a model that comes from another library: a `tokenizer.json` of the ``tokenizers`` library.

Its token that ends a text becomes token 0, the boundary symbol, and exchanges its id with the token that was there; all
other ids stay. A model that comes with it has the rows of its tables exchanged in the same way.

The tokenizer of a masked language model such as BERT also has a token that stands for a gap. It keeps its id, but a gap
is read with the row after the vocabulary, as in every masked language model here.
"""

import json
import re
from collections.abc import Iterable

import numpy as np
import tokenizers

from ..config import Fields
from ..core.errors import shown
from .subword_tokenizer import bytes_by_symbol
from .tokenizers import END, Spelling, Tokenizer

FALLBACK = re.compile("<0x[0-9A-F]{2}>")
"""A token that stands for a byte of a character without a token."""
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""Stands for a space in the subwords of SentencePiece."""
DECODERS = ("ByteLevel", "Metaspace", "WordPiece")


class PretrainedTokenizer(Tokenizer):
    """A tokenizer of the ``tokenizers`` library, as it is.

    Args:
        fields: the content of its `tokenizer.json`.
        end: the library's id of the token that ends a text.
        begin: the library's id of the token that begins a text; ``end`` if there is none.
        size: the number of rows of the model's embedding, which may be larger than the vocabulary.
        mask: the library's id of the token that stands for a gap; None for a model that predicts the next token. With
            it, every text is read between ``begin`` and ``end``.

    Raises:
        ValueError: the tokenizer cannot be read, joins its tokens in an unknown way, or lacks ``end``.
    """

    kind = "pretrained"
    spelling = Spelling()

    def __init__(self, fields: Fields, *, end: int, begin: int, size: int, mask: int | None = None) -> None:
        self.fields, self.end, self.mask = dict(fields), end, mask
        self.frames = mask is not None
        self.inner, self.continuing = _opened(self.fields), _opened(without_space(self.fields))
        self.vocabulary_size = size

        # Every id must have a row in the tables of the model.
        name, last = max(self.inner.get_vocab().items(), key=lambda item: item[1], default=("", -1))
        if last >= size or not all(0 <= token < size for token in (end, begin, mask or 0)):
            raise ValueError(f"its token {shown(name)} has the id {last:,}, which does not fit into {size:,} rows")
        self.begin = int(self.exchanged(np.array([begin]))[0])

        # How the bytes of a token are found depends on how the library joins tokens.
        model = self.fields["model"]
        decoder = decoder_of(self.fields)
        self.is_byte_level, self.falls_back = decoder == "ByteLevel", bool(model.get("byte_fallback"))
        self.piece_prefix = self.fields["decoder"]["prefix"] if decoder == "WordPiece" else None
        self.special = {token["content"] for token in self.fields.get("added_tokens") or ()}
        ids = [token for token in map(self.inner.token_to_id, self.special) if token is not None]
        self.reserved = frozenset(self.exchanged(ids).tolist())
        self._bytes = bytes_by_symbol()

        # Only a try shows whether a space is put before a text, and whether the library can encode at all.
        try:
            first = self.inner.encode("a", add_special_tokens=False).ids
        except Exception as error:
            raise ValueError(f"the tokenizers library cannot use it ({error})") from None
        self.adds_space = bool(first) and self._joined(first).startswith(b" ")
        """Whether a space is put before a text, which is not a part of it."""
        unknown = model.get("unk_token")
        if unknown is not None and not self.is_byte_level and not self.falls_back:
            token = self.inner.token_to_id(unknown)
            self.unknown_id = None if token is None else int(self.exchanged(np.array([token]))[0])

    def exchanged(self, ids: np.ndarray | list[int]) -> np.ndarray:
        """Convert ids of the library to ids of this tokenizer, or the other way round."""
        ids = np.asarray(ids)
        return np.where(ids == END, self.end, np.where(ids == self.end, END, ids))

    def library_token(self, token: int) -> str | None:
        """Return what the library calls a token; None for a row without a token."""
        name: str | None = self.inner.id_to_token(int(self.exchanged(np.array([token]))[0]))
        return name

    def encode(self, text: str) -> np.ndarray:
        """Return token ids ``(tokens,)``, int32; no special tokens are added."""
        return self._encode(self.inner, text)

    def encode_continued(self, text: str) -> np.ndarray:
        """Return token ids of a text that continues another one, without a space before it."""
        return self._encode(self.continuing, text)

    def _encode(self, inner: tokenizers.Tokenizer, text: str) -> np.ndarray:
        ids = inner.encode(self.prepare(text), add_special_tokens=False).ids if text else []
        return self.exchanged(np.array(ids, dtype=np.int32)).astype(np.int32)

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token, which may be part of a character; none for the boundary symbol."""
        if token == END:
            return b""
        name = self.library_token(token)
        if name is None:  # a row of the embedding without a token
            return b""
        if self.piece_prefix is not None:  # after another token
            return str(self.inner.decoder.decode(["a", name])).removeprefix("a").encode()
        if self.falls_back and FALLBACK.fullmatch(name):
            return bytes([int(name[3:5], 16)])
        if name in self.special:
            return name.encode()
        if self.is_byte_level:
            return bytes(self._bytes[symbol] for symbol in name)
        return name.replace(SPACE, " ").encode()

    def _joined(self, ids: list[int]) -> bytes:
        """Return the bytes of ids of the library."""
        return b"".join(map(self.token_bytes, self.exchanged(np.array(ids)).tolist()))

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of some tokens, without the space that was put before it."""
        text = super().decode(tokens)
        return text.removeprefix(" ") if self.adds_space else text

    def token_ends(self, text: str, ids: np.ndarray) -> np.ndarray:
        """Return after which byte of a text each of its tokens ends; see `Tokenizer.token_ends`."""
        ends, size = super().token_ends(text, ids), len(text.encode())
        if len(ids) and ends[-1] == size + 1 and self.adds_space:
            ends -= 1
        if len(ids) and ends[-1] == size and self.piece_prefix is None:
            return ends
        encodings = (inner.encode(text, add_special_tokens=False) for inner in (self.inner, self.continuing))
        offsets = next((encoding.offsets for encoding in encodings if len(encoding.offsets) == len(ids)), [])
        bytes_before = np.cumsum([0, *(len(character.encode()) for character in text)])  # of a text that was normalized
        return bytes_before[[end for _, end in offsets]] if offsets else np.zeros(0, dtype=np.int64)

    def starts_word(self, token: int) -> bool:
        """Return whether a token begins a word."""
        if self.piece_prefix is None:
            return super().starts_word(token)
        return not (self.library_token(token) or "").startswith(self.piece_prefix)

    def describe(self, token: int) -> str:
        """Return a readable name of a token; the tokens around a text have those of the library."""
        name = self.library_token(token) if self.frames and token in self.reserved else None
        return super().describe(token) if name is None else name

    def payload(self) -> dict[str, object]:
        """Return the content of the library's file, and the ids."""
        begin = int(self.exchanged(np.array([self.begin]))[0])
        mask = {} if self.mask is None else {"mask": self.mask}
        return {"end": self.end, "begin": begin, **mask, "size": self.vocabulary_size, "tokenizer": self.fields}


def decoder_of(fields: Fields) -> str:
    """Return how tokens are joined, one of `DECODERS`; raise ValueError for any other way."""
    decoder = fields.get("decoder") or {}
    parts = decoder.get("decoders") or [decoder]
    kinds = [part.get("type") for part in parts]
    if "ByteLevel" in kinds:
        return "ByteLevel"
    if kinds == ["WordPiece"] and decoder.get("prefix"):
        return "WordPiece"
    replaces = any(part.get("type") == "Replace" and part.get("content") == " " for part in parts)
    if "Metaspace" in kinds or replaces:
        return "Metaspace"
    raise ValueError(f"its tokens are joined by {', '.join(map(str, kinds))}; {', '.join(DECODERS)} can be read")


def _opened(fields: Fields) -> tokenizers.Tokenizer:
    """Return a tokenizer of the library; raise ValueError if it cannot be read."""
    try:
        inner = tokenizers.Tokenizer.from_str(json.dumps(fields))
    except Exception as error:  # the library raises Exception itself
        raise ValueError(f"the tokenizers library cannot read it ({error})") from None
    inner.no_padding()
    inner.no_truncation()
    return inner


def without_space(fields: Fields) -> Fields:
    """Return a tokenizer that puts no space before a text."""

    def changed(part: object) -> object:
        if isinstance(part, list):
            return [changed(item) for item in part if not (isinstance(item, dict) and item.get("type") == "Prepend")]
        if not isinstance(part, dict) or part.get("type") == "Prepend":
            return None if isinstance(part, dict) else part
        values = {name: changed(value) if isinstance(value, dict | list) else value for name, value in part.items()}
        for name, value in (("prepend_scheme", "never"), ("add_prefix_space", False)):
            if name in values:
                values[name] = value
        return values

    return {**fields, **{name: changed(fields.get(name)) for name in ("normalizer", "pre_tokenizer")}}
