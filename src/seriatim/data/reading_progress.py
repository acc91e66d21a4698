"""The progress of reading a large text, for whoever shows it: nothing is shown here.

A caller listens for the duration of a ``with`` block; readers of large texts report, and nothing happens if nobody
listens.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

Listener: TypeAlias = Callable[[str, float], None]
"""Receives a text such as ``reading text.txt: 1.2 of 2.0 GB, 85 MB/s``, and the share that is done, from 0 to 1."""
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


def report(text: str, share: float) -> None:
    """Report to the listener, if there is one."""
    listener = _listener.get()
    if listener is not None:
        try:
            listener(text, share)
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
            whole, share = ("", 0.0) if self.total is None else (f" of {self.total / size:,.1f}", done / self.total)
            report(f"{self.doing}: {done / size:,.1f}{whole} {unit}, {speed:,.0f} MB/s", min(1.0, share))
