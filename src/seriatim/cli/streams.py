"""Standard streams that cannot be read or written: closed pipes, lost terminals, full disks."""

import contextlib
import io
import os
import sys
from collections.abc import Callable
from typing import NoReturn, TextIO, cast

from ..core.errors import InputError


def mute(stream: TextIO) -> None:
    """Discard what a stream still holds and what is written to it; otherwise Python would fail at exit."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def open_standard_streams() -> None:
    """Make standard output UTF-8 whatever the locale is, and replace streams that were closed at the start.

    Python represents a stream that was closed (``<&-``, ``>&-``) by None. Its replacement raises an error when it is
    used; if standard error is closed, messages are discarded.
    """
    if sys.stdin is None:
        _occupy(0)
        sys.stdin = cast(TextIO, _Closed("standard input is closed; open it, or give a file"))
    if sys.stdout is None:
        _occupy(1)
        sys.stdout = cast(TextIO, _Closed("standard output is closed; open it, or send it to a file"))
    elif isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    if sys.stderr is None:
        _occupy(2)
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (open until the process ends)


def _occupy(descriptor: int) -> None:
    """Reserve a descriptor, which the next file would get otherwise, and into which libraries would write."""
    with contextlib.suppress(OSError):
        os.fstat(descriptor)
        return  # another file uses it
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_RDWR)
        if null != descriptor:
            os.dup2(null, descriptor)
            os.close(null)


class _Closed:
    """A standard stream that was closed when the program started: every use raises InputError."""

    encoding, errors = "utf-8", "strict"

    def __init__(self, problem: str) -> None:
        self._problem = problem

    @property
    def buffer(self) -> "_Closed":
        return self

    def _refuse(self, *_: object) -> NoReturn:
        raise InputError(self._problem)

    fileno = read = write = _refuse

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False


class ProgressStream:
    """A stream for messages whose loss must not end a job: after the first failure they are discarded silently."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._failed = False

    def write(self, text: str) -> int:
        """Write some text, unless writing failed before."""
        self._attempt(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream, unless writing failed before."""
        self._attempt(self._stream.flush)

    def _attempt(self, method: Callable[..., object], *arguments: object) -> None:
        if not self._failed:
            try:
                method(*arguments)
            except (OSError, ValueError):  # ValueError: the stream is closed
                self._failed = True
                mute(self._stream)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)
