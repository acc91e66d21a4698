"""The vocabulary of a run: its tokenizers, learned from a text or read from the files of a run, and its labels."""

import functools
import hashlib
import json
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..config import Tokenizer as TokenizerConfig
from ..core.errors import DamagedError, MalformedError, is_text, shown
from ..core.json_object import JsonObject
from ..storage.files import read_json, read_text, write_whole
from .tokenizers import (
    END,
    MAX_FILE_BYTES,
    RESERVED,
    ByteTokenizer,
    CharTokenizer,
    PartsTokenizer,
    Spelling,
    Tokenizer,
    WordTokenizer,
    most_common,
)


def fit_tokenizer(config: TokenizerConfig, texts: Iterable[str], *, parts: bool = False) -> Tokenizer:
    """Learn a vocabulary from a text in chunks, which are cut at white space if possible.

    ``parts`` says whether characters are parts of letters; see `PartsTokenizer`.

    Raises:
        InputError: the vocabulary size is too small for its kind.
    """
    if config.kind == "pretrained":
        return ByteTokenizer()  # in the place of the tokenizer of the run that training starts from
    if config.kind == "byte":
        return ByteTokenizer(lowercase=config.lowercase)
    if config.kind in ("bpe", "unigram"):
        from .library_tokenizers import SubwordTokenizer

        return SubwordTokenizer.fit(config, texts)

    # Words and characters are counted, and only then it is known which are common enough.
    counts: Counter[str] = Counter()
    for text in texts:
        text = text.lower() if config.lowercase else text
        text = unicodedata.normalize("NFD", text) if parts else text
        counts.update(text if config.kind == "char" else text.split())
    if config.kind == "word":
        return WordTokenizer.from_counts(counts, config)
    ranked = most_common(counts, config)
    make = PartsTokenizer if parts else CharTokenizer
    return make("".join(sorted(ranked)), Spelling.fit(counts), lowercase=config.lowercase)


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a `tokenizer.json`; raise InputError if it is missing or damaged, or another program wrote it."""
    text = read_text(path, max_bytes=MAX_FILE_BYTES, remedy="check that this is the folder of a run")
    try:
        return tokenizer_from_json(text)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DamagedError(f"{path}: damaged, or not a tokenizer of Seriatim; restore it from its run") from None


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
        from .library_tokenizers import SubwordTokenizer

        return SubwordTokenizer(kind, fields["model"], lowercase=lowercase)
    if kind == "pretrained":
        from .library_tokenizers import PretrainedTokenizer

        end, begin, size = (fields[name] for name in ("end", "begin", "size"))
        mask = fields.get("mask")
        if {int} != {*map(type, (end, begin, size, mask or 0))} or lowercase:
            raise ValueError("ids that are not integers")
        return PretrainedTokenizer(fields["tokenizer"], end=end, begin=begin, size=size, mask=mask)

    # Symbols become ids by their positions, so each must be text and occur once.
    if kind == "char":
        characters = fields["characters"]
        if not isinstance(characters, str):
            raise ValueError("the characters are not a text")
        begin = _begin(fields, characters)
        make = PartsTokenizer if fields.get("parts") is True else CharTokenizer
        return make(characters, Spelling.from_json(fields["spelling"]), lowercase=lowercase, begin=begin)
    words = fields["words"]
    if kind != "word" or not isinstance(words, list) or not {str}.issuperset(map(type, words)):
        raise ValueError("the words are not a list of texts")
    begin = _begin(fields, words)
    if RESERVED.intersection(words):
        raise ValueError("a reserved word")
    return WordTokenizer(words, Spelling.from_json(fields["spelling"]), lowercase=lowercase, begin=begin)


def _begin(fields: JsonObject, symbols: str | list[str]) -> int:
    """Check the words or characters, and return the token that begins a text."""
    if not is_text("".join(symbols)) or len(set(symbols)) < len(symbols):
        raise ValueError("symbols that are not text, or duplicate symbols")
    begin = fields.get("begin", END)
    if type(begin) is not int or not 0 <= begin < 2 + len(symbols):
        raise ValueError("a token that begins a text and is not in the vocabulary")
    return begin


TOKENIZERS = ("tokenizer", "target", "characters", "columns")
"""The names of the tokenizers: of the inputs; of the targets, if it differs; of the letters of words; and of further
columns that a tagger reads."""
CONTROLS = {"Cc", "Zl", "Zp"}  # the Unicode categories of control characters, line separators and paragraph separators


@dataclass(frozen=True)
class Vocabulary:
    """Tokenizers by name, and labels in the order of a model's outputs.

    Attributes:
        tokenizers: by the names in `TOKENIZERS`; ``tokenizer`` is always present.
        labels: classes or tags; empty for a task without labels.
    """

    tokenizers: Mapping[str, Tokenizer]
    labels: Sequence[str] = field(default_factory=tuple)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the inputs."""
        return self.tokenizers["tokenizer"]

    @property
    def target(self) -> Tokenizer:
        """The tokenizer of the targets; defaults to that of the inputs."""
        return self.tokenizers.get("target", self.tokenizer)

    def files(self) -> dict[str, str]:
        """Return the contents of the files of a run, by file name."""
        files = {f"{name}.json": tokenizer.to_json() for name, tokenizer in self.tokenizers.items()}
        return files | ({"labels.json": json.dumps(list(self.labels), ensure_ascii=False)} if self.labels else {})

    def save(self, folder: Path) -> None:
        """Write the files of a run."""
        for name, text in self.files().items():
            write_whole(folder / name, text)

    def fingerprint(self) -> str:
        """Return a digest that is equal exactly for equal vocabularies."""
        return self._fingerprint

    @functools.cached_property
    def _fingerprint(self) -> str:
        """The digest, computed once, because it takes milliseconds for a large vocabulary."""
        if len(self.tokenizers) == 1 and not self.labels:
            return self.tokenizer.fingerprint()
        return hashlib.sha256(json.dumps(self.files(), sort_keys=True).encode()).hexdigest()


def load_vocabulary(folder: Path) -> Vocabulary:
    """Read the vocabulary of a run; raise InputError if a file is missing or damaged."""
    tokenizers = {"tokenizer": load_tokenizer(folder / "tokenizer.json")}
    for name in TOKENIZERS[1:]:
        path = folder / f"{name}.json"
        if path.exists() or path.is_symlink():
            tokenizers[name] = load_tokenizer(path)
    return Vocabulary(tokenizers, _load_labels(folder / "labels.json"))


def check_label(label: str, where: str, remedy: str) -> None:
    """Raise InputError if a label cannot be printed on one line of its own; ``where`` and ``remedy`` are for it."""
    if any(unicodedata.category(character) in CONTROLS for character in label):
        raise MalformedError(
            f"{where}: the label {shown(label)} holds a line end or another control character; {remedy}"
        )


def _load_labels(path: Path) -> tuple[str, ...]:
    if not path.exists() and not path.is_symlink():
        return ()
    remedy = "restore it from the run it belongs to"
    labels = read_json(path, max_bytes=MAX_FILE_BYTES, remedy=remedy)
    if not isinstance(labels, list) or not all(isinstance(label, str) and is_text(label) for label in labels):
        raise DamagedError(f"{path}: not a list of labels, or damaged; {remedy}")
    if len(set(labels)) < len(labels):
        raise DamagedError(f"{path}: duplicate labels; {remedy}")
    for label in labels:
        check_label(label, str(path), remedy)
    return tuple(labels)
