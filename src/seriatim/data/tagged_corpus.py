"""Tagged sentences as arrays, and batches of them.

Words are encoded once. What a batch needs of characters is computed for each distinct word in it, so that a batch names
its distinct words and where they stand.
"""

import functools
import hashlib
import re
from array import array
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..config import Tokenizer as TokenizerConfig
from ..core.errors import InputError
from .conll import Sentence
from .repairs import Repairs
from .tokenizer_factory import fit_tokenizer
from .tokenizers import END, Tokenizer
from .vocabulary import Vocabulary, check_label
from .word_tokenizer import WordTokenizer

NO_TAG = -1
"""The id of a tag that is not known, and of padding."""
LONGEST = 32
"""Characters of a word at most; of longer ones the first and the last halves."""
SPACE = re.compile(r"\s")


class Spellings(NamedTuple):
    """How the words of a batch are written.

    Attributes:
        characters: ids of the characters of each distinct word ``(distinct, max_length)``.
        lengths: ``(distinct,)``.
        places: which of the distinct words stands where ``(batch, time)``; 0 on padding.
    """

    characters: Tensor
    lengths: Tensor
    places: Tensor


class TaggedBatch(NamedTuple):
    """Some sentences.

    Attributes:
        words: ids of words ``(batch, time)``.
        lengths: words of each sentence ``(batch,)``.
        rows: which sentences these are ``(batch,)``.
        spellings: None where the vocabulary has no characters.
        tags: ids of tags ``(batch, time)``, negative where a tag is not known; None where there are none.
        once: which words were seen once in training ``(batch, time)``; None but in training.
    """

    words: Tensor
    lengths: Tensor
    rows: np.ndarray
    spellings: Spellings | None = None
    tags: Tensor | None = None
    once: Tensor | None = None

    @property
    def fresh(self) -> bool:
        """Always: nothing is carried from sentence to sentence."""
        return True

    @property
    def tokens(self) -> int:
        """Words."""
        return int(self.lengths.sum())

    @property
    def terms(self) -> int:
        """What the loss is a sum over."""
        return self.tokens

    def known(self) -> Tensor:
        """Which words have a tag that is known ``(batch, time)``."""
        assert self.tags is not None
        return self.tags >= 0

    def to(self, device: torch.device) -> "TaggedBatch":
        """The batch on another device, but for ``lengths``."""
        spellings = self.spellings and Spellings(*(part.to(device) for part in self.spellings))
        tags, once = (None if part is None else part.to(device) for part in (self.tags, self.once))
        return self._replace(words=self.words.to(device), spellings=spellings, tags=tags, once=once)


def fit_vocabulary(sentences: Iterable[Sentence], config: TokenizerConfig, *, characters: bool) -> Vocabulary:
    """Words, tags in order, and if asked for every character (its case too) of the training sentences.

    Raises:
        InputError: every word has the same tag, or a vocabulary too small.
    """
    texts, spellings, tags, name = [], dict[str, None](), set[str](), ""
    for sentence in sentences:
        texts.append(_joined(sentence.words))
        spellings.update(dict.fromkeys(sentence.words))
        for tag in set(sentence.tags) - tags:
            line = sentence.number + sentence.rows[sentence.tags.index(tag)]
            check_label(tag, f"{sentence.name}:{line}", "remove it from the tag")
        tags.update(sentence.tags)
        name = sentence.name
    if len(tags) == 1:
        raise InputError(f"{name}: every word has the tag {next(iter(tags))!r}; there is nothing to tell apart")
    tokenizers = {"tokenizer": fit_tokenizer(config, texts)}
    if characters:
        tokenizers["characters"] = fit_tokenizer(TokenizerConfig(kind="char"), spellings)
    return Vocabulary(tokenizers, sorted(tags))


def word_ids(words: Iterable[str], tokenizer: Tokenizer) -> np.ndarray:
    """The id of each word ``(words,)``, one whatever white space it holds."""
    return tokenizer.encode(_joined(words))


def _joined(words: Iterable[str]) -> str:
    """As a text in which white space parts words, and does nothing else."""
    return " ".join(SPACE.sub("_", word) for word in words)


class TaggedCorpus:
    """Encoded sentences.

    Args:
        sentences: to encode; what is kept of them is arrays.
        vocabulary: what ids mean.
        labelled: whether to keep tags.

    Attributes:
        lengths: words of each sentence ``(sentences,)``.
        words: the id of every word ``(words,)``.
        tags: the number of every word's tag ``(words,)``, as in ``tag_names``; None where there are none.
        tag_names: the vocabulary's labels, and behind them the tags that are not among those.
        unseen: file and line of the first of each tag that is not among the labels.
        repairs: what was repaired when the sentences were read; whoever reads them sets it.
        raw_tags: the tag of each word whose tag was repaired, as it is in the file, by the number of the word.
        key: the same for the same data, and only for it.
    """

    def __init__(self, sentences: Iterable[Sentence], vocabulary: Vocabulary, *, labelled: bool = True) -> None:
        kinds: dict[str, int] = {}  # every distinct spelling
        numbers = {tag: i for i, tag in enumerate(vocabulary.labels)}
        kind, tags, lengths = array("i"), array("i"), array("q")
        self.unseen: dict[str, str] = {}
        self.raw_tags: dict[int, str] = {}
        self.repairs = Repairs()
        for sentence in sentences:
            kind.extend([kinds.setdefault(word, len(kinds)) for word in sentence.words])
            lengths.append(len(sentence.words))
            if labelled:
                self._keep_raw(len(tags), sentence)
                known = len(numbers)
                tags.extend([numbers.setdefault(tag, len(numbers)) for tag in sentence.tags])
                for tag in list(numbers)[known:]:
                    line = sentence.number + sentence.rows[sentence.tags.index(tag)]
                    self.unseen[tag] = f"{sentence.name}:{line}"
        self.vocabulary, self.tag_names = vocabulary, list(numbers)
        self.lengths = np.array(lengths, dtype=np.int64)
        self._starts = self.lengths.cumsum() - self.lengths
        self._kind = np.array(kind, dtype=np.int32)
        self.tags = np.array(tags, dtype=np.int32) if labelled else None
        self.words = word_ids(kinds, vocabulary.tokenizer)[self._kind]
        characters = vocabulary.tokenizers.get("characters")
        self._spelled = _spell(list(kinds), characters) if characters else None

    def _keep_raw(self, start: int, sentence: Sentence) -> None:
        pairs = zip(sentence.raw_tags or [], sentence.tags, strict=False)
        self.raw_tags.update({start + i: raw for i, (raw, tag) in enumerate(pairs) if raw != tag})

    @functools.cached_property
    def key(self) -> str:
        """See the attributes."""
        key = hashlib.blake2b(f"tag {self.vocabulary.fingerprint()}".encode(), digest_size=16)
        for values in (self.lengths, self._kind, self.words, self.tags, *(self._spelled or ())):
            key.update(b"" if values is None else values.tobytes())
        return key.hexdigest()

    def unknown_words(self) -> int:
        """How many words are not in the vocabulary."""
        return int((self.words == WordTokenizer.unknown_id).sum())

    def unseen_tags(self) -> int:
        """How many words have a tag that is not among the vocabulary's."""
        return 0 if self.tags is None else int((self.tags >= len(self.vocabulary.labels)).sum())

    def seen_once(self) -> np.ndarray:
        """Which words of the vocabulary stand here once: booleans ``(vocabulary,)``."""
        once: np.ndarray = np.bincount(self.words, minlength=self.vocabulary.tokenizer.vocabulary_size) == 1
        once[[END, WordTokenizer.unknown_id]] = False
        return once

    def truth(self) -> list[list[str]]:
        """The tags of each sentence as they are in the file, which is what conlleval reads."""
        assert self.tags is not None
        names = [self.tag_names[tag] for tag in self.tags.tolist()]
        for word, tag in self.raw_tags.items():
            names[word] = tag
        return [names[i : i + n] for i, n in zip(self._starts.tolist(), self.lengths.tolist(), strict=True)]

    def batch(self, rows: np.ndarray, once: np.ndarray | None = None) -> TaggedBatch:
        """The sentences ``rows``, padded on the right; ``once`` are words of the vocabulary, as of `seen_once`."""
        lengths = self.lengths[rows]
        position = np.arange(int(lengths.max(initial=0)))
        valid = position < lengths[:, None]
        at = (self._starts[rows][:, None] + position)[valid]
        words, tags = self.words[at], None
        if self.tags is not None:
            tags = np.where(self.tags[at] < len(self.vocabulary.labels), self.tags[at], NO_TAG)
        return TaggedBatch(
            _padded(valid, words, END),
            torch.from_numpy(lengths),
            rows,
            self._spellings(valid, at),
            None if tags is None else _padded(valid, tags, NO_TAG),
            None if once is None else _padded(valid, once[words], False),
        )

    def _spellings(self, valid: np.ndarray, at: np.ndarray) -> Spellings | None:
        if self._spelled is None:
            return None
        kinds, places = np.unique(self._kind[at], return_inverse=True)
        characters, lengths = (part[kinds] for part in self._spelled)
        characters = characters[:, : int(lengths.max(initial=1))].astype(np.int64)
        return Spellings(torch.from_numpy(characters), torch.from_numpy(lengths), _padded(valid, places, 0))


def _padded(valid: np.ndarray, values: np.ndarray, padding: int) -> Tensor:
    whole = np.full(valid.shape, padding, dtype=bool if values.dtype == bool else np.int64)
    whole[valid] = values
    return torch.from_numpy(whole)


def _spell(spellings: list[str], characters: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """Ids of the characters of each word ``(words, longest)``, and how many there are ``(words,)``."""
    half = LONGEST // 2
    shortened = [word if len(word) <= LONGEST else word[:half] + word[-half:] for word in spellings]
    lengths = np.array([len(word) for word in shortened], dtype=np.int64)
    whole = np.zeros((len(lengths), int(lengths.max(initial=1))), dtype=np.int32)
    whole[np.arange(whole.shape[1]) < lengths[:, None]] = characters.encode("".join(shortened))
    return whole, lengths
