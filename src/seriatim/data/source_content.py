"""What is known of a text: its digest and size, and its repairs, which are remembered for files that did not change.

A text that is read is hashed at the same time, so that a change while it is read is noticed. Readers of large texts
report their progress to whoever listens for the duration of a ``with`` block; nothing is shown here.
"""

import functools
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, replace
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeAlias, TypeVar, cast

from ..core.errors import BusyError, InputError
from ..core.json_object import JsonObject
from ..storage.disk_cache import cached, read_entry, read_facts
from .repairs import Repair, Repairs
from .sources import is_compressed
from .text import UNREADABLE, Source, read_chunks, unreadable

Listener: TypeAlias = Callable[[str, float], None]
"""Receives a text such as ``reading text.txt: 1.2 of 2.0 GB, 85 MB/s``, and the fraction that is done, from 0 to 1."""
SECONDS = 0.2
"""The shortest time between two reports."""
_listener: ContextVar[Listener | None] = ContextVar("reading_progress", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Let a function receive the reports of everything that is read in a ``with`` block, in this thread.

    An `OSError` of the function (a closed pipe, a full disk) ends the reports and not the reading.
    """
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def report(text: str, fraction: float) -> None:
    """Report to the listener, if there is one."""
    listener = _listener.get()
    if listener is not None:
        try:
            listener(text, fraction)
        except OSError:
            _listener.set(None)


class ReadingProgress:
    """Reports how much of a text is done.

    Args:
        doing: what is done with which text, in words.
        total: the number of bytes of the text; None if it is not known; 0 reports nothing.
    """

    def __init__(self, doing: str, total: int | None) -> None:
        self.doing, self.total, self.before = doing, total, 0
        self.started = self.reported = time.monotonic()

    def skip(self, done: int) -> None:
        """Count the bytes until here as done before, so that they do not count for the speed."""
        self.before, self.started = done, time.monotonic()

    def update(self, done: int) -> None:
        """Report the number of bytes that are done, unless the last report is very recent."""
        now = time.monotonic()
        if self.total != 0 and now - self.reported >= SECONDS:
            self.reported = now
            speed = max(0, done - self.before) / max(now - self.started, 1e-9) / 1e6
            unit, size = ("GB", 1e9) if (self.total or done) >= 1e9 else ("MB", 1e6)
            total, fraction = ("", 0.0) if self.total is None else (f" of {self.total / size:,.1f}", done / self.total)
            report(f"{self.doing}: {done / size:,.1f}{total} {unit}, {speed:,.0f} MB/s", min(1.0, fraction))


BLOCK = 1 << 20  # the number of bytes that are read at once
LARGE_BYTES = 32_000_000  # the size of a text from which on the progress of reading it is shown
COMPRESSION = 4  # about how much smaller compressed text is
RACY_SECONDS = 2.0
"""A file that was modified less than this time ago may be modified again without a new time of modification."""
VERSION = 2  # increased whenever other facts are remembered of the same files
Facts = TypeVar("Facts")


class TextDigest(NamedTuple):
    """What was read from some sources."""

    digest: str  # equal exactly for the same bytes in files of the same formats
    bytes: int  # the number of bytes, decompressed


class HashedSources:
    """Sources that are read once, in order, and hashed meanwhile."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = [source._replace(open=functools.partial(self._opened, source)) for source in sources]
        self.names = sources
        self.digest = hashlib.blake2b(digest_size=16)
        self.bytes = 0

    @property
    def content(self) -> TextDigest:
        """Return what was read until now."""
        return TextDigest(self.digest.hexdigest(), self.bytes)

    @contextmanager
    def _opened(self, source: Source) -> Iterator[BinaryIO]:
        markers = "" if source.markers is None else source.markers
        self.digest.update(f"\0{source.format}{markers}\0".encode())
        with source.open() as file:
            yield cast(BinaryIO, _Hashed(self, file))

    def add(self, block: bytes) -> None:
        """Add bytes that were read."""
        self.digest.update(block)
        self.bytes += len(block)

    def require(self, expected: TextDigest | None) -> None:
        """Raise InputError if the text, which was read whole, is not the one that is expected."""
        if expected is not None and self.content != expected:
            raise changed(self.names)


class _Hashed:
    """An open file that passes on what is read."""

    def __init__(self, owner: HashedSources, file: BinaryIO) -> None:
        self._owner, self._file = owner, file

    def read(self, size: int = -1) -> bytes:
        block = self._file.read(size)
        self._owner.add(block)
        return block


def name_text(sources: Sequence[Source]) -> str:
    """Return a short name of a text."""
    return sources[0].name + (f" and {len(sources) - 1:,} more" if len(sources) > 1 else "") if sources else "no file"


def changed(sources: Sequence[Source]) -> InputError:
    """Return the error for a text that changed while it was read."""
    names = ", ".join(source.name for source in sources[:3])
    more = f" and {len(sources) - 3:,} more" if len(sources) > 3 else ""
    return BusyError(f"{names}{more}: changed while it was read; run again when it is complete")


def content_of(sources: Sequence[Source]) -> TextDigest:
    """Return the content of a text; files that did not change since an earlier call are not read again.

    Raises:
        InputError: the text cannot be read.
    """
    return TextDigest(*remembered("content", sources, lambda: _read_content(sources)))


def remembered(kind: str, sources: Sequence[Source], read: Callable[[], Facts]) -> Facts:
    """Return what ``read`` returns for a text; files that did not change since an earlier call are not read again.

    A change that leaves the size and the times of a file as they are, as through a memory map, is not noticed.

    Args:
        kind: names what is read.
        sources: the text.
        read: reads it, and returns what JSON can hold; a tuple may become a list.

    Raises:
        InputError: the text cannot be read.
    """
    before = _states(sources)
    if before is None:
        return read()

    # A file that has just been written may be written again within the resolution of the clock.
    newest = max((changed_ns for _, changed_ns, *_ in before), default=0)
    if time.time_ns() - newest < RACY_SECONDS * 1e9:  # also if the clock of another machine is ahead
        return read()
    identity = json.dumps(
        [VERSION, *([getattr(source, fact) for source in sources] for fact in ("format", "origin", "markers")), before]
    )
    name = f"{kind}-{hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()}"

    # What is remembered must be of the files as they were before, or a change would go unnoticed for ever.
    def write(folder: Path) -> None:
        facts = read()
        if _states(sources) != before:
            raise changed(sources)
        (folder / f"{kind}.json").write_text(json.dumps(facts))

    known: Facts = read_entry(lambda: cached(name, write), lambda folder: read_facts(folder / f"{kind}.json"))
    return known


def find_repairs(sources: Sequence[Source], repairs: Repairs) -> None:
    """Record what is repaired or noted in some files; files that did not change are not read again.

    Raises:
        InputError: a file cannot be read; or ``repairs`` is strict, and a file needs a repair.
    """
    files = [source for source in sources if source.origin]
    for index, found in remembered("repairs", files, lambda: list(_find_repairs(files))) if files else ():
        repairs.include(replace(Repair(**found), file=files[index].name))


def _find_repairs(files: Sequence[Source]) -> Iterator[tuple[int, JsonObject]]:
    """Yield the index of each file that needs a repair, with the fields of the repair."""
    progress, done = ReadingProgress(f"looking for defects of {name_text(files)}", expected_size(files)), 0
    for index, source in enumerate(files):
        repairs = Repairs()
        repairs.looks_for_markers = True
        for chunk in read_chunks([source], repairs):
            done += len(chunk.text)
            progress.update(done)
        yield from ((index, asdict(found)) for found in sorted(repairs.found(), key=attrgetter("line")))


def expected_size(sources: Sequence[Source]) -> int | None:
    """Return how many bytes will be read, for `ReadingProgress`: 0 for a small text, None if a large one is unknown."""
    size = sum(state[0] for state in _states(sources) or [])
    paths = [Path(source.origin[0]) for source in sources if source.origin]
    if size < (LARGE_BYTES / COMPRESSION if any(map(is_compressed, paths)) else LARGE_BYTES):
        return 0
    # Almost all of a file is read if a part of it is held out.
    is_known = not any(map(is_compressed, paths)) and all(source.origin[-1] != str(True) for source in sources)
    return size if is_known else None


def _states(sources: Sequence[Source]) -> list[tuple[int, ...]] | None:
    """Return the state of the file of each source; None if one of them is not a file of the disk.

    Equal states mean that a file did not change. The first two numbers are its size, and the time of its last change of
    content, name or permissions, which programs cannot set.
    """
    try:
        found = [os.stat(source.origin[0]) for source in sources]
    except (IndexError, OSError):
        return None
    times = [max(status.st_mtime_ns, status.st_ctime_ns) for status in found]
    return [
        (one.st_size, time, one.st_mtime_ns, one.st_ino, one.st_dev) for one, time in zip(found, times, strict=True)
    ]


def _read_content(sources: Sequence[Source]) -> TextDigest:
    hashed = HashedSources(sources)
    progress = ReadingProgress(f"looking for changes of {name_text(sources)}", expected_size(sources))
    for source, reader in zip(sources, hashed.sources, strict=True):
        try:
            with reader.open() as file:
                while file.read(BLOCK):
                    progress.update(hashed.bytes)
        except UNREADABLE as error:
            raise unreadable(source, error) from None
    return hashed.content
