"""The command: ``seriatim VERB ...``. Heavy imports wait until a verb needs them."""

import contextlib
import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..core.errors import (
    InputError,
    ProblemsError,
    first_line,
    is_reported_elsewhere,
    known_reason,
    nearest,
    printable,
    require_current_folder,
)
from ..version import __version__
from .answering_verbs import add_evaluate, add_inspect, add_predict
from .generate_verb import add_generate
from .other_verbs import add_docs, add_export, add_import, add_layers
from .serve_verb import add_serve
from .shared_options import Parser, Verb
from .short_forms import parse_fields, split, unknown
from .streams import OutputClosedError, standard_streams
from .surprisal_verb import add_surprisal
from .training_verbs import add_check, add_compare, add_train

DESCRIPTION = "Train, measure, stream and explain sequence models on your own text."
VERBS = (
    *(add_train, add_compare, add_evaluate, add_predict, add_generate, add_check, add_export, add_import),
    *(add_surprisal, add_inspect, add_serve, add_layers, add_docs),
)
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


def build_parser() -> tuple[Parser, Mapping[str, Parser]]:
    """Return the parser of the command, and the parser of each verb."""
    parser = Parser(prog="seriatim", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"seriatim {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", parser_class=Parser)
    for add in VERBS:
        add(verbs)
    return parser, verbs.choices


def _run(arguments: list[str]) -> int:
    require_current_folder()
    parser, verbs = build_parser()
    flags: dict[str | None, list[str]] = {name: verb_parser.flags() for name, verb_parser in verbs.items()}
    flags[None] = parser.flags()
    verb = next((argument for argument in arguments if not argument.startswith("-")), None)
    early = next((argument for argument in arguments if argument.startswith("--")), None)
    if verb is not None and verb not in verbs:
        later = next((argument for argument in arguments if argument in verbs), None)
        if later is not None and early is not None and arguments.index(early) < arguments.index(verb):
            raise InputError(f"{early}: options come after the verb; write: seriatim {later} ... {early} ...")
        hint = VERB_HINTS.get(verb) or nearest(verb, list(verbs))
        raise InputError(f"unknown verb {verb!r}; {hint}")
    first = arguments.index(verb) if verb is not None else len(arguments)
    _, rest = parser.parse_known_args(arguments[:first])
    if rest and verb is not None:
        raise InputError(f"{rest[0]}: options come after the verb; write: seriatim {verb} ... {rest[0]} ...")
    if rest:
        raise InputError(unknown(rest[0], None, flags))
    if verb is None:
        parser.print_help()
        return 0
    verb_arguments, fields = split(verb, arguments[first + 1 :], flags[verb])
    options, rest = verbs[verb].parse_known_intermixed_args(verb_arguments)
    if rest:
        raise InputError(unknown(rest[0], verb, flags))
    options.verb, options.fields, options.arguments = verb, parse_fields(fields), arguments
    if getattr(options, "strict", False):
        options.fields.setdefault("data.strict", True)
    run_verb: Verb = options.run_verb
    run_verb(options)
    return 0


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
