"""The command: ``seriatim VERB ...``, its exit codes and its standard streams. Heavy imports wait for a verb."""

import argparse
import contextlib
import importlib
import io
import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, TextIO, cast

from ..core.errors import (
    InputError,
    MalformedError,
    ProblemsError,
    UnavailableError,
    UnknownNameError,
    first_line,
    is_reported_elsewhere,
    known_reason,
    nearest,
    printable,
    require_current_folder,
    visible,
)
from ..version import __version__
from .options import Parser, Verb, parse_fields, split, unknown

DESCRIPTION = "Train, measure, stream and explain sequence models on your own text."
VERBS = {
    "train": ("train", "train a model on a text"),
    "compare": ("compare", "train several layers under one budget and compare them"),
    "evaluate": ("evaluate", "measure a run on a text"),
    "predict": ("predict", "predict labels, tags or translations: one line in, one line out"),
    "generate": ("generate", "generate text and print it token by token"),
    "check": ("train", "check the data and the configuration of a training, and print statistics"),
    "export": ("exchange", "write a model in a format of other programs"),
    "import": ("exchange", "make a run from a model of another program"),
    "surprisal": (
        "surprisal",
        "print the surprisal of every word of a text in bits, as CSV, for several models side by side",
    ),
    "inspect": (
        "inspect",
        "write a page that shows what a model does with a text: surprisal, attention, gates, memory",
    ),
    "serve": ("serve", "serve runs: an HTTP interface like that of OpenAI, and a page to try them"),
    "layers": ("reference", "list every architecture"),
    "docs": ("reference", "print a page of the documentation"),
}
"""The module in this folder that has the function ``add_VERB``, and the help, of every verb."""
VERB_HINTS = {"resume": "to resume a training, write: seriatim train --resume RUN"}
"""What to write instead of a verb that does not exist, where its nearest name is not it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb.

    Args:
        arguments: the arguments of the command line; None for those of the process.

    Returns:
        The exit code: 0; 1 for a failure; 2 for bad input or usage; 129, 130 and 143 after SIGHUP, SIGINT and SIGTERM.
    """
    warnings.formatwarning = lambda message, *_: f"seriatim: {printable(' '.join(str(message).splitlines()))}\n"
    with standard_streams():
        return _main(list(sys.argv[1:] if arguments is None else arguments))


def _main(given: list[str]) -> int:
    """Run one verb with standard streams that can be used."""
    # The option counts for every verb and before its parser, which may be what fails.
    debug = "--debug" in given
    try:
        code = _run([argument for argument in given if argument != "--debug"])
        sys.stdout.flush()  # while an error can be reported
        return code
    except OutputClosedError:
        return 0
    except KeyboardInterrupt as error:
        hint = f"; go on with: {error.go_on}" if hasattr(error, "go_on") else ""
        return _fail(f"{str(error) or 'interrupted'}{hint}", 128 + getattr(error, "number", signal.SIGINT), error)
    except Exception as error:
        if _interrupted(error):
            return _fail("interrupted", 128 + signal.SIGINT, error)
        if debug:
            raise
        return _explain(error)


def build_parser(verbs: Collection[str] = VERBS.keys()) -> tuple[Parser, Mapping[str, Parser]]:
    """Return the parser of the command, and the parser of each verb; only those of ``verbs`` get their options."""
    parser = Parser(prog="seriatim", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"seriatim {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    added = parser.add_subparsers(dest="verb", metavar="VERB", parser_class=Parser)
    for name, (module, text) in VERBS.items():
        formatter = argparse.RawDescriptionHelpFormatter
        verb = added.add_parser(name, help=text, description=text, formatter_class=formatter, allow_abbrev=False)
        if name in verbs:
            getattr(importlib.import_module(f".{module}", __package__), f"add_{name}")(verb)
    return parser, added.choices


def _run(arguments: list[str]) -> int:
    require_current_folder()
    verb = next((argument for argument in arguments if not argument.startswith("-")), None)
    parser, verbs = build_parser((verb or "",))

    # Options of the command stand before the verb, and all others after it.
    if verb is not None and verb not in verbs:
        raise UnknownNameError(_unknown_verb(verb, arguments))
    first = arguments.index(verb) if verb is not None else len(arguments)
    _, rest = parser.parse_known_args(arguments[:first])
    if rest and verb is not None:
        raise MalformedError(f"{rest[0]}: options come after the verb; write: seriatim {verb} ... {rest[0]} ...")
    if rest:
        raise UnknownNameError(unknown(rest[0], None, _all_flags()))
    if verb is None:
        parser.print_help()
        return 0

    # What the verb does not know itself may set a field of the configuration.
    verb_arguments, fields = split(verb, arguments[first + 1 :], verbs[verb].flags())
    options, rest = verbs[verb].parse_known_intermixed_args(verb_arguments)
    if rest:
        raise UnknownNameError(unknown(rest[0], verb, _all_flags()))
    options.verb, options.fields, options.arguments = verb, parse_fields(fields), arguments
    if getattr(options, "strict", False):
        options.fields.setdefault("data.strict", True)
    run_verb: Verb = options.run_verb
    run_verb(options)
    return 0


def _unknown_verb(verb: str, arguments: Sequence[str]) -> str:
    """Return the message for a verb that does not exist; it may be the value of an option before the verb."""
    early = next((argument for argument in arguments if argument.startswith("--")), None)
    later = next((argument for argument in arguments if argument in VERBS), None)
    if later is not None and early is not None and arguments.index(early) < arguments.index(verb):
        return f"{early}: options come after the verb; write: seriatim {later} ... {early} ..."
    return f"unknown verb {verb!r}; {VERB_HINTS.get(verb) or nearest(verb, list(VERBS))}"


def _all_flags() -> dict[str | None, list[str]]:
    """Return the options of every verb, and under None those of the command, as ``--name``."""
    parser, verbs = build_parser()
    return {None: parser.flags()} | {name: verb.flags() for name, verb in verbs.items()}


def _interrupted(error: BaseException | None) -> bool:
    """Return whether Ctrl-C caused an error: modules written in C report it as an error of their own import."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


def _explain(error: Exception) -> int:
    """Print one line for an error, and return the exit code."""
    if isinstance(error, ProblemsError):
        return max(_fail(problem, 2, error) for problem in error.problems)
    if isinstance(error, InputError):
        return _fail(str(error), 2, error)
    fault = f"{type(error).__name__}: {first_line(error)}; this is a fault of the program, --debug shows where"
    return _fail(known_reason(error) or fault, 1, error)


def _tell_torchrun(message: str) -> None:
    """Write an error to the file that torchrun quotes in its own report, if torchrun has started this process."""
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        with contextlib.suppress(OSError):
            Path(path).write_text(json.dumps({"message": message, "timestamp": int(time.time())}), encoding="utf-8")


def _fail(message: str, code: int, error: BaseException) -> int:
    """Print one line unless another process reports the error, and return the exit code."""
    _tell_torchrun(message)
    if is_reported_elsewhere(error):
        return code
    print(f"seriatim: error: {printable(' '.join(message.splitlines()))}", file=sys.stderr)
    return code


# Standard streams that cannot be read or written: closed pipes, lost terminals, full disks


class OutputClosedError(Exception):
    """Whoever read standard output has closed it, as ``head`` does when it has seen enough."""


def mute(stream: TextIO) -> None:
    """Discard what a stream still holds and what is written to it; otherwise Python would fail at exit."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


@contextlib.contextmanager
def standard_streams() -> Iterator[None]:
    """Give a command usable standard streams, whatever its surroundings are; afterwards those of Python are back.

    Standard output is UTF-8 whatever the locale is, its errors are named, and those of standard error are ignored. A
    terminal is shown control characters instead of obeying them. Python represents a stream that was closed at the
    start (``<&-``, ``>&-``) by None. Its replacement raises an error when it is used; if standard error is closed,
    messages are discarded.
    """
    # A closed descriptor is occupied: the next file that is opened would become a standard stream.
    if sys.stdin is None:
        _occupy(0)
        sys.stdin = cast(TextIO, _Closed("standard input is closed; open it, or give a file"))
    if sys.stdout is None:
        _occupy(1)
        sys.stdout = cast(TextIO, _Closed("standard output is closed; open it, or send it to a file"))
    elif isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    if sys.stderr is None:
        _occupy(2)
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (open until the process ends)

    # Both are wrapped after they exist, since a stream that fails must be named, and messages must not fail.
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = cast(TextIO, Output(sys.stdout)), cast(TextIO, Messages(sys.stderr))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream in before:
            try:  # while a failure can still be ignored; at exit it would change the exit code
                stream.flush()
            except (OSError, ValueError):
                mute(stream)


def _occupy(descriptor: int) -> None:
    """Reserve a descriptor, which the next file would get otherwise, and into which libraries would write."""
    with contextlib.suppress(OSError):
        os.fstat(descriptor)
        return  # another file uses it
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_RDWR)
        if null != descriptor:
            os.dup2(null, descriptor)
            os.close(null)


class _Closed:
    """A standard stream that was closed when the program started: every use raises InputError."""

    encoding, errors = "utf-8", "strict"

    def __init__(self, problem: str) -> None:
        self._problem = problem

    @property
    def buffer(self) -> "_Closed":
        return self

    def _refuse(self, *_: object) -> NoReturn:
        raise UnavailableError(self._problem)

    fileno = read = write = _refuse

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False


class _Stream:
    """A stream in the place of another one, whose other attributes it has."""

    def __init__(self, stream: TextIO, *, escapes: bool = True) -> None:
        self._stream: TextIO = stream._stream if isinstance(stream, _Stream) else stream
        with contextlib.suppress(ValueError):  # it was closed
            escapes = escapes and self._stream.isatty()
        self._escapes = escapes

    def write(self, text: str) -> int:
        """Write some text; a terminal is shown control characters as escapes."""
        self._attempt(self._stream.write, visible(text) if self._escapes else text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        self._attempt(self._stream.flush)

    def _attempt(self, method: Callable[..., object], *arguments: object) -> None:
        raise NotImplementedError

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


class Output(_Stream):
    """Standard output: an error of the system names it, and a closed pipe is an error of its own."""

    def _attempt(self, method: Callable[..., object], *arguments: object) -> None:
        try:
            method(*arguments)
        except BrokenPipeError:
            raise OutputClosedError from None
        except OSError as error:
            error.filename = "standard output"
            raise


class Messages(_Stream):
    """A stream for messages, whose loss must not end a job: after the first failure they are discarded silently.

    ``escapes`` is False for a progress bar, which gives orders to the terminal.
    """

    def __init__(self, stream: TextIO, *, escapes: bool = True) -> None:
        super().__init__(stream, escapes=escapes)
        self._failed = False

    def _attempt(self, method: Callable[..., object], *arguments: object) -> None:
        if not self._failed:
            try:
                method(*arguments)
            except (OSError, ValueError):  # ValueError: the stream is closed
                self._failed = True
                mute(self._stream)
