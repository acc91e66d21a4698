"""Text encoded once into memory-mapped token ids, kept in a cache keyed by content.

What does not fit in memory still trains: encoding goes piece by piece, and training reads the map.
"""

import hashlib
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from ..config import Tokenizer as TokenizerConfig
from ..storage.disk_cache import cached
from .encoding import BLOCK, Statistics, id_type, measure, no_text, write_encoded, write_words
from .readers import UNREADABLE, Source, read_lines, read_pieces, unreadable
from .tokenizer_factory import fit_tokenizer, load_tokenizer
from .tokenizers import Tokenizer

FORMAT = 2
"""Part of the key of a corpus, which checkpoints hold: another one would stop older trainings from going on."""
CONTENTS = 2
"""Increased whenever what a folder of the cache holds changes, so that no older one is opened."""
Kept = TypeVar("Kept")
SHOWN = 5


@dataclass
class Corpus:
    """An encoded text.

    Attributes:
        ids: token ids ``(tokens,)``, memory-mapped.
        ends: where each line ends in ``ids`` ``(lines,)`` for unit ``line``; None for a stream.
        statistics: counts of the text.
        key: the same for the same text, tokenizer and unit, and only for them.
    """

    ids: np.ndarray
    ends: np.ndarray | None
    statistics: Statistics
    key: str = ""

    def spans(self, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Starts and ends of sequences: the lines, or the stream cut into ``rows`` parts as equal as can be."""
        if self.ends is not None:
            return np.concatenate([[0], self.ends[:-1]]), np.asarray(self.ends)
        cuts = np.arange(rows + 1) * len(self.ids) // rows
        return cuts[:-1], cuts[1:]


def encode_corpus(sources: Sequence[Source], tokenizer: Tokenizer, *, unit: str) -> Corpus:
    """Encodes a text, or opens what an earlier call encoded.

    Args:
        sources: from `find_sources`.
        tokenizer: what makes tokens of text.
        unit: ``stream``: one running text, its documents separated by the boundary symbol; ``line``: every line its
            own sequence, ended by it.

    Raises:
        InputError: the text cannot be read, or there is none.
    """

    def read(folder: Path) -> Corpus:
        statistics = Statistics(**json.loads((folder / "statistics.json").read_text()))
        ids = np.memmap(folder / "ids.bin", dtype=id_type(tokenizer), mode="r")
        ends = np.fromfile(folder / "ends.bin", dtype=np.int64) if unit == "line" else None
        if len(ids) != statistics.tokens or (ends is not None and len(ends) != statistics.documents):
            raise ValueError
        return Corpus(ids, ends, statistics, key)

    key = _name(tokenizer, unit, _content(sources))
    return _kept(_folder(key), lambda path: write_encoded(path, sources, tokenizer, unit=unit), read)


def fit_corpus_tokenizer(sources: Sequence[Source], config: TokenizerConfig, *, unit: str) -> Tokenizer:
    """Learns a tokenizer from a text, or opens what an earlier call learned from the same text.

    Raises:
        InputError: the text cannot be read, or there is none.
    """
    content = _content(sources)

    def write(folder: Path) -> None:
        if config.kind == "word":  # one reading gives the tokenizer and the encoded text
            with tempfile.TemporaryDirectory(dir=folder) as encoded:
                tokenizer = write_words(Path(encoded), sources, config, unit=unit)
                cached(_folder(_name(tokenizer, unit, content)), lambda path: _move(Path(encoded), path))
        else:
            texts = read_lines(sources) if unit == "line" else (piece.text for piece in read_pieces(sources))
            tokenizer = fit_tokenizer(config, _refuse_empty(texts, sources))
        (folder / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
        made.append(tokenizer)

    def read(folder: Path) -> Tokenizer:
        return made[-1] if made else load_tokenizer(folder / "tokenizer.json")

    name = f"tokenizer-{_key(f'{unit} {config.model_dump_json()}', content)}"
    made: list[Tokenizer] = []
    return _kept(name, write, read)


def _kept(name: str, write: Callable[[Path], None], read: Callable[[Path], Kept]) -> Kept:
    """What `read` makes of a folder of the cache, which is written anew where it is damaged."""
    folder = cached(name, write)
    try:
        return read(folder)
    except (OSError, ValueError, TypeError):
        shutil.rmtree(folder, ignore_errors=True)
        return read(cached(name, write))


def _name(tokenizer: Tokenizer, unit: str, content: str) -> str:
    """Of an encoded text in the cache."""
    return f"corpus-{_key(f'{unit} {tokenizer.fingerprint()}', content)}"


def _folder(key: str) -> str:
    """The folder of the cache that holds an encoded text."""
    return f"{key}-{CONTENTS}"


def _key(what: str, content: str) -> str:
    return hashlib.blake2b(f"{FORMAT} {what} {content}".encode(), digest_size=16).hexdigest()


def _content(sources: Sequence[Source]) -> str:
    """The same for the same texts, and only for them."""
    found = hashlib.blake2b(digest_size=16)
    for source in sources:
        found.update(f"\0{source.format}\0".encode())
        try:
            with source.open() as file:
                while block := file.read(BLOCK):
                    found.update(block)
        except UNREADABLE as error:
            raise unreadable(source, error) from None
    return found.hexdigest()


def _move(folder: Path, to: Path) -> None:
    for file in folder.iterdir():
        file.rename(to / file.name)


def _refuse_empty(texts: Iterable[str], sources: Sequence[Source]) -> Iterator[str]:
    found = False
    for text in texts:
        found = found or bool(text.strip())
        yield text
    if not found:
        raise no_text(sources)


def count_text(sources: Sequence[Source], tokenizer: Tokenizer, *, unit: Literal["stream", "line"]) -> dict[str, Any]:
    """Reads a whole text and counts, also how much of it a tokenizer does not know.

    Raises:
        InputError: the first thing wrong, by file and line.
    """
    corpus = encode_corpus(sources, tokenizer, unit=unit)
    words: Counter[str] = Counter()
    longest = unfinished = 0
    for text, _ in measure(sources, unit=unit):
        words.update(text.split())
        first, *others = map(len, text.split("\n"))
        unfinished = (unfinished if unit == "stream" else 0) + first
        longest = max(longest, unfinished, *others)
        unfinished = others[-1] if others else unfinished
    return {
        "files": [source.name for source in sources],
        **vars(corpus.statistics),
        "distinct_words": len(words),
        "words_seen_once": sum(count == 1 for count in words.values()),
        "commonest_words": [word for word, _ in words.most_common(SHOWN)],
        "longest_line": longest,
    }
