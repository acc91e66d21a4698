"""Texts encoded as token ids, cached on disk by content and mapped into memory.

A text need not fit in memory: it is encoded chunk by chunk, and training reads the memory map. Subwords are learned
from a part of a large text, which is bounded, the same every time, and spread over the text.
"""

import functools
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np

from ..config import Tokenizer as TokenizerConfig
from ..core.errors import EmptyError
from ..storage.disk_cache import cached_resumable, find, read_entry, read_facts
from .encoding import BLOCK, PARALLEL_BYTES, Statistics, cut_blocks, id_type, no_text, write_encoded
from .repairs import Repairs
from .source_content import HashedSources, ReadingProgress, TextDigest, content_of, name_text, report
from .text import Source, located_lines, read_chunks, read_whole_lines
from .tokenizers import END, Tokenizer
from .vocabulary import fit_tokenizer, load_tokenizer

SAMPLED = ("bpe", "unigram")
"""The kinds of tokenizers that are learned from a part of a large text."""
SAMPLE_BYTES = 256_000_000
"""The number of bytes that subwords are learned from by default, at most."""
MAX_SEGMENT_BYTES, MIN_SEGMENTS = 1 << 16, 32
"""The largest segments of a sample, and the number of segments that even a small sample has, at least."""
MIN_SEGMENT_BYTES, FEWEST_SEGMENTS = 64, 8
"""The same for a sample that would have very small segments with `MIN_SEGMENTS`, in which few words would be whole."""
SAMPLE_FILE = "sample.json"
"""The file beside a tokenizer that says how much it was learned from."""
SAMPLE_VERSION = 2  # increased whenever other segments are chosen, so that no tokenizer of an older sample is used


class TokenizerSample:
    """The segments of a text that a tokenizer is learned from.

    Args:
        config: that of the tokenizer.
        total: the number of bytes of the text in its files.
    """

    def __init__(self, config: TokenizerConfig, total: int) -> None:
        self.bound, self.total = largest_sample(config, total), total
        self.taken = self.read = 0  # bytes that were chosen, and those of the text without what surrounds it in JSONL

    def choose(self, texts: Iterable[str], position: Callable[[], int]) -> Iterator[str]:
        """Choose segments, which end after a line end or a space if possible.

        All of the text is read, so that errors are found and a text that changes is noticed.

        Args:
            texts: the text in chunks, in order.
            position: returns how many bytes of the files were read.

        Raises:
            InputError: the bound is too small for a single word.
        """
        if self.bound == self.total:
            yield from texts
            return
        few = min(MIN_SEGMENT_BYTES, self.bound // FEWEST_SEGMENTS)
        size, before, blank = max(1, few, min(MAX_SEGMENT_BYTES, self.bound // MIN_SEGMENTS)), 0, True
        for text in texts:
            content, after = text.encode(), position()
            self.read += len(content)
            end = 0
            for segment in _segments(content, size):
                end += len(segment)
                position_here = before + (after - before) * end // len(content)
                # There must be room for the largest segment: short ones are not preferred.
                if (self.taken + max(size, len(segment))) * self.total <= self.bound * position_here:
                    self.taken += len(segment)
                    blank = blank and segment.isspace()
                    yield segment.decode()
            before = after
        if blank and self.read:
            problem = f"tokenizer.sample_bytes: a sample of {self.bound:,} bytes holds no word"
            raise EmptyError(f"{problem}; give a larger number, or none for {SAMPLE_BYTES:,}")

    def save(self, folder: Path) -> None:
        """Write the sizes beside the tokenizer, if this is a sample."""
        if self.bound < self.total:
            (folder / SAMPLE_FILE).write_text(json.dumps({"taken": self.taken, "read": self.read}))


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
        sizes = {} if folder is None else read_facts(folder / SAMPLE_FILE)
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


def _segments(content: bytes, size: int) -> Iterator[bytes]:
    """Cut UTF-8 into segments of at most ``size`` bytes, or of one character."""
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


KEY_VERSION = 2
"""Part of the key of a corpus. Checkpoints hold the key: a new version would prevent older trainings from resuming."""
CONTENT_VERSION = 2  # increased whenever the files of a cached corpus change, so that no older folder is read
LONG_LINE = 40
"""Characters from which on a line of running text is hardly ever equal to another by chance."""
COMMON_WORDS = 5  # the number of common words that the statistics list
Cached = TypeVar("Cached")


@dataclass
class Corpus:
    """An encoded text."""

    ids: np.ndarray  # token ids (tokens,), memory-mapped
    ends: np.ndarray | None  # the position in ids after each line (lines,), memory-mapped; None for a stream
    statistics: Statistics  # counts of the text
    key: str = ""  # equal exactly for the same text, tokenizer and unit
    tokenizer: Tokenizer | None = None  # the tokenizer that encoded the text, if it is known
    sources: Sequence[Source] = ()  # the files of the text, if it was read from files
    repairs: Repairs = field(default_factory=Repairs)  # the repairs made while it was read; the caller sets them

    @property
    def begin(self) -> int:
        """The token that begins a sequence as an input."""
        return END if self.tokenizer is None else self.tokenizer.begin

    def counts(self, vocabulary_size: int) -> np.ndarray:
        """Return how often each token occurs ``(vocabulary_size,)``."""
        counts = np.zeros(vocabulary_size, dtype=np.int64)
        for start in range(0, len(self.ids), BLOCK):
            counts += np.bincount(self.ids[start : start + BLOCK], minlength=vocabulary_size)
        return counts

    def seen_once(self) -> np.ndarray | None:
        """Return whether each token occurs exactly once ``(vocabulary,)``.

        None if the tokenizer has no unknown token, if the text contains it, or if no token occurs once.
        """
        if self.tokenizer is None or self.tokenizer.unknown_id is None:
            return None
        counts = self.counts(self.tokenizer.vocabulary_size)
        once: np.ndarray = counts == 1
        once[END] = False
        return once if once.any() and not counts[self.tokenizer.unknown_id] else None

    def row_digests(self) -> np.ndarray | None:
        """Return a number for each line ``(lines,)``, equal for equal lines of one process.

        The text is read again, because lines with different unknown tokens have the same ids. Of running text, only
        lines of at least `LONG_LINE` characters count, because short ones are often equal by chance.
        """
        return np.concatenate([np.zeros(0, dtype=np.int64), *self.row_digest_blocks()])

    def row_digest_blocks(self) -> Iterator[np.ndarray]:
        """Iterate over the numbers that `row_digests` returns, many at a time."""
        shortest = LONG_LINE if self.ends is None else 0
        digests = (hash(line) for line in self._lines() if len(line) >= shortest)
        while len(block := np.fromiter(itertools.islice(digests, BLOCK), dtype=np.int64)):
            yield block

    def _lines(self) -> Iterator[str]:
        """Read the text line by line, and report how much is read of a large one."""
        size, total, done = self.statistics.bytes, max(1, self.statistics.characters), 0
        progress = ReadingProgress(
            f"comparing the lines of {name_text(self.sources)}", size if size >= PARALLEL_BYTES else 0
        )
        for lines in read_whole_lines(self.sources):
            yield from lines.split("\n")[:-1]
            done += len(lines)
            progress.update(size * min(done, total) // total)

    def lengths(self, rows: int) -> np.ndarray:
        """Return the number of tokens of each sequence of `spans`, int32 if that suffices."""
        if self.ends is None:
            starts, ends = self.spans(rows)
            return np.asarray(ends - starts)
        lengths: np.ndarray = np.empty(len(self.ends), dtype=np.int32)
        for start in range(0, len(lengths), BLOCK):
            before = self.ends[start - 1] if start else 0
            block = np.diff(self.ends[start : start + BLOCK], prepend=before)
            if block.max() > np.iinfo(np.int32).max:
                lengths = lengths.astype(np.int64)
            lengths[start : start + BLOCK] = block
        return lengths

    def location(self, row: int, complete_files: Sequence[Source]) -> str:
        """Return the file and line of a line of the text, whose files may be excerpts of ``complete_files``."""
        text = next(itertools.islice((line for _, line in located_lines(self.sources)), row, None))
        return next(location for location, line in located_lines(complete_files) if line == text)

    def spans(self, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the starts and ends of sequences: the lines, or a stream cut into ``rows`` sequences of equal size."""
        if self.ends is not None:
            return np.concatenate([[0], self.ends[:-1]]), np.asarray(self.ends)
        cuts = np.arange(rows + 1) * len(self.ids) // rows
        return cuts[:-1], cuts[1:]


def encode_corpus(sources: Sequence[Source], tokenizer: Tokenizer, *, unit: str) -> Corpus:
    """Encode a text, or open what an earlier call encoded.

    In unit ``stream`` it is one running text, with the boundary symbol between documents. In unit ``line`` every line
    is a sequence that ends with the boundary symbol.

    Raises:
        InputError: the text cannot be read, or it is empty.
    """

    def read(folder: Path) -> Corpus:
        statistics = Statistics(**read_facts(folder / "statistics.json"))
        ids = np.memmap(folder / "ids.bin", dtype=id_type(tokenizer), mode="r")
        ends = np.memmap(folder / "ends.bin", dtype=np.int64, mode="r") if unit == "line" else None
        if len(ids) != statistics.tokens or (ends is not None and len(ends) != statistics.documents):
            raise ValueError
        return Corpus(ids, ends, statistics, key, tokenizer, sources)

    content = content_of(sources)
    key = _key("corpus", f"{unit} {tokenizer.fingerprint()}", content)
    write = functools.partial(write_encoded, sources=sources, tokenizer=tokenizer, unit=unit, content=content)
    return _open_cached(f"{key}-{CONTENT_VERSION}", write, read, sources)


def fit_corpus_tokenizer(sources: Sequence[Source], config: TokenizerConfig, *, unit: str) -> Tokenizer:
    """Learn a tokenizer from a text, or open what an earlier call learned from the same text.

    Raises:
        InputError: the text cannot be read, or it is empty.
    """
    content = content_of(sources)
    fitted: list[Tokenizer] = []

    def write(folder: Path) -> None:
        sample = TokenizerSample(config, content.bytes)
        tokenizer = _fit(sources, config, sample, unit=unit, content=content)
        sample.save(folder)
        (folder / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
        fitted.append(tokenizer)

    def read(folder: Path) -> Tokenizer:
        return fitted[-1] if fitted else load_tokenizer(folder / "tokenizer.json")

    return _open_cached(_tokenizer_folder(config, unit, content), write, read, sources)


def describe_tokenizer_sample(sources: Sequence[Source], config: TokenizerConfig, *, unit: str) -> str:
    """Say which part of a large text `fit_corpus_tokenizer` learns from; return nothing if that is all."""
    content = content_of(sources)
    return describe_sample(find(_tokenizer_folder(config, unit, content)), config, content.bytes)


def _fit(
    sources: Sequence[Source], config: TokenizerConfig, sample: TokenizerSample, *, unit: str, content: TextDigest
) -> Tokenizer:
    """Learn a tokenizer from a text that is read once."""
    hashed = HashedSources(sources)
    texts = (
        read_whole_lines(hashed.sources) if unit == "line" else (chunk.text for chunk in read_chunks(hashed.sources))
    )
    doing, is_large = f"learning the tokenizer from {name_text(sources)}", content.bytes >= PARALLEL_BYTES
    progress = ReadingProgress(doing, content.bytes if is_large else 0)

    def watched() -> Iterator[str]:
        is_blank = True
        for text in texts:
            progress.update(hashed.bytes)
            is_blank = is_blank and not text.strip()
            yield text
        if is_large:  # the library that learns subwords does not say how far it is
            report(f"{doing}: all is read", 1.0)
        if is_blank:
            raise no_text(sources)

    # The text is read to its end even where a sample is enough, so that errors are found and a change is noticed.
    chosen = sample.choose(watched(), lambda: hashed.bytes)
    if unit == "line":  # a segment of a sample may end within a line
        chosen = (line for text in chosen for line in text.removesuffix("\n").split("\n"))
    tokenizer = fit_tokenizer(config, chosen)
    if hashed.bytes:  # else the tokenizer is the same for all texts, and nothing was read
        hashed.require(content)
    return tokenizer


def count_text(sources: Sequence[Source], tokenizer: Tokenizer, *, unit: str) -> dict[str, object]:
    """Read a whole text and return its statistics, including the number of tokens that a tokenizer does not know.

    Raises:
        InputError: the text cannot be read, by file and line.
    """
    corpus = encode_corpus(sources, tokenizer, unit=unit)
    words: Counter[str] = Counter()
    longest = unfinished = 0

    # The corpus holds token ids only, so the text is read again for its words, and a line may go on in the next chunk.
    for text, _ in itertools.chain.from_iterable(block.chunks for block in cut_blocks(sources, unit=unit)):
        words.update(text.split())
        lengths = [len(line) for line in text.split("\n")]
        lengths[0] += unfinished if unit == "stream" else 0
        longest, unfinished = max(longest, *lengths), lengths[-1]

    return {
        "files": [source.name for source in sources],
        **vars(corpus.statistics),
        "distinct_words": len(words),
        "words_seen_once": sum(count == 1 for count in words.values()),
        "commonest_words": [word for word, _ in words.most_common(COMMON_WORDS)],
        "longest_line": longest,
    }


def _open_cached(
    name: str, write: Callable[[Path], None], read: Callable[[Path], Cached], sources: Sequence[Source]
) -> Cached:
    """Read a folder of the cache; a missing or damaged folder is written first."""

    def waiting() -> None:
        report(f"waiting for another process that reads {name_text(sources)}", 0.0)

    return read_entry(lambda: cached_resumable(name, write, waiting), read)


def _tokenizer_folder(config: TokenizerConfig, unit: str, content: TextDigest) -> str:
    """Return the name of the cache folder of a learned tokenizer."""
    name = _key("tokenizer", f"{unit} {config.model_dump_json()}", content)
    return name if largest_sample(config, content.bytes) == content.bytes else f"{name}-{SAMPLE_VERSION}"


def _key(kind: str, settings: str, content: TextDigest) -> str:
    digest = hashlib.blake2b(f"{KEY_VERSION} {settings} {content.digest}".encode(), digest_size=16)
    return f"{kind}-{digest.hexdigest()}"
