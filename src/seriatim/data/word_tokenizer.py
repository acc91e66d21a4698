"""Words as tokens: what white space separates.

A vocabulary is known when its text has been read, and reading is what takes time. So `WordNumbers` numbers words as
they come, and says afterwards which token each number is.
"""

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..config import Tokenizer as TokenizerConfig
from .tokenizers import END, UNKNOWN_TEXT, Spelling, Tokenizer, most_common

LINE_END, NO_CHARACTER = "\0", "\N{REPLACEMENT CHARACTER}"
"""What stands for a line end while words are looked up: no text holds it, and readers refuse it."""
SPECIAL = frozenset({LINE_END, UNKNOWN_TEXT})
"""What no vocabulary lists, because it always has it."""


class WordTokenizer(Tokenizer):
    """Words are what white space separates; a line end is the boundary symbol; ``<unk>`` is the unknown word.

    Args:
        words: the vocabulary, in order; ids start at 2.
        spelling: what an unknown word costs.
        lowercase: whether text is put in lower case first.
    """

    kind = "word"
    ends_lines = True
    unknown_id = 1

    def __init__(self, words: Sequence[str], spelling: Spelling, *, lowercase: bool = False) -> None:
        self.words, self.spelling, self.lowercase = list(words), spelling, lowercase
        self.vocabulary_size = 2 + len(self.words)

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        known = {LINE_END: END, UNKNOWN_TEXT: 1, **dict(zip(self.words, itertools.count(2), strict=False))}
        known[LINE_END] = END  # whatever words another program's model may have
        return known

    @classmethod
    def of_counts(cls, counts: Mapping[str, int], config: TokenizerConfig) -> "WordTokenizer":
        """The most common words of a text.

        Raises:
            InputError: a vocabulary without room for any.
        """
        if UNKNOWN_TEXT in counts:
            counts = {word: count for word, count in counts.items() if word != UNKNOWN_TEXT}
        return cls(most_common(counts, config), Spelling.fit(counts), lowercase=config.lowercase)

    def encode(self, text: str) -> np.ndarray:
        """Looks every word up; a line end is token 0."""
        text = self.prepare(text).replace(LINE_END, NO_CHARACTER).replace("\n", f" {LINE_END} ")
        words = text.split()
        return np.fromiter(self.ids(words), dtype=np.int32, count=len(words))

    def ids(self, words: Iterable[str]) -> Iterator[int]:
        """Each word's."""
        return map(self._ids.get, words, itertools.repeat(self.unknown_id))

    def encode_lines(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """As of every tokenizer, all lines in one go."""
        tokens = self.encode(text)
        return tokens, np.diff(np.flatnonzero(tokens == END), prepend=-1)

    def token_bytes(self, token: int) -> bytes:
        """The word's UTF-8 bytes; a line end for token 0."""
        if token < 2:
            return b"\n" if token == END else UNKNOWN_TEXT.encode()
        return self.words[token - 2].encode()

    def unknown_pieces(self, text: str) -> list[str]:
        """The words not in the vocabulary; a literal ``<unk>`` is in it."""
        return [word for word in self.prepare(text).split() if word not in self._ids]

    def payload(self) -> dict[str, Any]:
        """The words, and the counts of the spelling."""
        return {"words": self.words, "spelling": self.spelling.counts}


class WordNumbers(WordTokenizer):
    """Every new word is given the next number; a line end is 0.

    Args:
        config: of the tokenizer to be learned.
    """

    def __init__(self, config: TokenizerConfig) -> None:
        super().__init__([], Spelling(), lowercase=config.lowercase)
        self.config = config

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        numbers: defaultdict[str, int] = defaultdict(None, super()._ids)
        numbers.default_factory = numbers.__len__
        return numbers

    def __len__(self) -> int:
        """How many numbers are given."""
        return len(self._ids)

    def ids(self, words: Iterable[str]) -> Iterator[int]:
        """Each word's number."""
        return map(self._ids.__getitem__, words)

    def tokenizer(self, counts: Sequence[int]) -> tuple[WordTokenizer, np.ndarray, np.ndarray]:
        """The vocabulary of the text.

        Args:
            counts: how often each number stands in it.

        Returns:
            The tokenizer; the token that each number becomes ``(numbers,)``; and how often each letter of a word that
            is not in the vocabulary stands in the text, as `Spelling.letters` counts them ``(257,)``.
        """
        counted = dict(zip(self._ids, counts, strict=True))
        del counted[LINE_END], counted[UNKNOWN_TEXT]
        found = WordTokenizer.of_counts(counted, self.config)
        tokens = np.fromiter(found.ids(self._ids), dtype=np.int32, count=len(counts))
        few = len(found.words) < len(counted)
        unknown = {word: count for word, count in counted.items() if word not in found._ids} if few else {}
        return found, tokens, Spelling.letters(list(unknown), list(unknown.values()))
