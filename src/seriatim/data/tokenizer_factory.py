"""Tokenizers learned from a text, and tokenizers read from the files of a run."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..config import Tokenizer as TokenizerConfig
from ..core.errors import InputError
from ..storage.safe_files import is_text, read_text
from .character_tokenizers import ByteTokenizer, CharTokenizer
from .tokenizers import MAX_FILE_BYTES, Spelling, Tokenizer, most_common
from .word_tokenizer import RESERVED, WordTokenizer


def fit_tokenizer(config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
    """Learn a vocabulary.

    Args:
        config: kind, size and minimum count.
        texts: the training text in pieces, which are cut at white space if possible.

    Raises:
        InputError: the vocabulary size is too small for its kind.
    """
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
    """Read a `tokenizer.json`.

    Raises:
        InputError: the file is missing or damaged, or another program wrote it.
    """
    text = read_text(path, max_bytes=MAX_FILE_BYTES, remedy="check that this is the folder of a run")
    try:
        tokenizer = _from_json(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InputError(
            f"{path}: damaged, or not a tokenizer of Seriatim; restore it from the run it belongs to"
        ) from None
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
    if kind == "char":
        characters = fields["characters"]
        if not isinstance(characters, str):
            raise ValueError("the characters are not a text")
        _check_symbols(characters)
        return CharTokenizer(characters, Spelling.from_json(fields["spelling"]), lowercase=lowercase)
    words = fields["words"]
    if kind != "word" or not isinstance(words, list) or not {str}.issuperset(map(type, words)):
        raise ValueError("the words are not a list of texts")
    _check_symbols(words)
    if RESERVED.intersection(words):
        raise ValueError("a reserved word")
    return WordTokenizer(words, Spelling.from_json(fields["spelling"]), lowercase=lowercase)


def _check_symbols(symbols: str | list[str]) -> None:
    if not is_text("".join(symbols)) or len(set(symbols)) < len(symbols):
        raise ValueError("symbols that are not text, or duplicate symbols")
