"""The part of a large text that subwords are learned from: bounded, the same every time, and spread over the text."""

from collections.abc import Iterable, Iterator

from ..config import Tokenizer as TokenizerConfig

SAMPLED = ("bpe", "unigram")
"""The kinds of tokenizers that are learned from a part of a large text."""
SAMPLE_BYTES = 256_000_000
"""The number of bytes that subwords are learned from by default, at most."""


def spread_sample(texts: Iterable[str], config: TokenizerConfig, total: int) -> Iterator[str]:
    """Choose the parts of a text that a tokenizer is learned from; the parts are spread evenly.

    All parts are read, so that errors are found and a text that changes is noticed.

    Args:
        texts: the parts of the text, in order.
        config: that of the tokenizer.
        total: the number of bytes of the text.
    """
    share = sampled_bytes(config, total) / max(1, total)
    read = taken = 0
    for text in texts:
        size = len(text.encode()) if share < 1 else 0
        read += size
        if share == 1 or taken + size <= share * read:
            taken += size
            yield text


def sampled_bytes(config: TokenizerConfig, total: int) -> int:
    """Return how many bytes of a text of ``total`` bytes a tokenizer is learned from, at most."""
    if config.kind not in SAMPLED:
        return total
    return min(total, config.sample_bytes or SAMPLE_BYTES)


def describe_sample(config: TokenizerConfig, total: int) -> str:
    """Return a sentence on the part that a tokenizer was learned from; an empty string if that was all."""
    sampled = sampled_bytes(config, total)
    if sampled == total:
        return ""
    return f"the tokenizer was learned from {sampled / 1e6:,.0f} of {total / 1e6:,.0f} MB (--tokenizer.sample_bytes)"
