"""Signals that ask a job to stop: the first lets it save its state and stop, a second one ends it at once."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""SIGHUP comes when a terminal is closed; Windows has none."""


class Interrupted(KeyboardInterrupt):
    """A job was stopped by the signal ``number``; its progress is saved, and the command ``go_on`` resumes it."""

    def __init__(self, message: str, number: int, *, go_on: str) -> None:
        super().__init__(message)
        self.number, self.go_on = number, go_on


@contextmanager
def terminations_ignored() -> Iterator[None]:
    """Ignore SIGTERM in the ``with`` block, in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def signals_deferred() -> Iterator[Callable[[], int | None]]:
    """Catch the first signal in the ``with`` block; yield a function that returns its number, or None before it came.

    Ignored signals stay ignored. Outside of the main thread no signal is caught.
    """
    # Python handles signals in the main thread only, and a signal that was ignored before, as by nohup, stays ignored.
    received: list[int] = []
    in_main_thread = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in SIGNALS if in_main_thread}
    before = {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}

    # After the first signal a second one has its usual effect: the user does not want to wait.
    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def receive(number: int, _: FrameType | None) -> None:
        received.append(number)
        restore()

    for number in before:
        signal.signal(number, receive)
    try:
        yield lambda: received[0] if received else None
    finally:
        restore()
