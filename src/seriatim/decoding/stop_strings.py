"""Strings that end a generated text."""

from collections.abc import Sequence

from ..config.arguments import check_text, iterate_items
from ..core.errors import InputError


class StopStrings:
    """Passes a text on, piece by piece, up to the stop string that is complete first.

    A piece may end within a stop string. The longest end of the text that begins a stop string is therefore withheld
    until more text shows whether the string is completed. Of stop strings that are complete at the same character, the
    longest counts. How the text is divided into pieces makes no difference.

    Attributes:
        has_ended: whether a stop string is complete; text after it is dropped.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self.strings, self.withheld, self.has_ended = tuple(strings), "", False

    def feed(self, piece: str) -> str:
        """Return the text that this piece releases."""
        if self.has_ended or not self.strings:
            return "" if self.has_ended else piece
        text = self.withheld + piece
        found = [(start + len(stop), start) for stop in self.strings if (start := text.find(stop)) >= 0]
        if found:
            self.has_ended, self.withheld = True, ""
            return text[: min(found)[1]]
        size = next(size for size in range(min(len(text), self._longest), -1, -1) if self._begins(text, size))
        self.withheld = text[len(text) - size :]
        return text[: len(text) - size]

    def finish(self) -> str:
        """Return the text that was withheld, at the end of the text."""
        text, self.withheld = self.withheld, ""
        return text

    @property
    def _longest(self) -> int:
        return max(map(len, self.strings)) - 1

    def _begins(self, text: str, size: int) -> bool:
        """Return whether the last characters of a text, ``size`` of them, begin a stop string."""
        return any(stop.startswith(text[len(text) - size :]) for stop in self.strings)


def check_stop_strings(strings: object) -> tuple[str, ...]:
    """Return stop strings as a tuple; raise InputError for anything but a list of texts that are not empty."""
    stops = tuple(iterate_items(strings, "stop"))
    for stop in stops:
        check_text(stop, "stop")
        if not stop:
            raise InputError("stop: a stop string is empty; give at least one character, or leave it out")
    return stops
