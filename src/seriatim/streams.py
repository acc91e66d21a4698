"""Standard streams that cannot be written: a closed pipe, a terminal that is gone, a full disk."""

import contextlib
import os
from typing import Any, TextIO


def mute(stream: TextIO) -> None:
    """Sends what is written to a stream, and what it still holds, to nowhere: Python would fail on it at exit."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


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
