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
from .subword_tokenizer import SubwordTokenizer
from .tokenizers import MOST, Spelling, Tokenizer, most_common
from .word_tokenizer import SPECIAL, WordTokenizer


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
        return SubwordTokenizer.fit(config, texts)
    counts: Counter[str] = Counter()
    for text in texts:
        text = text.lower() if config.lowercase else text
        counts.update(text if config.kind == "char" else text.split())
    if config.kind == "word":
        return WordTokenizer.of_counts(counts, config)
    ranked = most_common(counts, config)
    return CharTokenizer("".join(sorted(ranked)), Spelling.fit(counts), lowercase=config.lowercase)


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
        return SubwordTokenizer(kind, kept["model"], lowercase=lowercase)
    symbols: Any = kept[{"char": "characters", "word": "words"}[kind]]
    if type(symbols) is not {"char": str, "word": list}[kind] or not {str}.issuperset(map(type, symbols)):
        raise ValueError("symbols that are none")
    if not is_text("".join(symbols)) or len(set(symbols)) < len(symbols):
        raise ValueError("symbols that are no text, or stand there twice")
    if kind == "char":
        return CharTokenizer(symbols, Spelling.of_json(kept["spelling"]), lowercase=lowercase)
    if SPECIAL.intersection(symbols):
        raise ValueError("a word that stands for something else")
    return WordTokenizer(symbols, Spelling.of_json(kept["spelling"]), lowercase=lowercase)
