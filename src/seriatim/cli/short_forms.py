"""Command-line options that set fields of the configuration: full names, short forms and hints.

A field is set by its dotted name (``--training.steps 100``), or by the last part of its name if that is unambiguous
(``--steps 100``). ``-`` and ``_`` are equal in every option. The options of a verb take precedence: ``--minutes`` of
``compare`` is its budget.
"""

from collections.abc import Iterable, Mapping, Sequence

from ..core.errors import InputError, ProblemsError, closest, nearest

CONFIGURED = ("train", "check", "compare")
"""The verbs that accept every field of the configuration."""
READING = ("evaluate", "predict", "inspect")
"""The verbs that read data for a run, and accept the fields in ``READING_FIELDS``."""
READING_FIELDS = (
    *("data.text", "data.label", "data.column", "data.strict"),
    *("data.spellings", "data.alternatives", "data.markers"),
)
SHORT = {"data": "data.train", "layer": "model.layer"}
"""Short forms other than the last part of the field's name."""
SYNONYMS = {"lr": "learning_rate", "max_steps": "steps", "num_epochs": "epochs", "wd": "weight_decay"}
"""The names of fields in other programs, for hints."""
OPTIONS = "model.options."
REPEATABLE = ("--logit-bias", "--stop")
"""Options that may be given several times."""


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
        option, equals, value = argument.partition("=")
        flag = known.get(option.replace("_", "-"))
        field = _field_for(verb, option) if flag is None else None
        name = field or flag or option
        if name in seen and name not in REPEATABLE:
            files = option in ("--data", "--valid", "--data.train", "--data.valid", "--data.test")
            several = "to read several files, give their folder, or a glob in quotes such as 'texts/*.txt'"
            remedy = f", and only one would be read; {several}" if files else "; give it once"
            raise InputError(f"{option}: given twice{remedy}")
        seen.add(name)
        if field is None:
            verb_arguments.append(f"{name}{equals}{value}")
        elif not equals and (not rest or rest[0].startswith("--")):
            raise InputError(f"{option}: no value given; a value that begins with -- needs {option}=VALUE")
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
        raise InputError(f"{option}: {verb} does not take this option; {nearest(option, known)}")
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
        raise InputError(f"{option}: ambiguous; write {listed}")
    return matches[0] if matches else None


def parse_fields(texts: Mapping[str, str]) -> dict[str, object]:
    """Return the values of fields, given their texts by dotted name; unknown fields raise ProblemsError."""
    from ..config import fields, parse_value, text_fields

    known, plain = fields(), text_fields()
    if wrong := [name for name in texts if name not in known and not name.startswith(OPTIONS)]:
        full = [option for option in _field_options() if "." in option]
        hints = [_hint(name, full) or "seriatim docs configuration lists every field" for name in wrong]
        raise ProblemsError(f"unknown option --{name}; {hint}" for name, hint in zip(wrong, hints, strict=True))
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
    parts = [part for part in (word, word.rpartition(".")[2]) if part in known]
    close = parts[0] if parts else closest(word, list(known))
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
