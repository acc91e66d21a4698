"""Strings that end a generated text."""

from collections.abc import Sequence

from ..core.errors import RangeError, check_text, iterate_items


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

        # The longest end of the text that begins a stop string is withheld; the empty end always does.
        longest = max(map(len, self.strings)) - 1
        ends = (text[start:] for start in range(max(0, len(text) - longest), len(text) + 1))
        self.withheld = next(end for end in ends if any(stop.startswith(end) for stop in self.strings))
        return text[: len(text) - len(self.withheld)]

    def finish(self) -> str:
        """Return the text that was withheld, at the end of the text."""
        text, self.withheld = self.withheld, ""
        return text


def check_stop_strings(strings: object) -> tuple[str, ...]:
    """Return stop strings as a tuple; raise InputError for anything but a list of texts that are not empty."""
    stops = tuple(iterate_items(strings, "stop"))
    for stop in stops:
        check_text(stop, "stop")
        if not stop:
            raise RangeError("stop: a stop string is empty; give at least one character, or leave it out")
    return stops
