"""The options of the command line: a parser, those that several verbs share, and those that set fields.

A field of the configuration is set by its dotted name (``--training.steps 100``), or by the last part of its name if
that is unambiguous (``--steps 100``). ``-`` and ``_`` are equal in every option. The options of a verb take precedence:
``--minutes`` of ``compare`` is its budget.
"""

import argparse
import gc
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from ..core import errors
from ..core.errors import closest, nearest, shown

if TYPE_CHECKING:
    from ..layers.outside_code import AllowCode
    from ..runs.run import Run

RUNS_HELP = "a run, or several separated by commas, whose probabilities are averaged"
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

CONFIGURED = ("train", "check", "compare")
"""The verbs that accept every field of the configuration."""
READING = ("evaluate", "predict", "inspect")
"""The verbs that read data for a run, and accept the fields in ``READING_FIELDS``."""
READING_FIELDS = (
    *("data.text", "data.label", "data.column", "data.features", "data.strict"),
    *("data.spellings", "data.alternatives", "data.markers"),
)
SHORT = {"data": "data.train", "layer": "model.layer"}
"""Short forms other than the last part of the field's name."""
SYNONYMS = {"lr": "learning_rate", "max_steps": "steps", "num_epochs": "epochs", "wd": "weight_decay"}
"""The names of fields in other programs, for hints."""
OPTIONS = "model.options."
REPEATABLE = ("--logit-bias", "--stop")
"""Options that may be given several times."""
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


def whole_numbers(text: str) -> list[int]:
    """Return the whole numbers that commas separate."""
    return [whole_number(part) for part in text.split(",") if part.strip()]


def numbers(text: str) -> list[float]:
    """Return the numbers that commas separate."""
    return [number(part) for part in text.split(",")]


class Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line."""

    lists_tasks = False  # whether the help lists the tasks and the fields of the configuration
    hidden_fields: Collection[str] = ()  # fields that the verb refuses

    def error(self, message: str) -> NoReturn:
        """Raise InputError with a message, whose place is the option."""
        remedy = "" if "; " in message else f"; see {self.prog} --help"
        kind = errors.RequiredError if "required" in message else errors.RangeError
        raise kind(f"{message.removeprefix('argument ')}{remedy}")

    def format_help(self) -> str:
        """Return the help; the configuration, whose import takes a while, is imported only here."""
        if self.lists_tasks:
            from ..tasks.names import TASK_SUMMARIES

            tasks = [f"  {name:9} {summary}" for name, summary in TASK_SUMMARIES.items()]
            self.epilog = "\n".join(
                ["tasks:", *tasks, "", FIELDS_HELP, "", *_list_fields({*self.flags(), *self.hidden_fields})]
            )
        return super().format_help()

    def _print_message(self, message: str, file: object = None) -> None:
        """Write the help or the version; argparse would ignore an error of the system."""
        write_out([message])

    def flags(self) -> list[str]:
        """Return the options as ``--name``."""
        return [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]


def _list_fields(hidden: Collection[str]) -> list[str]:
    """Return the lines of the help that list the fields of the configuration, in groups, with their defaults.

    A field is left out if it is among the ``hidden`` ones, or if its short form is, which is an option of the verb.
    """
    from ..config import MAIN_HEADING, describe_fields

    short = {field: name for name, field in SHORT.items()}
    width = shutil.get_terminal_size().columns - 2
    lines: list[str] = []
    for heading, rows in describe_fields().items():
        lines += [f"{heading}:"]
        for name, default, text in rows:
            alone = short.get(name, name.rpartition(".")[2])
            if name in hidden or f"--{alone}" in hidden:
                continue
            shown = alone if heading == MAIN_HEADING else name
            given = f"  --{shown}" + (f" {default}" if default else "")
            # Descriptions begin in one column, below a name that is too long for it.
            column = 34
            first, *others = textwrap.wrap(text, max(30, width - column)) or [""]
            beside = f"{given:{column}}{first}" if len(given) < column else f"{given}\n{'':{column}}{first}"
            lines += [beside, *(f"{'':{column}}{line}" for line in others)]
        lines.append("")
    return lines[:-1]


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
    text = "round the weights of decoding to bfloat16, int8 or int4, so that it reads fewer bytes (lm and seq2seq)"
    # the formats are those of seriatim.recurrence.weight_formats, which imports PyTorch
    parser.add_argument("--weights", choices=("float32", "bfloat16", "int8", "int4"), default="float32", help=text)


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
        token, _, bias = pair.rpartition("=")
        if not token or NUMBER.fullmatch(bias.strip()) is None:
            raise errors.MalformedError(f"--logit-bias: {shown(pair)} is not TOKEN=NUMBER; write for instance the=-2")
        if token in biases:
            raise errors.DuplicateError(f"--logit-bias: the token {shown(token)} is given twice; give it once")
        biases[token] = float(bias)
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
        raise errors.RequiredError(f"{options.verb}: no task; give one, for instance: seriatim {example}")
    return {**options.fields, **named(options, "task", "out")}


def open_run(path: str, options: argparse.Namespace) -> "Run":
    """Open a run, which reads data as the options say."""
    from .. import load

    run = load(path, allow_code=allowed(options), weights=getattr(options, "weights", "float32"))
    gc.freeze()  # what a run consists of stays, so that no collection need look at it
    return run.reading(options.fields)


def open_answering(paths: str, options: argparse.Namespace) -> "Run":
    """Open what answers: a run, or the ensemble of several with commas between them."""
    runs = [open_run(path, options) for path in paths.split(",")]
    if len(runs) == 1:
        return runs[0]
    from ..runs.ensembles import ensemble

    return ensemble(runs)


def answer_settings(options: argparse.Namespace, run: "Run") -> dict[str, object]:
    """Return the settings of beam search and sampling that were given; the task of the run must have them."""
    settings = named(options, *SEARCH, *SAMPLING)
    for name in settings:
        if name not in run.predictor.settings.model_fields:
            raise errors.NotSupportedError(
                f"--{name.replace('_', '-')}: not an option of the task {run.config.task}; leave it out"
            )
    return settings


def write_out(chunks: Iterable[str]) -> None:
    """Write chunks of text to standard output, each at once."""
    for chunk in chunks:
        sys.stdout.write(chunk)
        sys.stdout.flush()


# Options that set fields of the configuration


def split(verb: str, arguments: Sequence[str], flags: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Separate the arguments of a verb, with options spelled as in ``flags``, from fields by dotted name.

    Raises:
        InputError: a duplicate option, an ambiguous short form, a field without a value, or another verb's field.
    """
    known = {flag.replace("_", "-"): flag for flag in flags}
    verb_arguments: list[str] = []
    fields: dict[str, str] = {}
    seen: set[str] = set()
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--":
            return [*verb_arguments, argument, *rest], fields
        if not argument.startswith("--"):
            verb_arguments.append(argument)
            continue

        # An option of the verb itself comes before a field of the same short name.
        option, equals, value = argument.partition("=")
        flag = known.get(option.replace("_", "-"))
        field = _field_for(verb, option) if flag is None else None
        name = field or flag or option
        if name in seen and name not in REPEATABLE:
            files = option in ("--data", "--valid", "--data.train", "--data.valid", "--data.test")
            several = "to read several files, give their folder, or a glob in quotes such as 'texts/*.txt'"
            reason, remedy = (", and only one would be read", several) if files else ("", "give it once")
            raise errors.DuplicateError(f"{option}: given twice{reason}; {remedy}")
        seen.add(name)
        if field is None:
            verb_arguments.append(f"{name}{equals}{value}")
        elif not equals and (not rest or rest[0].startswith("--")):
            raise errors.RequiredError(f"{option}: no value given; a value that begins with -- needs {option}=VALUE")
        else:
            fields[field] = value if equals else rest.pop(0)
    return verb_arguments, fields


def _field_for(verb: str, option: str) -> str | None:
    """Return the field that an option sets for this verb; None if the verb has no such option."""
    field = _field_of(option)
    if field is None or verb in CONFIGURED or (verb in READING and field in READING_FIELDS):
        return field
    if verb in READING and option.startswith("--data."):
        known = [f"--{name}" for name in READING_FIELDS]
        raise errors.UnknownNameError(f"{option}: {verb} does not take this option; {nearest(option, known)}")
    return None


def _field_of(option: str) -> str | None:
    """Return the dotted name of the field that an option sets, whether it exists or not; None if it sets none."""
    from ..config import fields

    name = option.removeprefix("--").replace("-", "_")
    if "." in name or name in SHORT:
        return SHORT.get(name, name)
    matches = [field for field in fields() if field.endswith(f".{name}")]
    if len(matches) > 1:
        listed = " or ".join(f"--{field}" for field in matches)
        raise errors.AmbiguousError(f"{option}: ambiguous; write {listed}")
    return matches[0] if matches else None


def parse_fields(texts: Mapping[str, str]) -> dict[str, object]:
    """Return the values of fields, given their texts by dotted name; unknown fields raise ProblemsError."""
    from ..config import fields, parse_value, text_fields

    known, plain = fields(), text_fields()
    if wrong := [name for name in texts if name not in known and not name.startswith(OPTIONS)]:
        full = [option for option in _field_options() if "." in option]
        hints = [_hint(name, full) or "seriatim docs configuration lists every field" for name in wrong]
        raise errors.ProblemsError(f"unknown option --{name}; {hint}" for name, hint in zip(wrong, hints, strict=True))
    return {name: text if name in plain else parse_value(text) for name, text in texts.items()}


def unknown(argument: str, verb: str | None, flags: Mapping[str | None, Sequence[str]]) -> str:
    """Return the message for an argument that a verb, or the command if that is None, does not accept.

    ``flags`` are the options of every verb, as ``--name``; those of the command are under None.
    """
    from ..config import fields

    if not argument.startswith("-"):
        return f"unexpected argument {argument!r}; options begin with --"
    option, command = argument.partition("=")[0], verb or "seriatim"
    if option == "--task" and verb in CONFIGURED:
        return f"--task: the task is no option; write it after the verb, for instance: seriatim {verb} lm"
    if verb not in CONFIGURED and option.startswith("--"):
        field = _field_of(option)
        if field is not None and (field in fields() or field.startswith(OPTIONS)):
            return f"unknown option {option} of {command}; --{field} is an option of {_listed(CONFIGURED)}"

    # The nearest option of this verb is a better hint than another verb that has this very option.
    names = [*flags[verb], *(_field_options() if verb in CONFIGURED else ())]
    names += [f"--{name}" for name in READING_FIELDS] if verb in READING else []
    if hint := _hint(option, names):
        return f"unknown option {option}; {hint}"
    if owners := [other for other in flags if other is not None and option in flags[other]]:
        return f"unknown option {option} of {command}; it is an option of {_listed(owners)}"
    return f"unknown option {option}; see seriatim {f'{verb} ' if verb else ''}--help"


def _hint(option: str, names: Sequence[str]) -> str | None:
    """Return a hint with the nearest option, by its full name or the last part of it; None if none is near."""

    def plain(name: str) -> str:
        return name.strip("-").replace("-", "_")

    known = {plain(name).rpartition(".")[2]: name for name in reversed(names)} | {plain(name): name for name in names}
    word = SYNONYMS.get(plain(option), plain(option))
    matches = [name for name in (word, word.rpartition(".")[2]) if name in known]
    close = matches[0] if matches else closest(word, list(known))
    return None if close is None else f"did you mean {known[close]!r}?"


def _field_options() -> list[str]:
    """Return all options that set fields: full names and short forms, with the options of layers and tasks."""
    from .. import layers
    from ..config import fields
    from ..tasks import TASKS

    inner = {name for layer in layers.names() for name in layers.options_of(layer)}
    inner |= {name for task in TASKS.values() if task.options for name in task.options.model_fields}
    full = fields()
    short = [*SHORT, *(name.rpartition(".")[2] for name in full)]
    return [f"--{name}" for name in (*short, *full, *(f"{OPTIONS}{name}" for name in sorted(inner)))]


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
