"""Reads the vocabulary of a state dictionary of `torch.nn`, and says which of its rows is which token here."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..config import Fields
from ..core.errors import InputError, nearest, shown
from ..data.pretrained_tokenizer import PretrainedTokenizer
from ..data.tokenizer_factory import CharTokenizer, load_tokenizer
from ..data.tokenizers import END, MAX_FILE_BYTES, Spelling, Tokenizer
from ..data.word_tokenizer import LINE_END, WordTokenizer
from ..storage.safe_files import is_text, read_json, read_text
from .tokenizer_export import CHARACTER

NAMES = ("tokenizer.json", "vocab.json", "vocab.txt", "vocabulary.json", "vocabulary.txt")
"""The files in which a vocabulary is found without being named."""
KINDS = "tokenizer.json, a list in JSON, or a text with one token a line in the order of the ids"
REMEDY = f"give {KINDS}"
ENDS = ("<eos>", "</s>", "<|endoftext|>", "<end>", "<eot>", "[eos]", "\n")
BEGINS = ("<bos>", "<s>", "<sos>", "<start>", "[bos]")
UNKNOWNS = ("<unk>", "<unknown>", "<oov>", "[unk]")
SYMBOL = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")
"""A special token in a list of characters."""
PRIVATE = 0xE000  # the first code point for private use, where characters stand for special tokens
ESCAPES = {r"\n": "\n", r"\r": "\r", r"\t": "\t"}
"""How a list with one character a line writes characters that would break the line, or that cannot be seen."""
ADDED = -1


class SourceVocabulary(NamedTuple):
    """A tokenizer, and the row there of each token here.

    Token 0 and the unknown token 1 must exist here. ``added`` are those that do not exist there: their row is a copy of
    another, or the mean of all rows (`ADDED`).
    """

    tokenizer: Tokenizer
    rows: Sequence[int]
    added: Sequence[int] = ()

    @property
    def unit(self) -> str:
        """The value of ``data.unit``: lines if a token begins each, or if no character is a line end."""
        one = self.tokenizer
        if one.kind == "char":
            return "line" if one.unknown_pieces("\n") else "stream"
        return "line" if one.kind == "word" and one.begin != END else "stream"


def find_vocabulary(weights: Path) -> Path:
    """Return the vocabulary beside a file of weights; raise InputError if there is none, or if there are several."""
    found = [name for name in NAMES if (weights.parent / name).is_file()]
    if len(found) == 1:
        return weights.parent / found[0]
    problem = f"{' and '.join(found)} are beside it" if found else "no vocabulary beside it"
    raise InputError(f"{weights}: {problem}; name the vocabulary with --vocabulary FILE: {KINDS}")


def read_vocabulary(path: Path, size: int, *, end: str | None = None) -> SourceVocabulary:
    """Read the vocabulary of a model whose tables have ``size`` rows; ``end`` is the token that ends a text.

    Raises:
        InputError: the file cannot be read, has another number of tokens, or does not say which token ends a text.
    """
    if path.suffix != ".json":
        lines = read_text(path, max_bytes=MAX_FILE_BYTES, remedy=REMEDY).removesuffix("\n").split("\n")
        return _listed(path, [ESCAPES.get(line, line) for line in lines], size, end)
    content = read_json(path, max_bytes=MAX_FILE_BYTES, remedy=REMEDY)
    if isinstance(content, dict) and isinstance(content.get("kind"), str):
        if end is not None:
            raise InputError(f"--end: {path} says which token ends a text; leave it out")
        tokenizer = load_tokenizer(path)
        _check_size(path, tokenizer.vocabulary_size, size)
        return SourceVocabulary(tokenizer, range(size))
    if isinstance(content, dict) and isinstance(content.get("model"), dict):
        return _from_library(path, content, size, end)
    if isinstance(content, dict):
        if sorted(content.values(), key=str) != sorted(range(len(content)), key=str):
            raise InputError(f"{path}: the ids must be 0 to {len(content) - 1}, each of one token; {REMEDY}")
        content = sorted(content, key=content.__getitem__)
    if not isinstance(content, list):
        raise InputError(f"{path}: not a list of tokens; {REMEDY}")
    return _listed(path, content, size, end)


def _check_size(path: Path, tokens: int, size: int) -> None:
    if tokens != size:
        raise InputError(
            f"{path}: {tokens:,} tokens, but the tables have {size:,} rows; give the vocabulary of this model"
        )


def _from_library(path: Path, content: Fields, size: int, end: str | None) -> SourceVocabulary:
    """Return the vocabulary of a `tokenizer.json` of the ``tokenizers`` library."""
    import tokenizers

    try:
        before, normalizer = content.get("pre_tokenizer") or {}, (content.get("normalizer") or {}).get("type")
        ids = tokenizers.Tokenizer.from_str(json.dumps(content)).get_vocab()
        if content["model"].get("type") == "WordLevel" and normalizer in (None, "Lowercase"):
            by_character = before.get("type") == "Split" and before["pattern"] == {"Regex": CHARACTER}
            if by_character or before.get("type") == "WhitespaceSplit":
                tokens = sorted(ids, key=ids.__getitem__)
                return _listed(path, tokens, size, end, is_characters=by_character, lowercase=normalizer is not None)
        ending = _ending(path, ids, end, ENDS[:-1])
        if ending is None:
            raise InputError(f"{path}: no token ends a text; name it with --end TOKEN")
        begin = _special(path, ids, BEGINS, "begin a text")
        tokenizer = PretrainedTokenizer(content, end=ending, begin=ending if begin is None else begin, size=size)
    except InputError:
        raise
    except Exception as error:  # the library raises Exception itself
        raise InputError(f"{path}: {error}; {REMEDY}") from None
    return SourceVocabulary(tokenizer, tokenizer.exchanged(np.arange(size)).tolist())


def _special(path: Path, ids: Mapping[str, int], names: Collection[str], what: str) -> int | None:
    """Return the id of a special token, whose name may have any case; raise InputError if there are two."""
    found = [token for token in ids if token.lower() in names]
    if len(found) > 1:
        hint = "rename one of them" if names in (BEGINS, UNKNOWNS) else "name it with --end"
        raise InputError(f"{path}: {shown(found[0])} and {shown(found[1])} may both {what}; {hint}")
    return ids[found[0]] if found else None


def _ending(path: Path, ids: Mapping[str, int], end: str | None, names: Collection[str]) -> int | None:
    """Return the id of the token that ends a text."""
    if end is None:
        return _special(path, ids, names, "end a text")
    end = ESCAPES.get(end, end)
    if end not in ids:
        raise InputError(f"--end: {shown(end)} is not in {path}; {nearest(end, list(ids))}")
    return ids[end]


def _listed(
    path: Path,
    tokens: Sequence[object],
    size: int,
    end: str | None,
    *,
    is_characters: bool | None = None,
    lowercase: bool = False,
) -> SourceVocabulary:
    """Return the vocabulary of a list of words or characters in the order of their ids."""
    ids: dict[str, int] = {}
    for i, token in enumerate(tokens):
        if not isinstance(token, str) or not token or not is_text(token) or token in ids:
            problem = "a duplicate" if isinstance(token, str) and token in ids else "not a text"
            raise InputError(f"{path}:{i + 1}: {shown(token) if token else 'an empty token'} is {problem}; {REMEDY}")
        ids[token] = i
    _check_size(path, len(ids), size)
    if is_characters is None:
        is_characters = all(len(token) == 1 for token in ids if not SYMBOL.fullmatch(token) and token != end)
    ending = _ending(path, ids, end, ENDS[:-1] if is_characters else ENDS)
    begin, unknown = _special(path, ids, BEGINS, "begin a text"), _special(path, ids, UNKNOWNS, "be the unknown token")
    if ending is not None and ending == unknown:
        raise InputError(f"--end: {shown(end)} is the unknown token of {path}; name the token that ends a text")
    if ending is None and not is_characters:
        raise InputError(f"{path}: no token ends a line, such as <eos>; name it with --end TOKEN")
    rows = [ids.get("\n", ADDED) if ending is None else ending, ADDED if unknown is None else unknown]
    others = [token for token, i in ids.items() if i not in (ending, unknown)]
    rows += [ids[token] for token in others]
    first = END if begin is None else rows.index(begin)
    added = [token for token, i in enumerate((ending, unknown)) if i is None]
    if is_characters:
        characters = "".join(token if len(token) == 1 else chr(PRIVATE + i) for i, token in enumerate(others))
        return SourceVocabulary(CharTokenizer(characters, Spelling(), lowercase=lowercase, begin=first), rows, added)
    for token in others:
        if token.split() != [token] or LINE_END in token:
            raise InputError(
                f"{path}:{ids[token] + 1}: {shown(token)} has white space, and words are separated by it; {REMEDY}"
            )
    return SourceVocabulary(WordTokenizer(others, Spelling(), lowercase=lowercase, begin=first), rows, added)
