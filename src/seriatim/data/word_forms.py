"""The characters of words, for models that read more of a word than its index.

Words are encoded once. The model computes the characters of each distinct word of a batch once; a batch therefore lists
its distinct words and their positions.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.device_copies import to_device
from .tokenizers import UNKNOWN_TEXT, Tokenizer, WordTokenizer
from .vocabulary import Vocabulary

MAX_CHARACTERS = 32
"""The largest number of characters of a word; of a longer word the first and the last half of them are used."""


class Spellings(NamedTuple):
    """The characters of the words of a batch."""

    characters: Tensor  # ids of the characters of each distinct word (distinct, max_length)
    lengths: Tensor  # the number of characters (distinct,)
    indices: Tensor  # the index of the distinct word at each position (batch, time)

    def to(self, device: torch.device) -> "Spellings":
        """Return the spellings on another device."""
        return Spellings(*(to_device(values, device) for values in self))


def encode_characters(words: Sequence[str], characters: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of the characters of each word ``(words, max_length)``, and their number ``(words,)``."""
    half = MAX_CHARACTERS // 2
    shortened = [word if len(word) <= MAX_CHARACTERS else word[:half] + word[-half:] for word in words]
    lengths = np.array([len(word) for word in shortened], dtype=np.int64)
    ids = np.zeros((len(lengths), int(lengths.max(initial=1))), dtype=np.int32)
    ids[np.arange(ids.shape[1]) < lengths[:, None]] = characters.encode("".join(shortened))
    return ids, lengths


class WordForms(WordTokenizer):
    """A tokenizer of words with an id for every word.

    A word outside the vocabulary gets the next id from ``vocabulary_size`` on when it is first encoded, so that its
    characters are known. ``vocabulary`` must have the tokenizers ``tokenizer``, of words, and ``characters``.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        base = vocabulary.tokenizer
        assert isinstance(base, WordTokenizer)
        super().__init__(base.words, base.spelling, lowercase=base.lowercase)
        self._ids = base._ids  # shared, since large
        self._characters = vocabulary.tokenizers["characters"]
        self.unknown: list[str] = []
        self._numbers: dict[str, int] = {}

    def ids(self, words: Iterable[str]) -> Iterator[int]:
        """Iterate over the ids of some words."""
        for word in words:
            number = self._ids.get(word)
            yield self._number(word) if number is None else number

    def _number(self, word: str) -> int:
        if word not in self._numbers:
            self._numbers[word] = self.vocabulary_size + len(self.unknown)
            self.unknown.append(word)
        return self._numbers[word]

    def form(self, token: int) -> str:
        """Return the word of an id."""
        if token < 2:
            return UNKNOWN_TEXT
        first = self.vocabulary_size
        return self.words[token - 2] if token < first else self.unknown[token - first]

    def token_bytes(self, token: int) -> bytes:
        """Return the UTF-8 bytes of a word; a line end for token 0."""
        return super().token_bytes(token) if token < self.vocabulary_size else self.form(token).encode()

    def known(self, tokens: Tensor) -> Tensor:
        """Return ids ``(batch, time)`` with the unknown token in the place of every word outside the vocabulary."""
        return tokens.masked_fill(tokens >= self.vocabulary_size, self.unknown_id)

    def spellings(self, tokens: Tensor) -> Spellings:
        """Return the characters of the words with some ids ``(batch, time)``; padding is spelled like any word."""
        distinct, indices = np.unique(tokens.cpu().numpy(), return_inverse=True)
        characters, lengths = encode_characters([self.form(token) for token in distinct.tolist()], self._characters)
        positions = torch.from_numpy(indices.reshape(tokens.shape))
        spelled = Spellings(torch.from_numpy(characters).long(), torch.from_numpy(lengths), positions)
        return spelled.to(tokens.device)
