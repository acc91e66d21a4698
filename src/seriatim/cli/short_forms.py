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
READING_FIELDS = ("data.text", "data.label", "data.column", "data.strict")
SHORT = {"data": "data.train", "layer": "model.layer"}
"""Short forms other than the last part of the field's name."""
SYNONYMS = {"lr": "learning_rate", "max_steps": "steps", "num_epochs": "epochs", "wd": "weight_decay"}
"""The names of fields in other programs, for hints."""
OPTIONS = "model.options."


def split(verb: str, arguments: Sequence[str], flags: Iterable[str]) -> tuple[list[str], list[str]]:
    """Separate the arguments of a verb from fields of the configuration.

    Args:
        verb: the verb.
        arguments: the arguments after it.
        flags: the options of the verb, as ``--name``.

    Returns:
        The arguments of the verb, and the fields as ``--a.b=value``.

    Raises:
        InputError: a duplicate option, an ambiguous short form, a field without a value, or a field that the verb does
            not accept.
    """
    own: list[str] = []
    fields: list[str] = []
    known, seen, rest = set(flags), set(), list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--":
            return [*own, argument, *rest], fields
        option, equals, value = argument.partition("=")
        field = field_of(option) if option.startswith("--") and option not in known else None
        field = None if field is None else _taken(verb, option, field)
        if option.startswith("--") and (field or option) in seen:
            raise InputError(_repeated(option))
        seen.add(field or option)
        if field is None:
            own.append(argument)
        elif not equals and (not rest or rest[0].startswith("--")):
            raise InputError(f"{option}: no value given; a value that begins with -- needs {option}=VALUE")
        else:
            fields.append(f"--{field}={value if equals else rest.pop(0)}")
    return own, fields


def _taken(verb: str, option: str, field: str) -> str | None:
    """Return the field that an option sets for this verb; None if the verb has no such option.

    Raises:
        InputError: the dotted name of a field that only other verbs accept.
    """
    if verb in CONFIGURED or (verb in READING and field in READING_FIELDS):
        return field
    if verb in READING and option.startswith("--data."):
        known = [f"--{name}" for name in READING_FIELDS]
        raise InputError(f"{option}: {verb} does not take this option; {nearest(option, known)}")
    return None


def _repeated(option: str) -> str:
    if option in ("--data", "--valid", "--data.train", "--data.valid", "--data.test"):
        return (
            f"{option}: given twice, and only one would be read; to read several files, give their folder, or a glob "
            "in quotes such as 'texts/*.txt'"
        )
    return f"{option}: given twice; give it once"


def spelled(arguments: Sequence[str], flags: Iterable[str]) -> list[str]:
    """Return the arguments with the options spelled as in ``flags``: ``-`` and ``_`` are equal."""
    names = {flag.replace("_", "-"): flag for flag in flags}
    end = arguments.index("--") if "--" in arguments else len(arguments)
    result = []
    for argument in arguments[:end]:
        name, equals, value = argument.partition("=")
        flag = names.get(name.replace("_", "-"), name) if name.startswith("--") else name
        result.append(f"{flag}{equals}{value}")
    return [*result, *arguments[end:]]


def field_of(option: str) -> str | None:
    """Return the dotted name of the field that an option sets; None if it sets none.

    A dotted name is returned even if there is no such field; `dotted` refuses it with a hint.

    Raises:
        InputError: an ambiguous short form.
    """
    from ..config import fields

    name = option.removeprefix("--").replace("-", "_")
    if name in SHORT:
        return SHORT[name]
    if "." in name:
        return name
    matches = [field for field in fields() if field.endswith(f".{name}")]
    if len(matches) > 1:
        listed = " or ".join(f"--{field}" for field in matches)
        raise InputError(f"{option}: ambiguous; write {listed}")
    return matches[0] if matches else None


def dotted(arguments: Sequence[str]) -> dict[str, object]:
    """Return the fields of the configuration that ``--a.b value``, ``--a.b=value`` and short forms set.

    Raises:
        InputError: an unknown field, or a field without a value.
    """
    from ..config import fields, parse_value, text_fields

    known, texts = fields(), text_fields()
    values: dict[str, object] = {}
    wrong, rest = [], list(arguments)
    while rest:
        option, equals, value = rest.pop(0).partition("=")
        name = field_of(option) or option.removeprefix("--")
        if name not in known and not name.startswith(OPTIONS):
            hint = _hint(name, [option for option in _field_options() if "." in option])
            wrong.append(f"unknown option --{name}; {hint or 'seriatim docs configuration lists every field'}")
        if not equals:
            if not rest:
                raise InputError(f"--{name}: no value given")
            value = rest.pop(0)
        values[name] = value if name in texts else parse_value(value)
    if wrong:
        raise ProblemsError(wrong)
    return values


def unknown(argument: str, verb: str | None, flags: Mapping[str | None, Sequence[str]]) -> str:
    """Return the message for an argument that a verb does not accept.

    Args:
        argument: the argument.
        verb: the verb; None before any verb.
        flags: the options of every verb, as ``--name``; those of the command under None.
    """
    if not argument.startswith("-"):
        return f"unexpected argument {argument!r}; options begin with --"
    option = argument.partition("=")[0]
    if verb not in CONFIGURED and option.startswith("--") and (field := _existing(option)):
        return f"unknown option {option} of {verb or 'seriatim'}; --{field} is an option of {_listed(CONFIGURED)}"
    names = [*flags[verb], *(_field_options() if verb in CONFIGURED else ())]
    names += [f"--{name}" for name in READING_FIELDS] if verb in READING else []
    if hint := _hint(option, names):
        return f"unknown option {option}; {hint}"
    owners = [other for other in flags if other is not None and option in flags[other]]
    if owners:
        return f"unknown option {option} of {verb or 'seriatim'}; it is an option of {_listed(owners)}"
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


def _existing(option: str) -> str | None:
    """Return the field of the configuration that the option would set for another verb."""
    from ..config import fields

    field = field_of(option)
    return field if field is not None and (field in fields() or field.startswith(OPTIONS)) else None


def _field_options() -> list[str]:
    """Return all options that set fields: full names and short forms, with the options of layers and tasks."""
    from .. import layers
    from ..config import fields
    from ..tasks import TASKS

    inner = {name for layer in layers.names() for name in layers.options_of(layer)}
    inner |= {name for task in TASKS.values() if task.own_options for name in task.own_options.model_fields}
    full = fields()
    return [
        *(f"--{name}" for name in SHORT),
        *(f"--{name.rpartition('.')[2]}" for name in full),
        *(f"--{name}" for name in full),
        *(f"--{OPTIONS}{name}" for name in sorted(inner)),
    ]


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
