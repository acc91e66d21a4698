"""Signals that ask a job to stop: the first is noted, so that it can save what it has; the second ends it at once."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""SIGHUP comes when a terminal is closed; Windows has none."""


class Interrupted(KeyboardInterrupt):
    """A job has stopped because it was asked to, and what it had is saved.

    Attributes:
        number: of the signal.
        go_on: the command that goes on.
    """

    def __init__(self, message: str, number: int, *, go_on: str = "seriatim train --resume RUN") -> None:
        super().__init__(message)
        self.number, self.go_on = number, go_on


@contextmanager
def noted() -> Iterator[Callable[[], int | None]]:
    """Gives what tells the signal that came, None while none did.

    Ignored signals stay ignored, and elsewhere than in the main thread none comes.
    """
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    before = {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}

    def note(number: int, _: FrameType | None) -> None:
        came.append(number)
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in before:
        signal.signal(number, note)
    try:
        yield lambda: came[0] if came else None
    finally:
        restore()
