"""Tokenizers whose tokens are single bytes or single characters."""

import numpy as np

from .tokenizers import END, UNKNOWN_TEXT, Spelling, Tokenizer

BLOCK = 1 << 20
"""The number of characters that are encoded together; a line can be very long."""


class ByteTokenizer(Tokenizer):
    """Every byte of the UTF-8 text is a token; its id is the byte's value plus one."""

    kind = "byte"

    def __init__(self, *, lowercase: bool = False) -> None:
        self.lowercase = lowercase
        self.vocabulary_size = 257

    def encode(self, text: str) -> np.ndarray:
        """Return the value of each byte plus one ``(tokens,)``, int32."""
        return np.frombuffer(self.prepare(text).encode(), dtype=np.uint8).astype(np.int32) + 1

    def token_bytes(self, token: int) -> bytes:
        """Return the byte itself."""
        return b"" if token == END else bytes([token - 1])

    def payload(self) -> dict[str, object]:
        """Return no fields: nothing is learned."""
        return {}


class CharTokenizer(Tokenizer):
    """Every Unicode character of the training text is a token.

    Args:
        characters: the vocabulary, in order; ids start at 2.
        spelling: the cost of an unknown character.
        lowercase: whether text is converted to lower case first.
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
        """Return the id of each character ``(tokens,)``, int32."""
        text = self.prepare(text)
        parts = [self._encode(text[i : i + BLOCK]) for i in range(0, len(text), BLOCK)]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)

    def _encode(self, text: str) -> np.ndarray:
        points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
        if not len(self._points):
            return np.full(len(points), self.unknown_id, dtype=np.int32)
        place = np.searchsorted(self._points, points).clip(max=len(self._points) - 1)
        return np.where(self._points[place] == points, self._order[place] + 2, self.unknown_id).astype(np.int32)

    def token_bytes(self, token: int) -> bytes:
        """Return the UTF-8 bytes of the character."""
        if token < 2:
            return b"" if token == END else UNKNOWN_TEXT.encode()
        return self.characters[token - 2].encode()

    def unknown_pieces(self, text: str) -> list[str]:
        """Return the characters that are not in the vocabulary."""
        known = set(self.characters)
        return [c for c in self.prepare(text) if c not in known]

    def payload(self) -> dict[str, object]:
        """Return the characters and the counts of the spelling."""
        return {"characters": self.characters, "spelling": self.spelling.counts}
