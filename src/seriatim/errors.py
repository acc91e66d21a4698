"""Errors a user can mend."""

import difflib

SHOWN, LISTED = 60, 1000
"""Characters of a text that a message shows, and of all the texts it lists."""
LOOKED_AT = 1000
"""Words among which the nearest is looked for."""


class InputError(ValueError):
    """Bad input: one line that names the file and line or the config key, the reason and the next step."""


class TrainingError(RuntimeError):
    """Training cannot go on: a failure, though the input has the right form."""


def shown(text: str) -> str:
    """Some of the user's text as a message shows it: in quotes, on one line, and no longer than a message may be."""
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}…")


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
