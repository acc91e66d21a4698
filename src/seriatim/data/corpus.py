"""Text encoded once into memory-mapped token ids, kept in a cache keyed by content.

What does not fit in memory still trains: encoding goes piece by piece, and training reads the map.
"""

import hashlib
import itertools
import json
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ..cache import cached
from ..config import Tokenizer as TokenizerConfig
from ..errors import InputError
from .readers import UNREADABLE, Source, read_lines, read_pieces, unreadable
from .tokenizers import END, Tokenizer, fit_tokenizer, load_tokenizer

FORMAT = 1
BLOCK = 1 << 20
LINES = 1 << 12
"""Lines that are encoded at once."""
EMPTY_LINE = re.compile(r"(?<=\n)\n")


@dataclass
class Statistics:
    """What a text holds. ``spelling_nats`` is what its unknown words or characters cost to spell out.

    ``words`` are what white space separates; ``lines`` counts line ends, a last line without one included;
    ``bytes`` is UTF-8 after CRLF became LF; in unit ``line`` every line has its line end, and is a document.
    """

    tokens: int = 0
    documents: int = 0
    lines: int = 0
    empty_lines: int = 0
    words: int = 0
    characters: int = 0
    bytes: int = 0
    unknown_tokens: int = 0
    spelling_nats: float = 0.0


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
    key = hashlib.blake2b(f"{FORMAT} {unit} {tokenizer.fingerprint()}".encode(), digest_size=16)
    folder = cached(f"corpus-{_content_key(sources, key)}", lambda path: _write(path, sources, tokenizer, unit))
    statistics = Statistics(**json.loads((folder / "statistics.json").read_text()))
    return Corpus(
        np.memmap(folder / "ids.bin", dtype=_dtype(tokenizer), mode="r"),
        np.fromfile(folder / "ends.bin", dtype=np.int64) if unit == "line" else None,
        statistics,
        folder.name,
    )


def fit_corpus_tokenizer(sources: Sequence[Source], config: TokenizerConfig, *, unit: str) -> Tokenizer:
    """Learns a tokenizer from a text, or opens what an earlier call learned from the same text.

    Raises:
        InputError: the text cannot be read, or there is none.
    """
    key = hashlib.blake2b(f"{FORMAT} {unit} {config.model_dump_json()}".encode(), digest_size=16)

    def write(folder: Path) -> None:
        words = config.kind == "word"  # to which a line end is one more space
        by_line = unit == "line" and not words
        texts = read_lines(sources) if by_line else (piece.text for piece in read_pieces(sources))
        tokenizer = fit_tokenizer(config, _refuse_empty(texts, sources))
        (folder / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")

    return load_tokenizer(cached(f"tokenizer-{_content_key(sources, key)}", write) / "tokenizer.json")


def measure(sources: Sequence[Source], *, unit: str) -> Iterator[tuple[list[str], Statistics]]:
    """Yields the texts as they will be encoded (some lines, or one piece of the stream) with their statistics."""
    if unit == "line":
        remaining = read_lines(sources)
        while some := list(itertools.islice(remaining, LINES)):
            count, whole = len(some), "\n".join(some)
            blank = sum(not line or line.isspace() for line in some)
            yield some, Statistics(0, count, count, blank, len(whole.split()), len(whole) + 1, len(whole.encode()) + 1)
        return
    last = "\n"
    for piece in read_pieces(sources):
        text, documents = piece.text, int(piece.begins_document)
        lines = text.count("\n") + int(documents and last != "\n")
        before = "\n" if documents else last[-1:]
        empty = len(EMPTY_LINE.findall(before + text))
        joined = last[-1:].isspace() or documents or text[:1].isspace()  # a cut inside a word does not make two
        words = len(text.split()) - int(not joined)
        yield [text], Statistics(0, documents, lines, empty, words, len(text), len(text.encode()))
        last = text[-1:] or "\n"
    if last != "\n":
        yield [""], Statistics(lines=1)


def add(total: Statistics, part: Statistics) -> None:
    """Adds the counts of ``part`` to ``total``."""
    for name, value in vars(part).items():
        setattr(total, name, getattr(total, name) + value)


def _write(folder: Path, sources: Sequence[Source], tokenizer: Tokenizer, unit: str) -> None:
    total, ends, end = Statistics(), array("q"), [END]
    with (folder / "ids.bin").open("wb") as file:

        def put(tokens: np.ndarray | list[int]) -> None:
            file.write(np.asarray(tokens, dtype=_dtype(tokenizer)).tobytes())
            total.tokens += len(tokens)

        last = "\n"
        for texts, statistics in measure(sources, unit=unit):
            if (
                statistics.documents
                and total.tokens
                and unit == "stream"
                and not (tokenizer.ends_lines and last == "\n")
            ):
                put(end)  # documents are separated; where line ends are tokens, one is there already
            if unit == "line":
                ids, sizes = tokenizer.encode_lines(texts)
                ends.extend((total.tokens + sizes.cumsum()).tolist())
            else:
                ids = tokenizer.encode(texts[0])
                last = texts[0][-1:] or last
            put(ids)
            add(total, statistics)
            if tokenizer.unknown_id is not None and (unknown := int((ids == tokenizer.unknown_id).sum())):
                total.unknown_tokens += unknown
                total.spelling_nats += sum(map(tokenizer.spelling_nats, texts))
        if unit == "stream" and tokenizer.ends_lines and last != "\n":
            put(end)
    if not total.bytes or (unit == "line" and total.empty_lines == total.lines):
        raise _no_text(sources)
    if unit == "line":
        np.frombuffer(ends, dtype=np.int64).tofile(folder / "ends.bin")
    (folder / "statistics.json").write_text(json.dumps(asdict(total)))


def _dtype(tokenizer: Tokenizer) -> type[np.unsignedinteger]:
    return np.uint16 if tokenizer.vocabulary_size <= 1 << 16 else np.uint32


def _content_key(sources: Sequence[Source], key: "hashlib.blake2b") -> str:
    for source in sources:
        key.update(f"\0{source.format}\0".encode())
        try:
            with source.open() as file:
                while block := file.read(BLOCK):
                    key.update(block)
        except UNREADABLE as error:
            raise unreadable(source, error) from None
    return key.hexdigest()


def _refuse_empty(texts: Iterable[str], sources: Sequence[Source]) -> Iterator[str]:
    found = False
    for text in texts:
        found = found or bool(text.strip())
        yield text
    if not found:
        raise _no_text(sources)


def _no_text(sources: Sequence[Source]) -> InputError:
    names = ", ".join(source.name for source in sources[:3])
    return InputError(f"{names}: empty, no text to read; check the file")
