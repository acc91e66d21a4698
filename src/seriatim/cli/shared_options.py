"""Options that several verbs share, and helpers of the verbs."""

import argparse
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from ..core.errors import InputError, shown

if TYPE_CHECKING:
    from ..layers.outside_code import AllowCode
    from ..runs.run import Run

FORMATS = ("auto", "text", "jsonl", "tsv", "csv", "fasttext", "conllu", "conll")
FIELDS_HELP = """\
Any field of the configuration can be set by its full name, or by the last part of its name:
  --tokenizer.kind word  --model.hidden_size 512  --training.minutes 5
  --kind word  --hidden_size 512  --minutes 5
--data is short for --data.train, and --layer for --model.layer. Options of the layer and of the task
need their full name: --model.options.num_heads 4."""
COLUMNS_HELP = """\
--data.text NAME, --data.label NAME and --data.column NAME name the columns of the data, if their names differ from
those in the run's configuration. --data.alternatives false counts each pair of equal sources."""
SEARCH = ("beam", "length_penalty", "n_best", "min_length")
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "seed")

GENERATION = ("typical", "repetition_penalty", "frequency_penalty", "presence_penalty")
"""Settings that only generated text has, beside those of `SAMPLING`."""

Verb: TypeAlias = Callable[[argparse.Namespace], None]


NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]+)?|[-+]?inf|nan", re.IGNORECASE)


def whole_number(text: str) -> int:
    """Return a whole number of an option: ASCII digits, which `int` alone would not require."""
    if re.fullmatch(r"[-+]?[0-9]{1,40}", text.strip()) is None:
        raise argparse.ArgumentTypeError(f"invalid int value: {text!r}; write it with the digits 0 to 9 alone")
    return int(text)


def number(text: str) -> float:
    """Return a number of an option: ASCII digits, with a point or an exponent, or inf."""
    if NUMBER.fullmatch(text.strip()) is None:
        raise argparse.ArgumentTypeError(f"invalid float value: {text!r}; write it with the digits 0 to 9, as in 0.5")
    return float(text)


class Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line."""

    lists_tasks = False  # whether the help lists the tasks

    def error(self, message: str) -> NoReturn:
        """Raise InputError with a message."""
        raise InputError(f"{message}; see {self.prog} --help")

    def format_help(self) -> str:
        """Return the help; the configuration, whose import takes a while, is imported only here."""
        if self.lists_tasks:
            from ..tasks.names import TASK_SUMMARIES

            tasks = [f"  {name:9} {summary}" for name, summary in TASK_SUMMARIES.items()]
            self.epilog = "\n".join(["tasks:", *tasks, "", FIELDS_HELP, "", *_list_fields()])
        return super().format_help()

    def _print_message(self, message: str, file: object = None) -> None:
        """Write the help or the version; argparse would ignore an error of the system."""
        write_out([message])

    def flags(self) -> list[str]:
        """Return the options as ``--name``."""
        return [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]


def _list_fields() -> list[str]:
    """Return the lines of the help that list the fields of the configuration, in groups, with their defaults."""
    from ..config import MAIN_HEADING, describe_fields
    from .short_forms import SHORT

    short = {field: name for name, field in SHORT.items()}
    width = shutil.get_terminal_size().columns - 2
    lines: list[str] = []
    for heading, rows in describe_fields().items():
        lines += [f"{heading}:"]
        for name, default, text in rows:
            shown = short.get(name, name.rpartition(".")[2]) if heading == MAIN_HEADING else name
            given = f"  --{shown}" + (f" {default}" if default else "")
            # Descriptions begin in one column, below a name that is too long for it.
            column = 34
            first, *others = textwrap.wrap(text, max(30, width - column)) or [""]
            beside = f"{given:{column}}{first}" if len(given) < column else f"{given}\n{'':{column}}{first}"
            lines += [beside, *(f"{'':{column}}{line}" for line in others)]
        lines.append("")
    return lines[:-1]


Verbs: TypeAlias = "argparse._SubParsersAction[Parser]"


def add_verb(verbs: Verbs, name: str, run: Verb, text: str, *, epilog: str | None = None) -> Parser:
    """Add a verb with one line of help, and more help at the end, and return its parser."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = verbs.add_parser(
        name, help=text, description=text, epilog=epilog, formatter_class=formatter, allow_abbrev=False
    )
    parser.set_defaults(run_verb=run)
    return parser


def add_task(parser: Parser) -> None:
    """Add the arguments of verbs that train."""
    parser.lists_tasks = True
    parser.add_argument("task", nargs="?", metavar="TASK", help="the kind of model; see the list of tasks below")
    text = "a YAML file, or a recipe such as builtin:awd-lstm; options on the command line override it"
    parser.add_argument("--config", metavar="FILE", help=text)
    add_strict(parser)


def add_strict(parser: argparse.ArgumentParser) -> None:
    """Add the option that refuses imperfect data."""
    parser.add_argument("--strict", action="store_true", help="refuse data that needs a repair")


def add_code(parser: argparse.ArgumentParser, named_by: str = "the run") -> None:
    """Add the options that allow code from outside the library, in a file that ``named_by`` names."""
    add = parser.add_argument
    add("--allow-code", action="store_true", help=f"import the file of your own layer that {named_by} names")
    add("--allow-changed-code", action="store_true", help="import it even if the file has changed since the training")


def add_weights(parser: argparse.ArgumentParser) -> None:
    """Add the option of rounded weights."""
    text = "round the weights of decoding to bfloat16 or int8, so that it reads fewer bytes (lm and seq2seq)"
    # the formats are those of seriatim.recurrence.weight_formats, which imports PyTorch
    parser.add_argument("--weights", choices=("float32", "bfloat16", "int8"), default="float32", help=text)


def add_search(parser: argparse.ArgumentParser) -> None:
    """Add the options of beam search."""
    add = parser.add_argument
    add(
        "--beam",
        type=whole_number,
        metavar="N",
        help="the number of hypotheses of beam search (seq2seq; default: as the run, usually 5)",
    )
    add(
        "--length-penalty",
        type=number,
        metavar="A",
        help="prefer longer answers; 0 turns this off (seq2seq; default: as the run, usually 1)",
    )
    add("--n-best", type=whole_number, metavar="N", help="the number of answers to each input, with --json (seq2seq)")
    add("--min-length", type=whole_number, metavar="N", help="the smallest number of tokens of an answer (seq2seq)")


def add_sampling(parser: argparse._ActionsContainer, *, temperature: float | None = None) -> None:
    """Add the options of sampling."""
    add = parser.add_argument
    add("--temperature", type=number, default=temperature, metavar="X", help="0 always takes the most likely token")
    add("--top-k", type=whole_number, metavar="K", help="sample from the K most likely tokens")
    add("--top-p", type=number, metavar="P", help="sample from the most likely tokens with total probability P")
    add("--min-p", type=number, metavar="P", help="sample from tokens P times as likely as the likeliest one, or more")
    add("--seed", type=whole_number, metavar="N", help="the same seed gives the same text")


def add_generation(parser: argparse._ActionsContainer) -> None:
    """Add the options of sampling that only generated text has."""
    add = parser.add_argument
    add("--typical", type=number, metavar="P", help="sample from the most typical tokens with total probability P")
    add(
        "--repetition-penalty",
        type=number,
        default=1.0,
        metavar="X",
        help="make tokens less likely that the prompt or the text already has (default: 1, no change)",
    )
    add(
        "--frequency-penalty",
        type=number,
        default=0.0,
        metavar="X",
        help="subtract X from the logit of a token for each time it was generated (default: 0)",
    )
    add(
        "--presence-penalty",
        type=number,
        default=0.0,
        metavar="X",
        help="subtract X from the logit of each token that was generated (default: 0)",
    )
    add(
        "--logit-bias",
        action="append",
        metavar="TOKEN=X",
        help="add X to the logit of a token; may be given several times, and </s> ends a text",
    )
    add("--stop", action="append", metavar="TEXT", help="end before this text; may be given several times")


def parse_biases(pairs: Iterable[str]) -> dict[str, float]:
    """Return the biases of the option ``--logit-bias`` by token."""
    biases: dict[str, float] = {}
    for pair in pairs:
        token, _, number = pair.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            value = None
        if not token or value is None:
            raise InputError(f"--logit-bias: expected TOKEN=NUMBER, got {shown(pair)}")
        if token in biases:
            raise InputError(f"--logit-bias: the token {shown(token)} is given twice; give it once")
        biases[token] = value
    return biases


def allowed(options: argparse.Namespace) -> "AllowCode":
    """Return which code from outside the library a verb may import."""
    return "changed" if options.allow_changed_code else bool(options.allow_code)


def named(options: argparse.Namespace, *names: str) -> dict[str, object]:
    """Return the options among ``names`` that were given."""
    return {name: getattr(options, name) for name in names if getattr(options, name, None) is not None}


def require_task(options: argparse.Namespace, example: str) -> dict[str, object]:
    """Return the fields of the configuration that the options set; without a task or a file, raise InputError."""
    if options.task is None and options.config is None:
        raise InputError(f"{options.verb}: no task; give one, for instance: seriatim {example}")
    return {**options.fields, **named(options, "task", "out")}


def open_run(path: str, options: argparse.Namespace) -> "Run":
    """Open a run, which reads data as the options say."""
    from ..runs.run import load

    run = load(path, allow_code=allowed(options), weights=getattr(options, "weights", "float32"))
    return run.reading(options.fields)


def write_out(pieces: Iterable[str]) -> None:
    """Write pieces of text to standard output, each at once."""
    for piece in pieces:
        sys.stdout.write(piece)
        sys.stdout.flush()
