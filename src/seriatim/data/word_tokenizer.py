"""The tokenizer whose tokens are words, separated by white space.

The vocabulary is only known when the whole text has been read, and reading takes most of the time. `WordNumbers`
therefore numbers the words while they are read, and maps the numbers to tokens afterwards.
"""

import functools
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from ..config import Tokenizer as TokenizerConfig
from .tokenizers import END, UNKNOWN_TEXT, Spelling, Tokenizer, most_common

LINE_END, REPLACEMENT = "\0", "\N{REPLACEMENT CHARACTER}"
"""``LINE_END`` stands for a line end while words are looked up. Readers refuse it, so that no text contains it."""
TOKEN = re.compile(r"\n|\S+")
RESERVED = frozenset({LINE_END, UNKNOWN_TEXT})  # words that no vocabulary lists, because every vocabulary has them


class WordTokenizer(Tokenizer):
    """Words are separated by white space; a line end is the boundary symbol; ``<unk>`` is the unknown word.

    The ids of ``words`` start at 2. ``begin`` is the token that begins a text, in a model of another program.
    """

    kind = "word"
    ends_lines = True
    unknown_id = 1

    def __init__(self, words: Sequence[str], spelling: Spelling, *, lowercase: bool = False, begin: int = END) -> None:
        self.words, self.spelling, self.lowercase, self.begin = list(words), spelling, lowercase, begin
        self.vocabulary_size = 2 + len(self.words)

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        ids = {LINE_END: END, UNKNOWN_TEXT: 1, **dict(zip(self.words, itertools.count(2), strict=False))}
        ids[LINE_END] = END  # even if the model of another program has this word
        return ids

    @classmethod
    def from_counts(cls, counts: Mapping[str, int], config: TokenizerConfig) -> "WordTokenizer":
        """Return a tokenizer of the most common words; raise InputError if the vocabulary has no room."""
        if UNKNOWN_TEXT in counts:
            counts = {word: count for word, count in counts.items() if word != UNKNOWN_TEXT}
        return cls(most_common(counts, config), Spelling.fit(counts), lowercase=config.lowercase)

    def encode(self, text: str) -> np.ndarray:
        """Return the id of each word ``(tokens,)``, int32, and 0 for each line end."""
        text = self.prepare(text).replace(LINE_END, REPLACEMENT).replace("\n", f" {LINE_END} ")
        words = text.split()
        return np.fromiter(self.ids(words), dtype=np.int32, count=len(words))

    def ids(self, words: Iterable[str]) -> Iterator[int]:
        """Iterate over the ids of some words."""
        return map(self._ids.get, words, itertools.repeat(self.unknown_id))

    def encode_lines(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Encode lines as every tokenizer does, but all at once."""
        tokens = self.encode(text)
        return tokens, np.diff(np.flatnonzero(tokens == END), prepend=-1)

    def token_bytes(self, token: int) -> bytes:
        """Return the UTF-8 bytes of the word; a line end for token 0."""
        if token < 2:
            return b"\n" if token == END else UNKNOWN_TEXT.encode()
        return self.words[token - 2].encode()

    def token_ends(self, text: str, ids: np.ndarray) -> np.ndarray:
        """Return after which byte each word or line end ends; see `Tokenizer.token_ends`."""
        ends = [match.end() for match in TOKEN.finditer(text)]
        pieces = [text[start:end] for start, end in itertools.pairwise([0, *ends])]
        return np.cumsum([len(piece.encode()) for piece in pieces], dtype=np.int64)

    def unknown_pieces(self, text: str) -> list[str]:
        """Return the words that are not in the vocabulary; the word ``<unk>`` is in it."""
        return [word for word in self.prepare(text).split() if word not in self._ids]

    def payload(self) -> dict[str, object]:
        """Return the words, the counts of the spelling, and the token that begins a text if it is not token 0."""
        return {"words": self.words, "spelling": self.spelling.counts, **self.own_begin()}


class WordNumbers(WordTokenizer):
    """Gives every new word the next number; a line end is 0. ``config`` is that of the tokenizer to learn."""

    def __init__(self, config: TokenizerConfig) -> None:
        super().__init__([], Spelling(), lowercase=config.lowercase)
        self.config = config

    @functools.cached_property
    def _ids(self) -> defaultdict[str, int]:
        numbers: defaultdict[str, int] = defaultdict(None, super()._ids)
        numbers.default_factory = numbers.__len__
        return numbers

    def __len__(self) -> int:
        """Return how many numbers are in use."""
        return len(self._ids)

    def ids(self, words: Iterable[str]) -> Iterator[int]:
        """Iterate over the numbers of some words."""
        return map(self._ids.__getitem__, words)

    def close(self) -> None:
        """Give no more numbers; the memory is then free as soon as nobody refers to this object.

        The numbers refer to themselves to count, and the garbage collector would find so few objects late.
        """
        self._ids.default_factory = None

    def numbered(self, start: int = 0) -> Iterator[str]:
        """Iterate over the words, in the order of their numbers from ``start``; those of 0 and 1 are no words."""
        return itertools.islice(self._ids, start, None)

    def count_unknown(self, ids: np.ndarray) -> int:
        """Return 0: the number of the word ``<unk>`` is not that of an unknown word."""
        return 0

    def tokenizer(self, counts: Sequence[int]) -> tuple[WordTokenizer, np.ndarray, np.ndarray]:
        """Return the tokenizer of the text, given how often each number occurs in it.

        Returns:
            The tokenizer; the token of each number ``(numbers,)``; and the symbol counts of the unknown words of the
            text, as `Spelling.count_symbols` returns them ``(257,)``.
        """
        word_counts = dict(zip(self._ids, counts, strict=True))
        del word_counts[LINE_END], word_counts[UNKNOWN_TEXT]
        tokenizer = WordTokenizer.from_counts(word_counts, self.config)
        tokens = np.fromiter(tokenizer.ids(self._ids), dtype=np.int32, count=len(counts))
        unknown: dict[str, int] = {}
        if len(tokenizer.words) < len(word_counts):
            unknown = {word: count for word, count in word_counts.items() if word not in tokenizer._ids}
        return tokenizer, tokens, Spelling.count_symbols(list(unknown), list(unknown.values()))
