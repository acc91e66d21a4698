"""The command: ``seriatim VERB ...``. Heavy imports wait until a verb needs them."""

import argparse
import contextlib
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TextIO

from ..core.errors import InputError, nearest, printable
from ..version import __version__
from .short_forms import dotted, spelled, split, unknown
from .streams import mute, open_standard_streams

FORMATS = ("auto", "text", "jsonl", "tsv", "csv", "conllu", "conll")
TASKS = (
    "lm: a language model",
    "mlm: a masked language model",
    "classify: a label for every text",
    "tag: a tag for every word",
    "seq2seq: a text for every text",
)
DESCRIPTION = "Sequence models on your own text: trained, measured, streamed and explained."
TRAIN_HELP = """\
Any field of the configuration can be set by its dotted name, or by the last part of it:
  --tokenizer.kind word  --model.hidden_size 512  --training.minutes 5
  --kind word  --hidden_size 512  --minutes 5
--data is short for --data.train, --layer for --model.layer. Options of the layer and of the
task have their full name: --model.options.num_heads 4. `seriatim docs configuration` lists every field."""
READ_HELP = """\
--data.text NAME, --data.label NAME and --data.column NAME name the columns of the data where they are not called as in
the run's configuration."""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see {self.prog} --help")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one verb.

    Args:
        arguments: of the command line; None for the program's own.

    Returns:
        The exit code: 0, 1 for a failure, 2 for bad input or usage, 129, 130 and 143 after
        SIGHUP, SIGINT and SIGTERM.
    """
    open_standard_streams()
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    warnings.formatwarning = lambda message, *_: f"seriatim: {printable(' '.join(str(message).splitlines()))}\n"
    try:
        return _run([argument for argument in given if argument != "--debug"])
    except BrokenPipeError:
        mute(sys.stdout)
        return 0
    except KeyboardInterrupt as error:
        hint = f"; go on with: {error.go_on}" if hasattr(error, "go_on") else ""
        return _fail(f"{str(error) or 'interrupted'}{hint}", 128 + getattr(error, "number", signal.SIGINT))
    except Exception as error:
        if _interrupted(error):
            return _fail("interrupted", 128 + signal.SIGINT)
        if debug:
            raise
        return _explain(error)
    finally:
        _flush(sys.stderr)


def _interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C is behind an error: modules written in C report it as an error of their own import."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


def _flush(stream: TextIO | None) -> None:
    """Flushes a stream while a failure can still be ignored; at exit it would change the exit code."""
    if stream is None:  # it was closed from the beginning
        return
    try:
        stream.flush()
    except (OSError, ValueError):
        mute(stream)


def _run(arguments: list[str]) -> int:
    parser = _parser()
    verb = next((argument for argument in arguments if not argument.startswith("-")), None)
    if verb is not None and verb not in parser.commands:
        raise InputError(f"unknown verb {verb!r}; {nearest(verb, list(parser.commands))}")
    first = arguments.index(verb) if verb is not None else len(arguments)
    flags = {name: _flags(each) for name, each in ((None, parser), *parser.commands.items())}
    _, rest = parser.parse_known_args(arguments[:first])
    if rest:
        raise InputError(unknown(rest[0], None, flags))
    if verb is None:
        parser.print_help()
        return 0
    own, fields = split(verb, spelled(arguments[first + 1 :], flags[verb]), flags[verb])
    options, rest = parser.commands[verb].parse_known_intermixed_args(own)
    if rest:
        raise InputError(unknown(rest[0], verb, flags))
    options.fields, options.arguments = dotted(fields), arguments
    if getattr(options, "strict", False):
        options.fields.setdefault("data.strict", True)
    from . import commands

    command: Callable[[argparse.Namespace], None] = getattr(commands, "import_" if verb == "import" else verb)
    command(options)
    return 0


def _flags(parser: argparse.ArgumentParser) -> list[str]:
    """The options of a parser, as ``--name``."""
    return [flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")]


def _explain(error: Exception) -> int:
    """One line for whatever went wrong, and the exit code."""
    from ..core.errors import ProblemsError, TrainingError

    if isinstance(error, ProblemsError):
        return max(_fail(problem, 2) for problem in error.problems)
    if isinstance(error, InputError):
        return _fail(str(error), 2)
    if isinstance(error, TrainingError):
        return _fail(str(error), 1)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}; check space and permissions", 1)
    reason = str(error).strip().splitlines() or [""]
    exhausted = isinstance(error, RuntimeError) and "alloc" in reason[0]  # what PyTorch raises where memory ends
    if isinstance(error, MemoryError) or exhausted:
        return _fail("out of memory; lower training.batch_size, training.sequence_length or the model's sizes", 1)
    return _fail(f"{type(error).__name__}: {reason[0]}; this is a fault of the program, --debug shows where", 1)


def _fail(message: str, code: int) -> int:
    with contextlib.suppress(OSError):  # where nobody reads messages, the exit code still tells
        print(f"seriatim: error: {printable(' '.join(message.splitlines()))}", file=sys.stderr)
    return code


class _Main(_Parser):
    """The parser of the command, with those of its verbs."""

    commands: dict[str, argparse.ArgumentParser]


def _parser() -> _Main:
    parser = _Main(prog="seriatim", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"seriatim {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", parser_class=_Parser)

    def verb(name: str, text: str, **more: Any) -> argparse.ArgumentParser:
        return verbs.add_parser(name, help=text, description=text, allow_abbrev=False, **more)

    def search(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--beam", type=int, metavar="N", help="hypotheses kept at once (seq2seq)")
        parser.add_argument("--length-penalty", type=float, metavar="A", help="favours long answers (seq2seq)")
        parser.add_argument("--n-best", type=int, metavar="N", help="so many answers, with --json (seq2seq)")
        parser.add_argument("--min-length", type=int, metavar="N", help="tokens at least (seq2seq)")

    def drawing(parser: argparse._ActionsContainer, *, temperature: float | None = None) -> None:
        add = parser.add_argument
        add("--temperature", type=float, default=temperature, metavar="X", help="0: always the likeliest token")
        add("--top-k", type=int, metavar="K", help="only the K likeliest tokens")
        add("--top-p", type=float, metavar="P", help="only the likeliest with probability P together")
        add("--min-p", type=float, metavar="P", help="only tokens at least P times as likely as the first")
        add("--seed", type=int, metavar="N", help="for the same text again")

    def strictly(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--strict", action="store_true", help="refuse data that needs a repair")

    def code(parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("--allow-code", action="store_true", help="import the file of a layer of your own that the run names")
        add("--allow-changed-code", action="store_true", help="the same, even if the file has changed since")

    reads = {"epilog": READ_HELP, "formatter_class": argparse.RawDescriptionHelpFormatter}
    raw = {"epilog": TRAIN_HELP, "formatter_class": argparse.RawDescriptionHelpFormatter}
    train = verb("train", "train a model on a text", **raw)
    train.add_argument("task", nargs="?", metavar="TASK", help="; ".join(TASKS))
    train.add_argument("--config", metavar="FILE", help="a YAML file; options on the command line come after it")
    train.add_argument("--out", metavar="RUN", help="the folder to write")
    train.add_argument("--overwrite", action="store_true", help="replace the run that stands there")
    train.add_argument("--resume", metavar="RUN", help="go on with a training that was cut off")
    train.add_argument("--quiet", action="store_true", help="print nothing but errors")
    strictly(train)
    code(train)

    compare = verb("compare", "train several layers under one budget, and say which suits the data", **raw)
    compare.add_argument("task", nargs="?", metavar="TASK", help="; ".join(TASKS))
    compare.add_argument("--layers", metavar="A,B,C", help="which; A+B for a stack that mixes two; see seriatim layers")
    compare.add_argument("--config", metavar="FILE", help="a YAML file; options on the command line come after it")
    budget = compare.add_argument_group("the budget of each layer", "one of these; 2 minutes where none is given")
    budget.add_argument("--minutes", type=float, metavar="M", help="of training")
    budget.add_argument("--tokens", type=int, metavar="N", help="to learn from, the second time counted too")
    budget.add_argument("--steps", type=int, metavar="N", help="of the optimizer")
    compare.add_argument("--parameters", metavar="N", help="of each layer, within 2 %%: 500k, 1M; else the first's")
    compare.add_argument(
        "--widths", metavar="W,W", help="every layer at each of these widths, instead of equal parameters: 16,32,64"
    )
    compare.add_argument("--seeds", type=int, metavar="N", help="runs of each layer")
    compare.add_argument("--tune", type=int, metavar="K", help="try K learning rates a layer, in half of its budget")
    compare.add_argument("--metric", metavar="NAME", help="the figure to rank by; else the task's first")
    compare.add_argument("--out", metavar="DIR", help="the folder to write; else comparisons/TASK-DATA")
    compare.add_argument("--overwrite", action="store_true", help="replace the comparison that stands there")
    compare.add_argument(
        "--resume", metavar="DIR", help="go on with a comparison; more --layers, --widths and --seeds may be given"
    )
    compare.add_argument("--no-report", action="store_true", help="write no report.html")
    compare.add_argument("--quiet", action="store_true", help="print nothing but errors")
    strictly(compare)
    compare.add_argument("--json", action="store_true", help="print one JSON object")
    code(compare)

    evaluate = verb("evaluate", "measure a run on a text", **reads)
    evaluate.add_argument("run", metavar="RUN", help="a run, or several with commas: the mean of their probabilities")
    evaluate.add_argument("other", metavar="OTHER", nargs="?", help="another run: do they differ significantly?")
    evaluate.add_argument("--data", required=True, metavar="F", help="file, folder, glob, - or builtin:NAME")
    evaluate.add_argument(
        "--interpolate",
        nargs="?",
        const="",
        metavar="FILE",
        help="RUN and OTHER as one language model, weights fitted on FILE; else on the held-out text of RUN's training",
    )
    evaluate.add_argument("--format", choices=FORMATS, help="of the data; else that of the run's configuration")
    search(evaluate)
    strictly(evaluate)
    evaluate.add_argument("--json", action="store_true", help="print one JSON object")
    code(evaluate)

    predict = verb("predict", "labels, tags or translations: one line in, one line out", **reads)
    predict.add_argument("run", metavar="RUN", help="a run, or several with commas: the mean of their probabilities")
    predict.add_argument("data", nargs="?", metavar="F", help="a file; else standard input, answered as it comes")
    predict.add_argument("--format", choices=FORMATS, help="of the file")
    search(predict)
    strictly(predict)
    drawing(predict.add_argument_group("drawing answers", "with any of these: instead of the best answer (seq2seq)"))
    predict.add_argument("--json", action="store_true", help="one JSON object a line, with scores and timings")
    code(predict)

    generate = verb("generate", "write text, shown as it is made")
    generate.add_argument("run", metavar="RUN")
    generate.add_argument("--prompt", default="", metavar="S", help="how the text begins; - reads standard input")
    generate.add_argument("--max-tokens", type=int, default=200, metavar="N", help="of each text, at most; else 200")
    drawing(generate, temperature=1.0)
    generate.add_argument(
        "--samples", type=int, default=1, metavar="N", help="several texts, each under a title with its seed"
    )
    generate.add_argument("--json", action="store_true", help="one JSON object a text: its seed, prompt and text")
    code(generate)

    check = verb("check", "make every check that train makes, name all that is wrong, print statistics", **raw)
    check.add_argument("task", nargs="?", metavar="TASK", help="; ".join(TASKS))
    check.add_argument("--config", metavar="FILE", help="a YAML file; options on the command line come after it")
    check.add_argument("--out", metavar="RUN", help="also check that a run can be written to this folder")
    check.add_argument("--json", action="store_true", help="print one JSON object")
    strictly(check)

    export = verb("export", "write a model as other programs read it")
    export.add_argument("run", metavar="RUN")
    export.add_argument("--format", required=True, metavar="NAME", help="arpa (n-grams)")
    export.add_argument("--out", required=True, metavar="FILE", help="compressed where an ARPA file ends in .gz")
    code(export)

    taken = verb("import", "make a run of another program's model")
    taken.add_argument("source", metavar="FILE", help="an ARPA file")
    taken.add_argument("--out", required=True, metavar="RUN", help="the folder to write")
    taken.add_argument("--overwrite", action="store_true", help="replace the run that stands there")

    inspect = verb(
        "inspect", "write a page on what a model does with a text: surprisal, attention, gates, memory", **reads
    )
    inspect.add_argument("run", metavar="RUN")
    inspect.add_argument("--text", metavar="S", help="the text to read")
    inspect.add_argument("--text-file", metavar="FILE", help="a file with the text; - for standard input")
    inspect.add_argument(
        "--permute",
        type=int,
        nargs="?",
        const=20,
        default=0,
        metavar="N",
        help="also show what changes when the words come in N other orders (20 if N is left out)",
    )
    inspect.add_argument("--data", metavar="F", help="labelled data to find errors in (default: the run's test data)")
    inspect.add_argument("--format", choices=FORMATS, help="format of the data (default: that of the run)")
    inspect.add_argument("--out", metavar="FILE", help="the page to write (default: inspect.html in the run's folder)")
    inspect.add_argument("--beam", type=int, default=5, metavar="N", help="width of beam search (seq2seq; default 5)")
    code(inspect)

    layers = verb("layers", "list every architecture")
    layers.add_argument("--layer", metavar="A,B", help="only these, with their options; also cells.py:FastSlow")
    layers.add_argument("--json", action="store_true", help="print one JSON object")
    docs = verb("docs", "print a page of the documentation")
    docs.add_argument("page", nargs="?", metavar="PAGE", help="its name; without it: the list of pages")
    parser.commands = dict(verbs.choices)
    return parser
