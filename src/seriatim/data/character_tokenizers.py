"""Tokenizers whose tokens are single bytes or single characters."""

from typing import Any

import numpy as np

from .tokenizers import END, UNKNOWN_TEXT, Spelling, Tokenizer

STRETCH = 1 << 20


class ByteTokenizer(Tokenizer):
    """Every byte of the UTF-8 text is a token."""

    kind = "byte"

    def __init__(self, *, lowercase: bool = False) -> None:
        self.lowercase = lowercase
        self.vocabulary_size = 257

    def encode(self, text: str) -> np.ndarray:
        """Each byte's value, plus one."""
        return np.frombuffer(self.prepare(text).encode(), dtype=np.uint8).astype(np.int32) + 1

    def token_bytes(self, token: int) -> bytes:
        """The byte itself."""
        return b"" if token == END else bytes([token - 1])

    def payload(self) -> dict[str, Any]:
        """Nothing to learn, nothing to keep."""
        return {}


class CharTokenizer(Tokenizer):
    """Every Unicode character seen in training is a token.

    Args:
        characters: the vocabulary, in order; ids start at 2.
        spelling: what an unknown character costs.
        lowercase: whether text is put in lower case first.
    """

    kind = "char"
    unknown_id = 1

    def __init__(self, characters: str, spelling: Spelling, *, lowercase: bool = False) -> None:
        self.characters, self.spelling, self.lowercase = characters, spelling, lowercase
        self.vocabulary_size = 2 + len(characters)
        points = np.array([ord(c) for c in characters], dtype=np.uint32)
        self._order = np.argsort(points)
        self._points = points[self._order]

    def encode(self, text: str) -> np.ndarray:
        """Looks every character up, a stretch at a time: a line can be very long."""
        text = self.prepare(text)
        parts = [self._encode(text[i : i + STRETCH]) for i in range(0, len(text), STRETCH)]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)

    def _encode(self, text: str) -> np.ndarray:
        points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
        if not len(self._points):
            return np.full(len(points), self.unknown_id, dtype=np.int32)
        place = np.searchsorted(self._points, points).clip(max=len(self._points) - 1)
        return np.where(self._points[place] == points, self._order[place] + 2, self.unknown_id).astype(np.int32)

    def token_bytes(self, token: int) -> bytes:
        """The character's UTF-8 bytes."""
        if token < 2:
            return b"" if token == END else UNKNOWN_TEXT.encode()
        return self.characters[token - 2].encode()

    def unknown_pieces(self, text: str) -> list[str]:
        """The characters not in the vocabulary."""
        known = set(self.characters)
        return [c for c in self.prepare(text) if c not in known]

    def payload(self) -> dict[str, Any]:
        """The characters, and the counts of the spelling."""
        return {"characters": self.characters, "spelling": self.spelling.counts}
