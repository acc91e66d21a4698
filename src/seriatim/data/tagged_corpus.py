"""Encoded tagged sentences, and batches of them; see `word_forms` for the characters of words."""

import functools
import hashlib
import re
from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..config import Tokenizer as TokenizerConfig
from ..core.device_copies import to_device
from ..core.errors import EmptyError, MismatchError
from .conll import Sentence
from .repairs import Repairs
from .tokenizers import END, Tokenizer, WordTokenizer
from .vocabulary import Vocabulary, check_label, fit_tokenizer
from .word_forms import Spellings, encode_characters

NO_TAG = -1  # the id of an unknown tag, and of padding
NO_FORMS = np.zeros((0, 0), np.int64)
SPACE = re.compile(r"\s")


class TaggedBatch(NamedTuple):
    """A batch of sentences, as tensors with padding on the right."""

    words: Tensor  # ids of words (batch, time)
    lengths: Tensor  # the number of words of each sentence (batch,)
    rows: np.ndarray  # the indices of the sentences (batch,)
    spellings: Spellings | None = None  # the characters; None if the vocabulary has none
    tags: Tensor | None = None  # ids of tags (batch, time), negative for unknown tags; None if there are no tags
    once: Tensor | None = None  # whether each word occurs once in training (batch, time); None outside training
    forms: np.ndarray = NO_FORMS  # the index in ``spelled`` of each word (batch, time); 0 on padding
    spelled: Sequence[Sequence[str]] = ()  # the distinct words of the corpus, each with its further columns
    columns: Tensor | None = None  # ids of further columns (batch, time, columns); None if there are none

    @property
    def fresh(self) -> bool:
        """Always True: no state is carried from sentence to sentence."""
        return True

    @property
    def tokens(self) -> int:
        """The number of words."""
        return int(self.lengths.sum())

    @property
    def terms(self) -> int:
        """The number of terms of the loss."""
        return self.tokens

    def known(self) -> Tensor:
        """Return whether the tag of each word is known ``(batch, time)``."""
        assert self.tags is not None
        return self.tags >= 0

    def to(self, device: torch.device) -> "TaggedBatch":
        """Return the batch on another device; ``lengths`` stay where they are."""
        spellings = self.spellings and self.spellings.to(device)
        others = self.tags, self.once, self.columns
        tags, once, columns = (None if values is None else to_device(values, device) for values in others)
        return self._replace(
            words=to_device(self.words, device), spellings=spellings, tags=tags, once=once, columns=columns
        )


def fit_vocabulary(sentences: Iterable[Sentence], config: TokenizerConfig, *, characters: bool) -> Vocabulary:
    """Return the vocabulary of the training sentences: words, further columns, sorted tags and perhaps characters.

    Raises:
        InputError: every word has the same tag, a tag is not printable, or the vocabulary size is too small.
    """
    texts, spellings, tags, columns, first = [], dict[str, None](), set[str](), dict[str, None](), ""
    for sentence in sentences:
        texts.append(_joined(sentence.words))
        spellings.update(dict.fromkeys(sentence.words))
        columns.update(dict.fromkeys(value for values in sentence.further for value in _numbered(values)))
        for tag in set(sentence.tags) - tags:
            check_label(tag, sentence.location(sentence.tags.index(tag)), "remove it from the tag")
        tags.update(sentence.tags)
        first = first or sentence.location(0)
    if len(tags) == 1:
        raise EmptyError(f"{first}: every word has the tag {next(iter(tags))!r}; give data with at least two tags")
    tokenizers = {"tokenizer": fit_tokenizer(config, texts)}
    if characters:
        tokenizers["characters"] = fit_tokenizer(TokenizerConfig(kind="char"), spellings)
    if columns:
        tokenizers["columns"] = fit_tokenizer(TokenizerConfig(kind="word"), [_joined(columns)])
    return Vocabulary(tokenizers, sorted(tags))


def word_ids(words: Iterable[str], tokenizer: Tokenizer) -> np.ndarray:
    """Return the id of each word ``(words,)``; a word may contain white space."""
    return tokenizer.encode(_joined(words))


def _numbered(values: Iterable[str]) -> list[str]:
    """Return the values of a word's further columns, each with the number of its column before it."""
    return [f"{number}:{value}" for number, value in enumerate(values)]


def _joined(words: Iterable[str]) -> str:
    """Join words by spaces; white space within a word becomes an underscore."""
    return " ".join(SPACE.sub("_", word) for word in words)


class TaggedCorpus:
    """Encoded sentences; their tags are encoded if they are ``labelled``.

    Attributes:
        lengths: the number of words of each sentence ``(sentences,)``.
        words: the id of every word ``(words,)``.
        tags: the index in ``tag_names`` of every word's tag ``(words,)``; None if there are no tags.
        tag_names: the labels of the vocabulary, followed by the tags that are not among them.
        unseen: file and line of the first occurrence of each tag that is not among the labels.
        spelled: the distinct words, each with its further columns.
        forms: the index in ``spelled`` of every word ``(words,)``.
        repairs: the repairs made while the sentences were read; set by the caller.
        raw_tags: the tag in the file of each word whose tag was repaired, by the index of the word.
    """

    def __init__(self, sentences: Iterable[Sentence], vocabulary: Vocabulary, *, labelled: bool = True) -> None:
        spellings: dict[tuple[str, ...], int] = {}  # the index of every distinct word with its columns
        numbers = {tag: i for i, tag in enumerate(vocabulary.labels)}
        spelling, tags, lengths, digests = array("i"), array("i"), array("q"), array("q")
        self.unseen: dict[str, str] = {}
        self.raw_tags: dict[int, str] = {}
        self.repairs = Repairs()
        for sentence in sentences:
            further = sentence.further or [()] * len(sentence.words)
            read = [(word, *values) for word, values in zip(sentence.words, further, strict=True)]
            spelling.extend([spellings.setdefault(word, len(spellings)) for word in read])
            lengths.append(len(sentence.words))
            if labelled:
                digests.append(hash(tuple(sentence.words)))
                raw_tags = enumerate(zip(sentence.raw_tags or [], sentence.tags, strict=False), len(tags))
                self.raw_tags.update({i: raw for i, (raw, tag) in raw_tags if raw != tag})
                known = len(numbers)
                tags.extend([numbers.setdefault(tag, len(numbers)) for tag in sentence.tags])
                for tag in list(numbers)[known:]:
                    self.unseen[tag] = sentence.location(sentence.tags.index(tag))

        # Each distinct word is looked up once; there are few of them.
        self.vocabulary, self.tag_names = vocabulary, list(numbers)
        self.lengths, self._digests = np.array(lengths, dtype=np.int64), np.array(digests, dtype=np.int64)
        self._starts = self.lengths.cumsum() - self.lengths
        self.forms = np.array(spelling, dtype=np.int32)
        self.tags = np.array(tags, dtype=np.int32) if labelled else None
        self.spelled, words = list(spellings), [word for word, *_ in spellings]
        self.words = word_ids(words, vocabulary.tokenizer)[self.forms]
        columns = vocabulary.tokenizers.get("columns")
        self._columns: np.ndarray | None = None
        if columns:
            values = [value for _, *further in spellings for value in _numbered(further)]
            count = len({columns.describe(i).partition(":")[0] for i in range(2, columns.vocabulary_size)})
            if len(values) != count * len(words):
                raise MismatchError("data.features: there are no further columns; give a file that has them")
            self._columns = word_ids(values, columns).reshape(len(words), count)
            # Another column in the place of one that is missing has other values; of few words, all may be new.
            if len(self.forms) >= 10 and (self._columns == WordTokenizer.unknown_id).all(0).any():
                raise MismatchError("data.features: no value of a column occurs in training; give the same columns")

    @functools.cached_property
    def _characters(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The characters of the distinct words, and their numbers; None if the vocabulary has none."""
        tokenizer = self.vocabulary.tokenizers.get("characters")
        return encode_characters([word for word, *_ in self.spelled], tokenizer) if tokenizer else None

    @functools.cached_property
    def key(self) -> str:
        """A digest that is equal exactly for the same data."""
        key = hashlib.blake2b(f"tag {self.vocabulary.fingerprint()}".encode(), digest_size=16)
        for values in (self.lengths, self.forms, self.words, self.tags, self._columns, *(self._characters or ())):
            key.update(b"" if values is None else values.tobytes())
        return key.hexdigest()

    def row_digests(self) -> np.ndarray | None:
        """Return a number for each sentence, equal for equal ones of one process; None without tags."""
        return None if self.tags is None else self._digests

    def unknown_words(self) -> int:
        """Return the number of words that are not in the vocabulary."""
        return int((self.words == WordTokenizer.unknown_id).sum())

    def unseen_tags(self) -> int:
        """Return the number of words whose tag is not among the labels of the vocabulary."""
        return 0 if self.tags is None else int((self.tags >= len(self.vocabulary.labels)).sum())

    def seen_once(self) -> np.ndarray:
        """Return whether each word of the vocabulary occurs exactly once in these sentences ``(vocabulary,)``."""
        once: np.ndarray = np.bincount(self.words, minlength=self.vocabulary.tokenizer.vocabulary_size) == 1
        once[[END, WordTokenizer.unknown_id]] = False
        return once

    def truth(self) -> list[list[str]]:
        """Return the tags of each sentence as they are in the file, which conlleval compares."""
        assert self.tags is not None
        names = [self.tag_names[tag] for tag in self.tags.tolist()]
        for word, tag in self.raw_tags.items():
            names[word] = tag
        return [names[i : i + n] for i, n in zip(self._starts.tolist(), self.lengths.tolist(), strict=True)]

    def batch(self, rows: np.ndarray, once: np.ndarray | None = None, *, with_characters: bool = True) -> TaggedBatch:
        """Return the sentences ``rows``, padded on the right; ``once`` is the result of `seen_once`."""
        lengths = self.lengths[rows]
        position = np.arange(int(lengths.max(initial=0)))
        valid = position < lengths[:, None]
        at = (self._starts[rows][:, None] + position)[valid]

        # A tag that no training sentence has cannot be predicted: it is unknown to the loss.
        words, tags = self.words[at], None
        if self.tags is not None:
            tags = np.where(self.tags[at] < len(self.vocabulary.labels), self.tags[at], NO_TAG)
        return TaggedBatch(
            _padded(valid, words, END),
            torch.from_numpy(lengths),
            rows,
            self._spellings(valid, at) if with_characters else None,
            None if tags is None else _padded(valid, tags, NO_TAG),
            None if once is None else _padded(valid, once[words], False),
            _padded(valid, self.forms[at], 0).numpy(),
            self.spelled,
            None if self._columns is None else _padded(valid, self._columns[self.forms[at]], END),
        )

    def _spellings(self, valid: np.ndarray, at: np.ndarray) -> Spellings | None:
        if self._characters is None:
            return None
        distinct, indices = np.unique(self.forms[at], return_inverse=True)
        characters, lengths = (values[distinct] for values in self._characters)
        characters = characters[:, : int(lengths.max(initial=1))].astype(np.int64)
        return Spellings(torch.from_numpy(characters), torch.from_numpy(lengths), _padded(valid, indices, 0))


def _padded(valid: np.ndarray, values: np.ndarray, padding: int) -> Tensor:
    shape = (*valid.shape, *values.shape[1:])
    padded = np.full(shape, padding, dtype=bool if values.dtype == bool else np.int64)
    padded[valid] = values
    return torch.from_numpy(padded)
