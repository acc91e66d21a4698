"""Errors a user can mend."""

import difflib
from collections.abc import Iterable

SHOWN, LISTED = 60, 1000
"""Characters of a text that a message shows, and of all the texts it lists."""
LOOKED_AT = 1000
"""Words among which the nearest is looked for."""
LONGEST = 2000
"""Characters of a message; what stands in the middle of a longer one is left out."""


class InputError(ValueError):
    """Bad input: one line that names the file and line or the config key, the reason and the next step.

    What a file holds may be quoted in it: line ends become spaces, and what a terminal would obey is spelled out.
    """

    def __init__(self, message: object) -> None:
        line = " ".join(str(message).splitlines())
        if len(line) > LONGEST:
            line = f"{line[: LONGEST // 2]} … {line[-LONGEST // 4 :]}"
        super().__init__(printable(line))


class ProblemsError(InputError):
    """Several problems of the input, of which each is reported in a line of its own.

    Attributes:
        problems: a line each, in order, without duplicates.
    """

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(dict.fromkeys(problems))
        super().__init__("; also: ".join(self.problems))


class TrainingError(RuntimeError):
    """Training cannot go on: a failure, though the input has the right form."""


def printable(text: str) -> str:
    """A line of text without anything that a terminal would obey: control characters are spelled out as in Python."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def shown(value: object) -> str:
    """What a user gave as a message shows it: on one line, text in quotes, and no longer than a message may be."""
    if isinstance(value, str):
        return repr(value if len(value) <= SHOWN else f"{value[:SHOWN]}…")
    try:
        text = repr(value)
    except ValueError:  # of a number with more digits than Python writes
        return "a number of thousands of digits"
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 15]} … {text[-15:]}"


def nearest(word: str, known: list[str]) -> str:
    """A hint: the nearest known word, or all of them, as far as a message has room."""
    close = closest(word, known)
    if close:
        return f"did you mean {shown(close)}?"
    listed = ", ".join(known)
    return f"choose from {listed}" if len(listed) <= LISTED else f"choose one of the {len(known):,} known"


def closest(word: str, known: list[str]) -> str | None:
    """The nearest known word, if any is near; of many or long ones none is looked for, which would take too long."""
    near = [one for one in known[:LOOKED_AT] if len(one) <= SHOWN] if len(word) <= SHOWN else []
    return next(iter(difflib.get_close_matches(word, near, 1)), None)
