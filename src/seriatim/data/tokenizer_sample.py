"""The part of a large text that subwords are learned from: bounded, the same every time, and spread over the text."""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ..config import Tokenizer as TokenizerConfig
from ..core.errors import InputError
from ..storage.disk_cache import read_facts

SAMPLED = ("bpe", "unigram")
"""The kinds of tokenizers that are learned from a part of a large text."""
SAMPLE_BYTES = 256_000_000
"""The number of bytes that subwords are learned from by default, at most."""
MAX_PART_BYTES, MIN_PARTS = 1 << 16, 32
"""The largest parts of a sample, and the number of parts that even a small sample has, at least."""
MIN_PART_BYTES, FEWEST_PARTS = 64, 8
"""The same for a sample that would have very small parts with `MIN_PARTS`, in which few words would be whole."""
FILE = "sample.json"
"""The file beside a tokenizer that says how much it was learned from."""
VERSION = 2  # increased whenever other parts are chosen, so that no tokenizer of an older sample is used


class TokenizerSample:
    """The parts of a text that a tokenizer is learned from.

    Args:
        config: that of the tokenizer.
        total: the number of bytes of the text in its files.
    """

    def __init__(self, config: TokenizerConfig, total: int) -> None:
        self.bound = largest_sample(config, total)
        self.total = total
        self.taken = 0
        """The number of bytes that were chosen."""
        self.read = 0
        """The number of bytes of the text, without what surrounds it in JSONL."""

    def choose(self, texts: Iterable[str], position: Callable[[], int]) -> Iterator[str]:
        """Choose parts, which end after a line end or a space if possible.

        All of the text is read, so that errors are found and a text that changes is noticed.

        Args:
            texts: the text in pieces, in order.
            position: returns how many bytes of the files were read.

        Raises:
            InputError: the bound is too small for a single word.
        """
        if self.bound == self.total:
            yield from texts
            return
        few = min(MIN_PART_BYTES, self.bound // FEWEST_PARTS)
        size, before, blank = max(1, few, min(MAX_PART_BYTES, self.bound // MIN_PARTS)), 0, True
        for text in texts:
            content, after = text.encode(), position()
            self.read += len(content)
            end = 0
            for part in _parts(content, size):
                end += len(part)
                place = before + (after - before) * end // len(content)
                # There must be room for the largest part: short ones are not preferred.
                if (self.taken + max(size, len(part))) * self.total <= self.bound * place:
                    self.taken += len(part)
                    blank = blank and part.isspace()
                    yield part.decode()
            before = after
        if blank and self.read:
            problem = f"tokenizer.sample_bytes: a sample of {self.bound:,} bytes holds no word"
            raise InputError(f"{problem}; give a larger number, or none for {SAMPLE_BYTES:,}")

    def save(self, folder: Path) -> None:
        """Write the sizes beside the tokenizer, if this is a sample."""
        if self.bound < self.total:
            (folder / FILE).write_text(json.dumps({"taken": self.taken, "read": self.read}))


def largest_sample(config: TokenizerConfig, total: int) -> int:
    """Return how many bytes of a text of ``total`` bytes a tokenizer is learned from, at most."""
    if config.kind not in SAMPLED:
        return total
    return min(total, config.sample_bytes or SAMPLE_BYTES)


def describe_sample(folder: Path | None, config: TokenizerConfig, total: int) -> str:
    """Return a sentence on the part that a tokenizer was learned from; an empty string if that was all.

    ``folder`` is that of the tokenizer, in which `TokenizerSample.save` wrote; if it is not known, the bound is stated.
    """
    bound = largest_sample(config, total)
    if bound == total:
        return ""
    try:
        sizes = {} if folder is None else read_facts(folder / FILE)
        taken, read = in_words(sizes["taken"]), in_words(sizes["read"])
    except (OSError, ValueError, KeyError, TypeError):
        taken, read = f"at most {in_words(bound)}", in_words(total)
    if taken == read:
        return ""
    return f"the tokenizer was learned from {taken} of {read} (--tokenizer.sample_bytes)"


def in_words(size: int) -> str:
    """Return a number of bytes in words, such as ``1.5 MB``."""
    unit, divisor = ("MB", 1e6) if size >= 1e6 else ("kB", 1e3)
    return f"{size / divisor:,.1f} {unit}" if size >= 1e3 else f"{size} bytes"


def _parts(content: bytes, size: int) -> Iterator[bytes]:
    """Cut UTF-8 into parts of at most ``size`` bytes, or of one character."""
    start = 0
    while len(content) - start > size:
        end = content.rfind(b"\n", start, start + size) + 1 or content.rfind(b" ", start, start + size) + 1
        if not end:
            end = start + size
            while end > start and content[end] & 0xC0 == 0x80:  # inside a character
                end -= 1
        if end == start:
            end += 1
            while end < len(content) and content[end] & 0xC0 == 0x80:
                end += 1
        yield content[start:end]
        start = end
    if start < len(content):
        yield content[start:]
