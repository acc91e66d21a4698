"""Tokenizers of the ``tokenizers`` library: subwords learned from a text, and tokenizers of other libraries' models.

``bpe``: R. Sennrich, B. Haddow and A. Birch, "Neural machine translation of rare words with subword units", ACL 2016.
``unigram``: T. Kudo, "Subword regularization", ACL 2018. Both work on bytes, so that no text is unknown.

A tokenizer that comes with the model of another library is a `tokenizer.json`. Its token that ends a text becomes token
0, the boundary symbol, and exchanges its id with the token that was there; all other ids stay. The model has the rows
of its tables exchanged in the same way. The tokenizer of a masked language model such as BERT also has a token that
stands for a gap. It keeps its id, but a gap is read with the row after the vocabulary, as in every masked language
model here.

Every tokenizer can be written as a file of the library, with the same ids.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from ..config import Tokenizer as TokenizerConfig
from ..core.errors import NotSupportedError, RangeError, shown
from ..core.json_object import JsonObject
from .text import grouped
from .tokenizers import BOUNDARY, END, END_TEXT, UNKNOWN_TEXT, Spelling, Tokenizer

DEFAULT_SIZE = 8000
CHUNK_CHARACTERS = 20_000
CHARACTERS_TOGETHER = 64 * CHUNK_CHARACTERS
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
        self.kind, self.lowercase = kind, lowercase
        self._bytes = bytes_by_symbol()
        self.inner = _byte_level(_checked_model(kind, model, self._bytes))
        self.vocabulary_size = self.inner.get_vocab_size() + 1

    @classmethod
    def fit(cls, config: TokenizerConfig, texts: Iterable[str]) -> "SubwordTokenizer":
        """Learn the subwords of a text; raise InputError if the vocabulary size is less than the number of bytes."""
        size = config.vocabulary_size or DEFAULT_SIZE
        if size < 257:
            raise RangeError(f"tokenizer.vocabulary_size: the bytes alone need 257, got {size}; give at least 257")
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

        # Long texts are cut, because the library holds each chunk in memory as a whole.
        chunks = (chunk.lower() if config.lowercase else chunk for text in texts for chunk in _chunks(text))
        inner.train_from_iterator(chunks, trainer)
        model = json.loads(inner.to_str())
        if config.kind == "unigram":
            vocabulary = model["model"]["vocab"]
            for subword in vocabulary:  # for an empty text the library learns scores that are not numbers
                subword[1] = -math.log(len(vocabulary)) if subword[1] is None else subword[1]
        return cls(str(config.kind), model, lowercase=config.lowercase)

    def encode(self, text: str) -> np.ndarray:
        """Return the id of each subword plus one ``(tokens,)``, int32."""
        encoded = self._encode_chunks(_chunks(self.prepare(text)))
        return np.concatenate(encoded) if encoded else np.zeros(0, dtype=np.int32)

    def encode_lines(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Encode lines as every tokenizer does, but many at once."""
        lines = [list(_chunks(self.prepare(line))) for line in text.split("\n")[:-1]]
        encoded = self._encode_chunks(chunk for line in lines for chunk in line)
        lengths = np.cumsum([0, *map(len, encoded)])
        counts = np.cumsum([0, *map(len, lines)])  # of chunks
        sizes = np.diff(lengths[counts]) + 1
        ids = np.full(int(sizes.sum()), END, dtype=np.int32)
        is_end = np.zeros(len(ids), dtype=bool)
        is_end[np.cumsum(sizes) - 1] = True
        ids[~is_end] = np.concatenate([BOUNDARY[:0], *encoded])
        return ids, sizes

    def _encode_chunks(self, chunks: Iterable[str]) -> list[np.ndarray]:
        """Return the ids of each chunk."""
        ids: list[np.ndarray] = []
        for group in grouped(chunks, CHARACTERS_TOGETHER):
            encoded = self.inner.encode_batch_fast(group, add_special_tokens=False)
            ids += [np.array(each.ids, dtype=np.int32) + np.int32(1) for each in encoded]
        return ids

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a subword, which may be part of a character."""
        if token == END:
            return b""
        return bytes(self._bytes[symbol] for symbol in self.inner.id_to_token(token - 1) or "")

    def payload(self) -> dict[str, object]:
        """Return the JSON format of the ``tokenizers`` library."""
        return {"model": json.loads(self.inner.to_str())}


def _byte_level(model: models.Model, *, use_regex: bool = True) -> tokenizers.Tokenizer:
    """Return a tokenizer of the library that applies a model to bytes; without the regex, also across words."""
    inner = tokenizers.Tokenizer(model)
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
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
    scores = [] if kind == "bpe" else [(subword, score) for subword, score in model["vocab"]]
    ids = model["vocab"] if kind == "bpe" else {subword: i for i, (subword, _) in enumerate(scores)}
    if not isinstance(ids, dict) or len(ids) != len(model["vocab"]) or not alphabet.keys() <= ids.keys():
        raise ValueError("duplicate subwords, or bytes without a subword")
    if not alphabet.keys() >= set("".join(ids)) or "" in ids:
        raise ValueError("a subword that does not consist of bytes")
    if {type(index) for index in ids.values()} != {int} or sorted(ids.values()) != list(range(len(ids))):
        raise ValueError("the ids do not number the subwords")
    if kind == "unigram":
        if not all(type(score) is float and math.isfinite(score) for _, score in scores):
            raise ValueError("scores that are not finite numbers")
        return models.Unigram(scores)
    merges = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
    if any(len(pair) != 2 or not {*pair, "".join(pair)} <= ids.keys() for pair in merges):
        raise ValueError("a merge of unknown subwords")
    return models.BPE(ids, [(first, second) for first, second in merges])


def _chunks(text: str) -> Iterable[str]:
    """Cut a long text after line ends, so that its chunks are encoded in parallel and in bounded memory."""
    start = 0
    while len(text) - start > CHUNK_CHARACTERS:
        cut = text.rfind("\n", start, start + CHUNK_CHARACTERS) + 1 or start + CHUNK_CHARACTERS
        yield text[start:cut]
        start = cut
    if start < len(text):
        yield text[start:]


def bytes_by_symbol() -> dict[str, int]:
    """Return the byte of each symbol of byte-level vocabularies.

    Printable Latin-1 characters stand for themselves. The code points from 256 stand for the other bytes, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


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

    def __init__(self, fields: JsonObject, *, end: int, begin: int, size: int, mask: int | None = None) -> None:
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
        self.subword_prefix = self.fields["decoder"]["prefix"] if decoder == "WordPiece" else None
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
        if self.subword_prefix is not None:  # after another token
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
        if len(ids) and ends[-1] == size and self.subword_prefix is None:
            return ends
        encodings = (inner.encode(text, add_special_tokens=False) for inner in (self.inner, self.continuing))
        offsets = next((encoding.offsets for encoding in encodings if len(encoding.offsets) == len(ids)), [])
        bytes_before = np.cumsum([0, *(len(character.encode()) for character in text)])  # of a text that was normalized
        return bytes_before[[end for _, end in offsets]] if offsets else np.zeros(0, dtype=np.int64)

    def starts_word(self, token: int) -> bool:
        """Return whether a token begins a word."""
        if self.subword_prefix is None:
            return super().starts_word(token)
        return not (self.library_token(token) or "").startswith(self.subword_prefix)

    def describe(self, token: int) -> str:
        """Return a readable name of a token; the tokens around a text have those of the library."""
        name = self.library_token(token) if self.frames and token in self.reserved else None
        return super().describe(token) if name is None else name

    def payload(self) -> dict[str, object]:
        """Return the content of the library's file, and the ids."""
        begin = int(self.exchanged(np.array([self.begin]))[0])
        mask = {} if self.mask is None else {"mask": self.mask}
        return {"end": self.end, "begin": begin, **mask, "size": self.vocabulary_size, "tokenizer": self.fields}


def decoder_of(fields: JsonObject) -> str:
    """Return how tokens are joined, one of `DECODERS`; raise ValueError for any other way."""
    decoder = fields.get("decoder") or {}
    steps = decoder.get("decoders") or [decoder]
    kinds = [step.get("type") for step in steps]
    if "ByteLevel" in kinds:
        return "ByteLevel"
    if kinds == ["WordPiece"] and decoder.get("prefix"):
        return "WordPiece"
    replaces = any(step.get("type") == "Replace" and step.get("content") == " " for step in steps)
    if "Metaspace" in kinds or replaces:
        return "Metaspace"
    raise ValueError(f"its tokens are joined by {', '.join(map(str, kinds))}; {', '.join(DECODERS)} can be read")


def _opened(fields: JsonObject) -> tokenizers.Tokenizer:
    """Return a tokenizer of the library; raise ValueError if it cannot be read."""
    try:
        inner = tokenizers.Tokenizer.from_str(json.dumps(fields))
    except Exception as error:  # the library raises Exception itself
        raise ValueError(f"the tokenizers library cannot read it ({error})") from None
    inner.no_padding()
    inner.no_truncation()
    return inner


def without_space(fields: JsonObject) -> JsonObject:
    """Return a tokenizer that puts no space before a text."""

    def changed(step: object) -> object:
        if isinstance(step, list):
            return [changed(item) for item in step if not (isinstance(item, dict) and item.get("type") == "Prepend")]
        if not isinstance(step, dict) or step.get("type") == "Prepend":
            return None if isinstance(step, dict) else step
        values = {name: changed(value) if isinstance(value, dict | list) else value for name, value in step.items()}
        for name, value in (("prepend_scheme", "never"), ("add_prefix_space", False)):
            if name in values:
                values[name] = value
        return values

    return {**fields, **{name: changed(fields.get(name)) for name in ("normalizer", "pre_tokenizer")}}


CHARACTER = r"[\s\S]"


def library_fields(tokenizer: Tokenizer) -> JsonObject:
    """Return the content of a `tokenizer.json` of the ``tokenizers`` library for a tokenizer.

    The ids are those of the library for a tokenizer that came from there, else those here: 0 is ``</s>``.
    """
    if isinstance(tokenizer, PretrainedTokenizer):
        return tokenizer.fields

    # The library has no tokenizers of bytes, characters or words: each is one of its models with such a vocabulary.
    if tokenizer.kind in ("bpe", "unigram"):
        inner = tokenizers.Tokenizer.from_str(json.dumps(_shifted(tokenizer.payload()["model"])))
    elif tokenizer.kind == "byte":
        symbols = {symbol: byte + 1 for symbol, byte in bytes_by_symbol().items()}
        inner = _byte_level(models.BPE({END_TEXT: 0, **symbols}, []), use_regex=False)
    elif tokenizer.kind in ("char", "word"):
        ids = {tokenizer.token_bytes(token).decode(): token for token in range(2, tokenizer.vocabulary_size)}
        inner = tokenizers.Tokenizer(models.WordLevel({END_TEXT: 0, UNKNOWN_TEXT: 1, **ids}, unk_token=UNKNOWN_TEXT))
        if tokenizer.kind == "char":
            inner.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(CHARACTER), "isolated")
            inner.decoder = decoders.Fuse()
        else:
            inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    else:
        raise NotSupportedError(f"tokenizer.kind: {tokenizer.kind} cannot be exported; give a run of another kind")

    if tokenizer.lowercase:
        inner.normalizer = normalizers.Lowercase()

    # As a special token, ``</s>`` is left out of decoded texts.
    inner.add_special_tokens([END_TEXT])
    fields: JsonObject = json.loads(inner.to_str())
    return fields


def special_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    """Return what `tokenizer_config.json` calls the special tokens."""
    if isinstance(tokenizer, PretrainedTokenizer):
        end, begin = tokenizer.library_token(0), tokenizer.library_token(tokenizer.begin)
        names = {"eos_token": end, "bos_token": begin}
        if tokenizer.mask is not None:
            unknown, padding = tokenizer.fields["model"].get("unk_token"), "[PAD]"
            names = {"sep_token": end, "cls_token": begin, "mask_token": tokenizer.inner.id_to_token(tokenizer.mask)}
            names |= {"unk_token": unknown, "pad_token": padding if padding in tokenizer.special else None}
        return {key: name for key, name in names.items() if name is not None}
    special = {"eos_token": END_TEXT, "bos_token": tokenizer.describe(tokenizer.begin)}
    return special | ({} if tokenizer.unknown_id is None else {"unk_token": UNKNOWN_TEXT})


def _shifted(fields: object) -> JsonObject:
    """Return a subword tokenizer in which every id is one more, and ``</s>`` has the id 0."""
    assert isinstance(fields, Mapping)
    model = dict(fields["model"])
    if isinstance(model["vocab"], Mapping):
        model["vocab"] = {END_TEXT: 0, **{subword: i + 1 for subword, i in model["vocab"].items()}}
    else:
        model["vocab"] = [[END_TEXT, 0.0], *model["vocab"]]
    return {**fields, "model": model}
