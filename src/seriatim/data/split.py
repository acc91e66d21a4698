"""The split of data into training and validation data, where no other data are given to validate a training with.

Rows (labelled texts, sentences, pairs, lines) are chosen by a hash of their content, so that the choice depends neither
on their order nor on the seed, and equal rows are on the same side. Of a running text the end is held out.
"""

import functools
import hashlib
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import BinaryIO

from ..core.errors import RangeError
from .sources import is_compressed
from .text import MARK, PIECE_BYTES, UNREADABLE, Source, normal_line_ends, unreadable

NOTHING = "none"
"""The value of ``data.valid`` that holds nothing out."""
PERCENT, MAX_ROWS, MIN_ROWS = 10, 5000, 50
"""Share of the rows that is held out, the number that is enough, and the number of rows of which some are held out."""
MOST_ROWS = 50_000
"""Number of rows that are held out of more than 100 times as many; of fewer rows, at least 1 % is held out."""
MIN_BYTES, MAX_BYTES = 50_000, 1_000_000
"""Size of a running text of which a part is held out, and the size of a part that is enough."""


def share_of(value: str | None) -> float:
    """Return the fraction that a value of ``data.valid`` such as ``10%`` holds out; 0 for the name of a file.

    Raises:
        InputError: a fraction that leaves nothing.
    """
    if value is None or not re.fullmatch(r"[0-9]+(\.[0-9]+)?%", value):
        return 0.0
    fraction = float(value[:-1]) / 100
    if not 0 < fraction < 1:
        raise RangeError(f"data.valid: {value} leaves no data for training, or for validation; give 10%, or none")
    return fraction


def usual_share(rows: int) -> str:
    """Return the value of ``data.valid`` for training data with this number of rows."""
    if rows < MIN_ROWS:
        return NOTHING
    if rows > 100 * MOST_ROWS:
        return _written(100 * MOST_ROWS / rows)
    return f"{max(1, min(PERCENT, 100 * MAX_ROWS // rows))}%"


def usual_share_of_text(size: int) -> str:
    """Return the value of ``data.valid`` for a running text of ``size`` bytes."""
    if size < MIN_BYTES:
        return NOTHING
    if size <= MAX_BYTES * 100 // PERCENT:
        return f"{PERCENT}%"
    return _written(100 * MAX_BYTES / size)


def _written(percent: float) -> str:
    """Return a fraction that is not 0, with four digits after the decimal point at most."""
    return f"{max(0.0001, percent):.4f}".rstrip("0").rstrip(".") + "%"


def is_held_out(content: str, fraction: float) -> bool:
    """Return whether a row with this content belongs to the held-out part."""
    return _digest(content.encode("utf-8", "surrogatepass")) < _bound(fraction)


def line_part(source: Source, fraction: float, *, held_out: bool) -> Source:
    """Return a file with only those lines that are held out, or only the others; of JSONL, its texts decide."""
    bound, is_jsonl = _bound(fraction), source.format == "jsonl"

    def lines(file: Iterable[bytes]) -> Iterator[bytes]:
        for line in file:
            content = line.rstrip(b"\r\n").removeprefix(MARK)
            if is_jsonl and not content.strip():  # belongs to neither part; `find_blank_lines` counts it
                continue
            if is_jsonl:
                content = _text_of(content)
            if (_digest(content) < bound) == held_out:
                yield line if line.endswith(b"\n") else line + b"\n"

    return _part(source, lines, f"lines {fraction} {source.format}", held_out=held_out)


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=8).digest()


def _bound(fraction: float) -> bytes:
    """Return the digest from which on rows are not held out."""
    return math.ceil(fraction * 2**64).to_bytes(8, "big")


def end_part(sources: list[Source], fraction: float, *, held_out: bool) -> list[Source]:
    """Return the files of a text without their end, or their end only; the text is cut at a line end."""
    sizes = [_size(source) for source in sources]
    cut = round(sum(sizes) * (1 - fraction))
    chosen, start = [], 0
    for source, size in zip(sources, sizes, strict=True):
        if start + size <= cut or start >= cut:
            if (start >= cut) == held_out:
                chosen.append(source)
        else:
            choose = functools.partial(cut_at, at=cut - start, end=held_out)
            chosen.append(_part(source, choose, f"end {cut - start}", held_out=held_out))
        start += size
    return chosen


def text_size(sources: Iterable[Source]) -> int:
    """Return the size of a text in bytes, decompressed."""
    return sum(map(_size, sources))


def _text_of(line: bytes) -> bytes:
    """Return the field ``text`` of a line of JSONL, or the line itself if it has none; the reader refuses it later."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return line
    text = record.get("text") if isinstance(record, dict) else None
    return normal_line_ends(text).encode("utf-8", "surrogatepass") if isinstance(text, str) else line


def cut_at(file: BinaryIO, *, at: int, end: bool) -> Iterator[bytes]:
    """Yield the lines that begin before the byte ``at``, or the lines from there on."""
    position = file.seek(max(0, at - 1)) if end and file.seekable() else 0
    is_cut = False
    while block := file.read(PIECE_BYTES):
        cut = 0 if is_cut else len(block)
        if not is_cut and position + len(block) >= at and (found := block.find(b"\n", max(0, at - 1 - position))) >= 0:
            cut, is_cut = found + 1, True
        if chosen := block[cut:] if end else block[:cut]:
            yield chosen
        if is_cut and not end:
            return
        position += len(block)


def _size(source: Source) -> int:
    """Return the size of a text; only compressed files and those that are not on the disk are read."""
    if len(source.origin) == 1 and not is_compressed(Path(source.origin[0])):
        with suppress(OSError):  # which reading reports
            return Path(source.origin[0]).stat().st_size
    size = 0
    try:
        with source.open() as file:
            while block := file.read(PIECE_BYTES):
                size += len(block)
    except UNREADABLE as error:
        raise unreadable(source, error) from None
    return size


def _part(source: Source, choose: Callable[[BinaryIO], Iterator[bytes]], which: str, *, held_out: bool) -> Source:
    """Return a part of a file; ``which`` says which, for the record of what was read."""
    name = f"{source.name} (the held-out part)" if held_out else source.name
    origin = (*source.origin, which, str(held_out)) if source.origin else ()
    return source._replace(
        name=name, open=lambda: io.BufferedReader(_Pieces(source.open(), choose), PIECE_BYTES), origin=origin
    )


class _Pieces(io.RawIOBase):
    """A file to read whose content is chosen from another file, which it closes."""

    def __init__(self, opened: AbstractContextManager[BinaryIO], choose: Callable[[BinaryIO], Iterator[bytes]]) -> None:
        self._opened = opened
        self._pieces, self._rest = choose(opened.__enter__()), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        target = memoryview(buffer)  # type: ignore[arg-type]
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = piece
        count = min(len(target), len(self._rest))
        target[:count], self._rest = self._rest[:count], self._rest[count:]
        return count

    def close(self) -> None:
        if not self.closed:
            self._opened.__exit__(None, None, None)
        super().close()
