"""Small texts that are encoded in blocks and in several processes."""

import errno
import functools
import json
import os
from pathlib import Path

import pytest

from seriatim.config import Tokenizer as TokenizerConfig
from seriatim.data.encoding import write_encoded
from seriatim.data.source_content import content_of
from seriatim.data.sources import find_sources
from seriatim.data.text import Source
from seriatim.data.tokenizers import Tokenizer
from seriatim.data.vocabulary import fit_tokenizer
from seriatim.storage.disk_cache import SCRATCH

KINDS = ["byte", "char", "word", "bpe", "unigram"]
UNITS = ["stream", "line"]
TEXT = "one two\n\n three  fours é\r\nfive <unk>\t" * 40


def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few chunks, and two processes for every text."""
    set_sizes(monkeypatch, chunk=64, block=300, parallel=1)


def set_sizes(monkeypatch: pytest.MonkeyPatch, *, chunk: int, block: int, parallel: int) -> None:
    monkeypatch.setattr("seriatim.data.text.CHUNK_BYTES", chunk)
    monkeypatch.setattr("seriatim.data.encoding.MIN_CHARACTERS", chunk)
    monkeypatch.setattr("seriatim.data.encoding.BLOCK_CHARACTERS", block)
    monkeypatch.setattr("seriatim.data.encoding.PARALLEL_BYTES", parallel)
    monkeypatch.setattr("seriatim.data.encoding.worker_count", lambda: 2)


def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seriatim.data.encoding.worker_count", lambda: 1)


@functools.cache
def tokenizer_of(kind: str, lowercase: bool = False) -> Tokenizer:
    config = TokenizerConfig(
        kind=kind, lowercase=lowercase, vocabulary_size=270 if kind in ("bpe", "unigram") else None
    )
    return fit_tokenizer(config, [TEXT[:20]])


def many_files(folder: Path) -> list[Source]:
    """Text and JSONL, with documents that are empty, that end without a line end, and that are blank."""
    folder.mkdir()
    (folder / "a.txt").write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    (folder / "b.txt").write_text(TEXT + "no line end")
    (folder / "c.txt").write_text("")
    records = ["", "x", "", "", "two\n", "\n", " ", *[TEXT[i : i + 9] for i in range(60)], "", ""]
    (folder / "d.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in records))
    (folder / "e.txt").write_text(TEXT)
    return find_sources(str(folder))


class Failing:
    """An open file, whose last part cannot be read while ``broken``."""

    def __init__(self, source: Source, broken: list[bool]) -> None:
        self.broken, self.is_last, self.opened = broken, source.name.endswith("e.txt"), source.open()
        self.has_begun = False

    def __enter__(self) -> "Failing":
        self.file = self.opened.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.opened.__exit__(*error)

    def read(self, size: int = -1) -> bytes:
        if self.broken[0] and self.is_last and self.has_begun:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self.has_begun = True
        return self.file.read(size)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix != SCRATCH}


def written(folder: Path, sources: list[Source], tokenizer: Tokenizer, unit: str) -> dict[str, bytes]:
    folder.mkdir(exist_ok=True)
    write_encoded(folder, sources, tokenizer, unit=unit, content=content_of(sources))
    return files_of(folder)
