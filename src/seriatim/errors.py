"""Errors a user can mend."""

import difflib

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
        if not line.isprintable():
            line = "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in line)
        super().__init__(line)


class TrainingError(RuntimeError):
    """Training cannot go on: a failure, though the input has the right form."""


def shown(value: object) -> str:
    """A value as an error shows it: not all of a long one."""
    try:
        text = repr(value)
    except ValueError:  # of a number with more digits than Python writes
        return "a number of thousands of digits"
    return text if len(text) <= 80 else f"{text[:60]} … {text[-15:]}"


def nearest(word: str, known: list[str]) -> str:
    """A hint: the nearest known word, or all of them."""
    close = closest(word, known)
    return f"did you mean {close!r}?" if close else f"choose from {', '.join(known)}"


def closest(word: str, known: list[str]) -> str | None:
    """The nearest known word, if any is near."""
    return next(iter(difflib.get_close_matches(word[:100], known, 1)), None)
