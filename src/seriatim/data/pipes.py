"""Standard input and pipes: copied to a file where a text is read more than once, or answered while they arrive."""

import io
import itertools
import math
import os
import queue
import select
import shutil
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar, cast

from ..core.errors import InputError, SizeError, UnreadableError
from ..storage.files import write_all
from .text import CHUNK_BYTES, TextFile

SPARE_BYTES, SPARE_DIVISOR = 1 << 28, 100
"""A copy of a pipe, which may have no end, leaves so much of the disk free, or one of so many bytes that are free."""
ARRIVED_BYTES, ARRIVING, PAUSE = 1 << 24, 1.0, 0.1
"""How much of standard input is read before the first answer, for how many seconds, and the pause that ends that."""

Item = TypeVar("Item")
_folders: list[tempfile.TemporaryDirectory[str]] = []  # the folders of the copies, which are deleted at exit


@cache
def spool(source: str) -> Path:
    """Copy standard input (``-``) or a pipe to a file; raise InputError for a device, or if the disk is too small."""
    folder = tempfile.TemporaryDirectory(prefix="seriatim-")
    path, free = Path(folder.name) / "text", shutil.disk_usage(folder.name).free
    try:
        with (
            open(path, "wb", buffering=0) as file,
            nullcontext(sys.stdin.buffer) if source == "-" else _open_pipe(source) as pipe,
        ):
            size, spare, copied = _size_of(source, pipe), min(SPARE_BYTES, free // SPARE_DIVISOR), 0
            if size is not None and size > free:
                raise _too_large(source, f"{size:,}", free)

            # A pipe may have no end, and the copy must not fill the disk.
            while block := _read(source, pipe):
                copied += len(block)
                if size is None and shutil.disk_usage(folder.name).free < len(block) + spare:
                    raise _too_large(source, f"more than {copied:,}", free)
                try:
                    write_all(cast(BinaryIO, file), block)
                except OSError as error:  # a quota, or a disk that something else fills
                    raise _too_large(source, f"more than {copied:,}", free) from error
    except BaseException:
        folder.cleanup()
        raise
    _folders.append(folder)
    return path


def _open_pipe(source: str) -> BinaryIO:
    mode = os.stat(source).st_mode
    if stat.S_ISBLK(mode) or stat.S_ISSOCK(mode):
        raise UnreadableError(f"{source}: a device has no text to read; give a file or a pipe")
    try:
        return open(source, "rb")
    except OSError as error:
        raise UnreadableError(f"{source}: cannot be read ({error.strerror}); check the file") from None


def _read(source: str, pipe: BinaryIO) -> bytes:
    try:
        return pipe.read(CHUNK_BYTES)
    except OSError as error:
        raise UnreadableError(f"{source}: cannot be read ({error.strerror}); check the file") from None


def _too_large(source: str, size: str, free: int) -> InputError:
    problem = f"a copy of {size} bytes does not fit into {tempfile.gettempdir()}, where {free:,} bytes were free"
    return SizeError(f"{source}: {problem}; give a file by its name, or set TMPDIR to a folder with more free space")


def _size_of(source: str, pipe: BinaryIO) -> int | None:
    """Return how many bytes follow where standard input is a file; None for a pipe, whose size is not known.

    Raises:
        InputError: a character device, which may have no end; terminals and the null device are allowed.
    """
    try:
        status = os.fstat(pipe.fileno())
    except OSError:  # standard input may be an object in memory
        return None
    if stat.S_ISREG(status.st_mode):
        return max(0, status.st_size - pipe.tell())
    if stat.S_ISCHR(status.st_mode) and not os.isatty(pipe.fileno()) and status.st_rdev != os.stat(os.devnull).st_rdev:
        raise UnreadableError(f"{source}: a device without an end, not a text; give a file or a pipe")
    return None


class Arrived(NamedTuple):
    """What has arrived on standard input, from its beginning, and whether that is all."""

    content: bytes
    is_all: bool

    def open(self) -> AbstractContextManager[BinaryIO]:
        """Return standard input as a file, which can be opened again if all of it has arrived.

        It returns the bytes that are there, instead of waiting for as many as asked.
        """
        continued = cast(BinaryIO, _Continued(self.content, None if self.is_all else _raw_input()))
        return cast(BinaryIO, TextFile(nullcontext(continued)))


class _Continued:
    """A file to read that begins with some bytes."""

    def __init__(self, beginning: bytes, rest: BinaryIO | None) -> None:
        self._beginning, self._rest = io.BytesIO(beginning), rest

    def read(self, size: int = -1) -> bytes:
        return self._beginning.read(size) or (b"" if self._rest is None else self._rest.read(size))

    def seekable(self) -> bool:
        return False


def arrived() -> Arrived:
    """Wait for standard input, and return what arrives without a pause.

    Nothing more is read where bytes fail to come for `PAUSE` seconds, after `ARRIVING` seconds or `ARRIVED_BYTES`.
    """
    pipe, content, until = _raw_input(), bytearray(), math.inf
    with suppress(OSError):  # whoever reads on says why it cannot be read
        while len(content) < ARRIVED_BYTES and _has_more(
            pipe, min(PAUSE, until - time.monotonic()) if content else None
        ):
            if not (block := pipe.read(CHUNK_BYTES)):
                return Arrived(bytes(content), True)
            until = until if content else time.monotonic() + ARRIVING
            content += block
    return Arrived(bytes(content), False)


def _raw_input() -> BinaryIO:
    """Return standard input below Python's buffer.

    At exit the interpreter could not take the lock of the buffer while a thread waits for input.
    """
    return cast(BinaryIO, getattr(sys.stdin.buffer, "raw", sys.stdin.buffer))


def _has_more(pipe: BinaryIO, seconds: float | None) -> bool:
    """Wait until a pipe has bytes or ends, at most for so many seconds; an object in memory never lets anyone wait."""
    try:
        pipe.fileno()
    except (AttributeError, OSError):
        return True
    return bool(select.select([pipe], [], [], seconds if seconds is None else max(0.0, seconds))[0])


def ready(items: Iterable[Item], max_items: int) -> Iterator[list[Item]]:
    """Group items that arrive over time into lists.

    Each list holds the items that have arrived since the caller asked for the list before: at least 1 and at most
    ``max_items``. An error of ``items`` is raised after the items before it.
    """
    arrived: queue.Queue[tuple[list[Item], BaseException | None, bool]] = queue.Queue(maxsize=max_items)

    def fill() -> None:
        error = None
        try:
            for item in items:
                arrived.put(([item], None, False))
        except BaseException as failure:
            error = failure
        arrived.put(([], error, True))

    threading.Thread(target=fill, daemon=True).start()

    # The queue is emptied whenever the caller is ready, so that a batch grows with the time that the last one took.
    ended = False
    while not ended:
        batch, error, ended = arrived.get()
        while not ended and len(batch) < max_items and not arrived.empty():
            more, error, ended = arrived.get()
            batch.extend(more)
        if batch:
            yield batch
        if error is not None:
            raise error


def chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Group items into lists of ``size``, the last one shorter."""
    remaining = iter(items)
    while chunk := list(itertools.islice(remaining, size)):
        yield chunk
