"""Standard streams that cannot be read or written: closed pipes, lost terminals, full disks."""

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from typing import NoReturn, TextIO, cast

from ..core.errors import UnavailableError, visible


class OutputClosedError(Exception):
    """Whoever read standard output has closed it, as ``head`` does when it has seen enough."""


def mute(stream: TextIO) -> None:
    """Discard what a stream still holds and what is written to it; otherwise Python would fail at exit."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


@contextlib.contextmanager
def standard_streams() -> Iterator[None]:
    """Give a command usable standard streams, whatever its surroundings are; afterwards those of Python are back.

    Standard output is UTF-8 whatever the locale is, its errors are named, and those of standard error are ignored. A
    terminal is shown control characters instead of obeying them. Python represents a stream that was closed at the
    start (``<&-``, ``>&-``) by None. Its replacement raises an error when it is used; if standard error is closed,
    messages are discarded.
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
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = cast(TextIO, Output(sys.stdout)), cast(TextIO, Messages(sys.stderr))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream in before:
            try:  # while a failure can still be ignored; at exit it would change the exit code
                stream.flush()
            except (OSError, ValueError):
                mute(stream)


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
        raise UnavailableError(self._problem)

    fileno = read = write = _refuse

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False


class _Stream:
    """A stream in the place of another one, whose other attributes it has."""

    def __init__(self, stream: TextIO, *, escapes: bool = True) -> None:
        self._stream: TextIO = stream._stream if isinstance(stream, _Stream) else stream
        with contextlib.suppress(ValueError):  # it was closed
            escapes = escapes and self._stream.isatty()
        self._escapes = escapes

    def write(self, text: str) -> int:
        """Write some text; a terminal is shown control characters as escapes."""
        self._attempt(self._stream.write, visible(text) if self._escapes else text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        self._attempt(self._stream.flush)

    def _attempt(self, method: Callable[..., object], *arguments: object) -> None:
        raise NotImplementedError

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


class Output(_Stream):
    """Standard output: an error of the system names it, and a closed pipe is an error of its own."""

    def _attempt(self, method: Callable[..., object], *arguments: object) -> None:
        try:
            method(*arguments)
        except BrokenPipeError:
            raise OutputClosedError from None
        except OSError as error:
            error.filename = "standard output"
            raise


class Messages(_Stream):
    """A stream for messages, whose loss must not end a job: after the first failure they are discarded silently.

    ``escapes`` is False for a progress bar, which gives orders to the terminal.
    """

    def __init__(self, stream: TextIO, *, escapes: bool = True) -> None:
        super().__init__(stream, escapes=escapes)
        self._failed = False

    def _attempt(self, method: Callable[..., object], *arguments: object) -> None:
        if not self._failed:
            try:
                method(*arguments)
            except (OSError, ValueError):  # ValueError: the stream is closed
                self._failed = True
                mute(self._stream)
