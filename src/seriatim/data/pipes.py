"""Standard input and pipes: copied to a file where a text is read more than once, or answered while they arrive."""

import itertools
import os
import queue
import shutil
import stat
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

from ..core.errors import InputError
from .text_bytes import TextFile

PIECE_BYTES = 1 << 20
SPARE_BYTES = 1 << 28  # the free disk space that a copy of a pipe must leave

Item = TypeVar("Item")
_folders: list[tempfile.TemporaryDirectory[str]] = []  # the folders of the copies, which are deleted at exit


@cache
def spool(spec: str) -> Path:
    """Copy standard input (``-``) or a pipe to a file; raise InputError for a device, or if the disk is too small."""
    folder = tempfile.TemporaryDirectory(prefix="seriatim-")
    path = Path(folder.name) / "text"
    try:
        with path.open("wb") as file, nullcontext(sys.stdin.buffer) if spec == "-" else _open_pipe(spec) as pipe:
            _refuse_device(spec, pipe)
            while block := pipe.read(PIECE_BYTES):
                if shutil.disk_usage(folder.name).free < SPARE_BYTES:
                    raise InputError(f"{spec}: larger than the free space in {folder.name}; give a file")
                file.write(block)
    except BaseException:
        folder.cleanup()
        raise
    _folders.append(folder)
    return path


def _open_pipe(spec: str) -> BinaryIO:
    mode = os.stat(spec).st_mode
    if stat.S_ISBLK(mode) or stat.S_ISSOCK(mode):
        raise InputError(f"{spec}: a device, not a text; give a file or a pipe")
    try:
        return open(spec, "rb")
    except OSError as error:
        raise InputError(f"{spec}: cannot be read ({error.strerror}); check the file") from None


def _refuse_device(spec: str, pipe: BinaryIO) -> None:
    """Raise InputError for a character device, which may have no end; terminals and the null device are allowed."""
    try:
        status = os.fstat(pipe.fileno())
    except OSError:  # standard input may be an object in memory
        return
    if not stat.S_ISCHR(status.st_mode) or os.isatty(pipe.fileno()):
        return
    if status.st_rdev != os.stat(os.devnull).st_rdev:
        raise InputError(f"{spec}: a device without an end, not a text; give a file or a pipe")


def live_input() -> AbstractContextManager[BinaryIO]:
    """Return standard input as a file that returns the bytes that are there, instead of waiting for as many as asked.

    It reads below Python's buffer: at exit the interpreter could not take the lock of the buffer while a thread waits
    for input.
    """
    return cast(BinaryIO, TextFile(nullcontext(getattr(sys.stdin.buffer, "raw", sys.stdin.buffer))))


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
