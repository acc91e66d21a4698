"""Tagged sentences as arrays, and batches of them.

Words are encoded once. What a batch needs of characters is computed for each distinct word in it, so that a batch names
its distinct words and where they stand.
"""

import functools
import itertools
import json
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .bucketing import POOL
from .conll import Sentence

UNKNOWN = 0
"""The id of a word or a character that is not in the vocabulary, and of padding."""
NO_TAG = -1
"""The id of a tag that is not known, and of padding."""
LONGEST = 32
"""Characters of a word at most; of longer ones the first and the last halves."""


class TaggedBatch(NamedTuple):
    """Some sentences.

    Attributes:
        words: ids of words ``(batch, time)``.
        lengths: words of each sentence ``(batch,)``.
        characters: ids of the characters of each distinct word ``(distinct, max_length)``.
        character_lengths: ``(distinct,)``.
        distinct: which of the distinct words stands where ``(batch, time)``; 0 on padding.
        tags: ids of tags ``(batch, time)``, negative where a tag is not known; None where there are none.
    """

    words: Tensor
    lengths: Tensor
    characters: Tensor
    character_lengths: Tensor
    distinct: Tensor
    tags: Tensor | None


@dataclass(frozen=True)
class TaggingVocabulary:
    """What ids mean. Those of words and characters count from 1, those of tags from 0.

    Attributes:
        words: in the order of their ids; those seen once in training come last.
        characters: in the order of their ids.
        tags: in the order of their ids.
        rare: how many words were seen once.
        lowercase: whether words (not characters) are put in lower case first.
    """

    words: list[str]
    characters: str
    tags: list[str]
    rare: int = 0
    lowercase: bool = False

    @classmethod
    def fit(
        cls,
        sentences: Iterable[Sentence],
        *,
        min_count: int = 1,
        lowercase: bool = False,
        more_words: Iterable[str] = (),
    ) -> "TaggingVocabulary":
        """Collects what the training sentences hold.

        Args:
            sentences: with their tags.
            min_count: words seen less often are unknown.
            lowercase: see the attribute.
            more_words: to know in any case, such as those that have a vector made elsewhere.
        """
        counts: Counter[str] = Counter()
        tags: Counter[str] = Counter()
        for sentence in sentences:
            counts.update(sentence.words)
            tags.update(sentence.tags)
        characters = sorted({character for word in counts for character in word})
        if lowercase:
            cased, counts = counts, Counter()
            for word, count in cased.items():
                counts[word.lower()] += count
        kept = {word: count for word, count in counts.items() if count >= min_count}
        kept |= {word: 2 for word in more_words if word not in counts}
        words = sorted(kept, key=lambda word: (-kept[word], word))
        rare = sum(count == 1 for count in kept.values())
        return cls(words, "".join(characters), sorted(tags), rare, lowercase)

    @functools.cached_property
    def word_ids(self) -> dict[str, int]:
        """The id of each word."""
        return {word: i for i, word in enumerate(self.words, start=1)}

    @functools.cached_property
    def character_ids(self) -> dict[str, int]:
        """The id of each character."""
        return {character: i for i, character in enumerate(self.characters, start=1)}

    @functools.cached_property
    def tag_ids(self) -> dict[str, int]:
        """The id of each tag."""
        return {tag: i for i, tag in enumerate(self.tags)}

    def rare_words(self) -> np.ndarray:
        """Which ids are those of words seen once in training: booleans ``(1 + words,)``."""
        return np.arange(1 + len(self.words)) > len(self.words) - self.rare

    def to_json(self) -> str:
        """The vocabulary as text, for `from_json`."""
        return json.dumps(asdict(self), ensure_ascii=False, indent=0)

    @classmethod
    def from_json(cls, text: str) -> "TaggingVocabulary":
        """What `to_json` wrote."""
        return cls(**json.loads(text))


class TaggedCorpus:
    """Encoded sentences.

    Args:
        sentences: to encode; what is kept of them is arrays.
        vocabulary: what ids mean.
        labelled: whether to keep tags.

    Attributes:
        lengths: words of each sentence ``(sentences,)``.
        unknown_words: how many words are not in the vocabulary.
        unknown_tags: how many tags are not in the vocabulary.
    """

    def __init__(self, sentences: Iterable[Sentence], vocabulary: TaggingVocabulary, *, labelled: bool = True) -> None:
        kinds: dict[str, int] = {}  # every distinct spelling
        kind, tags, lengths = array("i"), array("i"), array("q")
        for sentence in sentences:
            kind.extend([kinds.setdefault(word, len(kinds)) for word in sentence.words])
            if labelled:
                tags.extend([vocabulary.tag_ids.get(tag, NO_TAG) for tag in sentence.tags])
            lengths.append(len(sentence.words))
        self.lengths = np.array(lengths, dtype=np.int64)
        self._starts = self.lengths.cumsum() - self.lengths
        self._kind = np.array(kind, dtype=np.int32)
        self._tags = np.array(tags, dtype=np.int32) if labelled else None
        self._word = _word_ids(kinds, vocabulary)
        self._characters, self._character_lengths = _spell(kinds, vocabulary)
        self.unknown_words = int((self._word[self._kind] == UNKNOWN).sum())
        self.unknown_tags = int((self._tags == NO_TAG).sum()) if self._tags is not None else 0

    def shuffled(self, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
        """Groups of sentences for training: shuffled, then bucketed by length; the same for the same numbers."""
        generator = np.random.default_rng([seed, epoch])
        order = generator.permutation(len(self.lengths))
        pool = batch_size * POOL
        groups = [group for i in range(0, len(order), pool) for group in self._bucket(order[i : i + pool], batch_size)]
        return [groups[i] for i in generator.permutation(len(groups))]

    def in_order(self, batch_size: int) -> list[np.ndarray]:
        """Groups of sentences for evaluation: sorted by length."""
        return self._bucket(np.arange(len(self.lengths)), batch_size)

    def read(self, groups: Iterable[np.ndarray], *, skip: int = 0) -> Iterator[TaggedBatch]:
        """One batch a group, the first ``skip`` left out."""
        for group in itertools.islice(groups, skip, None):
            yield self.batch(group)

    def batch(self, rows: np.ndarray) -> TaggedBatch:
        """The sentences ``rows``, padded on the right."""
        lengths = self.lengths[rows]
        time = int(lengths.max(initial=0))
        valid = np.arange(time) < lengths[:, None]
        place = (self._starts[rows][:, None] + np.arange(time))[valid]
        kinds, where = np.unique(self._kind[place], return_inverse=True)
        character_lengths = self._character_lengths[kinds]
        longest = int(character_lengths.max(initial=1))
        return TaggedBatch(
            _padded(valid, self._word[kinds][where], UNKNOWN),
            torch.from_numpy(lengths),
            torch.from_numpy(self._characters[kinds, :longest].astype(np.int64)),
            torch.from_numpy(character_lengths.astype(np.int64)),
            _padded(valid, where, 0),
            None if self._tags is None else _padded(valid, self._tags[place], NO_TAG),
        )

    def _bucket(self, rows: np.ndarray, batch_size: int) -> list[np.ndarray]:
        ordered = rows[np.argsort(self.lengths[rows], kind="stable")]
        return [ordered[i : i + batch_size] for i in range(0, len(ordered), batch_size)]


def _padded(valid: np.ndarray, values: np.ndarray, padding: int) -> Tensor:
    whole = np.full(valid.shape, padding, dtype=np.int64)
    whole[valid] = values
    return torch.from_numpy(whole)


def _word_ids(spellings: Iterable[str], vocabulary: TaggingVocabulary) -> np.ndarray:
    words = (word.lower() for word in spellings) if vocabulary.lowercase else spellings
    return np.array([vocabulary.word_ids.get(word, UNKNOWN) for word in words], dtype=np.int64)


def _spell(spellings: Iterable[str], vocabulary: TaggingVocabulary) -> tuple[np.ndarray, np.ndarray]:
    """Ids of the characters of each word ``(words, longest)``, and how many there are ``(words,)``."""
    ids = vocabulary.character_ids
    half = LONGEST // 2
    shortened = [word if len(word) <= LONGEST else word[:half] + word[-half:] for word in spellings]
    lengths = np.array([len(word) for word in shortened], dtype=np.int64)
    whole = np.full((len(lengths), int(lengths.max(initial=1))), UNKNOWN, dtype=np.int32)
    whole[np.arange(whole.shape[1]) < lengths[:, None]] = [ids.get(c, UNKNOWN) for word in shortened for c in word]
    return whole, lengths
