"""Errors a user can mend."""

import difflib


class InputError(ValueError):
    """Bad input: one line that names the file and line or the config key, the reason and the next step."""


class TrainingError(RuntimeError):
    """Training cannot go on: a failure, though the input has the right form."""


def nearest(word: str, known: list[str]) -> str:
    """A hint: the nearest known word, or all of them."""
    close = difflib.get_close_matches(word, known, 1)
    return f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(known)}"
