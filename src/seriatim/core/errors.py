"""Errors, how messages show the values of users, and the checks of arguments that raise them."""

import difflib
import errno
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any

SHOWN, LISTED = 60, 1000
"""The number of characters of a text that a message shows, and of all the choices that it lists."""
LOOKED_AT = 1000
"""The number of known words that are compared with a misspelt one."""
LONGEST = 2000
"""The number of characters of a message; the middle of a longer one is left out."""
REPORTED_HERE, REPORTED_ELSEWHERE = "this process reports the error", "another process reports the error"
"""Notes of an error that stops several processes, of which one reports it."""
OBEYED = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal obeys instead of showing it: control characters but line ends and tabs, and orders of direction."""


class InputError(ValueError):
    """Bad input, in one line: ``PLACE: REASON; REMEDY``. Each kind of bad input has a class of its own.

    The message may quote the contents of files: line ends become spaces, and control characters are escaped.

    Attributes:
        kind: what is wrong, in a word; empty in errors of code outside the library.
        place: a file, a file and its line, an option or a key of the configuration; empty if the input has no place.
        remedy: what to do.
    """

    kind = ""

    def __init__(self, message: object, *, place: str | None = None) -> None:
        line = " ".join(str(message).splitlines())
        if len(line) > LONGEST:
            line = f"{line[: LONGEST // 2]} … {line[-LONGEST // 4 :]}"
        super().__init__(printable(line))
        _, separator, remedy = line.rpartition("; ")
        before, colon, _ = line.partition("; ")[0].partition(": ")
        self.place = place if place is not None else before if colon else ""
        self.remedy = remedy if separator else ""

    def with_message(self, message: str) -> "InputError":
        """Return an error of the same kind with another message, such as one that says more about the place."""
        return input_error(message, self.kind)


class MissingError(InputError):
    """A file, a run, a column or a page that is named is not there."""

    kind = "missing"


class RequiredError(InputError):
    """Something that must be given is not given."""

    kind = "required"


class ExistsError(InputError):
    """It is there already, or is read, and would be overwritten."""

    kind = "exists"


class UnknownNameError(InputError):
    """A name that nothing has: of a verb, an option, a key, a layer, a task, a format, a label."""

    kind = "unknown"


class DuplicateError(InputError):
    """It is given twice, or is there twice."""

    kind = "duplicate"


class ConflictError(InputError):
    """Options or settings that cannot be combined."""

    kind = "conflict"


class RangeError(InputError):
    """A value of the wrong type, or outside its limits."""

    kind = "range"


class MalformedError(InputError):
    """Text that cannot be parsed: not UTF-8, YAML or JSON, a row with too few fields."""

    kind = "malformed"


class EmptyError(InputError):
    """There are no rows, no text, nothing to learn from."""

    kind = "empty"


class DamagedError(InputError):
    """A file that Seriatim wrote is incomplete, or was changed."""

    kind = "damaged"


class MismatchError(InputError):
    """Things that do not belong together, or differ in size."""

    kind = "mismatch"


class AmbiguousError(InputError):
    """It can be read in several ways."""

    kind = "ambiguous"


class SizeError(InputError):
    """Too large, too long or too many."""

    kind = "size"


class NotSupportedError(InputError):
    """This model, task, layer or format cannot do that."""

    kind = "unsupported"


class UnavailableError(InputError):
    """A package, a device, a port or a network that this machine lacks."""

    kind = "unavailable"


class UnreadableError(InputError):
    """The system could not read a file; another attempt may succeed."""

    kind = "unreadable"


class UnwritableError(InputError):
    """The system refuses to write, or the name cannot be that of a folder."""

    kind = "unwritable"


class ForbiddenError(InputError):
    """Refused for safety: code, links, hosts, keys."""

    kind = "forbidden"


class BusyError(InputError):
    """It is locked, or in use."""

    kind = "busy"


class FixedError(InputError):
    """It cannot change any more."""

    kind = "fixed"


class ContractError(InputError):
    """A layer, a cell or a task of the user's own does not do what the contract asks."""

    kind = "contract"


def input_error(message: str, kind: str) -> InputError:
    """Return an error of a kind, such as one that another process has reported."""
    known = {each.kind: each for each in InputError.__subclasses__() if each.__init__ is InputError.__init__}
    return known.get(kind, InputError)(message)


class ProblemsError(InputError):
    """Several problems of the input, each of which is reported on a line of its own; ``problems`` are these lines."""

    kind = "several"

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(dict.fromkeys(problems))
        super().__init__("; also: ".join(self.problems))


class TrainingError(RuntimeError):
    """Training cannot continue, although the input is valid."""


def is_reported_elsewhere(error: BaseException) -> bool:
    """Return whether another process of the same command reports an error.

    An error that has no note happened before the processes joined; the first process of each machine reports it.
    """
    notes = getattr(error, "__notes__", ())
    return REPORTED_ELSEWHERE in notes or (REPORTED_HERE not in notes and os.environ.get("LOCAL_RANK", "0") != "0")


def known_reason(error: Exception) -> str | None:
    """Return one line for an error in the input, the training, the files or the memory; None for other errors."""
    if isinstance(error, InputError | TrainingError):
        return str(error)
    if isinstance(error, OSError) and error.errno != errno.ENOMEM:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}; check space and permissions"
    if isinstance(error, OSError) or is_out_of_memory(error):
        return "out of memory; lower training.batch_size, training.sequence_length or the sizes"
    return None


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error says that there is too little memory; PyTorch has no class for that of the processor."""
    line = first_line(error) if isinstance(error, RuntimeError) else ""
    return isinstance(error, MemoryError) or "alloc" in line or "size calculation overflowed" in line


@contextmanager
def enough_memory(what: str) -> Iterator[None]:
    """Raise InputError if something that a caller asked for, whose sizes it chose, does not fit into the memory."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise SizeError(f"{what}: larger than the memory of this machine; choose smaller sizes") from None


def first_line(error: BaseException) -> str:
    """Return the first line of a message."""
    return next(iter(str(error).strip().splitlines()), "")


def printable(text: str) -> str:
    """Return a line of text with control characters escaped as in Python, so that no terminal obeys them."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def visible(text: str) -> str:
    """Return lines of text for a terminal: what it would obey is escaped as in Python and JSON, all else is kept."""
    return OBEYED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def shown(value: object) -> str:
    """Return a user's value as a message shows it: on one line, text in quotes, shortened where it is long."""
    if isinstance(value, str):
        return repr(value if len(value) <= SHOWN else f"{value[:SHOWN]}…")
    try:
        text = repr(value)
    except ValueError:  # an integer with more digits than Python converts to text
        return "a number of thousands of digits"
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 15]} … {text[-15:]}"


def nearest(word: str, known: Sequence[str]) -> str:
    """Return a hint for an unknown word: the nearest known word, or all of them if a message can hold them."""
    close = closest(word, known)
    if close:
        return f"did you mean {shown(close)}?"
    choices = ", ".join(known)
    if not known:
        return "there is none here"
    return f"choose from {choices}" if len(choices) <= LISTED else f"choose one of the {len(known):,} known"


def require_known(kind: str, word: str, known: Iterable[str]) -> str:
    """Return ``word``, or raise InputError with the nearest known word if it is unknown; ``kind`` says what it is."""
    if word not in (choices := list(known)):
        raise UnknownNameError(f"unknown {kind} {word!r}; {nearest(word, choices)}")
    return word


def require_current_folder() -> None:
    """Raise InputError if the current folder was deleted, where PyTorch may end the process when it is imported."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise MissingError("the current folder was deleted; change to one that exists, for instance: cd ~") from None


def closest(word: str, known: Sequence[str]) -> str | None:
    """Return the known word that is most similar, or None. Very many and very long words are not compared."""
    candidates = [candidate for candidate in known[:LOOKED_AT] if max(len(candidate), len(word)) <= SHOWN]
    return next(iter(difflib.get_close_matches(word, candidates, 1)), None)


# Checks of arguments that are passed from Python


LARGEST = 2.0**126
"""The largest number of a setting, 8.5e37: float32 holds it and its inverse, 1.2e-38, without loss of digits."""


def is_text(text: str) -> bool:
    """Return whether a string can be written in UTF-8; JSON can also spell half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_text(value: object, name: str) -> None:
    """Raise InputError if ``value`` is not a string, or has no UTF-8 encoding; the message begins with ``name``."""
    if not isinstance(value, str):
        raise RangeError(f"{name}: {shown(value)} is of type {type(value).__name__}; give a string")
    if not is_text(value):
        raise MalformedError(f"{name}: {shown(value)} is not UTF-8 text; remove its surrogate characters")


def iterate_items(items: object, name: str) -> Iterator[Any]:
    """Iterate over several inputs; raise InputError for a single text, a mapping, or what is not iterable."""
    if isinstance(items, str | bytes):
        raise RangeError(f"{name}: {shown(items)} is a single text; give a list of texts, such as [text]")
    if not isinstance(items, Iterable) or isinstance(items, Mapping):
        raise RangeError(f"{name}: {shown(items)} is of type {type(items).__name__}; give a list of texts")
    return iter(items)


def check_integer(name: str, value: object, *, minimum: int | None = None) -> int:
    """Return an integer of any type as Python's; raise InputError for other values, and for less than ``minimum``."""
    if isinstance(value, Integral) and not isinstance(value, bool) and (minimum is None or int(value) >= minimum):
        return int(value)
    limits = "" if minimum is None else f" of at least {minimum}"
    raise RangeError(f"{name}: {shown(value)} is not an integer{limits}; give one")


def check_number(name: str, value: object, kind: str, fits: Callable[[float], bool] = lambda _: True) -> float:
    """Return a real number of any type as a float; ``kind`` says in the message what it must be.

    Raises:
        InputError: the value is no number, it is NaN, it does not fit, it exceeds `LARGEST`, or it is so small that the
            float is 0.
    """
    if isinstance(value, Real) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:  # an integer or a fraction may be larger than any float
            number = math.inf
        if abs(number) <= LARGEST and (number or not value) and fits(number):
            return number
    raise RangeError(f"{name}: {shown(value)} is not {kind}; give one")


def data_name(data: object) -> str:
    """Return the name of some data; raise InputError if it is neither a string nor a path."""
    if not isinstance(data, str | os.PathLike):
        raise RangeError(f"data: {shown(data)} is not a name; give that of a file or a corpus")
    return str(os.fspath(data))
