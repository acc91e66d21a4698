"""Errors a user can mend."""

import difflib


class InputError(ValueError):
    """Bad input: one line that names the file and line or the config key, the reason and the next step."""


class TrainingError(RuntimeError):
    """Training cannot go on: a failure, though the input has the right form."""


def nearest(word: str, known: list[str]) -> str:
    """A hint: the nearest known word, or all of them."""
    close = closest(word, known)
    return f"did you mean {close!r}?" if close else f"choose from {', '.join(known)}"


def closest(word: str, known: list[str]) -> str | None:
    """The nearest known word, if any is near."""
    return next(iter(difflib.get_close_matches(word, known, 1)), None)
