"""Standard input as it comes: what is there is answered, and nothing waits for what is not."""

import queue
import sys
import threading
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, BinaryIO, cast

from .readers import Source


class _Live:
    """Reads what is there, where a file would wait for as much as it was asked for.

    Without the buffer, whose lock the interpreter could not take at its end while a thread waits for more.
    """

    def __enter__(self) -> "_Live":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass

    def read(self, size: int) -> bytes:
        unbuffered: BinaryIO = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
        return unbuffered.read(size)


def standard_input(file_format: str = "text") -> Source:
    """Standard input, to be read once."""
    return Source("<stdin>", cast(Any, _Live), file_format)


def ready(items: Iterable[Any], most: int) -> Iterator[list[Any]]:
    """Items in lists: those that are there when the list before has been seen to, at least one and at most ``most``."""
    held: queue.Queue[Any] = queue.Queue(maxsize=most)
    end = object()

    def fill() -> None:
        try:
            for item in items:
                held.put(item)
        except BaseException as error:
            held.put(_Failure(error))
        held.put(end)

    threading.Thread(target=fill, daemon=True).start()
    while True:
        found = [held.get()]
        while len(found) < most and not held.empty():
            found.append(held.get())
        good = [item for item in found if item is not end and not isinstance(item, _Failure)]
        if good:
            yield good
        for item in found:
            if isinstance(item, _Failure):
                raise item.error
        if found[-1] is end:
            return


class _Failure:
    """What went wrong while reading."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
