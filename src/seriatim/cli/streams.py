"""Standard streams that cannot be written: a closed pipe, a terminal that is gone, a full disk."""

import contextlib
import io
import os
import sys
from typing import Any, TextIO, cast

from ..core.errors import InputError


def mute(stream: TextIO) -> None:
    """Sends what is written to a stream, and what it still holds, to nowhere: Python would fail on it at exit."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def open_standard_streams() -> None:
    """Prepares the standard streams of the command.

    Standard output is UTF-8 whatever the locale says, as the answers to UTF-8 data are. A stream that was closed from
    the beginning (``<&-``, ``>&-``), for which Python has None, becomes one that says so when it is used; messages
    are dropped where standard error is closed.
    """
    if sys.stdin is None:
        _occupy(0)
        sys.stdin = cast(TextIO, _Closed("standard input"))
    if sys.stdout is None:
        _occupy(1)
        sys.stdout = cast(TextIO, _Closed("standard output"))
    elif isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    if sys.stderr is None:
        _occupy(2)
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (open until the process ends)


def _occupy(descriptor: int) -> None:
    """Opens nothing under a number that the next file would get otherwise, where libraries would write into it."""
    with contextlib.suppress(OSError):
        os.fstat(descriptor)
        return  # another file has it already
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_RDWR)
        if null != descriptor:
            os.dup2(null, descriptor)
            os.close(null)


class _Closed:
    """A standard stream that was closed when the program began: every use is bad input."""

    encoding, errors = "utf-8", "strict"

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def buffer(self) -> "_Closed":
        return self

    def fileno(self) -> int:
        raise InputError(f"{self.name} is closed; open it, or use a file")

    def read(self, size: int = -1) -> bytes:
        raise InputError(f"{self.name} is closed; open it, or give a file")

    def write(self, text: str) -> int:
        raise InputError(f"{self.name} is closed; open it, or send it to a file")

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False


class ProgressStream:
    """A stream for messages whose loss must not end a job: after the first failure they are dropped silently.

    Args:
        stream: where the messages go, usually standard error.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._failed = False

    def write(self, text: str) -> int:
        """Writes some text, unless writing failed before."""
        if not self._failed:
            try:
                self._stream.write(text)
            except (OSError, ValueError):  # ValueError: the stream is closed
                self._fail()
        return len(text)

    def flush(self) -> None:
        """Flushes the stream, unless writing failed before."""
        if not self._failed:
            try:
                self._stream.flush()
            except (OSError, ValueError):
                self._fail()

    def _fail(self) -> None:
        self._failed = True
        mute(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
